"""The search for records one round at a time: points of the span, then the dual of each.

A round searches the part of the records' span that the duals found so far leave, from random starts
(`graph`; `signals` before an output layer). Each point that it ends at says which neurons its
record leaves silent, and so what its dual is (`duals`, `zeros`). A dual that its zeros determine is
a record's; the others are dropped, and the next round goes on without the records found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import apart, complement, damped_cholesky, eigenvectors
from remnant.solvers.difference import signals
from remnant.solvers.difference.duals import null_vectors, silent_neurons
from remnant.solvers.difference.graph import Spaces, find_points, refine_points
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.signals import find_signals
from remnant.solvers.difference.tolerances import TOLERANCES
from remnant.solvers.difference.zeros import determined, fit_to_zeros


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search. Nothing depends on the clock, so a seed decides the result."""

    starts: int = 32  # points searched for at a time
    # Reflections of a round: three times as many after a round that found nothing, half of them
    # where points are kept apart, which arrive sooner.
    iterations: int = 300
    patience: int = 12  # rounds without a new record before giving up
    repairs: int = 5  # searches anew for records that contradict their duals


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Records found so far: duals z and points y (k x n each), unit rows."""

    z: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.z)

    def take(self, which: Tensor) -> Found:
        return Found(z=self.z[which], y=self.y[which])


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a round of the search does otherwise than the one before."""

    barren: int = 0  # rounds without a new record
    turn: int = 0  # of `cosines`

    @property
    def cosine(self) -> float:
        return TOLERANCES.cosines[self.turn]

    def after(self, new: int, likely: int) -> Round:
        """The next round, after one that brought `new` of as many as were likely: with the next
        cosine if that was less than half. Removing a record from the span leaves nearly all of it,
        and most starts end there again unless points are kept apart."""
        turn = self.turn if 2 * new >= likely else (self.turn + 1) % len(TOLERANCES.cosines)
        return Round(barren=0 if new else self.barren + 1, turn=turn)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """The part of the span that is searched, and the spaces that images of its points lie in."""

    basis: Tensor  # n x r, orthonormal columns
    triangle: Tensor  # r x r: takes coordinates in the basis to those in the spaces
    spaces: Spaces | signals.Spaces

    @property
    def keep_apart(self) -> bool:
        return isinstance(self.spaces, Spaces) and self.spaces.keep_apart

    def points(self, coordinates: Tensor) -> Tensor:
        """y (k x n) of coordinates (k x r) in the spaces."""
        columns = coordinates.double().T
        inside: Tensor = torch.linalg.solve_triangular(self.triangle, columns, upper=True)
        return inside.T @ self.basis.T


def search_on(
    problem: Problem, found: Found, series: list[float], search: Search, generator: torch.Generator
) -> Found:
    """Those found and more, until there are as many as the spectrum counts or nothing new comes.

    Extends `series` by the number found after each round.
    """
    n, now = problem.count, Round()
    kept = checkpoint("exact", problem, found, series, search, generator=generator)
    if kept.state is not None:
        parts, series[:], way = kept.state
        found, now = Found(**parts), Round(**way)
    with task("searching for records", n) as step:
        step(len(found))
        while len(found) < n and now.barren < search.patience:
            y, z, sure = find_records(problem, found, now, search, generator)
            new = new_duals(found, z, sure)
            now = now.after(int(new.sum()), min(search.starts, n - len(found)))
            found = Found(z=torch.cat([found.z, z[new]]), y=torch.cat([found.y, y[new]]))
            step(int(new.sum()), note=f"{len(found)} of {n}")
            series.append(float(len(found)))
            if kept.due():
                kept.save([found, series, now])
    return found


def find_records(
    problem: Problem, found: Found, now: Round, search: Search, generator: torch.Generator
) -> tuple[Tensor, Tensor, Tensor]:
    """Points y and duals z (k x n each) of a round, and whether their zeros determine them (k).

    Where they determine none, points are refined first, and tell better which neurons are silent. A
    search may have come to one record with its point and to another like it with its dual; so if
    that does not do either, duals begin from what the points alone say.
    """
    basis = complement(found.z / problem.span.scale, problem.count)
    ground = ground_of(problem, basis, found, now.cosine)
    y, rough = find_rough(problem, ground, now, search, generator)
    z, sure = fit_duals(problem, y, rough)
    if problem.signals is None and not bool(sure.any()):
        y = refined(problem, basis, y)
        z, sure = fit_duals(problem, y, rough)
        left = ~sure
        if bool(left.any()):
            own = duals_at(problem, found, y[left])
            z[left], sure[left] = fit_duals_closely(problem, y[left], own)
    return y, z, sure


