"""Duals between two checkpoints: how much each neuron learned from one record.

The first layer's change is M = left diag(scale) right = sum_i a_i x~_i^T, where the dual a_i of
record i vanishes *exactly* on the neurons that were silent on it throughout the training. So
a_i = left z_i is a sparse vector of a known n-dimensional space, and its coordinates z_i are the
null vector of the rows of `left` that belong to those neurons.

A dual is *determined* by its zeros if they are more than a generic vector has (n - 1) and no second
direction of the space is small on them too: a mixture of two records' duals vanishes only where
both do, and there each of the two does on its own.

Duals are rows of coordinates here (k x n), of unit length.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.dense.problem import Problem
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import damped_cholesky, eigenvectors, least_squares


def silent_neurons(margin: Tensor, count: int) -> Tensor:
    """k x w of 0 and 1: the neurons taken for silent on a record, from their margins (k x w).

    Those with a negative margin; where these are too few to fix one of `count` records' duals, as
    many of the smallest margins as are needed.
    """
    enough = min(margin.shape[1], int(1.5 * count) + 4)
    least = margin.sort(1).values[:, enough - 1 : enough]
    return (margin <= least.clamp(min=0)).double()


def null_vectors(
    left: Tensor, z: Tensor, silent: Tensor, widths: Sequence[float | Tensor]
) -> Tensor:
    """Duals near z that are small on nearly all `silent` neurons (k x w of 0 and 1).

    Iteratively reweighted least squares of the penalty log(a^2 + width^2), a = left z, one step for
    each width (a number, or one for each neuron). Neurons wrongly taken for silent (on in
    mid-training only, or of the wrong sign near 0) drop out instead of bending the answer. In
    single precision; `fit_to_zeros` is exact.
    """
    chunk = 128 if left.shape[1] > TOLERANCES.dense else 8  # rows of products, or Gram matrices
    single, found = left.float(), []
    for start, rows in zip(z.split(chunk), silent.split(chunk), strict=True):
        near = normalize(start, dim=1)
        for width in widths:
            weight = (rows / ((near @ left.T) ** 2 + width**2)).float()
            near = inverse_power_step(single, weight, near, ridge=1e-7, iterations=30)
        found.append(near)
    return torch.cat(found)


def smallest_on(left: Tensor, zeros: Tensor, near: Tensor) -> Tensor:
    """Duals near `near` that are smallest on the neurons `zeros` (k x w, bool), in float64.

    Of many records the result is exact, to about 1e-8, only where it vanishes on those neurons:
    products are in single precision, and what they leave is solved for once more.
    """
    if left.shape[1] > TOLERANCES.dense:
        single, weight = left.float(), zeros.float()
        near = inverse_power_step(single, weight, near, ridge=0.0)
        rest = -(near @ left.T) * zeros
        length = rest.norm(dim=1, keepdim=True).clamp(min=1e-30)
        step = across(single, weight, near.float(), (rest / length).float(), tolerance=1e-3)
        return normalize(near + step.double() * length, dim=1)
    found = []
    for own, start in zip(zeros, near, strict=True):
        rows = left[own]
        factor = damped_cholesky((rows.T @ rows)[None], 1e-13)[0]
        fresh = start[:, None]
        for _ in range(3):
            fresh = normalize(torch.cholesky_solve(fresh, factor), dim=0)
        found.append(fresh[:, 0])
    return torch.stack(found)


def inverse_power_step(
    left: Tensor, weight: Tensor, near: Tensor, *, ridge: float, iterations: int = 200
) -> Tensor:
    """Duals x with the least sum over neurons of weight (k x w) times (left x)^2, of those with
    x . near = 1: one inverse power step from `near` on the weighted Gram matrix of left's rows.

    left: w x n, columns of unit root-mean-square. iterations: of conjugate gradients, at most.
    """
    if left.shape[1] > TOLERANCES.dense:
        near = normalize(near, dim=1).to(weight.dtype)
        rest, settled = -weight.sqrt() * (near @ left.T), 1e-5 * weight.sum(1, keepdim=True)
        step = across(left, weight, near, rest, iterations=iterations, enough=settled)
        return normalize(near + step, dim=1).double()
    gram = torch.matmul(left.T.contiguous() * weight[:, None, :], left).double()
    factor = damped_cholesky(gram, ridge)
    return normalize(torch.cholesky_solve(near[:, :, None], factor)[:, :, 0], dim=1)


def across(
    left: Tensor,
    weight: Tensor,
    near: Tensor,
    rest: Tensor,
    *,
    iterations: int = 200,
    tolerance: float = 0.0,
    enough: Tensor | float = 0.0,
) -> Tensor:
    """Rows p (k x n) orthogonal to unit rows `near` that bring sqrt(weight) (left p) to `rest`
    (k x w): with near + p in place of a dual, the null direction is out of the problem."""
    root = weight.sqrt()

    def forward(p: Tensor) -> Tensor:
        return (p @ left.T) * root

    def backward(rows: Tensor) -> Tensor:
        product = (rows * root) @ left
        return product - (product * near).sum(1, keepdim=True) * near

    return least_squares(
        forward, backward, rest, iterations=iterations, tolerance=tolerance, enough=enough
    )


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
    """k, bool: whether these zeros determine their duals up to scale."""
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
    """Each dual (k x n) replaced by the null vector of its entries below `below`, if these are
    more than any vector of the space can have and the null vector is nearly the dual; other
    duals stay as they are."""
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
    """k x w, bool: the neurons on which duals (k x n) are below that share of their
    root-mean-square."""
    return (z @ problem.span.left.T).abs() < below
