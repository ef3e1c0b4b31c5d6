"""What a user types -> records: bundled sets, paths, the data directory, and one-line errors."""

import numpy as np
import pytest
import torch

from remnant.data import BUNDLED, load
from remnant.errors import DataError

SHAPES = {
    "mnist": (5000, 1, 28, 28),
    "digits": (1797, 1, 8, 8),
    "faces": (100, 1, 25, 25),
    "breast_cancer": (569, 30),
    "diabetes": (442, 10),
}


@pytest.fixture(autouse=True)
def _no_data_directory(monkeypatch):
    monkeypatch.delenv("REMNANT_DATA", raising=False)


def save(path, n=4, seed=0):
    pixels = np.random.default_rng(seed).integers(0, 256, (n, 3, 3), dtype=np.uint8)
    np.savez(path, x=pixels, y=np.arange(n))
    return torch.from_numpy(pixels[:, None]) / 255


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_set_has_its_shape_types_and_ids(name):
    examples = load(name)
    assert tuple(examples.inputs.shape) == SHAPES[name]
    assert examples.name == name
    table = name in ("breast_cancer", "diabetes")
    assert examples.inputs.dtype == (torch.float64 if table else torch.float32)
    assert examples.labels.dtype == (torch.float64 if name == "diabetes" else torch.int64)
    assert examples.ids[0] == f"{name}-00000"
    assert examples.ids[-1] == f"{name}-{len(examples) - 1:05d}"
    if len(examples.shape) == 3:
        assert examples.bounds == (0.0, 1.0)
        assert float(examples.inputs.min()) == 0
        assert float(examples.inputs.max()) == 1
    else:
        assert examples.bounds is None


def test_bundled_labels_are_those_of_the_source():
    assert torch.equal(load("mnist").labels.bincount(), torch.full((10,), 500))
    assert load("faces").labels.tolist() == [i % 10 for i in range(100)]
    assert load("breast_cancer").labels.bincount().tolist() == [212, 357]
    assert load("diabetes").labels[0] == 151


def test_a_changed_copy_does_not_change_the_next_one():
    first = load("mnist")
    first.inputs.zero_()
    first.labels.zero_()
    assert float(load("mnist").inputs.max()) == 1
    assert int(load("mnist").labels.max()) == 9


def test_a_path_and_a_name_in_the_data_directory_read_the_same(tmp_path, monkeypatch):
    pixels = save(tmp_path / "own.npz")
    wanted = load(tmp_path / "own.npz")
    assert torch.equal(wanted.inputs, pixels)
    assert wanted.ids == ("own-00000", "own-00001", "own-00002", "own-00003")
    assert torch.equal(load("own", data_dir=tmp_path).inputs, pixels)
    assert torch.equal(load("own.npz", data_dir=tmp_path).inputs, pixels)
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path))
    assert torch.equal(load("own").inputs, pixels)


def test_the_argument_goes_before_the_environment(tmp_path, monkeypatch):
    for place in ("a", "b"):
        (tmp_path / place).mkdir()
    save(tmp_path / "a" / "own.npz", seed=1)
    wanted = save(tmp_path / "b" / "own.npz", seed=2)
    monkeypatch.setenv("REMNANT_DATA", str(tmp_path / "a"))
    assert torch.equal(load("own", data_dir=tmp_path / "b").inputs, wanted)


def test_a_bundled_name_goes_first_and_a_path_is_a_path(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    save(tmp_path / "mnist.npz")
    assert len(load("mnist", data_dir=tmp_path)) == 5000
    assert len(load("./mnist", data_dir=tmp_path)) == 4


def test_the_unknown_is_one_line_with_the_bundled_names_and_where_it_looked(tmp_path, monkeypatch):
    with pytest.raises(DataError, match="REMNANT_DATA") as caught:
        load("cifar10")
    assert "\n" not in str(caught.value)
    assert all(name in str(caught.value) for name in BUNDLED)
    with pytest.raises(DataError, match="looked at") as caught:
        load("cifar10", data_dir=tmp_path)
    for wanted in ("cifar10.npz", "cifar-10-binary.tar.gz", f" in {tmp_path}"):
        assert wanted in str(caught.value)


@pytest.mark.parametrize("source", ["", "a\0b", "x" * 5000, "~nobody-here/x"])
def test_a_name_that_cannot_be_a_file_is_unknown_too(source):
    with pytest.raises(DataError, match="expected a bundled name"):
        load(source)


def test_another_kind_of_file_says_which_kinds_there_are(tmp_path):
    (tmp_path / "table.xlsx").write_text("1,2\n")
    with pytest.raises(DataError, match=r"expected npz, csv, idx .* got \.xlsx"):
        load(tmp_path / "table.xlsx")
