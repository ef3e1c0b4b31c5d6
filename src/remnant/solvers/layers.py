"""The reader of a user's network that is a stack: its layers in order of evaluation, and the
consecutive dense ones that the exact solvers work on."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.models.stack import working
from remnant.types import Weights

_NOT_DENSE = (nn.Flatten, nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.MaxPool2d, nn.AvgPool2d)


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
    last: bool  # `next` is the output layer


def first_pair(model: nn.Module, *, after_convolutions: bool = False) -> Pair | str:
    """The first two dense layers, or in a sentence why the model does not begin with them.

    after_convolutions: layers other than dense ones may come before.
    """
    layers = working(model)
    skipped = nn.Flatten if not after_convolutions else _NOT_DENSE
    while layers and isinstance(layers[0][1], skipped):
        layers = layers[1:]
    kinds = [module for _, module in layers[:3]]
    if len(kinds) < 3 or not isinstance(kinds[0], nn.Linear):
        first = type(kinds[0]).__name__ if kinds else "nothing"
        return (
            f"the model must begin with dense layers in an nn.Sequential; it begins with {first} "
            "(a factory may return the nn.Sequential that a module wraps)"
        )
    if not isinstance(kinds[2], nn.Linear):
        kind = type(kinds[2]).__name__
        return f"a second dense layer must follow the first activation; {kind} does"
    return Pair(
        first=_dense(layers[0][0], kinds[0]),
        activation=kinds[1],
        next=_dense(layers[2][0], kinds[2]),
        last=len(layers) == 3,
    )


def _dense(prefix: str, layer: nn.Linear) -> Dense:
    return Dense(weight=f"{prefix}weight", bias=None if layer.bias is None else f"{prefix}bias")
