"""The idx files of MNIST and its relatives: images and labels, packed with gzip or not."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from remnant.data.reading import RECORD, VALUE, Array, make_examples, open_bytes
from remnant.errors import DataError, expected
from remnant.types import Examples
from remnant.untrusted import Budget, reading

TRAIN = ("train-images-idx3-ubyte", "train-images.idx3-ubyte")


def idx_images(folder: Path) -> Path | None:
    """The training images' file of a folder, if it is an idx folder."""
    names = (name + packed for name in TRAIN for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(path: Path, name: str, limit: int) -> Examples:
    """The images at `path` with the labels that lie beside them under the matching name."""
    budget = Budget(limit)
    labels = _read(_labels_beside(path), 1, budget)
    images = _read(path, 3, budget)
    return make_examples(images[:, None], labels, name=name, bounds=(0.0, 1.0))


def _labels_beside(path: Path) -> Path:
    stem = path.name.removesuffix(".gz").replace("images", "labels").replace("idx3", "idx1")
    beside = [path.with_name(stem), path.with_name(stem + ".gz")]
    if stem == path.name.removesuffix(".gz") or "idx1" not in stem:
        do = "give the images' file, its labels are found by name"
        raise DataError(expected(str(path), "a name with images and idx3", path.name, do))
    found = next((p for p in beside if p.is_file()), None)
    if found is None:
        raise DataError(expected(f"{path}: labels", f"{stem} or {stem}.gz beside it", "neither"))
    return found


def _read(path: Path, ndim: int, budget: Budget) -> Array:
    """An idx array of bytes: magic 0, 0, 8, ndim; then the sizes, big-endian; then the values."""
    budget.add_file(path)
    with reading(path), open_bytes(path) as file:
        header = file.read(4 + 4 * ndim)
        if header[:4] != bytes((0, 0, 8, ndim)):
            got = header[:4].hex() or "an empty file"
            raise DataError(expected(f"{path}: magic", f"0000080{ndim}", got, "is it an idx file?"))
        shape = struct.unpack(f">{ndim}I", header[4:])
        size = math.prod(shape)
        budget.take(path, size * (1 + VALUE) + (RECORD * shape[0] if ndim == 3 else 0))
        body = file.read(size + 1)
    if len(body) != size:
        got = f"{len(body)} bytes" if len(body) < size else "more"
        raise DataError(expected(f"{path}: {shape} needs", f"{size} bytes", got))
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
