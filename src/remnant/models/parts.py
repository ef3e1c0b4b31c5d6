"""A stack of layers in two: a front, and what follows it."""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.models.activations import ACTIVATIONS
from remnant.models.stack import IDLE, leaves


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """Both parts as stacks of their own (copies), and the names of their parameters and buffers in
    the whole: that of the k-th layer of a part begins with its k-th prefix."""

    front: nn.Sequential
    rest: nn.Sequential
    prefixes: tuple[tuple[str, ...], tuple[str, ...]]

    def of_front(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _renamed(held, self.prefixes[0])

    def of_rest(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _renamed(held, self.prefixes[1])


def before_dense(model: nn.Module) -> Parts | None:
    """Front and the dense layers at the end of a stack; None where it is no stack, or does not end
    in dense layers behind others."""
    layers = list(leaves(model))
    plain = (nn.Linear, *IDLE, *(type(make()) for make in ACTIVATIONS.values()))
    at = len(layers)
    while at and isinstance(layers[at - 1][1], plain):
        at -= 1
    while at < len(layers) and not isinstance(layers[at][1], nn.Linear):
        at += 1
    begins = any(isinstance(module, nn.Linear) for _, module in layers[:at])
    has_front = any(list(module.parameters()) for _, module in layers[:at])
    return parts(model, at) if has_front and at < len(layers) and not begins else None


def parts(model: nn.Module, at: int) -> Parts:
    """The stack before and from its layer number `at`."""
    layers = list(leaves(model))
    sides = (layers[:at], layers[at:])
    front, rest = (nn.Sequential(*(copy.deepcopy(m) for _, m in side)) for side in sides)
    first, second = (tuple(prefix for prefix, _ in side) for side in sides)
    return Parts(front=front, rest=rest, prefixes=(first, second))


def _renamed(held: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    return {
        f"{index}.{name.removeprefix(prefix)}": value
        for index, prefix in enumerate(prefixes)
        for name, value in held.items()
        if name.startswith(prefix)
    }


def features_of(front: nn.Module, inputs: Tensor) -> Tensor:
    """What the front makes of inputs, n x f."""
    with torch.no_grad():
        outputs: Tensor = front(inputs)
    return outputs.flatten(1)
