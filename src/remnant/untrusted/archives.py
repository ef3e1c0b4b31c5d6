"""Zip archives and NumPy's arrays in them, judged by their headers before they are unpacked."""

from __future__ import annotations

import math
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from remnant.errors import expected
from remnant.untrusted.files import Budget, reading, shown

Array = NDArray[Any]
PACKINGS = (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED)
KINDS = "biufcSU"  # plain numbers and texts
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


@contextmanager
def archive_of(path: Path, budget: Budget) -> Iterator[zipfile.ZipFile]:
    """A zip archive whose members are packed as usual and have names of their own."""
    budget.add_file(path)
    with reading(path, budget.fault), zipfile.ZipFile(path) as archive:
        check_members(path, archive, budget)
        yield archive


def check_members(path: Path, archive: zipfile.ZipFile, budget: Budget) -> None:
    """Refuse names that come twice, also where only their case differs, and odd packings."""
    names: set[str] = set()
    for info in archive.infolist():
        what = f"{path}: {shown(info.filename)}"
        if info.compress_type not in PACKINGS or info.flag_bits & 1:
            raise budget.fault(expected(what, "a member stored or deflated", "another packing"))
        if info.filename.casefold() in names:
            raise budget.fault(expected(what, "one member of that name", "two"))
        names.add(info.filename.casefold())


def member_bytes(archive: zipfile.ZipFile, name: str, budget: Budget) -> bytes:
    """A member unpacked, and its checksum compared: zipfile does so at the end of a member."""
    info = archive.getinfo(name)
    budget.take(shown(name), info.file_size)
    with archive.open(info) as member:
        body = member.read(info.file_size)
        if len(body) != info.file_size or member.read(1):
            raise zipfile.BadZipFile(f"{shown(name)} is cut short or too long")
    return body


def read_array(stream: IO[bytes], what: str, budget: Budget, *, room: int = 0) -> Array:
    """An npy array, once its header alone has shown plain values that the budget allows.

    room: bytes for each number besides its own, for what will be made of them.
    """
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        got = ".".join(map(str, version))
        raise budget.fault(expected(what, "npy version 1 or 2", got))
    shape, by_columns, dtype = _HEADERS[version](stream)
    if dtype.hasobject:
        do = "save it as plain numbers; objects would need pickle, which can run code"
        raise budget.fault(expected(what, "numbers or text", "Python objects", do))
    if dtype.kind not in KINDS:
        raise budget.fault(expected(what, "numbers or text", "records or dates"))
    if any(length < 0 for length in shape):
        raise budget.fault(expected(f"{what}: shape", "sizes of at least 0", "one below 0"))
    count = math.prod(shape)
    budget.take(what, count * (max(dtype.itemsize, 1) + room))
    size = count * dtype.itemsize
    body = bytearray(size)
    if _fill(stream, body) or stream.read(1):  # reading to the end compares a member's checksum
        raise ValueError(f"{what} holds more or fewer than the {size} bytes of its header")
    return np.ndarray(shape, dtype, body, order="F" if by_columns else "C")


def _fill(stream: IO[bytes], body: bytearray) -> int:
    """Read into all of `body`; how many bytes were missing."""
    room = memoryview(body)
    while len(room) and (part := stream.read(min(len(room), 2**20))):
        room[: len(part)] = part
        room = room[len(part) :]
    return len(room)
