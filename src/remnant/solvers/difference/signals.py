"""Points of a single hidden layer, which the output layer follows.

The output layer's change has too few rows to hold every record's features. But what comes back from
the outputs, p = W_out^T d, lies in the few dimensions of W_out's rows (at both ends of the
training), a dual a in the column space of the first layer's change, and a = p where the record
fires and 0 where it is silent. Relaxed reflections look for (t, a, p) in their three spaces. Signs
alone do not fix t, so a point is rough; its dual gets exact all the same, and all duals together
give all records.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.difference.graph import Points
from remnant.solvers.difference.tolerances import TOLERANCES

Spaces = tuple[Tensor, Tensor, Tensor]
"""Orthonormal bases of t (w x r), a (w x n) and p (w x c), float32."""


def nearest_signals(t: Tensor, a: Tensor, p: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The nearest to t, a, p (k x w each) with a = p where t > 0 and a = 0 where not; distances of
    duals a count `feature_weight` times."""
    weight = TOLERANCES.feature_weight**2
    both = (weight * a + p) / (weight + 1)
    cost_on = t.clamp(max=0).square() + weight * (a - both).square() + (p - both).square()
    on = cost_on < t.clamp(min=0).square() + weight * a.square()
    near_t = torch.where(on, t.clamp(min=0), t.clamp(max=0))
    return near_t, torch.where(on, both, torch.zeros_like(a)), torch.where(on, both, p)


def find_signals(
    spaces: Spaces,
    starts: int,
    *,
    generator: torch.Generator,
    iterations: int,
    relaxation: float = 1.2,
) -> Points:
    """Points from random starts by relaxed reflections, the smallest gaps first."""
    width = len(spaces[0])
    size_t, size_a = math.sqrt(width), math.sqrt(1.5 * width)
    t, p = (
        size_t * normalize(torch.randn(starts, f.shape[1], generator=generator) @ f.T, dim=1)
        for f in (spaces[0], spaces[2])
    )
    a = _onto(torch.where(t > 0, p, torch.zeros_like(p)), spaces[1])
    best, best_dual, best_gap = t.clone(), a.clone(), torch.full((starts,), math.inf)
    for iteration in range(1, iterations + 1):
        near_t, near_a, near_p = nearest_signals(t, a, p)
        near_t = size_t * normalize(near_t, dim=1)  # two cones: hold both scales
        unit = size_a / torch.sqrt(near_a.square().sum(1) + near_p.square().sum(1))[:, None]
        near_a, near_p = near_a * unit, near_p * unit
        line_t, line_a = _onto(2 * near_t - t, spaces[0]), _onto(2 * near_a - a, spaces[1])
        steps = (
            line_t - near_t,
            line_a - near_a,
            _onto(2 * near_p - p, spaces[2]) - near_p,
        )
        t, a, p = (x + relaxation * step for x, step in zip((t, a, p), steps, strict=True))
        if iteration % 25 == 0 or iteration == iterations:
            gap = torch.cat(steps, dim=1).norm(dim=1) / math.hypot(size_t, size_a)
            better = gap < best_gap
            best[better], best_dual[better] = line_t[better], line_a[better]
            best_gap[better] = gap[better]
    order = best_gap.argsort()
    coordinates = best[order] @ spaces[0]
    return Points(coordinates=coordinates, dual=best_dual[order], gap=best_gap[order])


def _onto(rows: Tensor, basis: Tensor) -> Tensor:
    return (rows @ basis) @ basis.T
