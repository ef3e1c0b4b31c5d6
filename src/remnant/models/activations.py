"""Activations by name. A new one is a line in `ACTIVATIONS`."""

from __future__ import annotations

import re
from collections.abc import Callable

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected


class Cubic(nn.Module):
    """x^2 + x^3: a polynomial with non-zero second and third Hermite coefficients."""

    elementwise = True  # lets the gradient algebra use its layerwise rules

    def forward(self, x: Tensor) -> Tensor:
        return x.square() * (1 + x)


class Floor(nn.Module):
    """max(-0.5, x): ReLU with its kink moved below zero."""

    elementwise = True
    kink = -0.5

    def forward(self, x: Tensor) -> Tensor:
        return torch.clamp(x, min=self.kink)


ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "leaky": nn.LeakyReLU,  # slope 0.01; leaky0.1 is another slope
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
    "elu": nn.ELU,
    "celu": nn.CELU,  # alpha 1: the same function as elu
    "selu": nn.SELU,
    "gelu": nn.GELU,
    "silu": nn.SiLU,
    "softplus": nn.Softplus,
    "cubic": Cubic,
    "floor": Floor,
    "identity": nn.Identity,
}

_LEAKY = re.compile(r"leaky(0\.[0-9]{1,6})")


def activation(name: str) -> nn.Module:
    """The activation called `name` in `ACTIVATIONS`, or `leaky<slope>` with 0 < slope < 1."""
    if name in ACTIVATIONS:
        return ACTIVATIONS[name]()
    leaky = _LEAKY.fullmatch(name)
    if leaky and float(leaky[1]) > 0:
        return nn.LeakyReLU(float(leaky[1]))
    known = ", ".join([*ACTIVATIONS, "leaky0.1"])
    raise InputError(expected("activation", f"one of {known}", ascii(name[:40])))
