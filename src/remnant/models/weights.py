"""Weights files: safetensors, or a state dict that PyTorch reads without running code."""

from __future__ import annotations

import io
import os
import pickle
import re
import tempfile
import warnings
from collections.abc import Mapping
from pathlib import Path

import safetensors.torch
import torch
from torch import Tensor

from remnant.errors import WeightsError, expected
from remnant.models.torch_files import SAVE, check_saved
from remnant.types import Weights
from remnant.untrusted import Budget, Foreign, check_file, file_bytes, reading, shown

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")
LARGE = 2**26  # bytes; smaller files are read before they are judged
LIMIT = 8 * 1024**3  # bytes of a file: the most parameters that a model here may have, as doubles
SHARED = 8  # how often all of a file's numbers may be named; tied layers are named a few times
# Lightning; the PyTorch tutorials; Opacus; what training scripts call it.
_WRAPPERS = ("state_dict", "model_state_dict", "module_state_dict", "model", "net", "module", "ema")
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
    weights = read_tensors(path)
    for prefix in _PREFIXES:
        if all(name.startswith(prefix) for name in weights):
            weights = {name.removeprefix(prefix): value for name, value in weights.items()}
    return weights


def read_tensors(path: str | os.PathLike[str]) -> dict[str, Tensor]:
    """As `read_weights`, under the names that the file has."""
    source = Path(path)
    suffix = source.suffix.lower()
    if suffix != ".safetensors" and suffix not in TORCH_SUFFIXES:
        wanted = "a .safetensors, .pt, .pth, .pth.tar, .ckpt or .bin file"
        raise WeightsError(expected(f"{source}", wanted, shown(suffix)[1:-1] or "no suffix"))
    budget = Budget(LIMIT, WeightsError)
    data = _bytes(source, budget)
    held = _safetensors(source, data) if suffix == ".safetensors" else _torch(source, data)
    weights = _state_dict(source, held)
    # Tied weights are stored once and named several times; views could be named without end.
    shared = Budget(max(LARGE, SHARED * len(data)), WeightsError, len(data))
    for name, value in weights.items():
        _check(source, name, value, len(data))
        shared.take(f"{source}: all tensors", value.numel() * value.element_size())
    return {name: _own(value) for name, value in weights.items()}


def read_saved(path: str | os.PathLike[str]) -> object:
    """What torch.save wrote, tensors and plain values, from a file that is never trusted."""
    source = Path(path)
    return _torch(source, _bytes(source, Budget(LIMIT, WeightsError)))


def _own(value: Tensor) -> Tensor:
    """In memory of torch's own, which begins at a multiple of 64 bytes.

    Views of a file's bytes begin anywhere, and sums over them differ in the last bits with that.
    """
    return value.detach().clone(memory_format=torch.contiguous_format)


def _bytes(source: Path, budget: Budget) -> bytes:
    size, _ = check_file(source, WeightsError)
    with reading(source, WeightsError), source.open("rb") as file:
        _check_start(source, file.read(9), size)
    data = file_bytes(source, budget)
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


def _safetensors(source: Path, data: bytes) -> object:
    try:
        return dict(sorted(safetensors.torch.load(data).items()))  # it comes back shuffled
    except Exception as error:  # whatever a broken file provokes, it is a broken file
        fault = _first_line(error).removeprefix("Error while deserializing header: ")[:160]
        got = f"a damaged or other file ({fault})"
        raise WeightsError(
            expected(f"{source}", "safetensors", got, "copy or save it again")
        ) from error


def _torch(source: Path, data: bytes) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its advice on protocols is not the user's concern
            check_saved(source, data)
            return torch.load(io.BytesIO(data), weights_only=True, map_location="cpu")
    except WeightsError:
        raise
    except (Foreign, pickle.UnpicklingError) as error:
        named = re.search(r"GLOBAL (\S+)", str(error))
        name = str(error) if isinstance(error, Foreign) else named[1] if named else ""
        got = f"a pickle with {shown(name)[1:-1]}" if name else "another pickle"
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
            got = f"a {type(value).__name__} under {shown(name)}"
            raise WeightsError(expected(f"{source}", "a state dict of tensors", got, SAVE))
    return dict(held)


def _check(source: Path, name: str, value: Tensor, size: int) -> None:
    what = f"{source}: {name[:80]}"
    if value.layout != torch.strided or value.device.type != "cpu" or value.is_complex():
        got = f"{value.dtype}, {value.layout} on {value.device}"
        raise WeightsError(expected(what, "a dense tensor of real numbers", got))
    # A view of a few numbers can claim any shape: it would ask for memory when it is used.
    if value.numel() * value.element_size() > size or value.ndim > 8:
        got = f"{tuple(value.shape[:8])} from a file of {size} bytes"
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
