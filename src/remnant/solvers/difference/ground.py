"""Where records are searched for: the space that those found leave."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import damped_cholesky, eigenvectors
from remnant.solvers.difference import signals
from remnant.solvers.difference.duals import most_silent
from remnant.solvers.difference.graph import Spaces, refine_points
from remnant.solvers.difference.problem import Problem

HOLD = 30.0  # how much less a dual may have of what records found have than of anything else
FEWER = 1.2  # neurons for each record, the most silent of a point, that tell its dual alone
LEAST_ROOM = 4  # dimensions of the span below which points are not kept apart


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search. Nothing depends on the clock, so a seed decides the result."""

    starts: int = 32  # points searched for at a time
    # Of RRR, tripled while nothing new is found; half, where points are kept apart.
    iterations: int = 300
    patience: int = 12  # rounds without a new record before giving up
    repairs: int = 5  # searches anew for records that contradict their duals

    def starts_in(self, dimensions: int) -> int:
        return min(self.starts, max(8, 2 * dimensions))


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Records found so far: duals z (k x n) and points y (k x n), unit rows."""

    z: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.z)


@dataclass(frozen=True, kw_only=True, eq=False)
class Ground:
    """The span of `basis` (n x r), and the spaces that its points have their images in."""

    basis: Tensor
    triangle: Tensor  # r x r: takes coordinates in the basis to those in the spaces
    spaces: Spaces | signals.Spaces

    @property
    def crowded(self) -> bool:
        return isinstance(self.spaces, Spaces) and self.spaces.crowded

    def points(self, coordinates: Tensor) -> Tensor:
        """y (k x n) of coordinates (k x r) in the spaces."""
        columns = coordinates.double().T
        inside: Tensor = torch.linalg.solve_triangular(self.triangle, columns, upper=True)
        return inside.T @ self.basis.T


def ground_of(problem: Problem, basis: Tensor, found: Found, cosine: float) -> Ground:
    """In the span of `basis` (n x r), and that far from the points found, if there is room."""
    cosine = cosine if basis.shape[1] >= LEAST_ROOM else 1.0
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
    spaces = Spaces(
        ends=(problem.ends.float() @ divided(basis).float()).to(problem.search_dtype),
        soft=problem.soft.to(problem.search_dtype),
        duals=left.to(problem.search_dtype),
        found=divided(found.y / length @ across).float(),
        cosine=cosine,
    )
    return Ground(basis=basis, triangle=triangle, spaces=spaces)


def across_duals(problem: Problem, found: Found) -> Tensor:
    """Unit rows (k x n) that the duals z of all others are orthogonal to, as far as points are
    right: the change is the sum of a_i x~_i^T, so that z_j / scale is orthogonal to y_i."""
    return normalize(found.y / problem.span.scale, dim=1)


def taken_by(rows: Tensor) -> Tensor:
    """n x n: the part of a dual that costs least to leave, if its part along rows (k x n) costs
    HOLD times its own."""
    inner = rows @ rows.T
    inner.diagonal().add_(1 / HOLD)
    part: Tensor = rows.T @ torch.linalg.solve(inner, rows)
    return part


def duals_at(problem: Problem, found: Found, y: Tensor) -> Tensor:
    """Rough duals (k x n) that points y (k x n) have on their own: unit rows that vanish most on
    the neurons that a point leaves most silent, and on what records found have."""
    left, duals = problem.span.left, []
    taken = taken_by(across_duals(problem, found))
    for silent in most_silent(problem.margin(y), int(FEWER * problem.count)).bool():
        rows = left[silent]
        duals.append(eigenvectors(rows.T @ rows / len(rows) + taken, only=0)[1][:, 0])
    return torch.stack(duals)


def refined(problem: Problem, basis: Tensor, y: Tensor) -> Tensor:
    """Points (k x n) of the span of `basis` whose features the next layer's change has most of."""
    better, _ = refine_points(problem.start @ basis, problem.penalty(), y @ basis, iterations=5)
    return upright(problem, better @ basis.T)


def upright(problem: Problem, y: Tensor) -> Tensor:
    """Unit rows with the sign that makes the bias' 1 positive."""
    last = problem.span.right[:, -1]
    return normalize(y, dim=1) * torch.where(y @ last < 0, -1.0, 1.0)[:, None]
