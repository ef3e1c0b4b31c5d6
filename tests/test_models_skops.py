"""skops files: the same model as from the estimator in memory, and one line for anything else."""

import json
import zipfile

import numpy as np
import pytest
import torch
from sklearn.datasets import load_diabetes, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge
from sklearn.pipeline import make_pipeline
from sklearn.preprocessing import StandardScaler

from remnant.errors import WeightsError
from remnant.models.linear_estimators import from_estimator
from remnant.models.linear_files import read_linear
from skops_format import write_skops

WINE = load_wine(return_X_y=True)
DIABETES = load_diabetes(return_X_y=True)
FITTED = {
    "linear": LinearRegression().fit(*DIABETES),
    "ridge": Ridge(alpha=2.0).fit(*DIABETES),
    "poisson": PoissonRegressor(alpha=0.1).fit(*DIABETES),
    "logistic": make_pipeline(
        StandardScaler(), LogisticRegression(C=0.5, class_weight="balanced")
    ).fit(WINE[0], WINE[1] > 0),
    "multinomial": make_pipeline(StandardScaler(), LogisticRegression()).fit(*WINE),
}


@pytest.mark.parametrize("name", FITTED)
def test_the_model_is_the_same_as_the_estimator_s(tmp_path, name):
    write_skops(tmp_path / "m.skops", FITTED[name])
    read, wanted = read_linear(tmp_path / "m.skops"), from_estimator(FITTED[name])
    assert torch.equal(read.dense.weight, wanted.dense.weight)
    assert torch.equal(read.dense.bias, wanted.dense.bias)
    assert torch.equal(read.scaling.mean, wanted.scaling.mean)
    for field in ("family", "penalty", "tolerance", "classes", "class_weight", "solver"):
        assert getattr(read, field) == getattr(wanted, field), field


def edited(path, change):
    """The ridge file with its schema changed."""
    write_skops(path, FITTED["ridge"])
    with zipfile.ZipFile(path) as archive:
        held = {info.filename: archive.read(info) for info in archive.infolist()}
    schema = json.loads(held["schema.json"])
    change(schema, held)
    with zipfile.ZipFile(path, "w") as archive:
        for name, raw in (held | {"schema.json": json.dumps(schema).encode()}).items():
            archive.writestr(name, raw)


def deep(schema, held):
    for _ in range(400):
        schema["content"] = {"__loader__": "ListNode", "content": [schema["content"]]}


def huge_array(schema, held):
    file = schema["content"]["content"]["coef_"]["file"]
    held[file] = held[file].replace(b"(10,)", b"(9999999999,)")[: len(held[file])]


CHANGES = {
    "another estimator": lambda s, h: s.update(__class__="SVC"),
    "not fitted": lambda s, h: s["content"]["content"].pop("coef_"),
    "no loader": lambda s, h: s.pop("__loader__"),
    "a function": lambda s, h: s.update(__loader__="FunctionNode", __class__="system"),
    "missing file": lambda s, h: s["content"]["content"]["coef_"].update(file="../x.npy"),
    "coef is text": lambda s, h: s["content"]["content"].update(
        coef_={"__loader__": "JsonNode", "content": '"many"'}
    ),
    "deep": deep,
    "huge array": huge_array,
}


@pytest.mark.parametrize("name", CHANGES)
def test_a_malformed_archive_is_one_line(tmp_path, name):
    edited(tmp_path / "m.skops", CHANGES[name])
    with pytest.raises(WeightsError, match=r"m\.skops: ") as caught:
        read_linear(tmp_path / "m.skops")
    assert "\n" not in str(caught.value)


def test_a_member_named_often_is_read_once(tmp_path):
    def often(schema, held):
        held["big.npy"] = held[schema["content"]["content"]["coef_"]["file"]]
        node = schema["content"]["content"]["coef_"] | {"file": "big.npy"}
        schema["content"]["content"] |= {f"a{i}": node for i in range(1000)}

    edited(tmp_path / "m.skops", often)
    assert read_linear(tmp_path / "m.skops").dense.weight.shape == (1, 10)


@pytest.mark.parametrize("raw", [b"", b"hello", b"PK\x03\x04" + b"0" * 50], ids=str)
def test_other_files_are_one_line(tmp_path, raw):
    (tmp_path / "other.skops").write_bytes(raw)
    with pytest.raises(WeightsError, match=r"other\.skops"):
        read_linear(tmp_path / "other.skops")


def test_a_file_that_is_not_there_or_has_no_schema(tmp_path):
    with pytest.raises(WeightsError, match="no such file"):
        read_linear(tmp_path / "none.skops")
    with open(tmp_path / "a.skops", "wb") as file:
        np.savez(file, x=np.zeros(3))
    with pytest.raises(WeightsError, match="schema"):
        read_linear(tmp_path / "a.skops")
