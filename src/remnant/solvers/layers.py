"""Find, in a user's model, the consecutive dense layers that the exact solvers work on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.types import Weights

_PASS_THROUGH = (nn.Identity, nn.Dropout)  # in evaluation mode they do nothing


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense layer by its parameters' names."""

    weight: str
    bias: str | None

    def affine(self, weights: Weights) -> Tensor:
        """w x (d+1): weights with the bias as last column (w x d where there is none)."""
        if self.bias is None:
            return weights[self.weight]
        return torch.cat([weights[self.weight], weights[self.bias][:, None]], dim=1)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two consecutive dense layers and the activation between them."""

    first: Dense
    activation: nn.Module
    next: Dense


def leaves(model: nn.Module, prefix: str = "") -> Iterator[tuple[str, nn.Module]]:
    """Layers of nested `nn.Sequential`s in order of evaluation; other modules as they are."""
    if not isinstance(model, nn.Sequential):
        yield prefix, model
        return
    for name, child in model.named_children():
        yield from leaves(child, f"{prefix}{name}.")


def first_pair(model: nn.Module) -> Pair | str:
    """The first two dense layers, or in a sentence why the model does not begin with them."""
    layers = [(p, m) for p, m in leaves(model) if not isinstance(m, _PASS_THROUGH)]
    while layers and isinstance(layers[0][1], nn.Flatten):
        layers = layers[1:]
    if len(layers) < 3 or not isinstance(layers[0][1], nn.Linear):
        first = type(layers[0][1]).__name__ if layers else "nothing"
        return (
            f"the model must begin with a dense layer in an nn.Sequential; it begins with {first}"
        )
    (first_name, first), (_, activation), (next_name, following) = layers[:3]
    if not isinstance(following, nn.Linear):
        kind = type(following).__name__
        return f"a second dense layer must follow the first activation; {kind} does"
    return Pair(
        first=_dense(first_name, first), activation=activation, next=_dense(next_name, following)
    )


def _dense(prefix: str, layer: nn.Linear) -> Dense:
    return Dense(weight=f"{prefix}weight", bias=None if layer.bias is None else f"{prefix}bias")


def hidden_layers(model: nn.Module) -> int:
    """How many dense layers come before the output layer."""
    return sum(isinstance(m, nn.Linear) for _, m in leaves(model)) - 1
