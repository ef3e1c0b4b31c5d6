"""Image sets as their authors publish them: MNIST's idx files, CIFAR-10 and -100, SVHN.

idx: images and labels, packed with gzip or not; the labels lie beside the images under the matching
name. CIFAR: the binary and the Python archives, packed or unpacked; the training part is read (of
CIFAR-10 the batches that are there, in order; of CIFAR-100 `train` with its fine labels), or a
single file that is named instead. SVHN's cropped digits: `train_32x32.mat`, a MATLAB file with `X`
(h x w x channels x n bytes) and `y` (n x 1 classes 1 to 10, where 10 is the digit 0).
"""

from __future__ import annotations

import gzip
import math
import struct
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import IO, cast

import numpy as np
from scipy.io import loadmat, whosmat

from remnant.data.reading import Array, Raw
from remnant.data.safe_pickle import PIXELS, read_batch
from remnant.errors import DataError, expected
from remnant.untrusted.files import Budget, file_bytes, reading, shown

IDX = ("train-images-idx3-ubyte", "train-images.idx3-ubyte")
CIFAR: Mapping[str, tuple[tuple[str, ...], int | bytes]] = {
    "cifar-10-batches-bin": (tuple(f"data_batch_{i}.bin" for i in range(1, 6)), 1),
    "cifar-100-binary": (("train.bin",), 2),
    "cifar-10-batches-py": (tuple(f"data_batch_{i}" for i in range(1, 6)), b"labels"),
    "cifar-100-python": (("train",), b"fine_labels"),
}
"""By folder: the training files, and where their labels are: bytes before an image's pixels, of
which the last counts, or a key of a pickled table."""
LABELS = {file: labels for files, labels in CIFAR.values() for file in files} | {
    "test_batch.bin": 1, "test.bin": 2, "test_batch": b"labels", "test": b"fine_labels"
}  # fmt: skip
MAT = {"X": 4, "y": 2}
"""The variables that are read of a MATLAB file, and how many dimensions each has."""


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its first two bytes say gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")


def idx_images(folder: Path) -> Path | None:
    """The training images' file of a folder, if it is an idx folder."""
    names = (name + packed for name in IDX for packed in ("", ".gz"))
    return next((folder / name for name in names if (folder / name).is_file()), None)


def read_idx(path: Path, budget: Budget) -> Raw:
    """The images at `path` with the labels that lie beside them under the matching name."""
    labels = _idx(_labels_beside(path), 1, budget)
    return Raw(_idx(path, 3, budget)[:, None], labels, (0.0, 1.0))


def _labels_beside(path: Path) -> Path:
    own = path.name.removesuffix(".gz")
    name = own.replace("images", "labels").replace("idx3", "idx1")
    if name == own or "idx1" not in name:
        do = "give the images' file, its labels are found by name"
        raise DataError(expected(str(path), "a name with images and idx3", path.name, do))
    beside = (path.with_name(name), path.with_name(f"{name}.gz"))
    found = next((p for p in beside if p.is_file()), None)
    if found is None:
        raise DataError(expected(f"{path}: labels", f"{name} or {name}.gz beside it", "neither"))
    return found


def _idx(path: Path, ndim: int, budget: Budget) -> Array:
    """An idx array of bytes: magic 0, 0, 8, ndim; then the sizes, big-endian; then the values."""
    budget.add_file(path)
    with reading(path), open_bytes(path) as file:
        header = file.read(4 + 4 * ndim)
        if header[:4] != bytes((0, 0, 8, ndim)):
            got = header[:4].hex() or "an empty file"
            raise DataError(expected(f"{path}: magic", f"0000080{ndim}", got, "is it an idx file?"))
        shape = struct.unpack(f">{ndim}I", header[4:])
        size = math.prod(shape)
        budget.take(path, size)
        body = file.read(size + 1)
    if len(body) != size:
        got = f"{len(body)} bytes" if len(body) < size else "more"
        raise DataError(expected(f"{path}: {shape} needs", f"{size} bytes", got))
    return np.frombuffer(body, dtype=np.uint8).reshape(shape)


def cifar_files(folder: Path) -> list[Path]:
    """The training files of a folder, if it is one of CIFAR's."""
    for name, (files, _) in CIFAR.items():
        for root in (folder, folder / name):
            found = [root / file for file in files if (root / file).is_file()]
            if found:
                return found
    return []


def read_cifar_files(files: list[Path], budget: Budget) -> Raw:
    """The records of unpacked batches."""
    bodies = {}
    for path in files:
        bodies[path] = file_bytes(path, budget)
        budget.take(path, len(bodies[path]))  # again when they are joined
    return _joined({str(path): (LABELS[path.name], body) for path, body in bodies.items()})


