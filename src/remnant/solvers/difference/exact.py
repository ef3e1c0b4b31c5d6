"""Exact recovery of the records between two consecutive dense ReLU layers.

The adversary holds the change of both layers. The first one's gives the records' number and span
(`spans`); the second one's row space nearly holds their features at the initial weights. Search
for points of the span whose features lie in it, and their duals with them (`graph`), make each dual
exact (`duals`, `zeros`), remove what is found from the space, go on. All duals together give all
records at once: X~ = Z^-1 diag(scale) right, each divided by its last coordinate, the bias' 1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import apart, complement
from remnant.solvers.difference.certificate import Certificate, certify
from remnant.solvers.difference.duals import GRADUAL, clearly_silent, null_vectors
from remnant.solvers.difference.graph import Spaces, find_points, refine_points
from remnant.solvers.difference.ground import (
    Found,
    Ground,
    Search,
    duals_at,
    ground_of,
    refined,
    upright,
)
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.rerun import Fit
from remnant.solvers.difference.signals import find_signals
from remnant.solvers.difference.zeros import FINE, settle
from remnant.solvers.spans import Span

SAME_DUAL = 0.995  # cosine; two similar records of one class reach 0.96
NEAR = 0.25  # gap of a point worth a try
FARTHER = 0.4  # and of one that is kept away from others, maybe from where it would go
LARGER = 96.0  # what two estimates of a record differ by falls short of their squared error by that
LEAST = 64.0  # times the median error: one that is stated is not below; near pairs need 50
# Cosines that points are held below: with those found, and with each other. Taken in turn, when
# fewer than FEW of the starts, or of what is left, are new. Removing a record from the span leaves
# nearly all of it, and most starts end there again.
APART = (1.0, 0.4, 0.6, 0.8)
FEW = 0.5
# Widths of null vectors from a rough dual that is a point's own.
SMALL_STEPS = tuple(
    width for width in (0.05, 0.03, 0.02, 0.01, 0.005, 0.002, 0.001) for _ in range(3)
)


@dataclass(frozen=True, kw_only=True)
class Round:
    """What a round of the search does otherwise than the one before."""

    barren: int = 0  # rounds without a new record
    turn: int = 0  # of APART

    @property
    def cosine(self) -> float:
        return APART[self.turn]

    def after(self, new: int, likely: int) -> Round:
        """The next round, after one that brought `new` of as many as were likely."""
        turn = self.turn if new >= FEW * likely else (self.turn + 1) % len(APART)
        return Round(barren=0 if new else self.barren + 1, turn=turn)


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """inputs: k x d in the model's scale; duals: k x w, what each neuron learned of each record."""

    inputs: Tensor
    duals: Tensor | None  # None where they are not known
    passed: Tensor  # k, bool: certified without the truth
    confidence: Tensor  # k, 0..1
    exact: bool  # up to rounding, if right
    found: list[float]  # after each round
    error: Tensor  # k: the squared error to expect (L2, in the model's scale)
    certificate: Certificate | None = None
    rerun: Fit | None = None  # of the training, from these records, where that was tried
    labels: Tensor | None = None  # k: those that it was run with
    blends: int = 0  # records that are not certified since they may be several in one

    @property
    def rounds(self) -> int:
        return len(self.found) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """Records x~ (k x (d+1)) of what was found, their squared errors if inexact, and the proof."""

    found: Found
    inputs: Tensor
    error: Tensor | None
    proof: Certificate

    @property
    def worth(self) -> tuple[bool, int]:
        return self.proof.exact, int(self.proof.passed.sum())


def recover(problem: Problem, search: Search, *, generator: torch.Generator) -> Recovery:
    """Search, take duals, deflate until every record is found or nothing new comes.

    Records that contradict their duals are searched for anew; if that ends worse, it is forgotten.
    """
    nobody = torch.zeros(0, problem.count, dtype=torch.float64)
    known, series = Found(z=nobody, y=nobody), [0.0]
    best: Answer | None = None
    for _ in range(1 + search.repairs):
        found = search_on(problem, known, series, search, generator)
        answer = answered(problem, found)
        if best is None or answer.worth >= best.worth:
            best = answer
        found, proof = answer.found, answer.proof
        whole = len(found) == problem.count
        if (whole and bool(proof.passed.all())) or not bool(proof.doubtful.any()):
            break
        kept = ~proof.doubtful
        known = Found(z=found.z[kept], y=found.y[kept])
    assert best is not None
    if best.error is None and not best.proof.exact:  # then estimates of the others are left
        best = answered(problem, known)
    found, inputs, error, proof = best.found, best.inputs, best.error, best.proof
    agreement = (1 - proof.zero_but_firing) * (1 - proof.silent_but_active)
    return Recovery(
        inputs=inputs[:, :-1],
        duals=oriented(problem, inputs, found.z) @ problem.span.left.T,
        passed=proof.passed,
        confidence=agreement * (0.5 + 0.5 * proof.passed),
        exact=proof.exact,
        found=series,
        error=proof.error if error is None else stated(error),
        certificate=proof,
    )


