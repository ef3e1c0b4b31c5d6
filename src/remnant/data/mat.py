"""SVHN's cropped digits as published: `train_32x32.mat`, a MATLAB file with `X` and `y` alone.

X is h x w x channels x n bytes, y n x 1 classes 1 to 10, where 10 is the digit 0.
"""

from __future__ import annotations

import struct
import zlib
from pathlib import Path

import numpy as np
from scipy.io import loadmat, whosmat

from remnant.data.reading import RECORD, VALUE, make_examples
from remnant.errors import DataError, expected
from remnant.types import Examples
from remnant.untrusted import Budget, reading, shown

WANTED = {"X": 4, "y": 2}
"""The variables that are read, and how many dimensions each has."""


def read_mat(path: Path, name: str, limit: int) -> Examples:
    """The records of a version 5 file; nothing but these two plain arrays is ever made."""
    budget = Budget(limit)
    budget.add_file(path)
    with reading(path):
        _count_unpacked(path, budget)
        held = {key: (shape, kind) for key, shape, kind in whosmat(path)}
        for key, dimensions in WANTED.items():
            shape, kind = held.get(key, ((), "nothing"))
            if len(shape) != dimensions or kind not in ("uint8", "double"):
                got = f"{shown(kind)} of shape {shape}"
                raise DataError(expected(f"{path}: {key}", f"numbers in {dimensions}-d", got))
            budget.take(path, int(np.prod(shape, dtype=object)) * (1 + VALUE))
        budget.take(path, RECORD * held["X"][0][3])
        found = loadmat(path, variable_names=list(WANTED))
    pixels, classes = found["X"], found["y"].reshape(-1)
    if pixels.dtype != np.uint8 or not np.isin(classes, np.arange(11)).all():
        got = f"{pixels.dtype}, {shown(float(classes.min()))} to {shown(float(classes.max()))}"
        raise DataError(expected(f"{path}: X and y", "bytes and classes 1 to 10", got))
    pictures = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return make_examples(pictures, classes.astype(np.int64) % 10, name=name, bounds=(0.0, 1.0))


def _count_unpacked(path: Path, budget: Budget, *, chunk: int = 2**20) -> None:
    """Count what every packed element becomes, a chunk at a time, before scipy unpacks any.

    chunk: bytes that are unpacked at once. Elements follow a header of 128 bytes; 15: a packed one.
    """
    with path.open("rb") as file:
        if file.read(128)[124:128] != b"\0\1IM":
            raise ValueError("no MATLAB 5 file in little-endian order")
        while tag := file.read(8):
            kind, size = struct.unpack("<II", tag)
            if kind != 15:
                file.seek(size + -size % 8, 1)
                continue
            unpacker, left = zlib.decompressobj(), size
            while left > 0:
                packed = file.read(min(left, chunk))
                if not packed:
                    raise ValueError("a packed element ends early")
                left -= len(packed)
                while packed:
                    budget.take(path, len(unpacker.decompress(packed, chunk)))
                    packed = unpacker.unconsumed_tail
