"""Weight decay taken out of a difference of checkpoints.

Coupled decay shrinks every parameter by the same factor a step, momentum or not, so that training
ends at W_end = c W_start + (a sum of gradients). For a dense first layer that sum has the rank of
the records, and c is the number that makes all other singular values of W_end - c W_start vanish.
"""

from __future__ import annotations

from dataclasses import replace

from torch import Tensor

from remnant.solvers.layers import Dense
from remnant.solvers.spans import count_records, decompose
from remnant.types import Evidence


def fit_decay(start: Tensor, end: Tensor, *, steps: int = 3) -> float:
    """c of end = c start + (low rank), w x d each.

    The lower half of the singular vectors of end - c start lies, at any c near 1, nearly outside
    the records' span; there c is a least-squares fit, and two or three rounds settle it.
    """
    c = 1.0
    for _ in range(steps):
        parts = decompose(end - c * start)
        half = len(parts.values) // 2
        left, right = parts.left[:, half:].T, parts.right[half:].T
        here, there = left @ start @ right, left @ end @ right
        c = float((here * there).sum() / here.square().sum().clamp(min=1e-300))
    return c


def without_decay(evidence: Evidence, first: Dense) -> tuple[Evidence, float]:
    """The evidence less what decay alone did to the weights, and the factor c that it fits.

    Biases are decayed with the rest (as torch.optim does) or not at all (as many recipes ask):
    whichever leaves less of the first bias' change outside the column space of the weights' change.
    Undecayed, they add up the same gradients with other weights, so that only the part inside that
    space is used, and the scale of a record (which the bias' 1 sets) is a little off.
    """
    start, end = evidence.start, evidence.end
    c = fit_decay(start[first.weight], end[first.weight])
    vector = {name: end[name] - c * start[name] for name in start}
    if first.bias is not None:
        parts = decompose(vector[first.weight])
        spectrum = count_records(parts.values, end[first.weight], evidence.precision)
        basis = parts.left[:, : spectrum.count]
        plain = end[first.bias] - start[first.bias]
        inside, decayed = basis @ (basis.T @ plain), vector[first.bias]
        if (plain - inside).norm() < (decayed - basis @ (basis.T @ decayed)).norm():
            vector |= {name: end[name] - start[name] for name in start if start[name].ndim == 1}
            vector[first.bias] = inside
    return replace(evidence, vector=vector), c
