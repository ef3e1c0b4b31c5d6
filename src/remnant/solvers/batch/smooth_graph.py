"""Search for records of a smooth layer (tanh, GELU, SiLU, ELU, ...) that a dense layer follows.

A record's t = t_frame y has features [f(t), 1] in the row space of the next layer's gradient with
its bias. For small t a smooth f is nearly linear, and only what is not linear in it tells records
apart. That part has a benign landscape: least squares from random starts ends in a record nearly
always, if the size of t is held fixed meanwhile (or it would shrink to where f is linear). Once the
direction is known, the bias' 1 sets the size and a few more steps make the record exact.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from remnant.progress import task
from remnant.solvers.algebra import complement, damped_cholesky, distinct
from remnant.solvers.batch.graph_search import BatchSearch, Found, nothing_found
from remnant.solvers.batch.resimulate import slope_at

FORM, FINISH = 15, 12  # Levenberg-Marquardt steps on the sphere of a fixed size, and off it
STARTS = 16  # starts of a round
SIZES = (0.4, 1.2)  # of the first guess of |t|, which is mostly too large


@dataclass(frozen=True, kw_only=True, eq=False)
class SmoothProblem:
    """Two layers around a smooth activation, seen from n records' coordinates y."""

    activation: nn.Module
    t: Tensor  # w x n, orthonormal columns
    one: Tensor | None  # n: y . one = 1 for records; None without a bias in the first layer
    features: Tensor  # (w+1) x n or w x n, orthonormal columns: holds [f(t), 1] or f(t)
    a: Tensor  # w x n, the duals' frame
    p: Tensor  # w x n, the signals' frame
    inverse1: Tensor  # n x n
    size: float  # first guess of the root-mean-square of t

    def images(self, t: Tensor) -> Tensor:
        """k x (w+1): what has to lie in the frame of the features."""
        with torch.no_grad():
            values: Tensor = self.activation(t)
        if len(self.features) == len(self.t):
            return values
        return torch.cat([values, torch.ones_like(values[:, :1])], dim=1)

    def slopes(self, t: Tensor) -> Tensor:
        """k x (w+1): their derivatives by t."""
        slope = slope_at(self.activation, t)
        if len(self.features) == len(self.t):
            return slope
        return torch.cat([slope, torch.zeros_like(slope[:, :1])], dim=1)

    def any_size(self) -> Tensor:
        """The features' frame with the image of t = 0 added: holds a record's at any small size.

        f(c t) is about f(0) + c (f(t) - f(0)), a combination of the record's image and that of 0.
        """
        zero = self.images(torch.zeros(1, len(self.t), dtype=self.t.dtype))
        if float(zero.abs().max()) == 0:
            return self.features
        frame: Tensor = torch.linalg.qr(torch.cat([self.features, zero.T], dim=1))[0]
        return frame


def search_smooth(
    problem: SmoothProblem, settings: BatchSearch, tolerance: float, generator: torch.Generator
) -> Found:
    """Records until all are found or patience ends; each is exact on its own."""
    total = problem.t.shape[1]
    found, lost = nothing_found(len(problem.t)), 0
    z = torch.zeros(0, total, dtype=torch.float64)
    with task("searching for records", total) as step:
        while len(found) < total and lost < settings.patience:
            # What the duals exclude is excluded a little wrongly: when lost, look everywhere.
            excluded = z[: 0 if lost % 2 else len(z)] @ problem.inverse1.T
            y, residual = propose(problem, complement(excluded, total), found, generator)
            chosen = (residual < tolerance).nonzero()[:, 0]
            chosen = chosen[residual[chosen].argsort()]
            chosen = chosen[new_points(problem, y[chosen], found)][: total - len(found)]
            lost = 0 if len(chosen) else lost + 1
            if len(chosen):
                fresh, misfit = smooth_duals(problem, y[chosen])
                z = torch.cat([z, fresh])
                found = Found(
                    t=torch.cat([found.t, y[chosen] @ problem.t.T]),
                    a=torch.cat([found.a, fresh @ problem.a.T]),
                    graph_residual=torch.cat([found.graph_residual, residual[chosen]]),
                    dual_residual=torch.cat([found.dual_residual, misfit]),
                    series=found.series,
                )
            found.series.append(float(len(found)))
            step(len(chosen), note=f"{len(found)} of {total}")
    return found


