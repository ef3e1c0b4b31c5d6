"""The search between two checkpoints: points of the records' span, then the dual of each.

A round searches the part of the records' span that the duals found so far leave, from random starts
(`reflections`). Each point that it ends at says which neurons its record leaves silent, and so what
its dual is (`duals`). A dual that its zeros determine is a record's; others are dropped, and the
next round goes on without the records found.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.dense.duals import determined, fit_to_zeros, null_vectors, silent_neurons
from remnant.solvers.dense.problem import Problem
from remnant.solvers.dense.reflections import Graph, Signals, iterate, starting_at
from remnant.solvers.dense.rounds import Found, Search, in_rounds
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import apart, complement, damped_cholesky, eigenvectors


@dataclass(frozen=True, kw_only=True, eq=False)
class Subspace:
    """The part of the records' span that is searched, and the spaces in which pre-activations,
    features and duals of its points lie."""

    basis: Tensor  # n x r, orthonormal columns
    triangle: Tensor  # r x r: takes coordinates in the basis to those in the spaces
    intersection: Graph | Signals

    def points(self, coordinates: Tensor) -> Tensor:
        """y (k x n) of coordinates (k x r) in the spaces."""
        columns = coordinates.double().T
        inside: Tensor = torch.linalg.solve_triangular(self.triangle, columns, upper=True)
        return inside.T @ self.basis.T


def search_on(
    problem: Problem, found: Found, search: Search, generator: torch.Generator
) -> tuple[Found, list[float]]:
    """Those found and more, until there are as many as the spectrum counts or nothing new comes;
    and the number found after each round."""

    def once(found: Found, turn: int, barren: int) -> tuple[Found, int]:
        y, z, sure = find_records(problem, found, turn, barren, search, generator)
        new = new_duals(found, z, sure)
        likely = min(search.starts, problem.count - len(found))
        fresh = Found(y=y[new], z=z[new], residual=torch.zeros_like(y[new][:, 0]))
        return found.with_more(fresh), next_turn(turn, len(fresh), likely)

    return in_rounds(
        once,
        found,
        0,
        given=(problem, search),
        restore=int,
        patience=search.patience,
        generator=generator,
    )


def next_turn(turn: int, new: int, likely: int) -> int:
    """Which of `Tolerances.cosines` the next round keeps points apart by, after one that brought
    `new` of as many as were likely: the next one if that was less than half. Removing a record
    from the span leaves nearly all of it, and most starts would end there again."""
    return turn if 2 * new >= likely else (turn + 1) % len(TOLERANCES.cosines)


def find_records(
    problem: Problem,
    found: Found,
    turn: int,
    barren: int,
    search: Search,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor]:
    """Points y and duals z (k x n each) of a round, and whether their zeros determine them (k).

    Where they determine none, points are refined first, and tell better which neurons are silent. A
    search may have come to one record with its point and to another like it with its dual; so if
    that does not do either, duals begin from what the points alone say, and from what the duals
    found leave to them.
    """
    basis = complement(found.z / problem.span.scale, problem.count)
    subspace = subspace_of(problem, basis, found, TOLERANCES.cosines[turn])
    y, rough = find_rough(problem, subspace, barren, search, generator)
    z, sure = fit_duals(problem, y, rough)
    if problem.signals is None and not bool(sure.any()):
        y = refined(problem, basis, y)
        z, sure = fit_duals(problem, y, rough)
        left = ~sure
        if bool(left.any()):
            normals = dual_normals(problem, sharpened(problem, found))
            own = duals_at(problem, normals, y[left])
            z[left], sure[left] = fit_duals_closely(problem, normals, y[left], own)
    return y, z, sure


def find_rough(
    problem: Problem, subspace: Subspace, barren: int, search: Search, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Different points y (k x n), smallest gaps first, and rough duals z (k x n) of each."""
    intersection = subspace.intersection
    starts = min(search.starts, max(8, 2 * subspace.basis.shape[1]))
    iterations = search.iterations * (3 if barren else 1)
    if intersection.keep_apart:
        iterations = (iterations + 1) // 2
    graph = isinstance(intersection, Graph)
    begun = starting_at(intersection.starts(starts, generator))
    iterates = iterate(intersection, begun, iterations=iterations, stalls=graph)
    iterates = iterates.take(iterates.gap.argsort())
    near = max(4, int((iterates.gap < TOLERANCES.gap).sum()))
    y = oriented_points(problem, subspace.points(intersection.coordinates(iterates.best)[:near]))
    one = (y @ problem.span.right[:, -1:]).clamp(min=1e-12)
    kept = apart(y / one, 0.1)
    dual = iterates.best[3 if graph else 1][:near][kept]
    return y[kept], dual.double() @ problem.span.left / math.sqrt(len(problem.start))


