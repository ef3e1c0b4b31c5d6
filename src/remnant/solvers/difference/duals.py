"""Duals: how much each neuron learned from one record.

The first layer's change is M = left diag(scale) right = sum_i a_i x~_i^T, where the dual a_i of
record i vanishes *exactly* on the neurons that were silent on it throughout the training. So
a_i = left z_i is a sparse vector of a known n-dimensional space, and its coordinates z_i are the
null vector of the rows of `left` that belong to those neurons.

Every function here takes and returns rows of such coordinates (k x n), of unit length.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import damped_cholesky

# Records above which products replace a Gram matrix for each dual, whose cost is their square.
DENSE = 256


def silent_neurons(margin: Tensor, count: int) -> Tensor:
    """k x w of 0 and 1: neurons with a negative margin (k x w), or as many of the smallest margins
    as fix the dual of one of `count` records."""
    enough = min(margin.shape[1], int(1.5 * count) + 4)
    least = margin.sort(1).values[:, enough - 1 : enough]
    return (margin <= least.clamp(min=0)).double()


def null_vectors(left: Tensor, z: Tensor, silent: Tensor, widths: Sequence[float]) -> Tensor:
    """Duals near z that are small on nearly all `silent` neurons (k x w of 0 and 1).

    Iteratively reweighted least squares of the penalty log(a^2 + width^2), a = left z, one step for
    each width. Neurons wrongly taken for silent (on in mid-training only, or of the wrong sign near
    0) drop out instead of bending the answer. In single precision; `zeros` makes duals exact.
    """
    chunk = 128 if left.shape[1] > DENSE else 8  # rows of products, or Gram matrices
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

    Of more than DENSE records the result is exact only where it vanishes on those neurons.
    """
    if left.shape[1] > DENSE:
        single, weight = left.float(), zeros.float()
        return corrected(left, single, weight, inverse_power_step(single, weight, near, ridge=0.0))
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
    if left.shape[1] > DENSE:
        near = normalize(near, dim=1).to(weight.dtype)
        goal = -_gram_across(left, weight, near, near)
        step = conjugate_gradients(left, weight, near, goal, iterations=iterations)
        return normalize(near + step, dim=1).double()
    gram = torch.matmul(left.T.contiguous() * weight[:, None, :], left).double()
    factor = damped_cholesky(gram, ridge)
    return normalize(torch.cholesky_solve(near[:, :, None], factor)[:, :, 0], dim=1)


def corrected(left: Tensor, single: Tensor, weight: Tensor, near: Tensor) -> Tensor:
    """Duals of a single-precision `inverse_power_step`, to about 1e-8: their residual is taken in
    double precision, and solved for in single (one round of iterative refinement)."""
    rest = -_gram_across(left, weight.double(), near, near)
    total = weight.sum(1, keepdim=True)
    length = rest.norm(dim=1, keepdim=True).clamp(min=1e-30)
    goal = (rest / length).float() * total
    step = conjugate_gradients(single, weight, near.float(), goal, settled=1e-3)
    return normalize(near + step.double() * length / total, dim=1)


def _gram_across(left: Tensor, weight: Tensor, near: Tensor, v: Tensor) -> Tensor:
    """Rows v (k x n) times the weighted Gram matrices, less the part along `near`."""
    product = ((v @ left.T) * weight) @ left
    return product - (product * near).sum(1, keepdim=True) * near


def conjugate_gradients(
    left: Tensor,
    weight: Tensor,
    near: Tensor,
    goal: Tensor,
    *,
    iterations: int = 200,
    settled: float = 1e-5,
) -> Tensor:
    """Rows p (k x n) orthogonal to unit rows `near` that the weighted Gram matrices take to `goal`,
    without these matrices: two products with `left` an iteration.

    settled: the residual, over the sum of weights, at which a row stops. With near + p in place of
    x the null direction is out of the problem; what is left of the silent rows, a random part of
    orthonormal columns, is well conditioned.
    """
    close = (settled * weight.sum(1)).square()
    found, rows = torch.zeros_like(near), torch.arange(len(near))  # those under way
    p, rest = torch.zeros_like(near), goal
    way, size = rest, rest.square().sum(1)
    live = size > close  # a row that has arrived stays, or rounding would carry it away
    for _ in range(iterations):
        if 2 * int(live.sum()) <= len(rows):  # and costs no more
            found[rows[~live]] = p[~live]
            rows, weight, near, close, p, way, rest, size = (
                each[live] for each in (rows, weight, near, close, p, way, rest, size)
            )
            live = live[live]
        if not len(rows):
            break
        bent = _gram_across(left, weight, near, way)
        bend = (way * bent).sum(1)
        live = live & (bend > 0)
        step = torch.where(live, size / bend, 0.0)[:, None]
        p, rest = p + step * way, rest - step * bent
        size, before = rest.square().sum(1), size
        way = rest + torch.where(live, size / before, 0.0)[:, None] * way
        live = live & (size > close)
    found[rows] = p
    return found
