"""Exact recovery of the records between two consecutive dense ReLU layers.

The adversary holds the change of both layers. The first one's gives the records' number and span
(`spans`); the second one's row space nearly holds their features at the initial weights. Search
for points of the span whose features lie in it (`graph`), turn each point into its exact dual
(`duals`), remove what is found from the space, go on. All duals together give all records at once:
X~ = Z^-1 diag(scale) right, each divided by its last coordinate, which is the bias' 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.progress import task
from remnant.solvers.algebra import apart, complement
from remnant.solvers.difference.certificate import (
    SPARED,
    Certificate,
    certify,
    determined,
    least_second,
    zeros_of,
)
from remnant.solvers.difference.duals import FORGIVING, GRADUAL, SHARP, leaning, null_vectors
from remnant.solvers.difference.graph import find_points, refine_points
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.signals import find_signals
from remnant.solvers.spans import Span

SAME_DUAL = 0.995  # cosine; two similar records of one class reach 0.96
NEAR = 0.25  # gap of a point worth a try
CROWDED = 0.25  # records per neuron
ENOUGH = 0.75  # of the points, to begin with
REFITS = (5e-3, 2e-3, 5e-4, 1.25e-4)  # the exact zeros sharpen from one refit to the next


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search. Nothing depends on the clock, so a seed decides the result."""

    starts: int = 32  # points searched for at a time
    iterations: int = 300  # of RRR, tripled while nothing new is found
    patience: int = 12  # rounds without a new record before giving up
    repairs: int = 5  # searches anew for records that contradict their duals


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Records found so far: duals z (k x n) and points y (k x n), unit rows."""

    z: Tensor
    y: Tensor

    def __len__(self) -> int:
        return len(self.z)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """inputs: k x d in the model's scale; duals: k x w, what each neuron learned of each record."""

    inputs: Tensor
    duals: Tensor | None  # None where they are not known
    passed: Tensor  # k, bool: certified without the truth
    confidence: Tensor  # k, 0..1
    exact: bool  # up to rounding, if right
    found: list[float]  # after each round
    error: Tensor | None = None  # k: the squared error to expect, where not exact
    certificate: Certificate | None = None

    @property
    def rounds(self) -> int:
        return len(self.found) - 1


def recover(problem: Problem, search: Search, *, generator: torch.Generator) -> Recovery:
    """Search, take duals, deflate until every record is found or nothing new comes."""
    nobody = torch.zeros(0, problem.count, dtype=torch.float64)
    found, series = Found(z=nobody, y=nobody), [0.0]
    for _ in range(1 + search.repairs):
        found = search_on(problem, found, series, search, generator)
        inputs, z = finish(problem, found)
        proof = certify(problem, inputs, z, found.y)
        if len(found) < problem.count or bool(proof.passed.all()):
            break
        kept = ~suspects(proof)
        found = Found(z=z[kept], y=found.y[kept])
    agreement = (1 - proof.zero_but_firing) * (1 - proof.silent_but_active)
    return Recovery(
        inputs=inputs[:, :-1],
        duals=oriented(problem, inputs, z) @ problem.span.left.T,
        passed=proof.passed,
        confidence=agreement * (0.5 + 0.5 * proof.passed),
        exact=proof.exact,
        found=series,
        certificate=proof,
    )


def suspects(proof: Certificate) -> Tensor:
    """k, bool: the doubtful records, and for each the two others farthest from their points.

    A dual with some of another record's in it spoils that other record more than its own.
    """
    others = proof.distance.masked_fill(proof.doubtful, -1.0)
    count = min(2 * int(proof.doubtful.sum()), int((~proof.doubtful).sum()))
    chosen = proof.doubtful.clone()
    chosen[others.topk(count).indices] = True
    return chosen


def search_on(
    problem: Problem, found: Found, series: list[float], search: Search, generator: torch.Generator
) -> Found:
    """More records, until there are as many as the spectrum counts. Extends `series` by a round."""
    n = problem.count
    pool, barren = found.y[:0], 0
    with task("searching for records", n) as step:
        while len(found) < n and barren < search.patience:
            waiting = len(pool)
            pool = merge(problem, pool, find_records(problem, found, barren, search, generator))
            series.append(float(len(found)))
            if gathering(problem, found, waiting, len(pool)):
                continue
            z = take_duals(problem, found, pool, barren, generator)
            new = new_duals(problem, found, z)
            found = Found(z=torch.cat([found.z, z[new]]), y=torch.cat([found.y, pool[new]]))
            pool = pool[~new]
            barren = 0 if bool(new.any()) else barren + 1
            step(int(new.sum()), note=f"{len(found)} of {n}")
            series[-1] = float(len(found))
    return found


