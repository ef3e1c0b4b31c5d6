"""Checkpoints without passing a directory around.

A loop that may take long says

    kept = checkpoint("descent", settings, start, generator=generator)
    if kept.state is not None: ...                           # go on from there
    for i in ...:
        ...
        if kept.due():
            kept.save({"next": i + 1, ...})

Nobody keeps anything by default; a run's directory does (`store.keeping_states`). What identifies
the computation is hashed into the state's name, so that no other one is ever taken for it, and
what is restored has the same bits and the same layout in memory: the loop ends with the same bytes.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, is_dataclass
from functools import cache
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from remnant.devices import arrived


@dataclass(frozen=True, kw_only=True)
class Keeper:
    """Where states are kept: `load` gives None where there is none that can be trusted.

    every: seconds between two states of one loop; up to `longest` where writing them would take
    more than a `share` of the time.
    """

    load: Callable[[str], dict[str, Tensor] | None]
    save: Callable[[str, dict[str, Tensor]], object]
    every: float = 2.0
    longest: float = 30.0
    share: float = 0.02


_keeper: ContextVar[Keeper | None] = ContextVar("keeper", default=None)


@contextmanager
def keeping(keeper: Keeper) -> Iterator[None]:
    """Keep the states of all loops inside the block with `keeper`."""
    token = _keeper.set(keeper)
    try:
        yield
    finally:
        _keeper.reset(token)


class Checkpoint:
    """`state`: in which this very computation was left, None if it begins."""

    def __init__(self, keeper: Keeper | None, key: str, generator: torch.Generator | None) -> None:
        self.keeper, self.key, self.generator = keeper, key, generator
        self.pause, self.last = 0.0 if keeper is None else keeper.every, time.monotonic()
        self.state: Any = None
        tensors = None if keeper is None else keeper.load(key)
        if tensors is not None:
            self._restore(tensors)

    def _restore(self, tensors: Mapping[str, Tensor]) -> None:
        """A state that does not fit is as good as none: the loop begins."""
        try:
            draws, state = unpack(tensors)
            if self.generator is not None:
                self.generator.set_state(draws)
        except (LookupError, TypeError, ValueError, RuntimeError, RecursionError):
            return
        self.state = arrived(state)

    def due(self) -> bool:
        """Whether a state is wanted now. When one is saved is all that the clock decides."""
        return self.keeper is not None and time.monotonic() - self.last >= self.pause

    def save(self, state: Any) -> None:
        """Tensors, JSON values, lists (tuples become them) and mappings (dataclasses too).

        The generator's state is kept with them, and is restored before they are given back.
        """
        if self.keeper is None:
            return
        begun = time.monotonic()
        draws = None if self.generator is None else self.generator.get_state()
        self.keeper.save(self.key, pack([draws, state]))
        self.last = time.monotonic()
        if self.keeper.every:  # 0: after every step, whatever it costs
            self.pause = min(
                max(self.keeper.every, (self.last - begun) / self.keeper.share), self.keeper.longest
            )


def checkpoint(name: str, *given: Any, generator: torch.Generator | None = None) -> Checkpoint:
    """Of the loop of that name that starts from what is `given` and from the generator's state."""
    keeper = _keeper.get()
    if keeper is None:
        return Checkpoint(None, "", None)
    draws = None if generator is None else generator.get_state()
    body = pack([name, torch.__version__, _sources(), draws, given])
    key = hashlib.sha256(safetensors.torch.save(body)).hexdigest()
    return Checkpoint(keeper, key, generator)


@cache
def _sources() -> str:
    """The hash of this package's code: other code may leave other states."""
    digest = hashlib.sha256()
    for path in sorted(Path(__file__).parent.rglob("*.py")):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def pack(tree: Any) -> dict[str, Tensor]:
    """Tensors by name, and a tensor of bytes: JSON that says where in the tree they stand."""
    tensors: dict[str, Tensor] = {}

    def plain(value: Any) -> Any:
        if isinstance(value, Tensor):
            name = f"t{len(tensors)}"
            tensors[name] = value.detach().contiguous().clone()
            ordinary = value.is_contiguous() or 0 in value.stride()
            return {"tensor": name, "stride": None if ordinary else value.stride()}
        if is_dataclass(value):
            return plain({field.name: getattr(value, field.name) for field in fields(value)})
        if isinstance(value, nn.Module):
            held = dict(value.named_parameters()) | dict(value.named_buffers())
            return plain([repr(value), held])
        if isinstance(value, Mapping):
            return {"pairs": [[plain(key), plain(item)] for key, item in value.items()]}
        if isinstance(value, list | tuple):
            return [plain(item) for item in value]
        return value

    text = bytearray(json.dumps(plain(tree)), "utf-8")
    return {"tree": torch.frombuffer(text, dtype=torch.uint8), **tensors}


def unpack(tensors: Mapping[str, Tensor]) -> Any:
    """What was packed; strided as it was, since sums over another layout round otherwise."""

    def whole(value: Any) -> Any:
        if isinstance(value, list):
            return [whole(item) for item in value]
        if isinstance(value, dict) and "pairs" in value:
            return {whole(key): whole(item) for key, item in value["pairs"]}
        if isinstance(value, dict):
            kept = tensors[value["tensor"]]
            if value["stride"] is None:
                return kept.clone()  # aligned as torch aligns, which a file is not
            return torch.empty_strided(kept.shape, value["stride"], dtype=kept.dtype).copy_(kept)
        return value

    return whole(json.loads(tensors["tree"].numpy().tobytes()))
