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
GRADUAL = (0.3, 0.2, 0.1, 0.05, 0.03, 0.02, 0.01, 0.01)
SHARP = (0.05, 0.03, 0.02, 0.01, 0.01)
FORGIVING = (1.0, 0.7, 0.5, 0.4, *GRADUAL)


def null_vectors(
    left: Tensor,
    weights: Tensor,
    *,
    generator: torch.Generator,
    widths: Sequence[float],
    away: Tensor | None = None,
    own: Tensor | None = None,
    chunk: int = 8,
) -> Tensor:
    """Unit rows z (k x n) that make left z vanish where `weights` (k x w) is large.

    The smallest right singular vector of diag(sqrt(weights)) left; then the same reweighted by
    1 / (a^2 + width^2), for each width in turn. `away` (n x n) is what it costs at the start to
    lean on other records' points (see `leaning`); a row of `own` (k x n) is what it counts of that
    dual's own point, which is taken out again.
    """
    n = left.shape[1]
    transposed = left.T.contiguous()
    rough, rough_transposed = left.float(), transposed.float()  # sharpened later
    found = []
    for i, rows in enumerate(weights.split(chunk)):
        gram = _gram(rough_transposed, rough, rows.float()).double()
        if away is not None:
            gram = gram + away
        if own is not None:
            mine = own[i * chunk : (i + 1) * chunk]
            gram = gram - mine[:, :, None] * mine[:, None, :]
        # The mask may be wrong, and an exact null vector would chase its errors.
        factor = damped_cholesky(gram, 1e-6)
        z = 1 + 0.3 * torch.randn(len(rows), n, 1, generator=generator, dtype=left.dtype)
        for _ in range(4):
            z = normalize(torch.cholesky_solve(z, factor), dim=1)
        for width in widths:
            a = z[:, :, 0] @ transposed
            weight = (rows / (a**2 + width**2)).float()
            gram = _gram(rough_transposed, rough, weight).double()
            factor = damped_cholesky(gram, 1e-7)
            z = normalize(torch.cholesky_solve(z, factor), dim=1)
        found.append(z[:, :, 0])
    return torch.cat(found)


def _gram(transposed: Tensor, left: Tensor, weights: Tensor) -> Tensor:
    return torch.matmul(transposed[None] * weights[:, None, :], left)


def leaning(scale: Tensor, points: Tensor) -> Tensor:
    """Unit rows (p x n) that are orthogonal to every dual but that of their own point (p x n)."""
    return normalize(points / scale, dim=1)