def subspace_of(problem: Problem, basis: Tensor, found: Found, cosine: float) -> Subspace:
    """The span of `basis` (n x r), in which points have at most that cosine with each other and
    with those found; of few dimensions any."""
    left = problem.span.left / math.sqrt(len(problem.start))
    if problem.signals is not None:
        ends, triangle = torch.linalg.qr(problem.start @ basis)
        signals = Signals(t=ends.float(), a=left.float(), p=problem.signals.float())
        return Subspace(basis=basis, triangle=triangle, intersection=signals)
    # Orthonormal columns by the Gram matrix: those of random weights are far from dependent.
    across = problem.gram @ basis
    triangle = damped_cholesky((basis.T @ across)[None], 1e-13)[0].T

    def divided(rows: Tensor) -> Tensor:
        quotient: Tensor = torch.linalg.solve_triangular(triangle, rows, upper=True, left=False)
        return quotient

    length = (found.y * (found.y @ problem.gram)).sum(1, keepdim=True).sqrt()
    dtype = problem.search_dtype
    graph = Graph(
        ends=(problem.ends.float() @ divided(basis).float()).to(dtype),
        features=problem.soft.to(dtype),
        duals=left.to(dtype),
        found=divided(found.y / length @ across).float(),
        cosine=cosine if basis.shape[1] >= 4 else 1.0,
    )
    return Subspace(basis=basis, triangle=triangle, intersection=graph)


