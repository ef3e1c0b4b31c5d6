"""Weights files: safetensors, or a state dict that PyTorch reads without running code."""

from __future__ import annotations

import io
import os
import pickle
import re
import tempfile
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from remnant.errors import WeightsError, expected
from remnant.types import Weights

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt")
SAVE = "save model.state_dict()"
LARGE = 2**26  # bytes; smaller files are read before they are judged
_WRAPPERS = ("state_dict", "model_state_dict")  # Lightning; the PyTorch tutorials
_PREFIXES = ("model.", "module.")  # a Lightning attribute; DataParallel


def save_weights(path: str | os.PathLike[str], weights: Weights) -> None:
    """Write safetensors whole or not at all, readable by the owner alone."""
    target = Path(path)
    # Clones: safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    data = safetensors.torch.save(plain)
    try:
        handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=f".{target.name}.")
    except OSError as error:
        raise WeightsError(f"{target}: cannot be written: {error.strerror}") from error
    try:
        with os.fdopen(handle, "wb") as file:  # mkstemp gives mode 0600
            file.write(data)
            file.flush()
            os.fsync(file.fileno())
        os.replace(temporary, target)
    except BaseException as error:
        os.unlink(temporary)
        if isinstance(error, OSError):
            raise WeightsError(f"{target}: cannot be written: {error.strerror}") from error
        raise


def read_weights(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """Tensors by name, on the CPU, all finite, from a file that is never trusted.

    A state dict inside a Lightning or tutorial checkpoint is taken out, and a `model.` or
    `module.` that all names begin with is dropped.
    """
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix != ".safetensors" and suffix not in TORCH_SUFFIXES:
        wanted = "a .safetensors, .pt, .pth or .ckpt file"
        raise WeightsError(expected(f"{source}", wanted, suffix or "no suffix"))
    data = _bytes(source)
    held = _safetensors(source, data) if suffix == ".safetensors" else _torch(source, data)
    weights = _state_dict(source, held)
    for name, value in weights.items():
        _check(source, name, value, len(data))
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return {name: value.detach().contiguous() for name, value in weights.items()}


def _bytes(source: Path) -> bytes:
    if source.is_dir():
        raise WeightsError(expected(f"{source}", "a weights file", "a folder"))
    if not source.exists():
        raise WeightsError(expected(f"{source}", "a weights file", "no such file"))
    if not source.is_file():
        raise WeightsError(expected(f"{source}", "a weights file", "a device or a pipe"))
    try:
        with source.open("rb") as file:
            _check_start(source, file.read(9), source.stat().st_size)
        data = source.read_bytes()
    except OSError as error:
        raise WeightsError(f"{source}: cannot be read: {error.strerror}") from error
    if not data:
        raise WeightsError(expected(f"{source}", "weights", "an empty file", SAVE))
    return data


def _check_start(source: Path, start: bytes, size: int) -> None:
    """Refuse by its first bytes what is no weights file, before gigabytes of it are read."""
    if size < LARGE:
        return
    if source.suffix.lower() == ".safetensors":
        header = int.from_bytes(start[:8], "little")
        right = 8 + header <= size and start[8:] == b"{"
    else:
        right = start.startswith((b"PK", b"\x80"))  # a zip archive, or the old format's pickle
    if not right:
        got = f"{size} bytes that begin otherwise"
        raise WeightsError(expected(f"{source}", "weights", got, "copy or save it again"))


def _check_archive(source: Path, data: bytes) -> None:
    """torch.save packs nothing, so an archive holds no more than its own bytes."""
    if not data.startswith(b"PK"):
        return
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise WeightsError(expected(f"{source}", "a state dict", "TorchScript", SAVE))
        if sum(member.file_size for member in archive.infolist()) > len(data):
            got = "a packed archive, which may unpack to any size"
            raise WeightsError(expected(f"{source}", "a file by torch.save", got, SAVE))


def _safetensors(source: Path, data: bytes) -> object:
    try:
        return dict(sorted(safetensors.torch.load(data).items()))  # it comes back shuffled
    except Exception as error:  # whatever a broken file provokes, it is a broken file
        fault = _first_line(error).removeprefix("Error while deserializing header: ")
        got = f"a damaged or other file ({fault})"
        raise WeightsError(
            expected(f"{source}", "safetensors", got, "copy or save it again")
        ) from error


def _torch(source: Path, data: bytes) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its advice on protocols is not the user's concern
            _check_archive(source, data)
            return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except WeightsError:
        raise
    except pickle.UnpicklingError as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        got = f"a pickle with {named[1]}" if named else "another pickle"
        got += ", refused because loading it could run code"
        raise WeightsError(expected(f"{source}", "a state dict", got, SAVE)) from error
    except Exception as error:  # whatever a broken file provokes, it is a broken file
        got = "a damaged or other file"
        do = f"copy it again, or {SAVE}"
        raise WeightsError(expected(f"{source}", "a PyTorch state dict", got, do)) from error


def _state_dict(source: Path, held: object) -> dict[str, Tensor]:
    for key in _WRAPPERS:
        if isinstance(held, Mapping) and isinstance(held.get(key), Mapping):
            held = held[key]
    if not isinstance(held, Mapping):
        got = f"a {type(held).__name__}"
        raise WeightsError(expected(f"{source}", "a state dict", got, SAVE))
    if not held:
        raise WeightsError(expected(f"{source}", "weights", "an empty state dict", SAVE))
    for name, value in held.items():
        if not isinstance(name, str) or not name.isprintable() or not isinstance(value, Tensor):
            got = f"a {type(value).__name__} under {ascii(name)[:60]}"
            raise WeightsError(expected(f"{source}", "a state dict of tensors", got, SAVE))
    return dict(held)


def _check(source: Path, name: str, value: Tensor, size: int) -> None:
    what = f"{source}: {name}"
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_complex():
        got = f"{value.dtype}, {value.layout} on {value.device}"
        raise WeightsError(expected(what, "a dense tensor of real numbers", got))
    # A view of a few numbers can claim any shape: it would ask for memory when it is used.
    if value.numel() * value.element_size() > size:
        got = f"{tuple(value.shape)} from a file of {size} bytes"
        raise WeightsError(expected(what, "a tensor stored in full", got, SAVE))
    if value.is_floating_point():
        wide = value if value.element_size() > 1 else value.float()  # 8 bits have no isfinite
        bad = value.numel() - int(torch.isfinite(wide).sum())
        if bad:
            raise WeightsError(
                expected(what, "finite numbers", f"{bad} of {value.numel()} NaN or infinite")
            )


def _first_line(error: BaseException) -> str:
    return next(iter(str(error).strip().splitlines()), type(error).__name__)