def gathering(problem: Problem, found: Found, before: int, waiting: int) -> bool:
    """Whether to go on collecting points before any dual is taken.

    Past a quarter of the width, a record's zeros alone hardly determine its dual; the other
    records' points, which it must not lean on, are needed too.
    """
    n = problem.count
    crowded = n > CROWDED * len(problem.start) and not len(found)
    return crowded and waiting < ENOUGH * n and waiting > before


def settled(problem: Problem, found: Found, pool: Tensor) -> tuple[Tensor, Tensor]:
    """Points of both without what the duals exclude: each is orthogonal to all others' z / scale.

    The more duals are found, the smaller is the space in which a point can be wrong.
    """
    if not len(found):
        return found.y, pool
    rows = found.z / problem.span.scale
    own: Tensor = torch.linalg.pinv(rows)  # n x k, column i orthogonal to all rows but row i

    def rest(y: Tensor) -> Tensor:
        return y - (y @ rows.T) @ own.T

    y = rest(found.y) + (found.y * rows).sum(1, keepdim=True) * own.T
    return normalize(y, dim=1), normalize(rest(pool), dim=1)


def find_records(
    problem: Problem, found: Found, barren: int, search: Search, generator: torch.Generator
) -> Tensor:
    """Points y (k x n) that look like records, in the space that the found duals leave."""
    basis = complement(found.z / problem.span.scale, problem.count)
    if basis.shape[1] == 1:
        return basis.T  # one record left: the space is the record
    start = problem.start @ basis
    orthonormal, triangle = torch.linalg.qr(start)
    starts = min(search.starts, max(4, 2 * basis.shape[1]))
    iterations = search.iterations * (3 if barren else 1)
    if problem.signals is None:
        points = find_points(
            orthonormal.float(), problem.soft, starts, generator=generator, iterations=iterations
        )
    else:
        left = problem.span.left / math.sqrt(len(start))
        spaces = (orthonormal.float(), left.float(), problem.signals.float())
        points = find_signals(spaces, starts, generator=generator, iterations=iterations)
    near = points.t[: max(4, int((points.gap < NEAR).sum()))].double()
    y = torch.linalg.solve_triangular(triangle, (near @ orthonormal).T, upper=True).T
    last = basis.T @ problem.span.right[:, -1]
    y = normalize(y[apart(to_inputs(y, last), 0.3)], dim=1)
    if problem.signals is not None:
        return y @ basis.T
    sharp = float(points.gap.median()) < 0.02
    y, quotient = refine_points(start, problem.penalty, y, iterations=3 if sharp else 5)
    return y[quotient.argsort()] @ basis.T


def merge(problem: Problem, pool: Tensor, points: Tensor) -> Tensor:
    """The points of both, each once, with the sign that makes the bias' 1 positive."""
    both = torch.cat([pool, points])
    last = problem.span.right[:, -1]
    both = both * torch.where(both @ last < 0, -1.0, 1.0)[:, None]
    return both[apart(to_inputs(both, last), 0.1)]


def take_duals(
    problem: Problem, found: Found, pool: Tensor, barren: int, generator: torch.Generator
) -> Tensor:
    """The duals (k x n) of the pool's points, fitted to their own zeros.

    Points are found more surely than duals, and a dual leans on no record but its own: all other
    points, found or in the pool, lead to it. A wrong one among them misleads, so that every other
    barren round does without the pool, and takes fewer neurons for silent, by a wider margin.
    """
    left, scale = problem.span.left, problem.span.scale
    widths: Sequence[float] = FORGIVING if barren % 3 == 2 else GRADUAL
    if barren % 2 == 0 and len(found) + len(pool) > 0.8 * problem.count:
        widths = SHARP  # so many points lead to the right dual that a wide penalty would lead away
    # Points of a single hidden layer are too rough to lead.
    strength = math.sqrt(len(left)) if problem.signals is None else 0.0
    known, pool = settled(problem, found, pool)
    others = strength * leaning(scale, known)
    own = None if barren % 2 else strength * leaning(scale, pool)
    z = null_vectors(
        left,
        clearly_silent(problem.margin(pool), 0.1 * (1 + barren % 4), problem.count),
        generator=generator,
        widths=widths,
        away=others.T @ others + (0 if own is None else own.T @ own),
        own=own,
    )
    for below in REFITS:
        z = refit_on_zeros(problem, z, below, generator)
    return refit_on_zeros(problem, unmix(problem, z), REFITS[-1], generator)


