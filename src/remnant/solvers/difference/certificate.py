"""Which recovered records are right, told without the truth.

If all n duals are determined by their exact zeros (`zeros`), the records follow from them by a
linear solve. Then three witnesses have to agree: the record, its dual (neurons that it leaves
silent must not have learned from it, neurons that it fires must have), and the point that the
search found from the *next* layer's change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.zeros import fixed_by, zeros_of

# Shares of disagreement that are let pass: masks move between batches.
FIRING, ACTIVE = 0.1, 0.25
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


def certify(problem: Problem, records: Tensor, z: Tensor, points: Tensor) -> Certificate:
    """records: k x (d+1) with the bias' 1. z: k x n, their duals. points: k x n, as searched."""
    exact_zeros = zeros_of(problem, z)
    sure = fixed_by(problem, exact_zeros)
    exact = len(z) == problem.count and bool(sure.all())
    y = records @ problem.span.right.T
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
    # Points of a single hidden layer are too rough to be a witness. And only all duals together
    # give records: estimates without some of them can be far off.
    near = (distance < FAR) | torch.tensor(problem.signals is not None)
    passed = sure & agrees & near & torch.tensor(exact)
    doubtful = ~passed
    if exact and float(passed.double().mean()) < MOST:
        passed = torch.zeros_like(passed)
    return Certificate(
        zeros=zeros / len(problem.start),
        second=exact_zeros.second,
        zero_but_firing=zero_but_firing / zeros.clamp(min=1),
        silent_but_active=silent_but_active / silents.clamp(min=1),
        distance=distance,
        doubtful=doubtful,
        passed=passed,
        exact=exact,
    )


def distance_to_points(problem: Problem, y: Tensor, points: Tensor) -> Tensor:
    """k: squared distance of records and points (both k x n), over the records' median spread."""
    if not len(y):
        return torch.zeros(0, dtype=torch.float64)
    last = problem.span.right[:, -1]
    scaled = points / (points @ last)[:, None]
    spread = (y - y.median(0).values).square().sum(1).median() if len(y) > 1 else y.square().sum()
    return (y - scaled).square().sum(1) / spread.clamp(min=1e-300)
