"""Duals: how much each neuron learned from one record.

M = left diag(scale) right = sum_i a_i x~_i^T, and a_i vanishes *exactly* on the neurons that were
silent on record i throughout. So a_i = left z_i is a sparse vector in a known space, and z_i is the
null vector of the rows of `left` on which the record is silent.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import damped_cholesky

# Widths of the log-sum penalty, from forgiving to sharp: neurons wrongly taken for silent (on in
# mid-training only, or of the wrong sign near 0) drop out instead of bending the answer.
GRADUAL = (0.05, 0.05, 0.03, 0.03, 0.02, 0.02, 0.01, 0.01, 0.005, 0.005)
# Records above which no Gram matrix is made for each dual: it costs their number squared, a neuron.
DENSE = 256
# Of conjugate gradients: the residual over the sum of weights, and the iterations at most.
SETTLED = 1e-5
CORRECTED = 1e-3  # of what is left after the first solution
MOST = 200
ROUGHLY = 30  # iterations of a step on the way


def clearly_silent(margin: Tensor, count: int) -> Tensor:
    """k x w of 0 and 1: neurons with a negative margin, but enough of them to fix a dual."""
    enough = min(margin.shape[1], int(1.5 * count) + 4)
    least = margin.sort(1).values[:, enough - 1 : enough]
    return (margin <= least.clamp(min=0)).double()


def most_silent(margin: Tensor, number: int) -> Tensor:
    """k x w of 0 and 1: so many neurons, those of the least margins."""
    least = margin.topk(number, dim=1, largest=False).indices
    return torch.zeros_like(margin).scatter(1, least, 1.0)


def null_vectors(
    left: Tensor,
    z: Tensor,
    weights: Tensor,
    *,
    widths: Sequence[float] = GRADUAL,
) -> Tensor:
    """Unit rows (k x n) near z that make left z vanish where `weights` (k x w) is large.

    Each width in turn is one inverse power step on the Gram matrix of the rows of `left`, weighted
    by weights / (a^2 + width^2) with a = left z of the step before.
    """
    chunk = 128 if left.shape[1] > DENSE else 8  # rows of products, or Gram matrices at once
    rough, found = left.float(), []  # sharpened later
    for start, rows in zip(z.split(chunk), weights.split(chunk), strict=True):
        near = normalize(start, dim=1)
        for width in widths:
            a = near @ left.T
            weight = (rows / (a**2 + width**2)).float()
            near = least_on(rough, weight, near, ridge=1e-7, most=ROUGHLY)
        found.append(near)
    return torch.cat(found)


def smallest_on(left: Tensor, zeros: Tensor, near: Tensor) -> Tensor:
    """Unit rows (k x n) that left makes smallest on the neurons `zeros` (k x w), near `near`.

    Of more than DENSE records only nearly so where it makes none small.
    """
    if left.shape[1] > DENSE:
        single, weight = left.float(), zeros.float()
        near = least_on(single, weight, near, ridge=0.0)
        return corrected(left, single, weight, near)
    found = []
    for own, start in zip(zeros, near, strict=True):
        rows = left[own]
        factor = damped_cholesky((rows.T @ rows)[None], 1e-13)[0]
        fresh = start[:, None]
        for _ in range(3):
            fresh = normalize(torch.cholesky_solve(fresh, factor), dim=0)
        found.append(fresh[:, 0])
    return torch.stack(found)


def least_on(
    left: Tensor, weight: Tensor, near: Tensor, *, ridge: float, most: int = MOST
) -> Tensor:
    """Unit rows x (k x n) with the least sum over neurons of weight (k x w) times (left x)^2, of
    those with x . near = 1: an inverse power step from `near` on a weighted Gram matrix.

    left: w x n, columns of unit root-mean-square. Its precision is that of the result.
    most: iterations, of more than DENSE records.
    """
    if left.shape[1] > DENSE:
        near = normalize(near, dim=1).to(weight.dtype)
        p = solve_across(left, weight, near, -_image(left, weight, near, near), most)
        return normalize(near + p, dim=1).double()
    gram = torch.matmul(left.T.contiguous() * weight[:, None, :], left).double()
    factor = damped_cholesky(gram, ridge)
    return normalize(torch.cholesky_solve(near[:, :, None], factor)[:, :, 0], dim=1)


def corrected(left: Tensor, single: Tensor, weight: Tensor, near: Tensor) -> Tensor:
    """Unit rows of `least_on` (k x n) to about 1e-8, from those in single precision.

    What they leave is taken in double precision, and taken away in single.
    """
    rest = -_image(left, weight.double(), near, near)
    total = weight.sum(1, keepdim=True)
    length = rest.norm(dim=1, keepdim=True).clamp(min=1e-30)
    goal = (rest / length).float() * total
    p = solve_across(single, weight, near.float(), goal, MOST, settled=CORRECTED)
    return normalize(near + p.double() * length / total, dim=1)


def _image(left: Tensor, weight: Tensor, near: Tensor, v: Tensor) -> Tensor:
    """Of rows v (k x n) under the weighted Gram matrices, their part across `near`."""
    product = ((v @ left.T) * weight) @ left
    return product - (product * near).sum(1, keepdim=True) * near


def solve_across(
    left: Tensor,
    weight: Tensor,
    near: Tensor,
    goal: Tensor,
    most: int,
    *,
    settled: float = SETTLED,
) -> Tensor:
    """Rows p (k x n) across unit rows `near` that the weighted Gram matrices take to `goal`, by
    conjugate gradients, without these matrices: two products with `left` an iteration.

    With near + p in place of x, the null direction is out of the problem. What is left of the
    silent rows is a random part of orthonormal columns, well conditioned.
    """
    close = (settled * weight.sum(1)).square()
    found, rows = torch.zeros_like(near), torch.arange(len(near))  # those under way
    p, rest = torch.zeros_like(near), goal
    way, size = rest, rest.square().sum(1)
    live = size > close  # a row that has arrived stays, or rounding would carry it away
    for _ in range(most):
        if 2 * int(live.sum()) <= len(rows):  # and costs no more
            found[rows[~live]] = p[~live]
            rows, weight, near, close, p, way, rest, size = (
                each[live] for each in (rows, weight, near, close, p, way, rest, size)
            )
            live = live[live]
        if not len(rows):
            break
        bent = _image(left, weight, near, way)
        bend = (way * bent).sum(1)
        live = live & (bend > 0)
        step = torch.where(live, size / bend, 0.0)[:, None]
        p, rest = p + step * way, rest - step * bent
        size, before = rest.square().sum(1), size
        way = rest + torch.where(live, size / before, 0.0)[:, None] * way
        live = live & (size > close)
    found[rows] = p
    return found
