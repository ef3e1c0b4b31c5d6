"""The check that needs no truth: do the recovered records give back both gradients?

With all records at hand every unknown of the two layers follows: the features H from X, the signals
D from M2 = D^T H, the duals A = f'(t) * (W2^T d) from these, and then M1 = A^T X~ must hold, in
which nothing is left to choose. One wrong record in n spoils it by about 1 / sqrt(n).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.numerics import best_fit, slope_at, with_one


@dataclass(frozen=True, kw_only=True, eq=False)
class Resimulation:
    """Relative residuals of the two gradients, and what they were computed with."""

    first: float
    next: float
    duals: Tensor  # n x w
    signals: Tensor  # n x v: the gradient at each record's pre-activations of the next layer


def resimulate(
    records: Tensor,
    first: Tensor,
    first_gradient: Tensor,
    next_weight: Tensor,
    next_gradient: Tensor,
    activation: nn.Module,
) -> Resimulation:
    """records: n x (d+1), as first: w x (d+1). next_gradient: v x w, or v x (w+1) with its bias."""
    t = records @ first.T
    with torch.no_grad():
        features = activation(t)
    if next_gradient.shape[1] == features.shape[1] + 1:
        features = with_one(features)
    signals = best_fit(features.T, next_gradient.T)
    next_rest = features.T @ signals - next_gradient.T
    duals = slope_at(activation, t) * (signals @ next_weight)
    # A kink within rounding of some record's t may have fired there and not here.
    spread = t.square().mean(1, keepdim=True).sqrt()
    sure = ((t.abs() > 1e-5 * spread).all(0) | _smooth(activation)).nonzero()[:, 0]
    first_rest = duals[:, sure].T @ records - first_gradient[sure]
    return Resimulation(
        first=float(first_rest.norm() / first_gradient[sure].norm()),
        next=float(next_rest.norm() / next_gradient.norm()),
        duals=duals,
        signals=signals,
    )


def _smooth(activation: nn.Module) -> bool:
    return not isinstance(activation, nn.ReLU | nn.LeakyReLU | nn.PReLU)
