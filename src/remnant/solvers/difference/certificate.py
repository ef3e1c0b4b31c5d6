"""Which recovered records are right, told without the truth.

If all n duals are determined by their exact zeros (`zeros`), the records follow from them by a
linear solve. Then three witnesses have to agree: the record, its dual (neurons that it leaves
silent must not have learned from it, neurons that it fires must have), and the point that the
search found from the *next* layer's change. If some duals are missing, records are estimates from
the next layer alone, and its dual, which comes from the first, has to agree with each more closely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.zeros import fixed_by, zeros_of

# Shares of disagreement that are let pass: masks move between batches.
FIRING, ACTIVE = 0.1, 0.25
# Of an estimate's zeros, fewer. Measured: right ones 0 to 0.035, blends of two records from 0.03 on
# and mostly above 0.06, other records from 0.07 on and mostly above 0.2.
ESTIMATE_FIRING = 0.05
SURE = 0.05  # squared error to expect of an estimate, relative to the spread of records
MOST = 0.8  # a wrong dual spoils records other than its own: few that pass may do so by chance
FAR = 0.1  # squared distance of record and point, relative to the spread of records


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """One figure a record (k each)."""

    zeros: Tensor  # share of all neurons
    second: Tensor  # how far the zeros are from leaving a second direction
    zero_but_firing: Tensor  # share of the zeros
    silent_but_active: Tensor  # share of the silent neurons
    distance: Tensor  # squared, of record and point, in spreads of records
    doubtful: Tensor  # k, bool: the three witnesses contradict each other
    passed: Tensor  # k, bool: sure, and not doubtful, and most others are not either
    exact: bool  # all duals are determined
    residual: float | None  # of the first layer's change, once duals are zero where silent


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
    distance = distance_to_points(problem, y, points)
    # Points of a single hidden layer are too rough to be a witness.
    near = (distance < FAR) | torch.tensor(problem.signals is not None)
    doubtful = ~(sure & agrees & near)
    passed = ~doubtful
    if error is not None:
        close = zero_but_firing <= (ESTIMATE_FIRING * zeros).clamp(min=2)
        passed = passed & close & (error < SURE * spread_of(y))
    # One wrong dual spoils others' records in a linear solve.
    if error is None and not (bool(sure.all()) and float(passed.double().mean()) >= MOST):
        passed = torch.zeros_like(passed)
    return Certificate(
        zeros=zeros / len(problem.start),
        second=exact_zeros.second,
        zero_but_firing=zero_but_firing / zeros.clamp(min=1),
        silent_but_active=silent_but_active / silents.clamp(min=1),
        distance=distance,
        doubtful=doubtful,
        passed=passed,
        exact=error is None and bool(sure.all()),
        residual=None if error is not None else unexplained(problem, y, silent),
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


def distance_to_points(problem: Problem, y: Tensor, points: Tensor) -> Tensor:
    """k: squared distance of records and points (both k x n), over the records' spread."""
    last = problem.span.right[:, -1]
    scaled = points / (points @ last)[:, None]
    return (y - scaled).square().sum(1) / spread_of(y)


def spread_of(y: Tensor) -> float:
    """The median squared distance of records (k x n) from their median."""
    if len(y) < 2:
        return max(float(y.square().sum()), 1e-300)
    return max(float((y - y.median(0).values).square().sum(1).median()), 1e-300)
