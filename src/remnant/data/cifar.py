"""CIFAR-10 and CIFAR-100: the binary and the Python archives, packed or unpacked.

The training part is read: of CIFAR-10 the batches that are there, in order; of CIFAR-100 `train`
with its fine labels. A single file (`test_batch.bin`, say) can be named instead.
"""

from __future__ import annotations

import io
import tarfile
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import islice
from pathlib import Path

import numpy as np

from remnant.data.reading import (
    RATIO,
    SMALL,
    Array,
    check_size,
    make_examples,
    open_bytes,
    reading,
    unit,
)
from remnant.data.safe_pickle import read_batch
from remnant.errors import DataError, expected
from remnant.types import Examples

PIXELS = 3 * 32 * 32
ARCHIVE_LIMIT = 1024**3  # five times the real archives, unpacked


@dataclass(frozen=True, kw_only=True)
class Layout:
    """Where one of the four archives keeps its records."""

    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int = 0  # binary: labels before each image's pixels, the last one counts
    labels_key: bytes = b""  # python: the name of the labels in a batch


LAYOUTS = (
    Layout(
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test="test_batch.bin",
        label_bytes=1,
    ),
    Layout(folder="cifar-100-binary", train=("train.bin",), test="test.bin", label_bytes=2),
    Layout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        labels_key=b"labels",
    ),
    Layout(folder="cifar-100-python", train=("train",), test="test", labels_key=b"fine_labels"),
)


def cifar_folder(folder: Path) -> tuple[Layout, list[Path]] | None:
    """The layout and the training files of a folder, if it is one of CIFAR's."""
    for layout in LAYOUTS:
        for root in (folder, folder / layout.folder):
            files = [root / name for name in layout.train if (root / name).is_file()]
            if files:
                return layout, files
    return None


def cifar_file(path: Path) -> tuple[Layout, list[Path]] | None:
    """The layout to which a single file belongs by its name, if any."""
    fits = (layout for layout in LAYOUTS if path.name in (*layout.train, layout.test))
    layout = next(fits, None)
    return None if layout is None else (layout, [path])


def read_cifar_files(layout: Layout, files: list[Path], name: str, limit: int) -> Examples:
    """The records of unpacked batches."""
    bodies = {}
    for path in files:
        with reading(path):
            check_size(path, (len(files), path.stat().st_size), limit)
            bodies[str(path)] = path.read_bytes()
    return _examples(layout, bodies, name)


def read_cifar_archive(path: Path, name: str, limit: int) -> Examples:
    """The records of a tar, packed or not. Nothing is written to disk.

    The tar is unpacked in memory and bounded first, since tarfile trusts the sizes that it reads.
    """
    with reading(path), open_bytes(path) as packed:
        most = min(limit, ARCHIVE_LIMIT, max(SMALL, RATIO * path.stat().st_size))
        body = packed.read(most + 1)
        if len(body) > most:
            raise DataError(expected(f"{path}: unpacked", f"at most {most} bytes", "more"))
        with tarfile.open(fileobj=io.BytesIO(body), mode="r:") as tar:
            members = {m.name.removeprefix("./"): m for m in islice(tar, 64)}  # real: 8 or 9
            for layout in LAYOUTS:
                for root in (f"{layout.folder}/", ""):
                    names = [root + f for f in layout.train if root + f in members]
                    if names:
                        bodies = {f"{path}: {m}": _member(tar, members[m], path) for m in names}
                        check_size(path, (sum(map(len, bodies.values())),), limit)
                        return _examples(layout, bodies, name)
    do = "is it cifar-10-binary.tar.gz or one of its three relatives?"
    raise DataError(expected(f"{path}: members", "CIFAR batches", "none", do))


def _member(tar: tarfile.TarFile, member: tarfile.TarInfo, path: Path) -> bytes:
    file = tar.extractfile(member) if member.type in (tarfile.REGTYPE, tarfile.AREGTYPE) else None
    if file is None:
        raise DataError(expected(f"{path}: {member.name}", "a regular file", "a link or a device"))
    body = file.read()
    if len(body) != member.size:
        raise DataError(expected(f"{path}: {member.name}", f"{member.size} bytes", len(body)))
    return body


def _examples(layout: Layout, bodies: Mapping[str, bytes], name: str) -> Examples:
    read = _binary if layout.label_bytes else _python
    batches = [read(layout, body, what) for what, body in bodies.items()]
    pixels = np.concatenate([batch[0] for batch in batches])
    labels = np.concatenate([batch[1] for batch in batches])
    return make_examples(unit(pixels.reshape(-1, 3, 32, 32)), labels, name=name, bounds=(0.0, 1.0))


def _binary(layout: Layout, body: bytes, what: str) -> tuple[Array, Array]:
    length = layout.label_bytes + PIXELS
    if not body or len(body) % length:
        raise DataError(expected(what, f"records of {length} bytes", f"{len(body)} bytes in all"))
    records = np.frombuffer(body, dtype=np.uint8).reshape(-1, length)
    return records[:, layout.label_bytes :], records[:, layout.label_bytes - 1]


def _python(layout: Layout, body: bytes, what: str) -> tuple[Array, Array]:
    return read_batch(body, what, layout.labels_key)
