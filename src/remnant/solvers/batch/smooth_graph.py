"""Search for records of a smooth layer (tanh, GELU, SiLU, ELU, ...) that a dense layer follows.

A record's t = t_frame y has features [f(t), 1] in the row space of the next layer's gradient with
its bias. For small t a smooth f is nearly linear, and only what is not linear in it tells records
apart. That part has a benign landscape: least squares from random starts ends in a record nearly
always, if the size of t is held fixed meanwhile (or it would shrink to where f is linear). Once the
direction is known, the bias' 1 sets the size and a few more steps make the record exact.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import complement, damped_cholesky, distinct
from remnant.solvers.batch.graph_search import Found, nothing_found
from remnant.solvers.batch.smooth_problem import SmoothProblem
from remnant.solvers.batch.smooth_refine import refine
from remnant.solvers.batch.tolerances import Tolerances


def search_smooth(
    problem: SmoothProblem, settings: Tolerances, tolerance: float, generator: torch.Generator
) -> Found:
    """Records until all are found or patience ends; each is exact on its own.

    tolerance: the largest standard deviation of a record, relative to its size. It stands as
    `graph_residual` in what is found.
    """
    total = problem.t.shape[1]
    found, lost = nothing_found(len(problem.t)), 0
    z = torch.zeros(0, total, dtype=torch.float64)
    kept = checkpoint("smooth graph", problem, settings, tolerance, generator=generator)
    if kept.state is not None:
        held, z, lost = kept.state
        found = Found(**held)
    with task("searching for records", total) as step:
        step(len(found))
        while len(found) < total and lost < settings.patience:
            # What the duals exclude is excluded a little wrongly: when lost, look everywhere.
            excluded = z[: 0 if lost % 2 else len(z)] @ problem.inverse1.T
            y = propose(problem, complement(excluded, total), found, settings, generator)
            near = refine(problem, y[new_points(problem, y, found)], settings)
            chosen = (near.deviation < tolerance).nonzero()[:, 0]
            chosen = chosen[near.deviation[chosen].argsort()]
            chosen = chosen[new_points(problem, near.y[chosen], found)][: total - len(found)]
            lost = 0 if len(chosen) else lost + 1
            z = torch.cat([z, near.z[chosen]])
            found = Found(
                t=torch.cat([found.t, near.y[chosen] @ problem.t.T]),
                a=torch.cat([found.a, near.z[chosen] @ problem.a.T]),
                graph_residual=torch.cat([found.graph_residual, near.deviation[chosen]]),
                dual_residual=torch.cat([found.dual_residual, near.dual_residual[chosen]]),
                series=found.series,
            )
            found.series.append(float(len(found)))
            step(len(chosen), note=f"{len(found)} of {total}")
            if kept.due():
                kept.save([found, z, lost])
    return found


def propose(
    problem: SmoothProblem,
    basis: Tensor,
    found: Found,
    settings: Tolerances,
    generator: torch.Generator,
) -> Tensor:
    """Points y (k x n) near records or nowhere, best first, from random starts in the basis."""
    count = min(settings.starts, max(4, 2 * basis.shape[1]))
    width = len(problem.t)
    u = normalize(
        torch.randn(count, basis.shape[1], generator=generator, dtype=torch.float64), dim=1
    )
    draw, share = torch.rand(2, count, generator=generator, dtype=torch.float64)
    if len(found):
        low, high = settings.known_sizes
        known = found.t.square().mean(1).sqrt()[(share * len(found)).long()]
        sizes = known * (low + (high - low) * draw)
    else:
        sizes = problem.size * settings.largest**draw
    u = u * (sizes * math.sqrt(width))[:, None]
    u = least_squares(problem, problem.t @ basis, problem.any_size(), u, None, True, settings.form)
    y = u @ basis.T
    if problem.one is not None:
        last = y @ problem.one
        y = y[last.abs() > 1e-6] / last[last.abs() > 1e-6, None]
    y = least_squares(problem, problem.t, problem.features, y, problem.one, False, settings.finish)
    residual = residuals(problem, y)
    return y[residual.argsort()][: int((residual < settings.near).sum())]


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
    rest = problem.outside(image)
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
