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
from torch import Tensor, nn

from remnant.solvers.algebra import complement, damped_cholesky
from remnant.solvers.batch.smooth_problem import SmoothProblem
from remnant.solvers.batch.tolerances import Tolerances


@dataclass(frozen=True, kw_only=True, eq=False)
class Refined:
    """Points y and duals z (k x n each), and k numbers each.

    dual_residual: |a - f'(t) * p| / |a|. deviation: one standard deviation of the record x~, or
    the last step where that is longer, over its own size.
    """

    y: Tensor
    z: Tensor
    dual_residual: Tensor
    deviation: Tensor


def refine(problem: SmoothProblem, y: Tensor, settings: Tolerances) -> Refined:
    """Records near the points y (k x n)."""
    n = y.shape[1]
    free = complement(problem.one[None], n) if problem.one is not None else torch.eye(n).double()
    parts = [refine_some(problem, rows, free, settings) for rows in y.split(settings.chunk)]
    whole = (torch.cat([getattr(p, name) for p in parts]) for name in Refined.__annotations__)
    return Refined(**dict(zip(Refined.__annotations__, whole, strict=True)))


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


def refine_some(problem: SmoothProblem, y: Tensor, free: Tensor, settings: Tolerances) -> Refined:
    n, m, spare = y.shape[1], free.shape[1], len(problem.t) - 2 * y.shape[1]
    z, c = null_pairs(problem, y)
    at = both_sides(problem, y, z, c)
    moved, length = torch.ones(len(y), dtype=y.dtype), torch.ones(len(y), 1, dtype=y.dtype)
    for _ in range(settings.refinements):
        scale = spreads(at, spare)
        factor, right, unit = normal_equations(problem, at, z, free, scale)
        step = -length * torch.cholesky_solve(right[:, :, None], factor)[:, :, 0] / unit
        trial_y, trial_z = y + step[:, :m] @ free.T, z + step[:, m : m + n]
        size = trial_z.norm(dim=1, keepdim=True)
        trial_z, trial_c = trial_z / size, (c + step[:, m + n :]) / size
        trial = both_sides(problem, trial_y, trial_z, trial_c)
        better = (trial.cost(scale) <= at.cost(scale))[:, None]
        shift = ((trial_y - y) @ problem.to_record).norm(dim=1) / length[:, 0]
        y, z = torch.where(better, trial_y, y), torch.where(better, trial_z, z)
        c = torch.where(better, trial_c, c)
        length = torch.where(better, (3 * length).clamp(max=1), 0.3 * length)
        at = both_sides(problem, y, z, c)
        moved = shift / (y @ problem.to_record).norm(dim=1)
        if not len(y) or float(moved.max()) < settings.still:
            break
    factor, _, unit = normal_equations(problem, at, z, free, spreads(at, spare))
    covariance = torch.cholesky_inverse(factor) / (unit[:, :, None] * unit[:, None, :])
    outward = free.T @ problem.to_record
    variance = (covariance[:, :m, :m] * (outward @ outward.T)).sum((1, 2))
    deviation = (variance.clamp(min=0) / (y @ problem.to_record).square().sum(1)).sqrt()
    return Refined(
        y=y,
        z=z,
        dual_residual=at.mismatch.norm(dim=1),  # a is a unit vector
        deviation=torch.maximum(deviation, moved).nan_to_num(nan=math.inf),
    )


def null_pairs(problem: SmoothProblem, y: Tensor) -> tuple[Tensor, Tensor]:
    """z (k x n, unit rows) and c (k x n): null vectors of [a_frame, -slope * p_frame]."""
    n = y.shape[1]
    slope = problem.slopes(y @ problem.t.T)[:, : len(problem.t)]
    crossed = torch.matmul(problem.a.T, slope[:, :, None] * problem.p)  # k x n x n
    inner = torch.matmul(problem.p.T, slope.square()[:, :, None] * problem.p)
    eye = torch.eye(n, dtype=y.dtype).expand_as(inner)
    joint = torch.cat(
        [torch.cat([eye, -crossed], dim=2), torch.cat([-crossed.mT, inner], dim=2)], dim=1
    )
    lowest = torch.linalg.eigh(joint)[1][:, :, 0]
    size = lowest[:, :n].norm(dim=1, keepdim=True)
    return lowest[:, :n] / size, lowest[:, n:] / size


def both_sides(problem: SmoothProblem, y: Tensor, z: Tensor, c: Tensor) -> Sides:
    t = y @ problem.t.T
    slope, curvature = slope_and_curvature(problem.activation, t)
    signal = c @ problem.p.T
    return Sides(
        rest=problem.outside(problem.images(t)),
        mismatch=z @ problem.a.T - slope * signal,
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
    frame = problem.t @ free
    m, (w, n) = frame.shape[1], problem.a.shape
    slopes = at.slope[:, :, None] * frame
    inside = torch.matmul(problem.features[:w].T, slopes)
    first = (torch.matmul(slopes.mT, slopes) - torch.matmul(inside.mT, inside)) / forward**2
    k = len(z)
    jacobian = torch.cat(
        [
            -at.bend[:, :, None] * frame,
            problem.a.expand(k, w, n),
            -at.slope[:, :, None] * problem.p,
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


def slope_and_curvature(activation: nn.Module, t: Tensor) -> tuple[Tensor, Tensor]:
    """f'(t) and f''(t), entry by entry."""
    with torch.enable_grad():
        point = t.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(activation(point).sum(), point, create_graph=True)
        (curvature,) = torch.autograd.grad(slope.sum(), point)
    return slope.detach(), curvature
