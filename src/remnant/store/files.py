"""Single files of a run: private, whole or not there, hashed; and one writer at a time."""

from __future__ import annotations

import errno
import fcntl
import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Mapping
from contextlib import suppress
from importlib.metadata import version
from pathlib import Path
from typing import Any
from weakref import WeakValueDictionary

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from remnant.errors import StoreError, cut, expected
from remnant.untrusted.files import write_private

ELSEWHERE = "choose another --out or remove it"
TEMPORARY = ".remnant-"
# One metadata key only: safetensors writes several in an order that changes with the process.
KEY = "remnant"
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
    """One file in a run's directory, whole or not at all, readable by its owner alone."""
    target = path / plain_name(name)
    try:
        write_private(target, value, prefix=TEMPORARY)
    except OSError as error:
        raise StoreError(unwritable(target, error)) from None
    return target


def pack(tensors: Mapping[str, Tensor], text: str) -> bytes:
    """Tensors and a text as safetensors; the same ones give the same bytes."""
    return safetensors.torch.save(apart(tensors), {KEY: text})


def apart(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Clones by name: safetensors refuses tensors that share memory."""
    return {name: t.detach().cpu().contiguous().clone() for name, t in sorted(tensors.items())}


def unpack(path: Path) -> tuple[dict[str, Tensor], str]:
    """What `pack` wrote. Cloned into memory that torch aligns: sums over a file's own bytes would
    round otherwise."""
    with safetensors.safe_open(path, framework="pt") as file:
        text = (file.metadata() or {})[KEY]
        return {name: file.get_tensor(name).clone() for name in file.keys()}, text  # noqa: SIM118


def plain_name(name: str) -> str:
    if not name or name != Path(name).name or name.startswith("."):
        raise StoreError(expected("a run's file", "a plain name", repr(name)))
    return name


def as_json(name: str, value: Any) -> bytes:
    """Two-space JSON. NaN, infinity and what JSON does not know are refused."""
    try:
        return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(expected(name, "JSON values, finite numbers", error)) from None


def parse(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(expected(f"{path.parent}", f"a run with {path.name}", "none")) from None
    except (OSError, ValueError, RecursionError) as error:
        raise StoreError(expected(f"{path}", "JSON", f"a fault ({error})", ELSEWHERE)) from None


def spec_hash(spec: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a spec."""
    return hash_text(canonical(spec))


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text for one value."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError, RecursionError) as error:
        raise StoreError(expected("spec", "JSON values, finite numbers", error)) from None


def hash_text(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()


def hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes; the order of the mapping does not matter."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        head = [name, str(value.dtype), list(value.shape)]  # fixes how many bytes follow
        digest.update(json.dumps(head).encode() + b"\n")
        flat = value.reshape(-1)
        if flat.stride(0) != 1:  # a single number may keep the stride of where it was cut from
            flat = flat.clone(memory_format=torch.contiguous_format)
        digest.update(flat.view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """What the figures of a run depend on."""
    packages = ("torch", "numpy", "scipy", "remnant")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def differences(one: Any, other: Any) -> dict[str, tuple[Any, Any]]:
    """Where two JSON values differ, by the place `a.b`; None where there is nothing."""
    left, right = _leaves(one), _leaves(other)
    return {
        place: (left.get(place), right.get(place))
        for place in dict.fromkeys((*left, *right))
        if json.dumps(left.get(place)) != json.dumps(right.get(place))  # 1 is not 1.0
    }


def spelt(value: Any) -> str:
    """One side of a difference in a line."""
    return "nothing" if value is None else cut(json.dumps(value), 60)


def _leaves(value: Any, at: str = "") -> dict[str, Any]:
    """Every innermost value by its place."""
    if not isinstance(value, dict) or not value:
        return {at: value}
    inner = [_leaves(value[key], f"{at}.{key}" if at else key) for key in value]
    return {place: leaf for leaves in inner for place, leaf in leaves.items()}
