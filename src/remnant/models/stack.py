"""Reading a network that is a stack of layers: in order of evaluation, by name.

Solvers, training and audits ask the same few questions of a user's model; they are answered here.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import nn

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