def unmix(problem: Problem, z: Tensor) -> Tensor:
    """Duals (k x n) whose zeros leave a second direction, without their part in it.

    In the plane of two similar records' duals, each of the two has more zeros than any mixture: it
    is where many neurons agree on the share of the second direction to take out.
    """
    zeros, left = zeros_of(problem, z), problem.span.left
    mixed = (zeros.count > problem.count) & (zeros.second < least_second(problem))
    z = z.clone()
    for i in mixed.nonzero()[:, 0].tolist():
        a, b = left @ z[i], left @ zeros.direction[i]
        shares = (a / b)[b.abs() > 0.03].sort().values
        if len(shares) <= SPARED:
            continue
        close = shares[SPARED:] - shares[:-SPARED]
        if float(close.min()) < 2 * problem.zero:
            at = int(close.argmin())
            share = shares[at : at + SPARED + 1].median()
            z[i] = normalize(z[i] - share * zeros.direction[i], dim=0)
    return z


def new_duals(problem: Problem, found: Found, z: Tensor) -> Tensor:
    """k, bool: duals that are determined, and neither found before nor twice among themselves."""
    new = determined(problem, z)
    known = found.z
    for i in new.nonzero()[:, 0].tolist():
        if len(known) == problem.count or bool(((known @ z[i]).abs() > SAME_DUAL).any()):
            new[i] = False
        else:
            known = torch.cat([known, z[i : i + 1]])
    return new


def clearly_silent(margin: Tensor, by: float, count: int) -> Tensor:
    """k x w of 0 and 1: silent neurons by that margin, but enough of them to fix a dual."""
    enough = min(margin.shape[1], int(1.5 * count) + 4)
    least = margin.sort(1).values[:, enough - 1 : enough]
    return (margin <= torch.maximum(least, torch.full_like(least, -by))).double()


def finish(problem: Problem, found: Found) -> tuple[Tensor, Tensor]:
    """x~ (k x (d+1)) and duals z (k x n): exact if all duals were found, else estimates."""
    if len(found) == problem.count:
        return solve_records(problem.span, found.z), found.z
    points = found.y if problem.signals is not None else refine_found(problem, found)
    return to_inputs(points @ problem.span.right), found.z


def refine_found(problem: Problem, found: Found) -> Tensor:
    """Points y (k x n) once more, each in the space that the other records' duals leave to it."""
    if not len(found):
        return found.y
    rows = found.z / problem.span.scale
    rest, own = complement(rows, problem.count), torch.linalg.pinv(rows).T
    points = []
    for y, direction in zip(found.y, own, strict=True):
        basis = torch.linalg.qr(torch.cat([rest, direction[:, None]], dim=1))[0]
        near = normalize(y[None] @ basis, dim=1)
        better, _ = refine_points(problem.start @ basis, problem.penalty, near, iterations=3)
        points.append(better[0] @ basis.T)
    return torch.stack(points)


def solve_records(span: Span, z: Tensor) -> Tensor:
    """All x~ from all duals (rows of z): Z^-1 diag(scale) right."""
    return to_inputs(torch.linalg.solve(z.T, span.scale[:, None] * span.right))


def oriented(problem: Problem, records: Tensor, z: Tensor) -> Tensor:
    """Duals with their scale and sign: M = sum_i a_i x~_i^T makes (z_i / scale) . y_i = 1."""
    product = (z / problem.span.scale * (records @ problem.span.right.T)).sum(1, keepdim=True)
    return z / torch.where(product.abs() < 1e-12, torch.ones_like(product), product)


def to_inputs(directions: Tensor, last: Tensor | None = None) -> Tensor:
    """Divide each row by its last coordinate (or by its product with `last`), the bias' 1."""
    one = directions[:, -1:] if last is None else (directions @ last)[:, None]
    return directions / torch.where(one.abs() < 1e-12, torch.full_like(one, 1e-12), one)


def refit_on_zeros(problem: Problem, z: Tensor, below: float, generator: torch.Generator) -> Tensor:
    """Fit each dual again on its own zeros, where they are more than a generic vector has."""
    left = problem.span.left
    zeros = (z @ left.T).abs() < below
    fresh = null_vectors(left, zeros.double(), generator=generator)
    same = (fresh * z).sum(1).abs() > 0.999
    enough = zeros.double().mean(1) > problem.count / len(left) + 0.01
    return torch.where((same & enough)[:, None], fresh, z)
