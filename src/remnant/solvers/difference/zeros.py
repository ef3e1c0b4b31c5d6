"""The exact zeros of duals: what they determine, and how a dual is fitted to its own.

A dual is an exactly sparse vector of a known n-dimensional space. It is *determined* if it has
more exact zeros than a generic vector (n - 1) and they leave no second direction: a mixture of two
records' duals vanishes only where both do, and there each of the two does on its own.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.algebra import eigenvectors
from remnant.solvers.difference.duals import smallest_on
from remnant.solvers.difference.problem import Problem

REFITS = (5e-3, 2e-3, 5e-4, 1e-4)  # the exact zeros sharpen from one refit to the next
FINE = (5e-4, 1e-4, 1e-4)  # for duals that are within that of their zeros
# The second direction's mean square on the zeros: mixtures stay below 1e-5, right duals are above
# 1e-2 where inputs are centred and mostly above 1e-4 where they are not.
SECOND = 1e-4
SPARE = 8  # zeros beyond those of chance
SPARED = 4  # zeros that must not decide


@dataclass(frozen=True, kw_only=True, eq=False)
class Zeros:
    """Exact zeros of k duals, and the direction that they exclude least."""

    count: Tensor  # k
    second: Tensor  # k: mean square of that direction on the zeros, but for a few of them


def zeros_of(problem: Problem, z: Tensor, where: Tensor | None = None) -> Zeros:
    """z: k x n. Where the zeros are no more than chance gives, nothing is excluded.

    where (k x w, bool): neurons that count. Two records of one class may teach a neuron that both
    fire in the same proportion, and the difference of their duals vanishes there; so only those
    that a record does not fire are evidence for its dual.

    A mixture of two similar records' duals has the zeros that both have, and can be made to vanish
    on any one neuron more, or on a few by chance: SPARED of the zeros must not decide.
    """
    left, n = problem.span.left, problem.count
    zero = zeros_below(problem, z, problem.zero)
    if where is not None:
        zero = zero & where
    count = zero.sum(1)
    second = torch.zeros(len(z), dtype=torch.float64)
    enough = (count > n + SPARED).nonzero()[:, 0]
    for i in enough.tolist():
        second[i] = second_of(left[zero[i]]) if n > 1 else 1.0
    return Zeros(count=count, second=second)


def second_of(rows: Tensor) -> Tensor:
    """What a second direction leaves of rows (m x n) at least, but for SPARED of them."""
    gram = rows.T @ rows
    direction = eigenvectors(gram, only=1)[1]
    spared = rows[(rows @ direction)[:, 0].abs().argsort()[len(rows) - SPARED :]]
    value, _ = eigenvectors((gram - spared.T @ spared) / (len(rows) - SPARED), only=1)
    return value[0]


def determined(problem: Problem, z: Tensor, where: Tensor | None = None) -> Tensor:
    """k, bool: the dual's zeros are more than chance gives and determine it up to scale."""
    return fixed_by(problem, zeros_of(problem, z, where))


def fixed_by(problem: Problem, zeros: Zeros) -> Tensor:
    # Any vector can have n - 1 zeros, and as many again as entries happen to fall below `zero`.
    spare = SPARED + SPARE + problem.zero * len(problem.start)
    enough = zeros.count > problem.count + spare
    return enough & (zeros.second > least_second(problem))


def least_second(problem: Problem) -> float:
    return max(SECOND, 30 * problem.zero**2)


def settle(
    problem: Problem,
    z: Tensor,
    where: Tensor | None = None,
    refits: Sequence[float] = REFITS,
) -> tuple[Tensor, Tensor]:
    """Duals (k x n) fitted to their own zeros, and whether those (of `where`) determine each."""
    z = sharpen(problem, z, refits)
    return z, determined(problem, z, where)


def sharpen(problem: Problem, z: Tensor, refits: Sequence[float] = REFITS) -> Tensor:
    """Duals (k x n) fitted to fewer and surer zeros of their own."""
    for below in refits:
        z = refit_on_zeros(problem, z, max(below, problem.zero))
    return z


def refit_on_zeros(problem: Problem, z: Tensor, below: float) -> Tensor:
    """The null vector of each dual's zeros, where they are more than a generic vector has."""
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
