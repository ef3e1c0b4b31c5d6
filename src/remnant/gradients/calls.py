"""A model called with weights in place of its own."""

from __future__ import annotations

from torch import Tensor, nn
from torch.func import functional_call

from remnant.errors import InputError, expected
from remnant.types import Weights


def parameters(model: nn.Module, weights: Weights | None) -> dict[str, Tensor]:
    """The parameters that gradients are taken for, in the model's order.

    All of the model's own, or those that `weights` names. Buffers in `weights` are no parameters:
    `call` still puts them in place.
    """
    own = dict(model.named_parameters())
    if weights is None:
        return {name: value.detach() for name, value in own.items()}
    check(model, weights, "weights")
    return {name: weights[name] for name in own if name in weights}


def check(model: nn.Module, weights: Weights, what: str) -> None:
    """Raise unless every tensor of `weights` has its place in the model."""
    own = {name: tuple(value.shape) for name, value in model.named_parameters()}
    own |= {name: tuple(value.shape) for name, value in model.named_buffers()}
    for name, value in weights.items():
        if name not in own:
            raise InputError(expected(f"{what}: {name}", "a parameter of the model", "none"))
        if tuple(value.shape) != own[name]:
            raise InputError(expected(f"{what}: {name}", own[name], tuple(value.shape)))


def call(
    model: nn.Module, inputs: Tensor, weights: Weights | None, values: Weights | None = None
) -> Tensor:
    """The outputs `n x c` at `weights`, of which `values` are replaced once more."""
    given = {name: value.detach() for name, value in model.named_parameters()}
    given |= dict(weights or {}) | dict(values or {})
    placed = given | {slot: given[name] for slot, name in _slots(model).items()}
    outputs: Tensor = functional_call(model, placed, (inputs,), tie_weights=False)
    if outputs.ndim != 2 or len(outputs) != len(inputs):
        got = tuple(outputs.shape)
        raise InputError(expected("model outputs", f"n x c with n = {len(inputs)}", got))
    return outputs


def _slots(model: nn.Module) -> dict[str, str]:
    """Every place of a parameter, and the name it is known by: two where two modules share it.

    functional_call would tie them itself, but it visits a module that stands in two places twice
    and then leaves the replaced weights in it. Here each module comes once.
    """
    names = {id(value): name for name, value in model.named_parameters()}
    return {
        f"{prefix}.{leaf}" if prefix else leaf: names[id(value)]
        for prefix, module in model.named_modules()
        for leaf, value in module.named_parameters(recurse=False, remove_duplicate=False)
    }


def blocks(count: int, size: int) -> list[slice]:
    """Slices of at most `size` (at least 1) that cover `count`."""
    size = max(1, size)
    return [slice(start, min(start + size, count)) for start in range(0, count, size)]
