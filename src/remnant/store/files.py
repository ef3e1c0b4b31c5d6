"""Private directories, files that are whole or not there, and one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import os
import tempfile
from contextlib import suppress
from pathlib import Path
from weakref import WeakValueDictionary

from remnant.errors import StoreError, expected

TEMPORARY = ".remnant-"
# Half-written files that a kill leaves: ours, and those of `models.save_weights`.
SCRAPS = (f"{TEMPORARY}*", ".*.safetensors.*")


class Lock:
    """The right to write in a directory: until it is released, forgotten, or the process ends.

    It is a lock on the directory itself, so that it leaves no file behind. Children that run
    another program do not inherit it.
    """

    def __init__(self, handle: int | None) -> None:
        self.handle = handle

    def release(self) -> None:
        handle, self.handle = self.handle, None
        if handle is not None:
            os.close(handle)  # unlocking would also end the lock of a process that forked us

    def __del__(self) -> None:
        self.release()


_held: WeakValueDictionary[tuple[int, int], Lock] = WeakValueDictionary()


def take_lock(path: Path) -> Lock:
    """The lock on a directory; a StoreError that says who has it while another process does.

    Within a process all share it. Where the file system knows no locks there is none, and the
    `handle` is None.
    """
    handle = os.open(path, os.O_RDONLY)
    about = os.fstat(handle)
    mine = _held.get((about.st_dev, about.st_ino))
    if mine is not None and mine.handle is not None:
        os.close(handle)
        return mine
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        os.close(handle)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            return Lock(None)
        do = "wait until it is done, or choose another --out"
        got = f"one that {_holder(about.st_ino)} is writing to"
        raise StoreError(expected(f"{path}", "a run that is free", got, do)) from None
    lock = Lock(handle)
    _held[about.st_dev, about.st_ino] = lock
    return lock


def _holder(inode: int) -> str:
    """Who holds the lock, as far as the system tells (Linux does)."""
    with suppress(OSError, ValueError, IndexError):
        for line in Path("/proc/locks").read_text().splitlines():
            words = line.split()
            same = words[1] == "FLOCK" and words[5].rsplit(":", 1)[-1] == str(inode)
            if same and int(words[4]) > 0:  # 0: one that this container cannot see
                return f"process {words[4]}"
    return "another process"


def make_private(path: Path) -> None:
    """The directory and those above it that are missing, for their owner alone whatever the umask.

    `Path.mkdir(parents=True)` would give the ones above to everybody.
    """
    try:
        if path.exists() and not path.is_dir():
            raise StoreError(expected(f"{path}", "a directory", "a file", "choose another --out"))
        for missing in reversed([p for p in (path, *path.parents) if not p.exists()]):
            missing.mkdir(mode=0o700, exist_ok=True)
    except (OSError, ValueError) as error:
        raise StoreError(unwritable(path, error)) from None


def check_writable(path: Path) -> None:
    """By writing: permission bits say nothing to root, nor about a read-only or full disk."""
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=TEMPORARY):
            pass
    except OSError as error:
        raise StoreError(unwritable(path, error)) from None


def unwritable(path: Path, error: OSError | ValueError) -> str:
    got = getattr(error, "strerror", None) or str(error)
    return expected(f"{path}", "a place to write", got.lower(), "choose another --out")


def remove_scraps(path: Path) -> None:
    """What killed processes left half written. Whoever calls this holds the lock."""
    for pattern in SCRAPS:
        for scrap in path.glob(pattern):
            with suppress(OSError):
                scrap.unlink()


def write_whole(path: Path, name: str, value: bytes) -> Path:
    """One file, whole or not at all, readable by its owner alone."""
    target = path / plain_name(name)
    try:
        handle, temporary = tempfile.mkstemp(dir=path, prefix=TEMPORARY)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:  # an interrupt too must not leave its half behind
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreError(unwritable(target, error)) from None
    return target


def plain_name(name: str) -> str:
    if not name or name != Path(name).name or name.startswith("."):
        raise StoreError(expected("a run's file", "a plain name", repr(name)))
    return name
