"""Where tensors live: of a model on a GPU all is computed there, by code that knows of none.

    @computed_there
    def attack(target, *, generator): ...

Such a function computes where `--device` says (`computing_on`), else where the tensors that it is
given live. All of them are brought there, what it makes inside is made there, and what it returns
comes back to the CPU. On the CPU nothing is changed or watched.
"""

from __future__ import annotations

import copy
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import fields, is_dataclass, replace
from functools import wraps
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor, nn
from torch.overrides import TorchFunctionMode

Given = ParamSpec("Given")
Returned = TypeVar("Returned")

CPU = torch.device("cpu")
_wanted: ContextVar[torch.device | None] = ContextVar("wanted", default=None)
_here: ContextVar[torch.device] = ContextVar("here", default=CPU)


@contextmanager
def computing_on(device: str | torch.device) -> Iterator[None]:
    """Have the functions that are `computed_there` compute on that device inside the block."""
    token = _wanted.set(torch.device(device))
    try:
        yield
    finally:
        _wanted.reset(token)


def computed_there(function: Callable[Given, Returned]) -> Callable[Given, Returned]:
    """The function, for arguments that live anywhere."""

    @wraps(function)
    def there(*args: Given.args, **kwargs: Given.kwargs) -> Returned:
        if _here.get() != CPU:  # called by another one
            return function(*args, **kwargs)
        home = device_of((args, kwargs))
        device = _wanted.get() or home
        if device.type == "mps":  # it has no float64, which most solvers need
            device = CPU
        if device == home == CPU:
            return function(*args, **kwargs)
        with living_on(device):
            found: Any = function(*moved(args, device), **moved(kwargs, device))
        return moved(found, CPU)  # type: ignore[no-any-return]

    return there


def arrived(tree: Any) -> Any:
    """What was read from a file, brought to where it is computed."""
    return moved(tree, _here.get())


def device_of(tree: Any) -> torch.device:
    """The first device of these values that is not the CPU; the CPU if there is none."""
    seen = list[torch.device]()

    def look(tensor: Tensor) -> Tensor:
        seen.append(tensor.device)
        return tensor

    over(tree, look)
    return next((device for device in seen if device != CPU), CPU)


def moved(tree: Any, device: torch.device) -> Any:
    """The values with all their tensors on the device; the same value where they are."""
    return over(tree, lambda tensor: tensor.to(device))


def over(tree: Any, change: Callable[[Tensor], Tensor]) -> Any:
    """Values with each tensor changed: in modules, dataclasses, mappings and lists. What does not
    change stays the same object."""
    if isinstance(tree, Tensor):
        return change(tree)
    if isinstance(tree, nn.Module):
        held = [*tree.parameters(), *tree.buffers()]
        if all(change(tensor) is tensor for tensor in held):
            return tree
        copied: Any = copy.deepcopy(tree)
        return copied._apply(change)
    if is_dataclass(tree) and not isinstance(tree, type):
        parts: Any = {field.name: getattr(tree, field.name) for field in fields(tree) if field.init}
    elif isinstance(tree, Mapping):
        parts = dict(tree)
    elif isinstance(tree, list | tuple):
        parts = dict(enumerate(tree))
    else:
        return tree
    new = {name: over(part, change) for name, part in parts.items()}
    if all(new[name] is part for name, part in parts.items()):
        return tree
    if isinstance(tree, Mapping):
        return new
    if isinstance(tree, list | tuple):
        make: Any = getattr(type(tree), "_make", type(tree))  # a named tuple is made otherwise
        return make(new.values())
    return replace(tree, **new)


@contextmanager
def living_on(device: torch.device) -> Iterator[None]:
    """Inside the block, what is made without a word on where is made on the device."""
    token = _here.set(device)
    exact = torch.backends.cudnn.flags(enabled=True, deterministic=True, allow_tf32=False)
    try:
        with exact, device, OnDevice(device):
            yield
    finally:
        _here.reset(token)


class OnDevice(TorchFunctionMode):
    """Random draws come from the CPU, so that a seed means the same numbers everywhere, and what
    numpy is to see goes there."""

    def __init__(self, device: torch.device) -> None:
        super().__init__()
        self.device = device

    def __torch_function__(
        self, func: Any, types: Any, args: tuple[Any, ...] = (), kwargs: Any = None
    ) -> Any:
        kwargs = kwargs or {}
        if kwargs.get("generator") is not None:
            return self.drawn(func, args, kwargs)
        if func in (Tensor.numpy, Tensor.__array__):
            return func(args[0].cpu(), *args[1:], **kwargs)
        return func(*args, **kwargs)

    def drawn(self, func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        """A new tensor of random numbers, or the first argument filled with them."""
        if not (args and isinstance(args[0], Tensor)):
            return func(*args, **{**kwargs, "device": CPU}).to(self.device)
        drawn = func(torch.empty_like(args[0], device=CPU), *args[1:], **kwargs)
        return args[0].copy_(drawn)
