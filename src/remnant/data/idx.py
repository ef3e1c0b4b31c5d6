"""The idx files of MNIST and its relatives: images and labels, packed with gzip or not."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import numpy as np

from remnant.data.reading import (
    Array,
    check_packing,
    check_size,
    make_examples,
    open_bytes,
    reading,
    unit,
)
from remnant.errors import DataError, expected
from remnant.types import Examples

TRAIN = ("train-images-idx3-ubyte", "train-images.idx3-ubyte")


def idx_images(folder: Path) -> Path | None:
    """The training images' file of a folder, if it is an idx folder."""
    names = (name + packed for name in TRAIN for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(path: Path, name: str, limit: int) -> Examples:
    """The images at `path` with the labels that lie beside them under the matching name."""
    beside = _labels_beside(path)
    images, labels = _read(path, 3, limit), _read(beside, 1, limit)
    return make_examples(unit(images[:, None]), labels, name=name, bounds=(0.0, 1.0))


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


def _read(path: Path, ndim: int, limit: int) -> Array:
    """An idx array of bytes: magic 0, 0, 8, ndim; then the sizes, big-endian; then the values."""
    with reading(path), open_bytes(path) as file:
        header = file.read(4 + 4 * ndim)
        if header[:4] != bytes((0, 0, 8, ndim)):
            got = header[:4].hex() or "an empty file"
            raise DataError(expected(f"{path}: magic", f"0000080{ndim}", got, "is it an idx file?"))
        shape = struct.unpack(f">{ndim}I", header[4:])
        check_size(path, shape, limit)
        size = math.prod(shape)
        check_packing(path, size, path.stat().st_size)
        body = file.read(size + 1)
    if len(body) != size:
        got = f"{len(body)} bytes" if len(body) < size else "more"
        raise DataError(expected(f"{path}: {shape} needs", f"{size} bytes", got))
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)
