"""The records' span seen through two consecutive dense layers."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.spans import Span


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Two consecutive dense layers seen from the records' span; y (n) are coordinates in it."""

    span: Span
    start: Tensor  # w x n: pre-activations of y at the initial weights
    end: Tensor  # w x n: and at the final ones
    soft: Tensor  # w x w float32: soft projector on the features' space
    penalty: Tensor  # w x w float32: what it costs to leave that space
    zero: float  # below this, relative to its root-mean-square, an entry of a dual is zero

    @property
    def count(self) -> int:
        return self.start.shape[1]

    def margin(self, y: Tensor) -> Tensor:
        """k x w: the larger pre-activation of both ends, in units of its spread over neurons."""
        return _in_spreads(torch.maximum(y @ self.start.T, y @ self.end.T))

    def start_margin(self, y: Tensor) -> Tensor:
        """k x w: the same at the initial weights alone."""
        return _in_spreads(y @ self.start.T)


def _in_spreads(t: Tensor) -> Tensor:
    return t / t.std(1, keepdim=True) if len(t) else t


def pose(
    span: Span,
    first_start: Tensor,
    first_end: Tensor,
    next_change: Tensor,
    *,
    precision: float,
    half_at: float = 2.0,
) -> Problem:
    """first_start, first_end: w x (d+1), [weights | bias]. next_change: v x w.

    Weights drift, so the features do not fill exactly n directions of the next layer's change. The
    soft projector gives weight 1/2 to direction number `half_at` n, instead of a cut.
    """
    _, values, right = torch.linalg.svd(next_change, full_matrices=True)
    width = first_start.shape[0]
    sizes = torch.zeros(width, dtype=torch.float64)
    sizes[: len(values)] = values / values[0]
    sizes = sizes.clamp(min=1e-5)
    half = sizes[min(int(half_at * len(span.right)), width - 1)]
    soft = (right.T / (1 + half / sizes)) @ right
    penalty = (sizes / sizes[-1]).pow(-0.75)[:, None] * right
    return Problem(
        span=span,
        start=first_start @ span.right.T,
        end=first_end @ span.right.T,
        soft=soft.float(),
        penalty=penalty.float(),
        zero=zero_level(span, first_end, precision),
    )


def zero_level(span: Span, weights: Tensor, precision: float) -> float:
    """Ten times what rounding the weights does to the weakest direction's duals; 1e-3 at least."""
    rounding = precision / math.sqrt(12) * float(weights.square().mean().sqrt())
    return min(0.03, max(1e-3, 10 * rounding / float(span.scale[-1])))
