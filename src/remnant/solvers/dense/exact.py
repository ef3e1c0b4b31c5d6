"""Exact recovery of the records between two consecutive dense ReLU layers.

The adversary holds the change of both layers. The first one's gives the number of records and their
span (`spans`); the second one's row space nearly holds their features at the initial weights. The
search (`search`) finds the dual of one record after the other, each exact. All duals together give
all records at once: X~ = Z^-1 diag(scale) right, each divided by its last entry, the bias' 1. Where
some duals are missing, records are estimated one by one from the next layer.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.dense.certificate import Certificate, at_least_usual, certify, spread_of
from remnant.solvers.dense.problem import Problem
from remnant.solvers.dense.rerun import Fit
from remnant.solvers.dense.rounds import Found, Search, barren_in, nothing_found
from remnant.solvers.dense.search import search_on, sharpened
from remnant.solvers.dense.smooth import SmoothProblem, search_smooth, squared_errors
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.spans import Span


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """inputs: k x d in the model's scale; duals: k x w, what each neuron learned of each record."""

    inputs: Tensor
    duals: Tensor | None  # None where they are not known
    passed: Tensor  # k, bool: certified without the truth
    confidence: Tensor  # k, 0..1
    exact: bool  # up to rounding, if right
    found: list[float]  # number of records after each round
    error: Tensor  # k: the squared error to expect (L2, in the model's scale)
    certificate: Certificate | None = None
    rerun: Fit | None = None  # of the training, from these records, where that was tried
    labels: Tensor | None = None  # k: those that it was run with
    blends: int = 0  # records that are not certified since they may be several in one

    @property
    def rounds(self) -> int:
        """How many rounds the search took."""
        return len(self.found) - 1


@dataclass(frozen=True, kw_only=True, eq=False)
class Answer:
    """What a search found, as records x~ (k x (d+1)), their squared errors where they are
    estimates (None where exact), and the checks that they passed."""

    found: Found
    inputs: Tensor
    error: Tensor | None
    proof: Certificate

    @property
    def worth(self) -> tuple[bool, int]:
        """By which one answer is better than another: exact before estimated, then the number of
        records that passed."""
        return self.proof.exact, int(self.proof.passed.sum())


def recover(problem: Problem, search: Search, *, generator: torch.Generator) -> Recovery:
    """All records that the search finds, each with its certificate.

    Records that contradict their duals are taken out and searched for again; the best of the
    answers is kept.
    """
    known, series, barren = nothing_found(problem.count), [0.0], 0
    best: Answer | None = None
    for _ in range(1 + search.repairs):
        found, more = search_on(problem, known, search, generator)
        series, barren = series + more[1:], barren + barren_in(more)
        answer = answered(problem, found)
        if best is None or answer.worth >= best.worth:
            best = answer
        proof = answer.proof
        whole = len(answer.found) == problem.count
        if (whole and bool(proof.passed.all())) or not bool(proof.doubtful.any()):
            break
        if barren >= 2 * search.patience:
            break
        known = answer.found.take(~proof.doubtful)
    assert best is not None
    if best.error is None and not best.proof.exact:  # then estimates of the others are left
        best = answered(problem, known)
    proof = best.proof
    agreement = (1 - proof.zero_but_firing) * (1 - proof.silent_but_active)
    return Recovery(
        inputs=best.inputs[:, :-1],
        duals=scaled_duals(problem, best.inputs, best.found.z),
        passed=proof.passed,
        confidence=agreement * (0.5 + 0.5 * proof.passed),
        exact=proof.exact,
        found=series,
        error=proof.error if best.error is None else at_least_usual(best.error),
        certificate=proof,
    )


def recover_smooth(problem: SmoothProblem, search: Search, generator: torch.Generator) -> Recovery:
    """Every record of a smooth activation on its own, as exactly as drift of the weights allows."""
    found, series = search_smooth(problem, search, TOLERANCES.foreign, generator)
    error = squared_errors(problem, found.y)
    sure = error < TOLERANCES.sure * spread_of(found.y)
    whole = len(found) == problem.start.shape[1]
    return Recovery(
        inputs=(found.y @ problem.right)[:, :-1],
        duals=duals_of(problem.left, problem.scale, found.y) if whole else None,
        passed=sure,
        confidence=(1 - found.residual).clamp(min=0) * (0.5 + 0.5 * sure),
        exact=False,
        found=series,
        error=error,
    )


def answered(problem: Problem, found: Found) -> Answer:
    """The records that follow from what was found, with the checks of each."""
    inputs, error = finish(problem, found)
    proof = certify(problem, inputs, found.z, found.y, error)
    return Answer(found=found, inputs=inputs, error=error, proof=proof)


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
        to_inputs(sharpened(problem, found, exponent) @ problem.span.right)
        for exponent in (0.75, 0.5, 1.0)
    )
    moved = (high - low).square().sum(1)
    return middle, 1.5 * TOLERANCES.safety * moved.clamp(min=float(moved.median()))


def solve_records(span: Span, z: Tensor) -> Tensor:
    """All x~ (n x (d+1)) from all duals (rows of z): Z^-1 diag(scale) right."""
    return to_inputs(torch.linalg.solve(z.T, span.scale[:, None] * span.right))


def scaled_duals(problem: Problem, records: Tensor, z: Tensor) -> Tensor:
    """k x w: what each neuron learned, with the scale and sign that M = sum_i a_i x~_i^T gives to
    the dual z_i of record x~_i: (z_i / scale) . y_i = 1."""
    product = (z / problem.span.scale * (records @ problem.span.right.T)).sum(1, keepdim=True)
    z = z / torch.where(product.abs() < 1e-12, torch.ones_like(product), product)
    return z @ problem.span.left.T


def to_inputs(directions: Tensor) -> Tensor:
    """Rows x~ (k x (d+1)) divided by their last entry, which belongs to the bias."""
    one = directions[:, -1:]
    return directions / torch.where(one.abs() < 1e-12, torch.full_like(one, 1e-12), one)


def duals_of(left: Tensor, scale: Tensor, y: Tensor) -> Tensor:
    """n x w, from M = left diag(scale) right = sum_i a_i x~_i^T with all points y (n x n) known."""
    z: Tensor = torch.linalg.solve(y.T, torch.diag(scale))
    return z @ left.T
