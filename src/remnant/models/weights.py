"""Weights files: safetensors, or a state dict that PyTorch reads without running code.

`torch.load(weights_only=True)` runs no code of the file, but does believe its numbers: storages
of any size, views, buffers. So the file's pickle is walked through first, without making anything.
"""

from __future__ import annotations

import io
import os
import pickle
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor

from remnant.errors import WeightsError, expected
from remnant.types import Weights
from remnant.untrusted.archives import check_members, member_bytes
from remnant.untrusted.files import (
    Budget,
    check_file,
    file_bytes,
    reading,
    shown,
    write_private,
)
from remnant.untrusted.pickles import (
    ENCODE,
    Call,
    Foreign,
    Name,
    Reference,
    pickled,
    plain_key,
)

TORCH_SUFFIXES = (".pt", ".pth", ".ckpt", ".bin", ".tar")
LARGE = 2**26  # bytes; smaller files are read before they are judged
LIMIT = 8 * 1024**3  # bytes of a file: the most parameters that a model here may have, as doubles
SHARED = 8  # how often all of a file's numbers may be named; tied layers are named a few times
# Lightning; the PyTorch tutorials; Opacus; what training scripts call it.
_WRAPPERS = ("state_dict", "model_state_dict", "module_state_dict", "model", "net", "module", "ema")
_PREFIXES = ("model.", "module.")  # a Lightning attribute; DataParallel
SAVE = "save model.state_dict()"
# What is called in state dicts and checkpoints of plain values. Others that PyTorch would let
# through make room by a number in the file (bytearray, torch.FloatTensor) or hash its values.
CALLED = {
    "collections.OrderedDict", "collections.Counter", "torch.Size", "torch.device",
    "torch.serialization._get_layout", "torch._tensor._rebuild_from_type_v2",
    *(f"torch._utils._rebuild_{kind}" for kind in (
        "tensor", "tensor_v2", "tensor_v3", "parameter", "parameter_with_state",
        "sparse_tensor", "meta_tensor_no_storage",
    )),
}  # fmt: skip
NAMED = {*CALLED, ENCODE, "torch.nn.parameter.Parameter", "torch.Tensor"}
BYTES = {
    "ByteStorage": 1, "CharStorage": 1, "BoolStorage": 1, "UntypedStorage": 1, "ShortStorage": 2,
    "HalfStorage": 2, "BFloat16Storage": 2, "IntStorage": 4, "FloatStorage": 4,
    "ComplexFloatStorage": 8, "LongStorage": 8, "DoubleStorage": 8, "ComplexDoubleStorage": 16,
}  # fmt: skip


def save_weights(path: str | os.PathLike[str], weights: Weights) -> None:
    """Write safetensors whole or not at all, readable by the owner alone."""
    target = Path(path)
    # Clones: safetensors refuses tensors that share memory, as tied weights do.
    plain = {name: value.detach().cpu().contiguous().clone() for name, value in weights.items()}
    try:
        write_private(target, safetensors.torch.save(plain), prefix=f".{target.name}.")
    except OSError as error:
        raise WeightsError(f"{target}: cannot be written: {error.strerror}") from error


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
        fault = str(error).strip().partition("\n")[0] or type(error).__name__
        fault = fault.removeprefix("Error while deserializing header: ")[:160]
        got = f"a damaged or other file ({fault})"
        raise WeightsError(
            expected(f"{source}", "safetensors", got, "copy or save it again")
        ) from error


def _torch(source: Path, data: bytes) -> object:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # its advice on protocols is not the user's concern
            _check_saved(source, data)
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


def _check_saved(source: Path, data: bytes) -> None:
    """Refuse what is packed or damaged, and storages that are not in the file."""
    if data.startswith(b"PK"):
        return _check_archive(source, data)
    stream = io.BytesIO(data)
    budget = Budget(len(data), WeightsError, len(data))
    for _ in ("magic", "version", "system", "weights", "keys"):  # the format before PyTorch 1.6
        budget.take(f"{source}: storages", sum(_storages(stream, len(data)).values()))


def _check_archive(source: Path, data: bytes) -> None:
    """torch.save packs nothing, so an archive holds no more than its own bytes."""
    budget = Budget(len(data), WeightsError, len(data))
    sizes: dict[str, int] = {}
    weights = b""
    with zipfile.ZipFile(io.BytesIO(data)) as archive:
        if len({name.partition("/")[0] for name in archive.namelist()}) != 1:
            raise zipfile.BadZipFile("not one folder")
        if any(name.endswith("/constants.pkl") for name in archive.namelist()):
            raise WeightsError(expected(f"{source}", "a state dict", "TorchScript", SAVE))
        if any(info.compress_type != zipfile.ZIP_STORED for info in archive.infolist()):
            got = "a packed archive, which may unpack to any size"
            raise WeightsError(expected(f"{source}", "a file by torch.save", got, SAVE))
        check_members(source, archive, budget)
        for name in archive.namelist():
            body = member_bytes(archive, name, budget)
            leaf = name.partition("/")[2]
            sizes[leaf] = len(body)
            weights = body if leaf == "data.pkl" else weights
    for key, size in _storages(io.BytesIO(weights), len(data)).items():
        there = sizes.get(f"data/{key}", 0)
        if size != there:
            what = f"{source}: storage {shown(key)}"
            raise WeightsError(expected(what, f"{shown(size)} bytes", there, SAVE))


def _storages(stream: io.BytesIO, most: int) -> dict[str, int]:
    """Bytes of each storage that the next pickle asks for, by its key."""
    seen: list[Call | Reference] = []
    pickled(stream, _known, most, seen)
    found: dict[str, int] = {}
    for one in seen:
        if isinstance(one, Call):
            _check_call(one)
            continue
        match one.key:
            case ("storage" | b"storage", Name() as kind, str() as name, _, int() as count, *_):
                size = BYTES.get(kind.name.rpartition(".")[2])
            case _:
                raise ValueError("a reference to no storage")
        if size is None or type(count) is not int or count < 0:
            raise ValueError("a storage of no known kind")
        found[name] = max(found.get(name, 0), count * size)
    return found


def _known(name: str) -> bool:
    module, _, leaf = name.rpartition(".")
    kind = leaf in BYTES or (leaf.islower() and leaf.replace("_", "").isalnum())  # or a dtype
    return name in NAMED or (module in ("torch", "torch.storage") and kind)


def _check_call(call: Call) -> None:
    """Only what rebuilds tensors and tables, given nothing that takes long to hash."""
    if call.name not in CALLED:
        raise Foreign(call.name)
    for given in call.arguments if call.name.startswith("collections.") else ():
        pairs = [(key, None) for key in given] if isinstance(given, dict) else given
        if not isinstance(pairs, list) or not all(_plain_key(pair) for pair in pairs):
            raise ValueError("a table whose keys are no texts or numbers")
    if call.name.endswith("_rebuild_from_type_v2"):
        function, _, arguments, *_ = call.arguments
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("a tensor rebuilt by no known function")
        _check_call(Call(function.name, arguments))


def _plain_key(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and plain_key(pair[0])