def fit_duals(problem: Problem, y: Tensor, z: Tensor) -> tuple[Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent, fitted to their own
    zeros; and whether those determine each (k)."""
    silent = silent_neurons(problem.margin(y), problem.count)
    widths = [width for width in TOLERANCES.widths[:-4] for _ in range(2)]
    z = fit_to_zeros(problem, null_vectors(problem.span.left, z, silent, widths))
    return z, determined(problem, z, problem.not_firing(y))


def fit_duals_closely(
    problem: Problem, normals: Tensor, y: Tensor, z: Tensor
) -> tuple[Tensor, Tensor]:
    """The same in smaller steps, for duals that points alone told. At first their components along
    `normals` (f x n), which the records found exclude, are held small, too. Most end so near their
    zeros that fine refits do, and no small entry that is no zero bends them; others take all."""
    silent, where = silent_neurons(problem.margin(y), problem.count), problem.not_firing(y)
    rows = torch.cat([problem.span.left, math.sqrt(problem.count) * normals])
    held = torch.zeros(len(rows), dtype=rows.dtype)
    held[len(problem.span.left) :] = TOLERANCES.widths[0]  # points are not exact, nor are normals
    zeros = torch.cat([silent, torch.ones(len(y), len(normals), dtype=silent.dtype)], dim=1)
    widths = [max(width, problem.zero) for width in TOLERANCES.widths]
    near = null_vectors(rows, z, zeros, [held.clamp(min=w) for w in widths[:-4] for _ in range(2)])
    near = null_vectors(problem.span.left, near, silent, [w for w in widths[-5:] for _ in range(3)])
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


def duals_at(problem: Problem, normals: Tensor, y: Tensor) -> Tensor:
    """Rough duals (k x n) from points y (k x n) alone: unit rows that are smallest on the neurons
    that a point leaves most silent, and that have little of what the duals found exclude."""
    left, duals = problem.span.left, []
    excluded = soft_projector_on(normals)
    silent = problem.margin(y).topk(int(1.2 * problem.count), dim=1, largest=False).indices
    for neurons in silent:
        rows = left[neurons]
        duals.append(eigenvectors(rows.T @ rows / len(rows) + excluded, only=0)[1][:, 0])
    return torch.stack(duals)


def dual_normals(problem: Problem, y: Tensor) -> Tensor:
    """Unit rows (k x n), one for each point y (k x n) of a record found, that the duals of all
    other records are orthogonal to: from M = sum_i a_i x~_i^T, z_j / scale is orthogonal to y_i
    where i is not j."""
    return normalize(y / problem.span.scale, dim=1)


def sharpened(problem: Problem, found: Found, exponent: float = 0.75) -> Tensor:
    """Points y (k x n) of the records found, solved for once more, each in the space that is left
    to it by the other records' duals: the fewer records are missing, the smaller it is."""
    rows, penalty = found.z / problem.span.scale, problem.penalty(exponent)
    rest, own = complement(rows, problem.count), torch.linalg.pinv(rows).T
    points = []
    for y, direction in zip(found.y, own, strict=True):
        basis = torch.linalg.qr(torch.cat([rest, direction[:, None]], dim=1))[0]
        near = normalize(y[None] @ basis, dim=1)
        better = refine_points(problem.start @ basis, penalty, near, iterations=3)
        points.append(better[0] @ basis.T)
    return torch.stack(points) if points else found.y


def soft_projector_on(rows: Tensor, ridge: float = 1 / 30) -> Tensor:
    """n x n: projector on the span of rows (k x n), weak where rows nearly depend."""
    inner = rows @ rows.T
    inner.diagonal().add_(ridge)
    part: Tensor = rows.T @ torch.linalg.solve(inner, rows)
    return part


def refined(problem: Problem, basis: Tensor, y: Tensor) -> Tensor:
    """Points (k x n) of the span of `basis` whose features the next layer's change has most of."""
    better = refine_points(problem.start @ basis, problem.penalty(), y @ basis, iterations=5)
    return oriented_points(problem, better @ basis.T)


def oriented_points(problem: Problem, y: Tensor) -> Tensor:
    """Unit rows (k x n) along y, of the sign that makes the input of the bias positive."""
    last = problem.span.right[:, -1]
    return normalize(y, dim=1) * torch.where(y @ last < 0, -1.0, 1.0)[:, None]


def refine_points(
    basis: Tensor, penalty: Tensor, y: Tensor, *, iterations: int, chunk: int = 8
) -> Tensor:
    """Unit rows near those of y (k x r) with least |penalty relu(basis y)|^2 / |relu(basis y)|^2:
    points whose features the next layer's change contains most of.

    basis: w x r. penalty: w x w, see `Problem.penalty`. Each iteration fixes the softened mask of
    firing neurons and takes two inverse power steps of what then is a quotient of quadratics.
    """
    basis32, better = basis.float(), []
    for rows in y.float().split(chunk):
        for i in range(iterations):
            sharpness = 0.1 * 0.1 ** (i / max(1, iterations - 1))  # 0.1 -> 0.01 of the spread
            t = rows @ basis32.T
            mask = torch.sigmoid(t / (sharpness * t.std(1, keepdim=True)))
            masked = mask[:, :, None] * basis32
            cost = torch.matmul(penalty, masked)
            factor = damped_cholesky(torch.matmul(cost.mT, cost).double(), 1e-7)
            bottom = torch.matmul(masked.mT, masked).double()
            z = rows.double()[:, :, None]
            for _ in range(2):
                z = normalize(torch.cholesky_solve(bottom @ z, factor), dim=1)
            flat = z[:, :, 0]
            flat = flat * torch.sign((flat * rows).sum(1, keepdim=True))
            rows = flat.float()
        better.append(flat)
    return torch.cat(better)
