"""Records as points where a linear space meets the graph of the activation.

Between two consecutive dense layers, t = W1 x + b1 lies in a known linear space (the image of the
records' span) and s = relu(t) in another (the row space of the next layer's change). A record is a
common point of that pair of spaces and of the graph {(t, relu(t))}. Relaxed reflections between the
two sets (RRR, a relative of Douglas-Rachford) find such points from random starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import damped_cholesky

# Distances in s count WEIGHT times those in t, and steps are a little too long. Measured at 300
# records of width 1024: with weight 1 no start of 32 comes near a record, with weight 2 nearly all.
WEIGHT = 2.0
RELAXATION = 1.2
LOOK_BACK = 6  # checks over which the median gap has to fall by a tenth


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Rows `t` (k x w) in the range of the first layer, best first, and their `gap` (k).

    The gap is the distance between the two projections, relative to the point: 0 = a solution.
    """

    t: Tensor
    gap: Tensor


def project_on_graph(t: Tensor, s: Tensor) -> tuple[Tensor, Tensor]:
    """The nearest (u, relu(u)) entry by entry, distances in s counting WEIGHT times."""
    weight = WEIGHT**2
    on = ((t + weight * s) / (1 + weight)).clamp(min=0)
    off = t.clamp(max=0)
    cost_on = (t - on).square() + weight * (s - on).square()
    nearer = cost_on < (t - off).square() + weight * s.square()
    return torch.where(nearer, on, off), torch.where(nearer, on, torch.zeros_like(on))


def find_points(
    first: Tensor,
    soft: Tensor,
    starts: int,
    *,
    generator: torch.Generator,
    iterations: int,
    tolerance: float = 3e-3,
    enough: float = 0.6,
    every: int = 25,
) -> Points:
    """RRR from random starts until `enough` have a gap below `tolerance`, or gaps fall no more.

    first: w x r, orthonormal basis of the space of t. soft: w x w, projector on the space of s,
    with weights below 1 where membership is uncertain. float32; three products an iteration.
    """
    width = len(first)
    t = torch.randn(starts, first.shape[1], generator=generator, dtype=first.dtype) @ first.T
    t *= math.sqrt(width) / t.norm(dim=1, keepdim=True)
    s = t.clamp(min=0) @ soft
    size = math.sqrt(1.5 * width)  # |(t, relu t)| of a generic t with unit entries
    best, best_gap = t.clone(), torch.full((starts,), math.inf, dtype=t.dtype)
    medians: list[float] = []
    for iteration in range(1, iterations + 1):
        graph_t, graph_s = project_on_graph(t, s)
        norm = torch.sqrt(graph_t.square().sum(1) + graph_s.square().sum(1)).clamp(min=1e-12)
        unit = (size / norm)[:, None]  # the graph is a cone: hold the scale, or 0 is a solution
        graph_t, graph_s = graph_t * unit, graph_s * unit
        line_t = ((2 * graph_t - t) @ first) @ first.T
        step_t, step_s = line_t - graph_t, (2 * graph_s - s) @ soft - graph_s
        t, s = t + RELAXATION * step_t, s + RELAXATION * step_s
        if iteration % every == 0 or iteration == iterations:
            gap = torch.sqrt(step_t.square().sum(1) + step_s.square().sum(1)) / size
            better = gap < best_gap
            best[better], best_gap[better] = line_t[better], gap[better]
            medians.append(float(best_gap.median()))
            stalled = len(medians) > LOOK_BACK and medians[-1] > 0.9 * medians[-1 - LOOK_BACK]
            if stalled or float((best_gap < tolerance).float().mean()) >= enough:
                break
    order = best_gap.argsort()
    return Points(t=best[order], gap=best_gap[order])


def refine_points(
    basis: Tensor, penalty: Tensor, y: Tensor, *, iterations: int, chunk: int = 8
) -> tuple[Tensor, Tensor]:
    """Minimise |penalty relu(basis y)|^2 / |relu(basis y)|^2 near each row of y (k x r).

    penalty: w x w, rows v_k s_k^-3/4, so directions that the next layer's change hardly contains
    cost most. Fix the (softened) mask, take inverse power steps of the quotient, repeat. Returns
    the unit rows y and the quotients, in float64.
    """
    basis32 = basis.float()
    refined, quotients = [], []
    for rows in y.float().split(chunk):
        for i in range(iterations):
            sharpness = 0.1 * 0.1 ** (i / max(1, iterations - 1))  # 0.1 -> 0.01 of the spread
            t = rows @ basis32.T
            mask = torch.sigmoid(t / (sharpness * t.std(1, keepdim=True)))
            masked = mask[:, :, None] * basis32
            cost = torch.matmul(penalty, masked)
            top = torch.matmul(cost.mT, cost).double()
            bottom = torch.matmul(masked.mT, masked).double()
            factor = damped_cholesky(top, 1e-7)
            z = rows.double()[:, :, None]
            for _ in range(2):
                z = normalize(torch.cholesky_solve(bottom @ z, factor), dim=1)
            flat = z[:, :, 0]
            flat = flat * torch.sign((flat * rows).sum(1, keepdim=True))
            rows = flat.float()
        z = flat[:, :, None]
        refined.append(flat)
        quotients.append(((z * (top @ z)).sum(1) / (z * (bottom @ z)).sum(1))[:, 0])
    return torch.cat(refined), torch.cat(quotients)
