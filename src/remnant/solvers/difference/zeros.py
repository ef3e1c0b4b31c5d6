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
from torch.nn.functional import normalize

from remnant.solvers.algebra import eigenvectors, times
from remnant.solvers.difference.duals import ROUGHLY, smallest_on, solve_across
from remnant.solvers.difference.problem import Problem

# Where there is room: rounds of refits at most, the share of zeros whose change asks for another,
# and zeros that a dual must have, for each record, or as a share of the neurons if those are fewer.
LONGEST, STEADY, AMPLE, SHARE = 4, 0.01, 1.45, 0.18
REFITS = (5e-3, 2e-3, 5e-4, 1e-4)  # the exact zeros sharpen from one refit to the next
FINE = (5e-4, 1e-4, 1e-4)  # for duals that are within that of their zeros
# The second direction's mean square on the zeros: mixtures stay below 1e-5, right duals are above
# 1e-2 where inputs are centred and mostly above 1e-4 where they are not.
SECOND = 1e-4
SPARE = 8  # zeros beyond those of chance
SPARED = 4  # zeros that must not decide
CLEAR = 100  # times `least_second`: above that, a rough look tells
AT_ONCE = 64  # rough looks, from two directions each


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
    if problem.roomy:
        rough = left.to(problem.coarse)
        for rows in enough.split(AT_ONCE):
            second[rows] = nearly_second(rough, zero[rows].float(), z[rows].float()).double()
        enough = enough[second[enough] < CLEAR * least_second(problem)]
    for i in enough.tolist():
        second[i] = second_of(left[zero[i]]) if n > 1 else 1.0
    return Zeros(count=count, second=second)


def nearly_second(left: Tensor, zeros: Tensor, z: Tensor) -> Tensor:
    """k: what `second_of` says, within a few times, by inverse power steps from random directions.

    zeros: k x w of 0 and 1. The farther it is below the others, the nearer these come; the less of
    two is taken, since one of them may begin almost across it.
    """
    starts = torch.randn(2, 1, z.shape[1], generator=torch.Generator().manual_seed(0))
    direction = starts.expand(2, *z.shape).flatten(0, 1)
    near, zeros = z.repeat(2, 1), zeros.repeat(2, 1)
    for spared in (0, 0, 0, SPARED):
        if spared:
            most = (times(direction, left.T).abs() * zeros).topk(spared, dim=1)
            zeros = zeros.scatter(1, most.indices, 0.0)
        across = normalize(direction - (direction * near).sum(1, keepdim=True) * near, dim=1)
        goal = across * zeros.sum(1, keepdim=True)
        direction = normalize(solve_across(left, zeros, near, goal, ROUGHLY), dim=1)
    second = (times(direction, left.T).square() * zeros).sum(1) / zeros.sum(1)
    return torch.minimum(*second.chunk(2))


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
    z, ample = sharpen(problem, z, refits)
    return z, ample & determined(problem, z, where)


def sharpen(problem: Problem, z: Tensor, refits: Sequence[float] = REFITS) -> tuple[Tensor, Tensor]:
    """Duals (k x n) fitted to fewer and surer zeros of their own, and which have ample ones."""
    if problem.roomy:
        return refit_until_steady(problem, z)
    for below in refits:
        z = refit_on_zeros(problem, z, max(below, problem.zero))
    return z, torch.ones(len(z), dtype=torch.bool)


def refit_until_steady(problem: Problem, z: Tensor) -> tuple[Tensor, Tensor]:
    """Duals (k x n) whose exact zeros hardly change any more, and which have ample ones (k, bool).

    One that vanishes on few more neurons than there are records is not exact: of 980 found at 1000
    CIFAR-10 records 25 were off by 2e-3 to 5e-2 after two refits. After these (all of
    them fine, as the last one still is), 18 of them were off by 1e-4 at most and had 1.9 zeros a
    record, one by 6e-4; the other six had 1.4 at most.
    """
    z, least = z.clone(), max(REFITS[-1], problem.zero)
    moving = torch.arange(len(z))
    for _ in range(LONGEST):
        near = z[moving]
        for below in REFITS[1:-1]:  # duals went finer before
            near = refit_on_zeros(problem, near, max(below, problem.zero), rough=True)
        before = zeros_below(problem, near, least)
        near = refit_on_zeros(problem, near, least, rough=True)
        after = zeros_below(problem, near, least)
        z[moving] = near
        moving = moving[(before != after).sum(1) > STEADY * after.sum(1)]
        if not len(moving):
            break
    z = refit_on_zeros(problem, z, least)
    enough = min(AMPLE * problem.count, SHARE * len(problem.start))
    return z, zeros_below(problem, z, least).sum(1) > enough


def refit_on_zeros(problem: Problem, z: Tensor, below: float, *, rough: bool = False) -> Tensor:
    """The null vector of each dual's zeros, where they are more than a generic vector has.

    rough: in single precision, of more than DENSE records.
    """
    left, fitted = problem.span.left, z.clone()
    zeros = zeros_below(problem, z, below)
    enough = zeros.double().mean(1) > problem.count / len(left) + 0.01
    if not bool(enough.any()):
        return fitted
    near = z[enough]
    fresh = smallest_on(left, zeros[enough], near, rough=rough)
    same = (fresh * near).sum(1).abs() > 0.999
    fitted[enough] = torch.where(same[:, None], fresh, near)
    return fitted


def zeros_below(problem: Problem, z: Tensor, below: float) -> Tensor:
    """k x w, bool: where duals (k x n) vanish."""
    return (z @ problem.span.left.T).abs() < below
