"""Inputs from features behind layers with random weights (paper 002, section 4.2, eavesdropper).

The features h that enter the last hidden layer are what `two_layer` and `span_lm` recover. Each
layer before it, h = s(W x + b) with an invertible activation and no fewer neurons than inputs, is
undone by x = W^+ (s^-1(h) - b).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

from remnant.errors import InputError, expected

Inverse = Callable[[Tensor], Tensor]
Layer = tuple[nn.Linear, nn.Module]  # dense, then its activation


@dataclass(frozen=True, kw_only=True)
class Bijection:
    """An activation's inverse and the open interval that it is defined on."""

    inverse: Inverse
    low: float
    high: float


def _leaky(module: nn.Module) -> Inverse:
    slope = float(getattr(module, "negative_slope", 0.01))
    return lambda y: torch.where(y < 0, y / slope, y)


BIJECTIONS: dict[type[nn.Module], Callable[[nn.Module], Bijection]] = {
    nn.Tanh: lambda _: Bijection(inverse=torch.atanh, low=-1, high=1),
    nn.Sigmoid: lambda _: Bijection(inverse=torch.logit, low=0, high=1),
    nn.Softplus: lambda _: Bijection(
        inverse=lambda y: y + torch.log(-torch.expm1(-y)), low=0, high=float("inf")
    ),
    nn.ELU: lambda _: Bijection(
        inverse=lambda y: torch.where(y > 0, y, torch.log1p(y.clamp(max=0))),
        low=-1,
        high=float("inf"),
    ),
    nn.LeakyReLU: lambda m: Bijection(inverse=_leaky(m), low=float("-inf"), high=float("inf")),
    nn.Identity: lambda _: Bijection(inverse=lambda y: y, low=float("-inf"), high=float("inf")),
}


def bijection(activation: nn.Module) -> Bijection:
    """The inverse of an activation module, or an InputError that lists those that have one."""
    make = BIJECTIONS.get(type(activation))
    if make is None:
        known = ", ".join(kind.__name__ for kind in BIJECTIONS)
        raise InputError(
            expected("activation to undo", f"one of {known}", type(activation).__name__)
        )
    return make(activation)


@dataclass(frozen=True, kw_only=True, eq=False)
class Undone:
    """inputs: k x d. gap: k, the share of the pre-activations that no input of a layer gives.

    A gap well above rounding says that the features were wrong (or on the activation's plateau).
    """

    inputs: Tensor
    gap: Tensor


def undo_layers(layers: Sequence[Layer], features: Tensor) -> Undone:
    """Inputs of `layers` (dense, activation; in order of evaluation) from their outputs, k x w."""
    x = features.double()
    gap = torch.zeros(len(x), dtype=torch.float64)
    for linear, activation in reversed(layers):
        weight = linear.weight.detach().double()
        if weight.shape[0] < weight.shape[1]:
            got = f"{weight.shape[0]} neurons for {weight.shape[1]} inputs"
            raise InputError(expected("layer to undo", "no fewer neurons than inputs", got))
        kind = bijection(activation)
        # Estimates may lie outside the activation's range: pulled just inside, and told.
        inside = x.clamp(kind.low + 1e-15, kind.high - 1e-15)
        gap = torch.maximum(gap, _share(x - inside, x))
        before = kind.inverse(inside)
        if linear.bias is not None:
            before = before - linear.bias.detach().double()
        undo: Tensor = torch.linalg.pinv(weight)
        x = before @ undo.T
        gap = torch.maximum(gap, _share(x @ weight.T - before, before))
    return Undone(inputs=x, gap=gap)


def _share(part: Tensor, whole: Tensor) -> Tensor:
    share: Tensor = part.norm(dim=1) / whole.norm(dim=1).clamp(min=1e-300)
    return share


def undo_directions(
    layers: Sequence[Layer], directions: Tensor, *, norm: float | None = 1.0, steps: int = 400
) -> Undone:
    """The same from directions of features, k x w, whose length is searched for.

    The length is the one whose input has norm `norm` (the paper's; where several do, the one with
    the smallest gap), or with norm=None the one with the smallest gap, which needs a layer with
    more neurons than inputs.
    """
    found = [_at_length(layers, row, norm, steps) for row in directions.double()]
    return undo_layers(layers, torch.stack(found))


def _at_length(layers: Sequence[Layer], row: Tensor, norm: float | None, steps: int) -> Tensor:
    """The direction at its right length and, where the range allows both, its right sign."""

    def judge(features: Tensor) -> Tensor:
        undone = undo_layers(layers, features)
        off: Tensor = undone.inputs.norm(dim=1) / (norm or 1) - 1
        return undone.gap if norm is None else off.abs()

    ends = []
    for signed in (row, -row):
        top = _longest(signed, bijection(layers[-1][1]))
        if top <= 0:
            continue
        grid = top * torch.logspace(-3, -1e-9, steps, dtype=torch.float64)
        values = judge(grid[:, None] * signed)
        dips = (values[1:-1] < torch.minimum(values[:-2], values[2:])).nonzero()[:, 0] + 1
        for i in dips[values[dips].argsort()][:4].tolist():
            fine = minimize_scalar(
                lambda a, signed=signed: float(judge(a * signed[None])[0]),
                bounds=(float(grid[i - 1]), float(grid[i + 1])),
                method="bounded",
                options={"xatol": 1e-13},
            )
            at = float(fine.x) * signed
            ends.append((float(fine.fun), float(undo_layers(layers, at[None]).gap[0]), at))
    if not ends:
        return row
    least = min(value for value, _, _ in ends)
    near = [end for end in ends if end[0] < max(1e-4, 2 * least)] if norm is not None else ends
    return min(near, key=lambda end: end[1])[2]


def _longest(direction: Tensor, kind: Bijection) -> float:
    """The largest factor that keeps the direction in the activation's range (0: none does)."""
    factors = [1e6]
    up, down = float(direction.max()), float(direction.min())
    if up > 0:
        factors.append(kind.high / up)
    if down < 0:
        factors.append(kind.low / down)
    return min(factors)
