"""Which recovered records are right, told without the truth.

A dual is an exactly sparse vector of a known n-dimensional space. It is *determined* if it has
more exact zeros than a generic vector (n - 1) and they leave no second direction: a mixture of two
records' duals vanishes only where both do, and there each of the two does on its own. If all n
duals are determined, the records follow from them by a linear solve. Then three witnesses have to
agree: the record, its dual (neurons that it leaves silent must not have learned from it, neurons
that it fires must have), and the point that the search found from the *next* layer's change.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.difference.problem import Problem

# The second direction's mean square on the zeros: mixtures stay below 1e-5, right duals are above
# 1e-2 where inputs are centred and mostly above 1e-4 where they are not.
SECOND = 1e-4
SPARED = 4  # zeros that must not decide
CLEARLY = 0.1  # a second direction as large as this does not hang on SPARED of the zeros
# Shares of disagreement that are let pass: for records from a solve with all duals, and for
# estimates where duals are missing. Right records are forgiven masks that move between batches.
FORGIVEN = {True: (0.1, 0.25), False: (0.02, 0.15)}
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Zeros:
    """Exact zeros of k duals, and the direction that they exclude least."""

    count: Tensor  # k
    second: Tensor  # k: mean square of that direction on the zeros, but for a few of them
    direction: Tensor  # k x n


def zeros_of(problem: Problem, z: Tensor) -> Zeros:
    """z: k x n. Where the zeros are no more than chance gives, nothing is excluded.

    A mixture of two similar records' duals has the zeros that both have, and can be made to vanish
    on any one neuron more, or on a few by chance: SPARED of the zeros must not decide.
    """
    left, n = problem.span.left, problem.count
    zero = (z @ left.T).abs() < problem.zero
    count = zero.sum(1)
    second = torch.zeros(len(z), dtype=torch.float64)
    direction = torch.zeros_like(z)
    for i in (count > n + SPARED).nonzero()[:, 0].tolist():
        rows = left[zero[i]]
        if n == 1:
            second[i] = 1.0
            continue
        for _ in range(2):
            values, vectors = torch.linalg.eigh(rows.T @ rows / len(rows))
            second[i], direction[i] = values[1], vectors[:, 1]
            if float(values[1]) > CLEARLY:
                break
            rows = rows[(rows @ vectors[:, 1]).abs().argsort()[: len(rows) - SPARED]]
    return Zeros(count=count, second=second, direction=direction)


def determined(problem: Problem, z: Tensor) -> Tensor:
    """k, bool: the dual's zeros are more than chance gives and determine it up to scale."""
    return fixed_by(problem, zeros_of(problem, z))


def fixed_by(problem: Problem, zeros: Zeros) -> Tensor:
    width = len(problem.start)
    # Where records are many, even right duals have few zeros to spare.
    enough = zeros.count > problem.count + (0.05 if problem.count < width / 4 else 0.03) * width
    return enough & (zeros.second > least_second(problem))


def least_second(problem: Problem) -> float:
    return max(SECOND, 30 * problem.zero**2)


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
    firing_share, active_share = FORGIVEN[exact]
    agrees = (zero_but_firing <= (firing_share * zeros).clamp(min=2)) & (
        silent_but_active <= (active_share * silents).clamp(min=2)
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
