"""Which recovered records are right, told without the truth.

If all n duals are determined by their exact zeros (`zeros`), the records follow from them by a
linear solve. Then three witnesses have to agree: the record, its dual (neurons that it leaves
silent must not have learned from it, neurons that it fires must have), and the point that the
search found from the *next* layer's change, which has to contain what the record fires. If some
duals are missing, records are estimates from the next layer alone, and its dual, which comes from
the first, has to agree with each more closely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.difference.errors import squared_errors
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.zeros import fixed_by, zeros_of

# Shares of disagreement that are let pass: masks move between batches.
FIRING, ACTIVE = 0.1, 0.25
# Of an estimate's zeros, fewer. Measured: right ones 0 to 0.035, blends of two records from 0.03 on
# and mostly above 0.06, other records from 0.07 on and mostly above 0.2.
ESTIMATE_FIRING = 0.05
SURE = 1e-2  # squared error to expect of a record, relative to the spread of records
MOST = 0.8  # a wrong dual spoils records other than its own: few that pass may do so by chance
FAR = 0.1  # squared distance of record and point, relative to the spread of records
# Of a record's features outside the next layer's change, over what blends of two records leave: a
# record is odd above FOREIGN if it leaves more than ODD times what the others do, and above BLEND
# in any case. Measured: records to 0.03, in narrow networks to 0.12, uncentred ones to 0.3, and to
# 3 times their median; blends with a fifth of another mostly 0.1 to 0.5, random points from 1 on.
FOREIGN, ODD, BLEND = 0.05, 4.0, 0.5


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """One figure a record (k each)."""

    zeros: Tensor  # share of all neurons
    second: Tensor  # how far the zeros are from leaving a second direction, if clear, roughly
    zero_but_firing: Tensor  # share of the zeros
    silent_but_active: Tensor  # share of the silent neurons
    distance: Tensor  # squared, of record and point, in spreads of records
    doubtful: Tensor  # k, bool: the three witnesses contradict each other
    passed: Tensor  # k, bool: sure, and not doubtful, and most others are not either
    exact: bool  # all duals are determined
    residual: float | None  # of the first layer's change, once duals are zero where silent
    error: Tensor  # squared, to expect of the record (L2, in the model's scale)
    foreign: Tensor | None  # of its features to the next layer's change; none if that is the output


def certify(
    problem: Problem, records: Tensor, z: Tensor, points: Tensor, error: Tensor | None = None
) -> Certificate:
    """records: k x (d+1) with the bias' 1. z: k x n, their duals. points: k x n, as searched.

    error: k, the squared errors to expect of records that are estimates.
    """
    y = records @ problem.span.right.T
    exact_zeros = zeros_of(problem, z, problem.not_firing(y))
    sure = fixed_by(problem, exact_zeros)
    dual = (z @ problem.span.left.T).abs()
    zero, firing = dual < problem.zero, problem.start_margin(y) > 0.02
    active, silent = dual > max(0.03, problem.zero), problem.margin(y) < -0.1
    zeros, silents = zero.sum(1).double(), silent.sum(1).double()
    zero_but_firing = (zero & firing).sum(1).double()
    silent_but_active = (active & silent).sum(1).double()
    # A few neurons are always forgiven, for narrow layers.
    agrees = (zero_but_firing <= (FIRING * zeros).clamp(min=2)) & (
        silent_but_active <= (ACTIVE * silents).clamp(min=2)
    )
    distance, foreign = distance_to_points(problem, y, points), foreign_features(problem, y)
    # Points of a single hidden layer are too rough to be a witness.
    near = (distance < FAR) | torch.tensor(problem.signals is not None)
    doubtful = ~(sure & agrees & near)
    passed = ~doubtful if foreign is None else ~doubtful & ~odd_features(foreign)
    if error is not None:
        close = zero_but_firing <= (ESTIMATE_FIRING * zeros).clamp(min=2)
        passed = passed & close & (error < SURE * spread_of(y))
    # One wrong dual spoils others' records in a linear solve.
    exact = error is None
    if error is None:
        few = not (bool(sure.all()) and float(passed.double().mean()) >= MOST)
        error = squared_errors(problem, records, z, exact_zeros)
        if foreign is not None and len(foreign):  # a share of another record, told by features
            told = foreign > ODD * foreign.median()
            error = torch.where(told, error.maximum(foreign * spread_of(y)), error)
        passed = passed & (error < SURE * spread_of(y)) & ~torch.tensor(few)
    return Certificate(
        zeros=zeros / len(problem.start),
        second=exact_zeros.second,
        zero_but_firing=zero_but_firing / zeros.clamp(min=1),
        silent_but_active=silent_but_active / silents.clamp(min=1),
        distance=distance,
        doubtful=doubtful,
        passed=passed,
        exact=exact and bool(sure.all()),
        residual=unexplained(problem, y, silent) if exact else None,
        error=error,
        foreign=foreign,
    )


def unexplained(problem: Problem, y: Tensor, silent: Tensor) -> float:
    """The share of the first layer's change that records (n x n) leave unexplained.

    Duals are refitted to the change with the records alone, and may not move `silent` (n x w)
    neurons, which learned nothing: what they would have to move there is what is not explained.
    """
    change = problem.span.left * problem.span.scale  # w x n, in the span
    duals = torch.linalg.solve(y.T, change.T)
    left_over = (duals * silent).T @ y
    return float(left_over.norm() / change.norm())


def foreign_features(problem: Problem, y: Tensor) -> Tensor | None:
    """k: the share of what records y (k x n) fire that the next layer's change does not contain.

    Weak directions of the change count as hardly contained. The unit is what blends leave, each of
    a record and the next one: a point that is no record leaves about as much.
    """
    if problem.signals is not None:
        return None

    def outside(points: Tensor) -> Tensor:
        return problem.foreign((points @ problem.start.T).clamp(min=0))

    if len(y) < 2:
        return outside(y)
    return outside(y) / outside((y + y.roll(1, 0)) / 2).median()


def odd_features(foreign: Tensor) -> Tensor:
    """k, bool: records whose features are too `foreign` (k) to the next layer's change."""
    if not len(foreign):
        return foreign > 0
    return foreign > min(BLEND, max(FOREIGN, ODD * float(foreign.median())))


def distance_to_points(problem: Problem, y: Tensor, points: Tensor) -> Tensor:
    """k: squared distance of records and points (both k x n), over the records' spread."""
    last = problem.span.right[:, -1]
    scaled = points / (points @ last)[:, None]
    return (y - scaled).square().sum(1) / spread_of(y)


def spread_of(y: Tensor) -> float:
    """The median squared distance of records (k x n) from their median."""
    if len(y) < 2:
        return max(float(y.square().sum()), 1e-300)
    return max(float((y - y.quantile(0.5, dim=0)).square().sum(1).quantile(0.5)), 1e-300)