def propose(
    problem: SmoothProblem, basis: Tensor, found: Found, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Points y (k x n) and their residuals (k), from random starts in the basis (n x r)."""
    count = min(STARTS, max(4, 2 * basis.shape[1]))
    width = len(problem.t)
    u = normalize(
        torch.randn(count, basis.shape[1], generator=generator, dtype=torch.float64), dim=1
    )
    draw = torch.rand(count, generator=generator, dtype=torch.float64)
    if len(found):
        sizes = found.t.square().mean(1).sqrt()[(draw * len(found)).long()]
    else:
        low, high = SIZES
        sizes = problem.size * low * (high / low) ** draw
    u = u * (sizes * math.sqrt(width))[:, None]
    u = least_squares(problem, problem.t @ basis, problem.any_size(), u, None, True, FORM)
    y = u @ basis.T
    if problem.one is not None:
        last = y @ problem.one
        y = y[last.abs() > 1e-6] / last[last.abs() > 1e-6, None]
    y = least_squares(problem, problem.t, problem.features, y, problem.one, False, FINISH)
    return y, residuals(problem, y)


def least_squares(
    problem: SmoothProblem,
    frame: Tensor,
    features: Tensor,
    y: Tensor,
    fixed: Tensor | None,
    sphere: bool,
    steps: int,
) -> Tensor:
    """Levenberg-Marquardt on the part of the images of frame y outside the features' frame.

    Holds |y| (sphere), or y . fixed, or nothing. y: k x r.
    """
    images, slopes = problem.images, problem.slopes
    outside = torch.cat([frame, torch.zeros(len(features) - len(frame), frame.shape[1]).double()])
    damping = torch.full((len(y),), 1e-2, dtype=y.dtype)
    t = y @ frame.T
    rest = images(t) - (images(t) @ features) @ features.T
    cost = rest.square().sum(1)
    for _ in range(steps):
        normal = normalize(y, dim=1) if sphere else torch.zeros_like(y)
        if fixed is not None:
            normal = normalize(fixed, dim=0).expand_as(y)
        step = damped_step(slopes(t)[:, :, None] * outside, features, rest, normal, damping)
        trial = y + step
        if sphere:
            trial = trial * (y.norm(dim=1) / trial.norm(dim=1))[:, None]
        trial_t = trial @ frame.T
        image = images(trial_t)
        trial_rest = image - (image @ features) @ features.T
        trial_cost = trial_rest.square().sum(1)
        better = trial_cost < cost
        y = torch.where(better[:, None], trial, y)
        t = torch.where(better[:, None], trial_t, t)
        rest = torch.where(better[:, None], trial_rest, rest)
        cost = torch.where(better, trial_cost, cost)
        damping = torch.where(better, damping / 4, damping * 5).clamp(1e-12, 1e6)
    return y


def damped_step(
    jacobian: Tensor, features: Tensor, rest: Tensor, normal: Tensor, damping: Tensor
) -> Tensor:
    """The step (k x r) orthogonal to `normal`; jacobian k x (w+1) x r, before the projection."""
    inside = torch.matmul(features.T, jacobian)
    gram = torch.matmul(jacobian.mT, jacobian) - torch.matmul(inside.mT, inside)
    gradient = torch.matmul(rest[:, None, :], jacobian)[:, 0]  # `rest` is outside already
    gradient = gradient - (gradient * normal).sum(1, keepdim=True) * normal
    along = torch.matmul(gram, normal[:, :, None])[:, :, 0]
    both = (normal * along).sum(1)[:, None, None]
    mean = gram.diagonal(dim1=1, dim2=2).mean(1).clamp(min=1e-300)[:, None, None]
    outer = normal[:, :, None] * along[:, None, :]
    # gram on the complement of `normal`, and its mean on `normal` itself to stay invertible.
    gram = gram - outer - outer.mT + (both + mean) * normal[:, :, None] * normal[:, None, :]
    gram = gram + damping[:, None, None] * mean * torch.eye(gram.shape[1], dtype=gram.dtype)
    step = -torch.cholesky_solve(gradient[:, :, None], damped_cholesky(gram, 1e-14))[:, :, 0]
    return step - (step * normal).sum(1, keepdim=True) * normal


def residuals(problem: SmoothProblem, y: Tensor) -> Tensor:
    """k: what is outside the features' frame, relative to what is not linear in f(t)."""
    t = y @ problem.t.T
    image = problem.images(t)
    rest = image - (image @ problem.features) @ problem.features.T
    values, centred = image[:, : t.shape[1]], t - t.mean(1, keepdim=True)
    values = values - values.mean(1, keepdim=True)
    slope = (values * centred).sum(1) / centred.square().sum(1).clamp(min=1e-300)
    bent = (values - slope[:, None] * centred).norm(dim=1)
    return torch.nan_to_num(rest.norm(dim=1) / bent.clamp(min=1e-300), nan=math.inf)


def new_points(problem: SmoothProblem, y: Tensor, found: Found) -> list[int]:
    """Indices of the rows that differ from each other and from all that is found."""
    known = found.t @ problem.t
    kept = distinct(torch.cat([known, y]), 0.9999)
    return [i - len(known) for i in kept if i >= len(known)]


def smooth_duals(problem: SmoothProblem, y: Tensor) -> tuple[Tensor, Tensor]:
    """Unit rows z (k x n) and their misfit (k): null vectors of [a_frame, -slope * p_frame]."""
    n = y.shape[1]
    slope = slope_at(problem.activation, y @ problem.t.T)
    found, misfit = [], []
    for i in range(len(y)):
        joint = torch.cat([problem.a, -slope[i][:, None] * problem.p], dim=1)
        values, vectors = torch.linalg.eigh(joint.T @ joint)
        z = vectors[:n, 0]
        found.append(z / z.norm())
        misfit.append(torch.sqrt(values[0].clamp(min=0) / values[1].clamp(min=1e-300)))
    return torch.stack(found), torch.stack(misfit)
