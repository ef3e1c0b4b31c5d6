"""Opening a file, the budget of what it may become, and faults as one line; writing a file."""

from __future__ import annotations

import json
import os
import stat
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from remnant.errors import DataError, RemnantError, expected

SMALL = 256 * 1024**2
"""Bytes in memory that any file may become: does no harm, and holds a million small records."""
RATIO = 400
"""Bytes in memory for one of a file: pixels packed 50 to 1 that become floats and are checked."""
JSON_LIMIT = 16 * 1024**2
"""Bytes of a JSON file, which becomes up to thirty times as many; larger tables fit into npz."""

Fault = type[RemnantError]


class Budget:
    """How much memory may be taken for what is read from some files, counted before it is taken.

    At most `limit` bytes, and at most RATIO times what the files themselves hold: only large files
    may become gigabytes.
    """

    def __init__(self, limit: int, fault: Fault = DataError, stored: int = 0) -> None:
        self.limit, self.fault = limit, fault
        self.stored, self.taken = stored, 0

    def add_file(self, path: Path) -> int:
        """Count a file, which must be an ordinary one, on the side of what there is; its size."""
        size, held = check_file(path, self.fault)
        self.stored += held
        return size

    def take(self, what: object, size: int) -> None:
        """Count `size` bytes of memory, or refuse them."""
        self.taken += size
        if self.taken > self.limit:
            got = f"{gigabytes(self.taken)} declared"
            do = "take fewer records, or raise limit" if self.fault is DataError else ""
            raise self.fault(expected(str(what), f"at most {gigabytes(self.limit)}", got, do))
        if self.taken > SMALL and self.taken > RATIO * self.stored:
            got = f"{gigabytes(self.taken)} in memory out of {gigabytes(self.stored)}"
            do = "save it unpacked if it is right"
            raise self.fault(expected(str(what), f"at most {RATIO} to 1 of packing", got, do))


def exists(path: Path) -> bool:
    """Whether there is such a file or folder; not, under a name that no file system holds."""
    try:
        return path.exists()
    except (OSError, ValueError):
        return False


def gigabytes(size: int) -> str:
    return f"{size / 1024**3:.3g} GB" if size < 2**100 else "more than 1e20 GB"


def check_file(path: Path, fault: Fault = DataError) -> tuple[int, int]:
    """The size of an ordinary file, and how many of its bytes are on the disk (a file of holes has
    few)."""
    try:
        # Not to block: a pipe put in the file's place would be waited for.
        handle = os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0))
    except FileNotFoundError:
        raise fault(expected(str(path), "a file", "no such file")) from None
    except (OSError, ValueError) as error:
        got = getattr(error, "strerror", None) or "a name that no file has"
        raise fault(f"{path}: cannot be read: {got}") from None
    try:
        about = os.fstat(handle)
        if stat.S_ISDIR(about.st_mode):
            raise fault(expected(str(path), "a file", "a folder"))
        if not stat.S_ISREG(about.st_mode):
            raise fault(expected(str(path), "a file", "a device or a pipe"))
        size, held = about.st_size, _held(handle, about.st_size)
        if size > SMALL and size > RATIO * held:
            got = f"{gigabytes(size)}, of which {gigabytes(held)} are not holes"
            raise fault(expected(str(path), "a file that is all there", got, "copy it again"))
        return size, held
    finally:
        os.close(handle)


def _held(handle: int, size: int, *, pieces: int = 1000) -> int:
    """Bytes of a file that are not in its holes; all of them where the system does not tell.

    pieces: how many are looked at for holes; a file of more is no bomb.
    """
    if size < SMALL // RATIO or not hasattr(os, "SEEK_DATA"):
        return size
    held = end = 0
    for _ in range(pieces):
        try:
            start = os.lseek(handle, end, os.SEEK_DATA)
            end = os.lseek(handle, start, os.SEEK_HOLE)
        except OSError:  # nothing but a hole from here on
            return held
        held += end - start
        if end >= size:
            return held
    return size


def file_bytes(path: Path, budget: Budget) -> bytes:
    """All bytes of an ordinary file, within the budget."""
    size = budget.add_file(path)
    budget.take(path, size)
    try:
        with path.open("rb") as file:
            return file.read(size)  # no more, should it grow meanwhile
    except OSError as error:
        raise budget.fault(f"{path}: cannot be read: {error.strerror}") from error


def json_file(path: Path, fault: Fault, do: str = "", larger: str = "") -> dict[str, Any]:
    """The object in a JSON file of at most JSON_LIMIT bytes; what to do otherwise, or if larger."""
    size, _ = check_file(path, fault)
    if size > JSON_LIMIT:
        raise fault(expected(str(path), f"at most {JSON_LIMIT} bytes of JSON", size, larger))
    try:
        held = json.loads(file_bytes(path, Budget(JSON_LIMIT, fault)))
    except (ValueError, RecursionError) as error:
        got = "levels beyond count" if isinstance(error, RecursionError) else str(error)[:80]
        raise fault(expected(str(path), "a JSON file", f"another ({got})", do)) from None
    if not isinstance(held, dict):
        raise fault(expected(str(path), "a JSON object", shown(held), do))
    return held


def shown(value: object) -> str:
    """A value out of a file in a few words; what is long or nested is told by kind and size."""
    if isinstance(value, int) and not isinstance(value, bool) and abs(value) >= 2**64:
        return f"a whole number of {value.bit_length()} bits"
    if isinstance(value, str | bytes):
        return ascii(value[:40]) + (f" and {len(value) - 40} more" if len(value) > 40 else "")
    if value is None or isinstance(value, bool | int | float):
        return repr(value)
    if isinstance(value, list | tuple | dict | set):
        return f"a {type(value).__name__} of {len(value)}"
    return f"a {type(value).__name__[:40]}"


def write_private(target: Path, data: bytes, *, prefix: str) -> None:
    """Write a file, whole or not at all, readable by its owner alone; an OSError otherwise.

    prefix: of the file's name while it is not whole.
    """
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=prefix)  # mode 0600
    try:
        with os.fdopen(handle, "wb") as file:
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException:  # an interrupt too must not leave its half behind
        with suppress(OSError):
            os.unlink(temporary)
        raise


@contextmanager
def reading(path: Path, fault: Fault = DataError) -> Iterator[None]:
    """Turn any fault of the bytes at `path` into one line.

    The standard readers raise nearly every kind of error on broken or hostile bytes, hence the wide
    net; the fault itself stays attached as the cause.
    """
    try:
        yield
    except RemnantError:
        raise
    except Exception as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        said = " ".join(what[:400].split())[:160] or type(error).__name__
        do = "is it cut short or of another kind?"
        raise fault(expected(str(path), "a whole file", f"a fault ({said})", do)) from error
