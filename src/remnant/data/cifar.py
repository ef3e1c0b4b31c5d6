"""CIFAR-10 and CIFAR-100: the binary and the Python archives, packed or unpacked.

The training part is read: of CIFAR-10 the batches that are there, in order; of CIFAR-100 `train`
with its fine labels. A single file (`test_batch.bin`, say) can be named instead.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import IO

import numpy as np

from remnant.data.reading import RECORD, VALUE, Array, make_examples, open_bytes
from remnant.data.safe_pickle import PIXELS, read_batch
from remnant.errors import DataError, expected
from remnant.types import Examples
from remnant.untrusted import Budget, file_bytes, reading, shown

# A byte of a batch, again when batches are joined, and its float; names, spread over the pixels.
COST = 2 + VALUE + -(-RECORD // PIXELS)


@dataclass(frozen=True, kw_only=True)
class ArchiveLayout:
    """Where one of the four archives keeps its records."""

    folder: str
    train: tuple[str, ...]
    test: str
    label_bytes: int = 0  # binary: labels before each image's pixels, the last one counts
    labels_key: bytes = b""  # python: the name of the labels in a batch


LAYOUTS = (
    ArchiveLayout(
        folder="cifar-10-batches-bin",
        train=tuple(f"data_batch_{i}.bin" for i in range(1, 6)),
        test="test_batch.bin",
        label_bytes=1,
    ),
    ArchiveLayout(folder="cifar-100-binary", train=("train.bin",), test="test.bin", label_bytes=2),
    ArchiveLayout(
        folder="cifar-10-batches-py",
        train=tuple(f"data_batch_{i}" for i in range(1, 6)),
        test="test_batch",
        labels_key=b"labels",
    ),
    ArchiveLayout(
        folder="cifar-100-python", train=("train",), test="test", labels_key=b"fine_labels"
    ),
)


def cifar_folder(folder: Path) -> tuple[ArchiveLayout, list[Path]] | None:
    """The layout and the training files of a folder, if it is one of CIFAR's."""
    for layout in LAYOUTS:
        for root in (folder, folder / layout.folder):
            files = [root / name for name in layout.train if (root / name).is_file()]
            if files:
                return layout, files
    return None


def cifar_file(path: Path) -> tuple[ArchiveLayout, list[Path]] | None:
    """The layout to which a single file belongs by its name, if any."""
    fits = (layout for layout in LAYOUTS if path.name in (*layout.train, layout.test))
    layout = next(fits, None)
    return None if layout is None else (layout, [path])


def read_cifar_files(layout: ArchiveLayout, files: list[Path], name: str, limit: int) -> Examples:
    """The records of unpacked batches."""
    budget, bodies = Budget(limit), {}
    for path in files:
        bodies[str(path)] = file_bytes(path, budget)
        budget.take(path, (COST - 1) * len(bodies[str(path)]))
    return _examples(layout, bodies, name)


def read_cifar_archive(path: Path, name: str, limit: int) -> Examples:
    """The records of a tar, packed or not. Nothing is written to disk."""
    budget, bodies = Budget(limit), {}
    budget.add_file(path)
    with reading(path), open_bytes(path) as packed:
        for member, size, kind in _members(packed, budget):
            if member.removeprefix("./") in _TRAINING:
                what = f"{path}: {shown(member)[1:-1]}"
                if kind not in "0\0":
                    raise DataError(expected(what, "a regular file", "a link or a device"))
                budget.take(what, COST * size)
                body = packed.read(size)
                if len(body) != size:
                    raise DataError(expected(what, f"{size} bytes", len(body)))
                bodies[member.removeprefix("./")] = body
    for layout in LAYOUTS:
        for root in (f"{layout.folder}/", ""):
            held = {f"{path}: {f}": bodies[root + f] for f in layout.train if root + f in bodies}
            if held:
                return _examples(layout, held, name)
    do = "is it cifar-10-binary.tar.gz or one of its three relatives?"
    raise DataError(expected(f"{path}: members", "CIFAR batches", "none", do))


_TRAINING = {root + f for x in LAYOUTS for root in (f"{x.folder}/", "") for f in x.train}


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
        size, name = _octal(header[124:136]), header[:100].split(b"\0")[0]
        if len(header) < block or summed != _octal(header[148:156]) or size < 0:
            raise ValueError("no header of a tar where one belongs")
        if header[257:262] == b"ustar" and header[345]:
            name = header[345:500].split(b"\0")[0] + b"/" + name
        yield name.decode("utf-8", "replace").rstrip("/"), size, chr(header[156])
        at += block + -(-size // block) * block
        budget.take("unpacked", block + size)
    while rest := packed.read(2**20):  # gzip compares its checksum at the end
        budget.take("unpacked", len(rest))


def _octal(field: bytes) -> int:
    """A number in a header; 0 where it has none."""
    return int(field.strip(b" \0") or b"0", 8)


def _examples(layout: ArchiveLayout, bodies: Mapping[str, bytes], name: str) -> Examples:
    read = _binary if layout.label_bytes else _python
    batches = [read(layout, body, what) for what, body in bodies.items()]
    pixels = np.concatenate([batch[0] for batch in batches])
    labels = np.concatenate([batch[1] for batch in batches])
    return make_examples(pixels.reshape(-1, 3, 32, 32), labels, name=name, bounds=(0.0, 1.0))


def _binary(layout: ArchiveLayout, body: bytes, what: str) -> tuple[Array, Array]:
    length = layout.label_bytes + PIXELS
    if not body or len(body) % length:
        raise DataError(expected(what, f"records of {length} bytes", f"{len(body)} bytes in all"))
    records = np.frombuffer(body, dtype=np.uint8).reshape(-1, length)
    return records[:, layout.label_bytes :], records[:, layout.label_bytes - 1]


def _python(layout: ArchiveLayout, body: bytes, what: str) -> tuple[Array, Array]:
    return read_batch(body, what, layout.labels_key)
