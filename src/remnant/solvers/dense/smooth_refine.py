"""A smooth layer's record from both of its sides at once: features forward, dual backward.

The features alone tell records apart by what is not linear in f, for tanh about t^3 / 3. The dual
a = f'(t) * p tells by t^2, and has noise of its own. Gauss-Newton on both sets of equations, each
in units of what it leaves over, is worth two to four digits when the gradient is rounded. The same
equations say how far off the record may be: a certificate without the truth.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.dense.rounds import Found, nothing_found
from remnant.solvers.dense.smooth import SmoothProblem
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import damped_cholesky, slope_and_curvature, slope_at


def refine(problem: SmoothProblem, y: Tensor, *, chunk: int = 16) -> Found:
    """Records near the points y (k x n), and their duals z. The residual is the larger of one
    standard deviation of the record, or the last step where that is longer, over its own size, and
    of |a - f'(t) * p| / |a|. chunk: records at a time, of k x w x 3n numbers each."""
    found = nothing_found(y.shape[1])
    for rows in y.split(chunk):
        found = found.with_more(refine_some(problem, rows))
    return found


@dataclass(frozen=True, kw_only=True, eq=False)
class Sides:
    """What the two sets of equations leave over (k x (w+1), k x w) and their derivatives."""

    rest: Tensor
    mismatch: Tensor
    slope: Tensor  # k x w
    bend: Tensor  # k x w: f''(t) * p

    def cost(self, scale: tuple[Tensor, Tensor]) -> Tensor:
        ends = self.rest.square().sum(1), self.mismatch.square().sum(1)
        return ends[0] / scale[0] + ends[1] / scale[1]


def refine_some(problem: SmoothProblem, y: Tensor, *, still: float = 1e-6) -> Found:
    """The same. still: relative length of a step that changes nothing."""
    free, n = problem.moves, y.shape[1]
    m, spare = free.shape[1], len(problem.start) - 2 * n
    z, c = null_pairs(problem, y)
    at = both_sides(problem, y, z, c)
    moved, length = torch.ones(len(y), dtype=y.dtype), torch.ones(len(y), 1, dtype=y.dtype)
    for _ in range(TOLERANCES.refinements):
        scale = spreads(at, spare)
        factor, right, unit = normal_equations(problem, at, z, free, scale)
        step = -length * torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] / unit
        trial_y, trial_z = y + step[:, :m] @ free.T, z + step[:, m : m + n]
        size = trial_z.norm(dim=1, keepdim=True)
        trial_z, trial_c = trial_z / size, (c + step[:, m + n :]) / size
        trial = both_sides(problem, trial_y, trial_z, trial_c)
        better = (trial.cost(scale) <= at.cost(scale))[:, None]
        shift = ((trial_y - y) @ problem.right).norm(dim=1) / length[:, 0]
        y, z = torch.where(better, trial_y, y), torch.where(better, trial_z, z)
        c = torch.where(better, trial_c, c)
        length = torch.where(better, (3 * length).clamp(max=1), 0.3 * length)
        at = both_sides(problem, y, z, c)
        moved = shift / (y @ problem.right).norm(dim=1)
        if not len(y) or float(moved.max()) < still:
            break
    factor, _, unit = normal_equations(problem, at, z, free, spreads(at, spare))
    covariance = torch.cholesky_inverse(factor) / (unit[:, :, None] * unit[:, None, :])
    outward = free.T @ problem.right
    variance = (covariance[:, :m, :m] * (outward @ outward.T)).sum((1, 2))
    deviation = (variance.clamp(min=0) / (y @ problem.right).square().sum(1)).sqrt()
    residual = torch.maximum(torch.maximum(deviation, moved), at.mismatch.norm(dim=1))  # |a| = 1
    return Found(y=y, z=z, residual=residual.nan_to_num(nan=math.inf))


def sides(problem: SmoothProblem) -> tuple[Tensor, Tensor]:
    """Frames (w x n each) of duals and of signals."""
    assert problem.signals is not None
    return problem.left, problem.signals


def null_pairs(problem: SmoothProblem, y: Tensor) -> tuple[Tensor, Tensor]:
    """z (k x n, unit rows) and c (k x n): null vectors of [a_frame, -slope * p_frame]."""
    n = y.shape[1]
    a, p = sides(problem)
    slope = slope_at(problem.activation, y @ problem.start.T)
    crossed = torch.matmul(a.T, slope[:, :, None] * p)  # k x n x n
    inner = torch.matmul(p.T, slope.square()[:, :, None] * p)
    eye = torch.eye(n, dtype=y.dtype).expand_as(inner)
    joint = torch.cat(
        [torch.cat([eye, -crossed], dim=2), torch.cat([-crossed.mT, inner], dim=2)], dim=1
    )
    lowest = torch.linalg.eigh(joint)[1][:, :, 0]
    size = lowest[:, :n].norm(dim=1, keepdim=True)
    return lowest[:, :n] / size, lowest[:, n:] / size


def both_sides(problem: SmoothProblem, y: Tensor, z: Tensor, c: Tensor) -> Sides:
    t = y @ problem.start.T
    slope, curvature = slope_and_curvature(problem.activation, t)
    a, p = sides(problem)
    signal = c @ p.T
    return Sides(
        rest=problem.outside(problem.images(t))[0],
        mismatch=z @ a.T - slope * signal,
        slope=slope,
        bend=curvature * signal,
    )


def spreads(at: Sides, spare: int) -> tuple[Tensor, Tensor]:
    """The variance (k) of an equation of either kind, from what they leave over."""
    first, second = (
        side.square().sum(1).clamp(min=1e-30) / max(1, spare) for side in (at.rest, at.mismatch)
    )
    return first, second


def normal_equations(
    problem: SmoothProblem, at: Sides, z: Tensor, free: Tensor, scale: tuple[Tensor, Tensor]
) -> tuple[Tensor, Tensor, Tensor]:
    """Cholesky factors, right sides and the units that scale them, for (y in `free`, z, c).

    z's own direction, which no equation holds, is held.
    """
    forward, backward = (s.sqrt()[:, None, None] for s in scale)
    frame = problem.start @ free
    a, p = sides(problem)
    m, (w, n) = frame.shape[1], a.shape
    slopes = at.slope[:, :, None] * frame
    inside = torch.matmul(problem.features[:, :w], slopes)
    first = (torch.matmul(slopes.mT, slopes) - torch.matmul(inside.mT, inside)) / forward**2
    k = len(z)
    jacobian = torch.cat(
        [
            -at.bend[:, :, None] * frame,
            a.expand(k, w, n),
            -at.slope[:, :, None] * p,
        ],
        dim=2,
    )
    gram = torch.matmul(jacobian.mT, jacobian) / backward**2
    gram[:, :m, :m] += first
    gram[:, m : m + n, m : m + n] += z[:, :, None] * z[:, None, :] / backward**2
    right = torch.matmul(at.mismatch[:, None, :], jacobian)[:, 0] / backward[:, 0] ** 2
    forward_right = torch.matmul(at.rest[:, None, :w], slopes)[:, 0] / forward[:, 0] ** 2
    right[:, :m] += forward_right
    unit = gram.diagonal(dim1=1, dim2=2).clamp(min=1e-300).sqrt()
    gram = gram / (unit[:, :, None] * unit[:, None, :])
    return damped_cholesky(gram, 1e-15), right / unit, unit