def read_cifar_archive(path: Path, budget: Budget) -> Raw:
    """The records of a tar, packed or not. Nothing is written to disk."""
    bodies = {}
    wanted = {
        root + f for name, (files, _) in CIFAR.items() for root in (f"{name}/", "") for f in files
    }
    budget.add_file(path)
    with reading(path), open_bytes(path) as packed:
        for member, size, kind in _members(packed, budget):
            name, what = member.removeprefix("./"), f"{path}: {shown(member)[1:-1]}"
            if name not in wanted:
                continue
            if kind not in "0\0":
                raise DataError(expected(what, "a regular file", "a link or a device"))
            budget.take(what, 2 * size)  # again when they are joined
            bodies[name] = packed.read(size)
            if len(bodies[name]) != size:
                raise DataError(expected(what, f"{size} bytes", len(bodies[name])))
    for name, (files, labels) in CIFAR.items():
        for root in (f"{name}/", ""):
            held = {f"{path}: {f}": bodies[root + f] for f in files if root + f in bodies}
            if held:
                return _joined({what: (labels, body) for what, body in held.items()})
    do = "is it cifar-10-binary.tar.gz or one of its three relatives?"
    raise DataError(expected(f"{path}: members", "CIFAR batches", "none", do))


def _members(
    packed: IO[bytes], budget: Budget, *, most: int = 64, block: int = 512
) -> Iterator[tuple[str, int, str]]:
    """Name, size and type of each member; its content is next in `packed`, to be read or not.

    Headers are read by hand: tarfile believes extensions by which a member may have any size.
    most: members of a tar; the published ones have 8 or 9. block: bytes of which a tar is made.
    """
    at = 0
    for _ in range(most):
        packed.seek(at)
        header = packed.read(block)
        if at and not header.strip(b"\0"):
            break
        summed = sum(header[:148]) + 8 * ord(" ") + sum(header[156:])
        # Octal numbers, 0 where there is none.
        size, check = (
            int(field.strip(b" \0") or b"0", 8) for field in (header[124:136], header[148:156])
        )
        if len(header) < block or summed != check or size < 0:
            raise ValueError("no header of a tar where one belongs")
        name = header[:100].split(b"\0")[0]
        if header[257:262] == b"ustar" and header[345]:
            name = header[345:500].split(b"\0")[0] + b"/" + name
        yield name.decode("utf-8", "replace").rstrip("/"), size, chr(header[156])
        at += block + -(-size // block) * block
        budget.take("unpacked", block + size)
    while rest := packed.read(2**20):  # gzip compares its checksum at the end
        budget.take("unpacked", len(rest))


def _joined(batches: Mapping[str, tuple[int | bytes, bytes]]) -> Raw:
    """All records of batches: where their labels are, and their bytes."""
    read = [
        read_batch(body, what, labels) if isinstance(labels, bytes) else _binary(body, what, labels)
        for what, (labels, body) in batches.items()
    ]
    pixels, labels = (np.concatenate(parts) for parts in zip(*read, strict=True))
    return Raw(pixels.reshape(-1, 3, 32, 32), labels, (0.0, 1.0))


def _binary(body: bytes, what: str, label_bytes: int) -> tuple[Array, Array]:
    length = label_bytes + PIXELS
    if not body or len(body) % length:
        raise DataError(expected(what, f"records of {length} bytes", f"{len(body)} bytes in all"))
    records = np.frombuffer(body, dtype=np.uint8).reshape(-1, length)
    return records[:, label_bytes:], records[:, label_bytes - 1]


def read_mat(path: Path, budget: Budget) -> Raw:
    """The records of a version 5 file; nothing but its two plain arrays is ever made."""
    budget.add_file(path)
    with reading(path):
        _count_unpacked(path, budget)
        held = {key: (shape, kind) for key, shape, kind in whosmat(path)}
        for key, dimensions in MAT.items():
            shape, kind = held.get(key, ((), "nothing"))
            if len(shape) != dimensions or kind not in ("uint8", "double"):
                got = f"{shown(kind)} of shape {shape}"
                raise DataError(expected(f"{path}: {key}", f"numbers in {dimensions}-d", got))
            budget.take(path, math.prod(shape) * (2 if kind == "uint8" else 16))
        found = loadmat(path, variable_names=list(MAT))
    pixels, classes = found["X"], found["y"].reshape(-1)
    if pixels.dtype != np.uint8 or not np.isin(classes, np.arange(11)).all():
        got = f"{pixels.dtype}, {shown(float(classes.min()))} to {shown(float(classes.max()))}"
        raise DataError(expected(f"{path}: X and y", "bytes and classes 1 to 10", got))
    pictures = np.ascontiguousarray(pixels.transpose(3, 2, 0, 1))
    return Raw(pictures, classes.astype(np.int64) % 10, (0.0, 1.0))


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