def answered(problem: Problem, found: Found) -> Answer:
    """What was found as records, each judged without the truth."""
    inputs, error = finish(problem, found)
    proof = certify(problem, inputs, found.z, found.y, error)
    return Answer(found=found, inputs=inputs, error=error, proof=proof)


def stated(error: Tensor) -> Tensor:
    """k: squared errors that no certified estimate was seen to exceed. Those that came out small by
    chance are not much smaller than the others'."""
    return error.clamp(min=LEAST * float(error.median())) if len(error) else error


def search_on(
    problem: Problem, found: Found, series: list[float], search: Search, generator: torch.Generator
) -> Found:
    """More records, until there are as many as the spectrum counts. Extends `series` by a round."""
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
    """Points y (k x n) in the space that the found duals leave, duals z (k x n), and whether sure.

    Where no point's dual is, points are refined, and tell better which neurons are silent. A
    search may have come to one record with its point and to another like it with its dual; so if
    that does not do, duals begin from what the points alone say.
    """
    basis = complement(found.z / problem.span.scale, problem.count)
    ground = ground_of(problem, basis, found, now.cosine)
    y, z = find_rough(problem, ground, now, search, generator)
    near, sure = take_duals(problem, y, z)
    if problem.signals is None and not bool(sure.any()):
        y = refined(problem, basis, y)
        near, sure = take_duals(problem, y, z)
        left = ~sure
        if bool(left.any()):
            own = duals_at(problem, found, y[left])
            near[left], sure[left] = take_duals(problem, y[left], own, closely=True)
    return y, near, sure


def find_rough(
    problem: Problem, ground: Ground, now: Round, search: Search, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Different points y (k x n) of the ground and rough duals z (k x n)."""
    starts = search.starts_in(ground.basis.shape[1])
    iterations = search.iterations * (3 if now.barren else 1)
    if ground.crowded:
        iterations = (iterations + 1) // 2  # points that are kept apart arrive sooner
    spaces = ground.spaces
    if isinstance(spaces, Spaces):
        points = find_points(spaces, starts, generator=generator, iterations=iterations)
    else:
        points = find_signals(spaces, starts, generator=generator, iterations=iterations)
    near = max(4, int((points.gap < (FARTHER if ground.crowded else NEAR)).sum()))
    y = upright(problem, ground.points(points.coordinates[:near]))
    kept = apart(to_inputs(y, problem.span.right[:, -1]), 0.1)
    left = problem.span.left / math.sqrt(len(problem.start))
    return y[kept], points.dual[:near][kept].double() @ left


def take_duals(
    problem: Problem, y: Tensor, z: Tensor, *, closely: bool = False
) -> tuple[Tensor, Tensor]:
    """Duals (k x n) near z that vanish where the points y (k x n) are silent; which are sure.

    closely: in small steps that mostly end so near the exact zeros that refits may begin there;
    then entries that are small but no zeros bend none of them.
    """
    silent = clearly_silent(problem.margin(y), problem.count)
    widths = [max(width, problem.zero) for width in SMALL_STEPS] if closely else GRADUAL
    near, where = null_vectors(problem.span.left, z, silent, widths=widths), problem.not_firing(y)
    if not closely:
        return settle(problem, near, where)
    fitted, sure = settle(problem, near, where, FINE)
    left = ~sure
    if bool(left.any()):
        fitted[left], sure[left] = settle(problem, near[left], where[left])
    return fitted, sure


def new_duals(found: Found, z: Tensor, sure: Tensor) -> Tensor:
    """k, bool: duals that are sure, and neither found before nor twice among themselves."""
    new, known = sure.clone(), found.z
    for i in sure.nonzero()[:, 0].tolist():
        if len(known) == z.shape[1] or bool(((known @ z[i]).abs() > SAME_DUAL).any()):
            new[i] = False
        else:
            known = torch.cat([known, z[i : i + 1]])
    return new


def finish(problem: Problem, found: Found) -> tuple[Tensor, Tensor | None]:
    """x~ (k x (d+1)), exact if all duals were found; else estimates, and their squared errors (k).

    An estimate rests on the next layer's features, which drift. How far it moves where that layer's
    weak directions count less, or more, says how far it is off; if by chance hardly, as the others.
    """
    if len(found) == problem.count:
        return solve_records(problem.span, found.z), None
    if problem.signals is not None or not len(found):
        return to_inputs(found.y @ problem.span.right), torch.full((len(found),), math.inf)
    middle, low, high = (
        to_inputs(refine_found(problem, found, exponent) @ problem.span.right)
        for exponent in (0.75, 0.5, 1.0)
    )
    moved = (high - low).square().sum(1)
    return middle, LARGER * moved.clamp(min=float(moved.median()))


def refine_found(problem: Problem, found: Found, exponent: float) -> Tensor:
    """Points y (k x n) once more, each in the space that the other records' duals leave to it."""
    rows, penalty = found.z / problem.span.scale, problem.penalty(exponent)
    rest, own = complement(rows, problem.count), torch.linalg.pinv(rows).T
    points = []
    for y, direction in zip(found.y, own, strict=True):
        basis = torch.linalg.qr(torch.cat([rest, direction[:, None]], dim=1))[0]
        near = normalize(y[None] @ basis, dim=1)
        better, _ = refine_points(problem.start @ basis, penalty, near, iterations=3)
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
