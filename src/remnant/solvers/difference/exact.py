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
from remnant.solvers.difference.certificate import Certificate, certify
from remnant.solvers.difference.duals import FORGIVING, GRADUAL, SHARP, leaning, null_vectors
from remnant.solvers.difference.graph import find_points, refine_points
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.signals import find_signals
from remnant.solvers.difference.zeros import settle
from remnant.solvers.spans import Span

SAME_DUAL = 0.995  # cosine; two similar records of one class reach 0.96
NEAR = 0.25  # gap of a point worth a try
FEW = 0.1  # of the points that give a dual


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
    """More records, until there are as many as the spectrum counts. Extends `series` by a round.

    Where records are many, a record's zeros alone hardly determine its dual; the other records'
    points, which it must not lean on, are needed too. So where few points gave a dual, the next
    attempt waits for a quarter of the missing records' points, as long as new ones come.
    """
    n = problem.count
    pool, barren, awaited = found.y[:0], 0, 0
    with task("searching for records", n) as step:
        while len(found) < n and barren < search.patience:
            before = len(pool)
            pool = merge(problem, pool, find_records(problem, found, barren, search, generator))
            series.append(float(len(found)))
            if before < len(pool) < awaited:
                continue
            z, sure = settle(problem, take_duals(problem, found, pool, barren, generator))
            new = new_duals(found, z, sure)
            found = Found(z=torch.cat([found.z, z[new]]), y=torch.cat([found.y, pool[new]]))
            pool = pool[~new]
            few = float(new.double().mean()) < FEW
            awaited = len(pool) + (n - len(found)) // 4 if few else 0
            barren = 0 if bool(new.any()) else barren + 1
            step(int(new.sum()), note=f"{len(found)} of {n}")
            series[-1] = float(len(found))
    return found


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
    """The duals (k x n) of the pool's points.

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
    return null_vectors(
        left,
        clearly_silent(problem.margin(pool), 0.1 * (1 + barren % 4), problem.count),
        generator=generator,
        widths=widths,
        away=others.T @ others + (0 if own is None else own.T @ own),
        own=own,
    )


def new_duals(found: Found, z: Tensor, sure: Tensor) -> Tensor:
    """k, bool: duals that are sure, and neither found before nor twice among themselves."""
    new, known = sure.clone(), found.z
    for i in sure.nonzero()[:, 0].tolist():
        if len(known) == z.shape[1] or bool(((known @ z[i]).abs() > SAME_DUAL).any()):
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
