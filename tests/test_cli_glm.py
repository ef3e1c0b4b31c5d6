"""`remnant reconstruct glm`: the missing record of a linear model, feature by feature."""

import json

import numpy as np
import pytest
from safetensors.torch import load_file
from sklearn.datasets import load_diabetes
from sklearn.linear_model import LinearRegression, Ridge

from remnant.cli import main
from remnant.models.linear_estimators import save_linear


@pytest.fixture
def folder(tmp_path):
    inputs, targets = load_diabetes(return_X_y=True, scaled=False)
    save_linear(tmp_path / "model.json", Ridge(alpha=2.0).fit(inputs, targets))
    np.savez(tmp_path / "known.npz", x=inputs[1:], y=targets[1:])
    np.savez(tmp_path / "fewer.npz", x=inputs[2:], y=targets[2:])
    return tmp_path


def flags(folder, known="known.npz"):
    held = ["--coefficients", str(folder / "model.json"), "--known", str(folder / known)]
    return ["reconstruct", "glm", *held, "--out", str(folder / "out")]


def test_the_missing_record_comes_back(folder, capsys):
    inputs, targets = load_diabetes(return_X_y=True, scaled=False)
    assert main(flags(folder)) == 0
    said = capsys.readouterr().out
    assert "glm: inconclusive" in said  # one output: nothing is left over to check it
    assert f"label: {targets[0]:g}" in said
    found = load_file(folder / "out/candidates.safetensors")["inputs"][0].numpy()
    assert np.allclose(found, inputs[0], rtol=1e-8)


def test_several_missing_records_are_inconclusive(folder, capsys):
    total = ["--records", "442", "--json"]
    assert main([*flags(folder, "fewer.npz"), *total]) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] == "inconclusive"


def test_a_file_that_is_not_coefficients_is_one_line(folder, capsys):
    (folder / "model.json").write_text("{}")
    assert main(flags(folder)) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_a_regression_says_that_nothing_is_left_over_to_check_it(folder, capsys):
    assert main([*flags(folder, "fewer.npz"), "--json"]) == 0  # two are missing, one is assumed
    finding = json.loads(capsys.readouterr().out)
    assert not finding["figures"]["checked"]
    assert "no equation over to check this" in finding["reason"]


def test_a_told_label_keeps_its_digits(tmp_path):
    inputs, targets = load_diabetes(return_X_y=True, scaled=False)
    inputs = inputs - inputs.mean(0)
    plain = LinearRegression(fit_intercept=False).fit(inputs, targets)
    save_linear(tmp_path / "model.json", plain)
    np.savez(tmp_path / "known.npz", x=inputs[1:], y=targets[1:])
    label = targets[0] + 0.1
    targets[0] = label
    save_linear(tmp_path / "model.json", plain.fit(inputs, targets))
    assert main([*flags(tmp_path), "--label", repr(float(label))]) == 0
    found = load_file(tmp_path / "out/candidates.safetensors")["inputs"].numpy()
    assert min(np.abs(one - inputs[0]).max() for one in found) < 1e-9
