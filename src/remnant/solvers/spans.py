"""The span of the records and their number, read off the first dense layer.

Every gradient step changes a dense layer by sum_i delta_i x_i^T. So the layer's change, bias beside
weights, is M = A X~ with X~ = [x, 1]: its rank is the number of (independent) records while that is
below both sides of M, and its row space is their span. Any loss, any batches, any number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# A gap counts when the spectrum falls by this factor, onto what rounding alone can explain.
# Rounding errors of many steps add up, hence the room above the rounding of a single one.
SMALLEST_GAP = 5.0
ROUNDING_ROOM = 1e3
# The last few of any spectrum fall steeply, so a gap needs some values below it (fewer in a table
# of few features).
FEWEST_NOISE_VALUES = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """M = left @ diag(scale) @ right, cut at the number of records.

    `left` is w x n with columns of unit root-mean-square, `right` is n x (d+1), orthonormal rows.
    """

    left: Tensor
    scale: Tensor
    right: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Singular values of a layer's change and what they say about the number of records."""

    values: Tensor
    count: int
    gap: float
    clear: bool  # the gap is wide and ends at the level of rounding


def rounding_level(weights: Tensor, precision: float) -> float:
    """The largest singular value that rounding `weights` (w x d) once would leave, roughly."""
    rows, columns = weights.shape
    rms = float(weights.square().mean().sqrt())
    return precision / math.sqrt(12) * rms * (math.sqrt(rows) + math.sqrt(columns))


def count_records(change: Tensor, weights: Tensor, precision: float) -> Spectrum:
    """The number of records: the widest gap among the singular values of the layer's change."""
    values = torch.linalg.svdvals(change)
    level = rounding_level(weights, precision)
    # Differences below rounding mean nothing (pixels that are always black give exact zeros).
    floored = values.clamp(min=max(0.1 * level, 1e-14 * float(values[0])))
    below = max(1, min(FEWEST_NOISE_VALUES, len(values) // 20))
    ratios = (floored[:-1] / floored[1:])[: max(1, len(values) - below)]
    count = int(ratios.argmax()) + 1
    gap = float(ratios[count - 1])
    clear = gap > SMALLEST_GAP and float(values[count]) < ROUNDING_ROOM * level
    return Spectrum(values=values, count=count, gap=gap, clear=clear)


def span_of(change: Tensor, count: int) -> Span:
    """The leading `count` singular directions of the layer's change."""
    left, scale, right = torch.linalg.svd(change, full_matrices=False)
    unit = math.sqrt(len(change))
    return Span(left=left[:, :count] * unit, scale=scale[:count] / unit, right=right[:count])
