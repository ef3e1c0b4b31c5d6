"""The exact zeros of duals: what they determine, and how a dual is fitted to its own.

A dual is an exactly sparse vector of a known n-dimensional space. It is *determined* by its zeros
if they are more than a generic vector has (n - 1) and no second direction of the space is small on
them too: a mixture of two records' duals vanishes only where both do, and there each of the two
does on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.algebra import eigenvectors
from remnant.solvers.difference.duals import smallest_on
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.tolerances import TOLERANCES


@dataclass(frozen=True, kw_only=True, eq=False)
class Zeros:
    """Of k duals: how many exact zeros each has, and the least mean square (k) that a second
    direction leaves on them, but for the `spared` zeros where it leaves most."""

    count: Tensor
    second: Tensor


def zeros_of(problem: Problem, z: Tensor, where: Tensor | None = None) -> Zeros:
    """Of duals z (k x n). `second` is 0 where the zeros are no more than chance gives.

    where (k x w, bool): neurons that count. Two records of one class may teach a neuron that both
    fire in the same proportion, and the difference of their duals vanishes there; so only neurons
    that a record does not fire are evidence for its dual.
    """
    zero = zeros_below(problem, z, problem.zero)
    if where is not None:
        zero = zero & where
    count = zero.sum(1)
    second = torch.zeros(len(z), dtype=torch.float64)
    for i in (count > problem.count + TOLERANCES.spared).nonzero()[:, 0].tolist():
        second[i] = second_direction(problem.span.left[zero[i]]) if problem.count > 1 else 1.0
    return Zeros(count=count, second=second)


def second_direction(rows: Tensor) -> Tensor:
    """The second least mean square that a unit vector leaves on rows (m x n), the `spared` rows
    left out where it leaves most: a mixture can be made to vanish on a few neurons more."""
    gram, spared = rows.T @ rows, TOLERANCES.spared
    direction = eigenvectors(gram, only=1)[1]
    most = rows[(rows @ direction)[:, 0].abs().argsort()[len(rows) - spared :]]
    return eigenvectors((gram - most.T @ most) / (len(rows) - spared), only=1)[0][0]


def determined(problem: Problem, z: Tensor, where: Tensor | None = None) -> Tensor:
    """k, bool: the zeros of duals z (k x n), on neurons `where`, determine them up to scale."""
    return determined_by(problem, zeros_of(problem, z, where))


def determined_by(problem: Problem, zeros: Zeros) -> Tensor:
    # Any vector can have n - 1 zeros, and as many again as entries happen to fall below `zero`.
    spare = 3 * TOLERANCES.spared + problem.zero * len(problem.start)
    least = max(TOLERANCES.second, 30 * problem.zero**2)
    return (zeros.count > problem.count + spare) & (zeros.second > least)


def fit_to_zeros(
    problem: Problem, z: Tensor, refits: Sequence[float] = TOLERANCES.refits
) -> Tensor:
    """Duals (k x n) refitted to fewer and surer zeros of their own, from one refit to the next.

    `problem.zero` leaves room for ten times the usual rounding; entries that are small but not zero
    would bend a fit, so it takes those within twice that rounding.
    """
    for below in refits:
        z = refit_on_zeros(problem, z, max(below, problem.zero / 5))
    return z


def refit_on_zeros(problem: Problem, z: Tensor, below: float) -> Tensor:
    """The null vector of each dual's entries `below`, where they are more than a generic vector has
    and that is nearly the dual itself; else the dual."""
    left, fitted = problem.span.left, z.clone()
    zeros = zeros_below(problem, z, below)
    enough = zeros.double().mean(1) > problem.count / len(left) + 0.01
    if not bool(enough.any()):
        return fitted
    near = z[enough]
    fresh = smallest_on(left, zeros[enough], near)
    same = (fresh * near).sum(1).abs() > 0.999
    fitted[enough] = torch.where(same[:, None], fresh, near)
    return fitted


def zeros_below(problem: Problem, z: Tensor, below: float) -> Tensor:
    """k x w, bool: where duals (k x n) vanish."""
    return (z @ problem.span.left.T).abs() < below
