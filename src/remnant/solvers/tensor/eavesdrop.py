"""Inputs from features behind layers with random weights (paper 002, section 4.2, eavesdropper).

The features h that enter the last hidden layer are what `two_layer` and `span_lm` recover. Each
layer before it, h = s(W x + b) with an invertible activation and no fewer neurons than inputs, is
undone by x = W^+ (s^-1(h) - b).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from scipy.optimize import minimize_scalar
from torch import Tensor, nn

Inverse = Callable[[Tensor], Tensor]
Layer = tuple[nn.Linear, nn.Module]  # dense, then its activation


Bijection = tuple[Inverse, float, float]
"""An activation's inverse and the open interval that it is defined on."""
INF = float("inf")
BIJECTIONS: dict[type[nn.Module], Callable[[nn.Module], Bijection]] = {
    nn.Tanh: lambda _: (torch.atanh, -1, 1),
    nn.Sigmoid: lambda _: (torch.logit, 0, 1),
    nn.Softplus: lambda _: (lambda y: y + torch.log(-torch.expm1(-y)), 0, INF),
    nn.ELU: lambda _: (lambda y: torch.where(y > 0, y, torch.log1p(y.clamp(max=0))), -1, INF),
    nn.LeakyReLU: lambda m: (
        lambda y: torch.where(y < 0, y / float(m.negative_slope), y),  # type: ignore[arg-type]
        -INF,
        INF,
    ),
    nn.Identity: lambda _: (lambda y: y, -INF, INF),
}


def why_not_undone(layers: Sequence[Layer]) -> str | None:
    """Why layers cannot be undone, in a sentence."""
    for linear, activation in layers:
        if type(activation) not in BIJECTIONS:
            return f"{type(activation).__name__} cannot be undone behind the first layers"
        if linear.out_features < linear.in_features:
            sizes = f"{linear.in_features} to {linear.out_features}"
            return f"a layer from {sizes} cannot be undone: it has fewer neurons than inputs"
    return None


def undo_layers(layers: Sequence[Layer], features: Tensor) -> tuple[Tensor, Tensor]:
    """Inputs (k x d) of `layers` (dense, activation; in order of evaluation) from their outputs
    (k x w); and for each the share of its pre-activations that no input of a layer could have
    given: well above rounding, the features were wrong, or on the activation's plateau."""
    x = features.double()
    gap = torch.zeros(len(x), dtype=torch.float64)
    for linear, activation in reversed(layers):
        weight = linear.weight.detach().double()
        inverse, low, high = BIJECTIONS[type(activation)](activation)
        # Estimates may lie outside the activation's range: pulled just inside, and told.
        inside = x.clamp(low + 1e-15, high - 1e-15)
        gap = torch.maximum(gap, _share(x - inside, x))
        before = inverse(inside)
        if linear.bias is not None:
            before = before - linear.bias.detach().double()
        x = before @ torch.linalg.pinv(weight).T
        gap = torch.maximum(gap, _share(x @ weight.T - before, before))
    return x, gap


def _share(part: Tensor, whole: Tensor) -> Tensor:
    share: Tensor = part.norm(dim=1) / whole.norm(dim=1).clamp(min=1e-300)
    return share


def undo_directions(
    layers: Sequence[Layer], directions: Tensor, *, norm: float | None, steps: int = 400
) -> Tensor:
    """The same inputs from directions of features, k x w, whose length is searched for.

    The length is the one whose input has norm `norm` (the paper's; where several do, the one with
    the smallest gap), or with norm=None the one with the smallest gap, which needs a layer with
    more neurons than inputs.
    """
    found = [_at_length(layers, row, norm, steps) for row in directions.double()]
    return undo_layers(layers, torch.stack(found))[0]


def _at_length(layers: Sequence[Layer], row: Tensor, norm: float | None, steps: int) -> Tensor:
    """The direction at its right length and, where the range allows both, its right sign."""

    def judge(features: Tensor) -> Tensor:
        inputs, gap = undo_layers(layers, features)
        return gap if norm is None else (inputs.norm(dim=1) / norm - 1).abs()

    ends = []
    for signed in (row, -row):
        top = _longest(signed, layers[-1][1])
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
            ends.append((float(fine.fun), float(undo_layers(layers, at[None])[1][0]), at))
    if not ends:
        return row
    least = min(value for value, _, _ in ends)
    near = [end for end in ends if end[0] < max(1e-4, 2 * least)] if norm is not None else ends
    return min(near, key=lambda end: end[1])[2]


def _longest(direction: Tensor, activation: nn.Module) -> float:
    """The largest factor that keeps the direction in the activation's range (0: none does)."""
    _, low, high = BIJECTIONS[type(activation)](activation)
    factors = [1e6]
    up, down = float(direction.max()), float(direction.min())
    if up > 0:
        factors.append(high / up)
    if down < 0:
        factors.append(low / down)
    return min(factors)
