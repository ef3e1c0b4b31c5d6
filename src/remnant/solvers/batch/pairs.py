"""Pairs of vectors in two known spaces, one of which is the other times a known slope.

Both halves of a record are such pairs once its slope f'(t) is known on the neurons: the features of
a piecewise linear activation, h = slope * t, and for any activation the dual, a = slope * p. So
both are null vectors of [outer, -slope * inner]. Batched conjugate gradients find them with
products of a few rows by the frames, which costs much less than factoring a matrix a record.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Coordinates `outer` (k x r, unit rows) and `inner` (k x s), and how well they fit (k).

    residual: |outer part - slope * inner part| / |outer part| over the neurons that were used.
    """

    outer: Tensor
    inner: Tensor
    residual: Tensor


def solve_pairs(
    outer: Tensor,
    inner: Tensor,
    slope: Tensor,
    used: Tensor,
    start: tuple[Tensor, Tensor],
    *,
    iterations: int,
) -> Pairs:
    """Minimise |used * (outer u - slope * (inner v))| over (u, v) with u fixed along its start.

    outer: w x r and inner: w x s, orthonormal columns. slope, used: k x w. start: rows k x r and
    k x s; the part of u along its own start stays, which excludes the zero solution.
    """
    r = outer.shape[1]
    outer_t, inner_t = outer.T.contiguous(), inner.T.contiguous()
    size = start[0].norm(dim=1, keepdim=True)
    fixed = start[0] / size

    def mismatch(uv: Tensor) -> Tensor:
        return (uv[:, :r] @ outer_t - slope * (uv[:, r:] @ inner_t)) * used

    def back(rows: Tensor) -> Tensor:
        u, v = rows @ outer, -(rows * slope) @ inner
        return torch.cat([u - (u * fixed).sum(1, keepdim=True) * fixed, v], dim=1)

    uv = torch.cat([fixed, start[1] / size], dim=1)
    rest = -back(mismatch(uv))
    step = rest.clone()
    square = rest.square().sum(1, keepdim=True)
    goal = square * 1e-22 + torch.finfo(rest.dtype).tiny
    for _ in range(iterations):
        running = square > goal
        if not bool(running.any()):
            break
        ahead = mismatch(step)
        length = torch.where(running, square / ahead.square().sum(1, keepdim=True), 0.0)
        uv = uv + length * step
        rest = rest - length * back(ahead)
        before, square = square, rest.square().sum(1, keepdim=True)
        step = torch.where(running, rest + square / before * step, 0.0)
    return _unit(uv, r, mismatch(uv), outer_t, used)


def _unit(uv: Tensor, r: int, mismatch: Tensor, outer_t: Tensor, used: Tensor) -> Pairs:
    part = (uv[:, :r] @ outer_t) * used
    size = uv[:, :r].norm(dim=1, keepdim=True)
    return Pairs(
        outer=normalize(uv[:, :r], dim=1),
        inner=uv[:, r:] / size,
        residual=mismatch.norm(dim=1) / part.norm(dim=1),
    )
