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


def null_vectors(
    left: Tensor, z: Tensor, weights: Tensor, *, widths: Sequence[float] = GRADUAL, chunk: int = 8
) -> Tensor:
    """Unit rows (k x n) near z that make left z vanish where `weights` (k x w) is large.

    Each width in turn is one inverse power step on the Gram matrix of the rows of `left`, weighted
    by weights / (a^2 + width^2) with a = left z of the step before.
    """
    rough, rough_transposed = left.float(), left.T.float().contiguous()  # sharpened later
    found = []
    for start, rows in zip(z.split(chunk), weights.split(chunk), strict=True):
        near = normalize(start, dim=1)
        for width in widths:
            a = near @ left.T
            weight = (rows / (a**2 + width**2)).float()
            gram = torch.matmul(rough_transposed * weight[:, None, :], rough).double()
            factor = damped_cholesky(gram, 1e-7)
            near = normalize(torch.cholesky_solve(near[:, :, None], factor)[:, :, 0], dim=1)
        found.append(near)
    return torch.cat(found)
