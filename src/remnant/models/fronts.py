"""Cutting a network in two: the dense layers at its end, and the front before them."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.models.activations import ACTIVATIONS
from remnant.models.stack import IDLE, leaves
from remnant.models.tokens import logits_of


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """A stack in two, a front and what follows it, as stacks of their own (copies), and the names
    of their parameters and buffers in the whole: that of the k-th layer of a part begins with its
    k-th prefix."""

    front: nn.Sequential
    rest: nn.Sequential
    prefixes: tuple[tuple[str, ...], tuple[str, ...]]

    def of_front(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """What is held of the whole, by the names in the front."""
        rest = tuple(prefix for prefix in self.prefixes[1] if prefix)
        mine = {name: value for name, value in held.items() if not name.startswith(rest)}
        return _renamed(mine, self.prefixes[0])

    def of_rest(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _renamed(held, self.prefixes[1])


def _renamed(held: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    return {
        f"{index}.{name.removeprefix(prefix)}": value
        for index, prefix in enumerate(prefixes)
        for name, value in held.items()
        if name.startswith(prefix)
    }


def before_dense(model: nn.Module, shape: Sequence[int]) -> Parts | None:
    """Front and the dense layers at the end of a network; None where it does not end in dense
    layers behind others. shape: of an input."""
    layers = list(leaves(model))
    if [module for _, module in layers] == [model]:
        return before_last(model, shape)
    plain = (nn.Linear, *IDLE, *(type(make()) for make in ACTIVATIONS.values()))
    at = len(layers)
    while at and isinstance(layers[at - 1][1], plain):
        at -= 1
    while at < len(layers) and not isinstance(layers[at][1], nn.Linear):
        at += 1
    begins = any(isinstance(module, nn.Linear) for _, module in layers[:at])
    has_front = any(list(module.parameters()) for _, module in layers[:at])
    return parts(model, at) if has_front and at < len(layers) and not begins else None


def before_last(model: nn.Module, shape: Sequence[int]) -> Parts | None:
    """Front and head of a module that is no stack, as residual networks are written: the head is
    its last dense layer, if that returns what the module does."""
    name = next((n for n, m in reversed([*model.named_modules()]) if isinstance(m, nn.Linear)), "")
    if not name:
        return None
    front, head = copy.deepcopy(model), copy.deepcopy(model.get_submodule(name))
    front.set_submodule(name, nn.Identity())
    front.register_forward_hook(lambda module, inputs, outputs: logits_of(outputs))
    chance = torch.Generator().manual_seed(0)  # its own: it changes no result
    probe = torch.rand(2, *shape, generator=chance).to(next(model.parameters()))
    try:
        with torch.no_grad():
            whole, features = logits_of(copy.deepcopy(model).eval()(probe)), front.eval()(probe)
            again: Tensor = head(features.flatten(1))
            same = isinstance(whole, Tensor) and torch.allclose(again, whole, rtol=1e-4, atol=1e-5)
    except (RuntimeError, TypeError, ValueError, IndexError, AttributeError):
        return None  # another's code, which need not bear a layer that is missing
    if not same or not any(True for _ in front.parameters()):
        return None
    sides = nn.Sequential(front), nn.Sequential(head)
    return Parts(front=sides[0], rest=sides[1], prefixes=(("",), (f"{name}.",)))


def parts(model: nn.Module, at: int) -> Parts:
    """The stack before and from its layer number `at`."""
    layers = list(leaves(model))
    sides = (layers[:at], layers[at:])
    front, rest = (nn.Sequential(*(copy.deepcopy(m) for _, m in side)) for side in sides)
    first, second = (tuple(prefix for prefix, _ in side) for side in sides)
    return Parts(front=front, rest=rest, prefixes=(first, second))