def find_rough(
    problem: Problem, ground: Ground, now: Round, search: Search, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Different points y (k x n) of the ground and rough duals z (k x n)."""
    starts = min(search.starts, max(8, 2 * ground.basis.shape[1]))
    iterations = search.iterations * (3 if now.barren else 1)
    if ground.keep_apart:
        iterations = (iterations + 1) // 2
    if isinstance(ground.spaces, Spaces):
        points = find_points(ground.spaces, starts, generator=generator, iterations=iterations)
    else:
        points = find_signals(ground.spaces, starts, generator=generator, iterations=iterations)
    near = max(4, int((points.gap < TOLERANCES.gap).sum()))
    y = oriented_points(problem, ground.points(points.coordinates[:near]))
    one = (y @ problem.span.right[:, -1:]).clamp(min=1e-12)
    kept = apart(y / one, 0.1)
    left = problem.span.left / math.sqrt(len(problem.start))
    return y[kept], points.dual[:near][kept].double() @ left


def ground_of(problem: Problem, basis: Tensor, found: Found, cosine: float) -> Ground:
    """The span of `basis` (n x r), in which points have at most that cosine with each other and
    with those found; of few dimensions any."""
    left = problem.span.left / math.sqrt(len(problem.start))
    if problem.signals is not None:
        ends, triangle = torch.linalg.qr(problem.start @ basis)
        three = (ends.float(), left.float(), problem.signals.float())
        return Ground(basis=basis, triangle=triangle, spaces=three)
    # Orthonormal columns by the Gram matrix: those of random weights are far from dependent.
    across = problem.gram @ basis
    triangle = damped_cholesky((basis.T @ across)[None], 1e-13)[0].T

    def divided(rows: Tensor) -> Tensor:
        quotient: Tensor = torch.linalg.solve_triangular(triangle, rows, upper=True, left=False)
        return quotient

    length = (found.y * (found.y @ problem.gram)).sum(1, keepdim=True).sqrt()
    dtype = problem.search_dtype
    spaces = Spaces(
        ends=(problem.ends.float() @ divided(basis).float()).to(dtype),
        soft=problem.soft.to(dtype),
        duals=left.to(dtype),
        found=divided(found.y / length @ across).float(),
        cosine=cosine if basis.shape[1] >= 4 else 1.0,
    )
    return Ground(basis=basis, triangle=triangle, spaces=spaces)


def fit_duals(problem: Problem, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent, fitted to their own
    zeros; and whether those determine each (k)."""
    silent = silent_neurons(problem.margin(y), problem.count)
    widths = [width for width in TOLERANCES.widths[:-2] for _ in range(2)]
    z = fit_to_zeros(problem, null_vectors(problem.span.left, z, silent, widths))
    return z, determined(problem, z, problem.not_firing(y))


def fit_duals_closely(problem: Problem, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """The same in smaller steps, for duals that points alone told. Most end so near their zeros
    that fine refits do, and no small entry that is no zero bends them; the others take all."""
    silent = silent_neurons(problem.margin(y), problem.count)
    widths = [max(width, problem.zero) for width in TOLERANCES.widths for _ in range(3)]
    near, where = null_vectors(problem.span.left, z, silent, widths), problem.not_firing(y)
    z = fit_to_zeros(problem, near, TOLERANCES.refits[2:])
    left = ~determined(problem, z, where)
    z[left] = fit_to_zeros(problem, near[left])
    return z, determined(problem, z, where)


def new_duals(found: Found, z: Tensor, sure: Tensor) -> Tensor:
    """k, bool: duals z (k x n) that are sure, and neither found before nor twice among them."""
    new, known = sure.clone(), found.z
    for i in sure.nonzero()[:, 0].tolist():
        same = bool(((known @ z[i]).abs() > TOLERANCES.same_dual).any())
        if same or len(known) == z.shape[1]:
            new[i] = False
        else:
            known = torch.cat([known, z[i : i + 1]])
    return new


def duals_at(problem: Problem, found: Found, y: Tensor) -> Tensor:
    """Rough duals (k x n) from points y (k x n) alone: unit rows that are smallest on the neurons
    that a point leaves most silent, and that have little of what the duals found exclude."""
    left, duals = problem.span.left, []
    excluded = soft_projector_on(dual_normals(problem, found))
    silent = problem.margin(y).topk(int(1.2 * problem.count), dim=1, largest=False).indices
    for neurons in silent:
        rows = left[neurons]
        duals.append(eigenvectors(rows.T @ rows / len(rows) + excluded, only=0)[1][:, 0])
    return torch.stack(duals)


def dual_normals(problem: Problem, found: Found) -> Tensor:
    """Unit rows (k x n), one for each record found, that the duals of all other records are
    orthogonal to: from M = sum_i a_i x~_i^T, z_j / scale is orthogonal to y_i where i is not j."""
    return normalize(found.y / problem.span.scale, dim=1)


def soft_projector_on(rows: Tensor, ridge: float = 1 / 30) -> Tensor:
    """n x n: projector on the span of rows (k x n), weak where rows nearly depend."""
    inner = rows @ rows.T
    inner.diagonal().add_(ridge)
    part: Tensor = rows.T @ torch.linalg.solve(inner, rows)
    return part


def refined(problem: Problem, basis: Tensor, y: Tensor) -> Tensor:
    """Points (k x n) of the span of `basis` whose features the next layer's change has most of."""
    better, _ = refine_points(problem.start @ basis, problem.penalty(), y @ basis, iterations=5)
    return oriented_points(problem, better @ basis.T)


def oriented_points(problem: Problem, y: Tensor) -> Tensor:
    """Unit rows (k x n) along y, of the sign that makes the input of the bias positive."""
    last = problem.span.right[:, -1]
    return normalize(y, dim=1) * torch.where(y @ last < 0, -1.0, 1.0)[:, None]
