"""What a file by torch.save would ask of PyTorch, known before PyTorch is asked.

`torch.load(weights_only=True)` runs no code of the file, but does believe its numbers: storages
of any size, views, buffers. So the file's pickle is walked through first, without making anything.
"""

from __future__ import annotations

import io
import zipfile
from pathlib import Path
from typing import Any

from remnant.errors import WeightsError, expected
from remnant.untrusted import Budget, Foreign, pickled, shown
from remnant.untrusted.archives import check_members, member_bytes
from remnant.untrusted.pickles import ENCODE, Call, Name, Reference

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


def check_saved(source: Path, data: bytes) -> None:
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
        key = one.key
        if not isinstance(key, tuple) or len(key) < 5 or key[0] not in ("storage", b"storage"):
            raise ValueError("a reference to no storage")
        kind, name, count = key[1], key[2], key[4]
        leaf = kind.name.rpartition(".")[2] if isinstance(kind, Name) else ""
        if leaf not in BYTES or not isinstance(name, str) or type(count) is not int or count < 0:
            raise ValueError("a storage of no known kind")
        found[name] = max(found.get(name, 0), count * BYTES[leaf])
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
        (function, *_) = call.arguments
        if not isinstance(function, Name) or function.name not in CALLED:
            raise ValueError("a tensor rebuilt by no known function")


def _plain_key(pair: Any) -> bool:
    return isinstance(pair, list | tuple) and len(pair) == 2 and isinstance(pair[0], str | int)
