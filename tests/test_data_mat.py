"""SVHN's file, and files that only claim to be one."""

import numpy as np
import pytest
import torch
from scipy.io import savemat

from remnant import load
from remnant.errors import DataError

PIXELS = np.random.default_rng(0).integers(0, 256, (32, 32, 3, 6), dtype=np.uint8)
CLASSES = np.array([[1], [9], [10], [2], [5], [10]], dtype=np.uint8)


@pytest.mark.parametrize("packed", [False, True])
def test_the_published_file_is_found_by_its_name(tmp_path, packed):
    savemat(tmp_path / "train_32x32.mat", {"X": PIXELS, "y": CLASSES}, do_compression=packed)
    held = load("svhn", data_dir=tmp_path)
    assert held.shape == (3, 32, 32)
    assert held.labels.tolist() == [1, 9, 0, 2, 5, 0]  # 10 is the digit 0
    wanted = torch.from_numpy(PIXELS[:, :, 2, 4].astype(np.float32)) / 255
    assert torch.equal(held.inputs[4, 2], wanted)
    assert held.bounds == (0.0, 1.0)


@pytest.mark.parametrize(
    ("variables", "words"),
    [
        ({"X": PIXELS}, "y: expected numbers"),
        ({"X": PIXELS.astype(float), "y": CLASSES}, "expected bytes and classes"),
        ({"X": PIXELS, "y": CLASSES + 9}, "expected bytes and classes"),
        ({"X": PIXELS, "y": CLASSES[:4]}, "labels: expected 6"),
        ({"X": np.array([["a"]], dtype=object), "y": CLASSES}, "X: expected numbers"),
    ],
)
def test_other_variables_are_one_line(tmp_path, variables, words):
    savemat(tmp_path / "a.mat", variables)
    with pytest.raises(DataError, match=words):
        load(tmp_path / "a.mat")


def test_bytes_that_are_cut_or_swell_are_refused(tmp_path):
    path = tmp_path / "a.mat"
    savemat(path, {"X": np.zeros((32, 32, 3, 40_000), np.uint8), "y": CLASSES}, do_compression=True)
    with pytest.raises(DataError, match="400 to 1"):
        load(path)
    savemat(path, {"X": PIXELS, "y": CLASSES}, do_compression=True)
    for cut in (100, 5000):
        path.write_bytes(path.read_bytes()[:-cut])
        with pytest.raises(DataError, match=r"a\.mat: expected"):
            load(path)
    path.write_bytes(b"not MATLAB's" * 50)
    with pytest.raises(DataError, match="MATLAB 5"):
        load(path)
