"""Reading a network that is a stack of layers: in order of evaluation, by name; and cutting it.

Solvers, training and audits ask the same few questions of a user's model; they are answered here.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

from torch import Tensor, nn

from remnant.models.activations import ACTIVATIONS

IDLE = (nn.Identity, nn.Dropout, nn.Dropout2d)
"""Layers that do nothing in evaluation mode."""


def leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Layers of nested `nn.Sequential`s and the prefix of their parameters' names, in order of
    evaluation; other modules as they are."""
    if not isinstance(model, nn.Sequential):
        yield prefix, model
        return
    for name, child in model.named_children():
        yield from leaves(child, f"{prefix}{name}.")


def working(model: nn.Module, *skipped: type[nn.Module]) -> list[tuple[str, nn.Module]]:
    """The leaves but for idle ones and those of the `skipped` kinds."""
    return [(p, m) for p, m in leaves(model) if not isinstance(m, (*IDLE, *skipped))]


def dense_layers(model: nn.Module) -> list[tuple[str, nn.Linear]]:
    """Every dense layer that is a module of its own, wherever it stands, with the prefix of its
    parameters' names; in the order in which modules are listed."""
    named = model.named_modules()
    return [(f"{name}." if name else "", m) for name, m in named if isinstance(m, nn.Linear)]


def drops_inputs(model: nn.Module) -> bool:
    """Whether dropout stands before the first dense layer, whose inputs may then lack entries."""
    kinds = (nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d)
    for module in model.modules():
        if isinstance(module, nn.Linear):
            return False
        if isinstance(module, kinds) and module.p > 0:
            return True
    return False


def first_with_weights(model: nn.Module) -> nn.Module | None:
    """The first module that has parameters of its own: it tells what inputs the model takes."""
    return next((m for m in model.modules() if list(m.parameters(recurse=False))), None)


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
        return _renamed(held, self.prefixes[0])

    def of_rest(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        return _renamed(held, self.prefixes[1])


def _renamed(held: Mapping[str, Tensor], prefixes: tuple[str, ...]) -> dict[str, Tensor]:
    return {
        f"{index}.{name.removeprefix(prefix)}": value
        for index, prefix in enumerate(prefixes)
        for name, value in held.items()
        if name.startswith(prefix)
    }


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
