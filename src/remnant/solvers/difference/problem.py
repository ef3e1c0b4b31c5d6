"""The records' span seen through two consecutive dense layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from remnant.solvers.algebra import eigenvectors
from remnant.solvers.difference.duals import DENSE
from remnant.solvers.difference.graph import LIGHT
from remnant.solvers.spans import Span

ROOM = 6  # neurons for each record
LEAST_ZERO = 1e-4  # of a dual's root-mean-square: below that, an entry is always taken for zero


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """Two consecutive dense layers seen from the records' span; y (n) are coordinates in it."""

    span: Span
    start: Tensor  # w x n: pre-activations of y at the initial weights
    end: Tensor  # w x n: and at the final ones
    soft: Tensor  # w x w float32: soft projector on the features' space
    features: Tensor  # w x w float32: the next layer's right directions, as rows
    sizes: Tensor  # w: their singular values, relative
    signals: Tensor | None = None  # w x c: before the output layer, what comes back from it
    zero: float  # below this, relative to its root-mean-square, an entry of a dual is zero

    @property
    def count(self) -> int:
        return self.start.shape[1]

    @property
    def roomy(self) -> bool:
        """Whether there are many records, and so many neurons that far more of them are silent than
        a dual needs; not before an output layer, which has no features."""
        room = len(self.start) > ROOM * self.count
        return self.signals is None and self.count > DENSE and room

    @property
    def coarse(self) -> torch.dtype:
        """What a search multiplies in. Where there is room it bears rounding to 8 bits, and takes a
        third of the time on processors that have products of such numbers."""
        quick = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        return torch.bfloat16 if self.roomy and quick() else torch.float32

    @cached_property
    def ends(self) -> Tensor:
        """2w x n: pre-activations of y at both ends, as the search weighs them."""
        return torch.cat([self.start, math.sqrt(LIGHT) * self.end])

    @cached_property
    def gram(self) -> Tensor:
        """n x n: of the columns of `ends`."""
        return self.ends.T @ self.ends

    def penalty(self, exponent: float = 0.75) -> Tensor:
        """w x w float32: what it costs to leave the features' space, weakest directions most."""
        return (self.sizes / self.sizes[-1]).pow(-exponent).float()[:, None] * self.features

    def margin(self, y: Tensor) -> Tensor:
        """k x w: the larger pre-activation of both ends, in units of its spread over neurons."""
        return _in_spreads(torch.maximum(y @ self.start.T, y @ self.end.T))

    def start_margin(self, y: Tensor) -> Tensor:
        """k x w: the same at the initial weights alone."""
        return _in_spreads(y @ self.start.T)

    def not_firing(self, y: Tensor) -> Tensor:
        """k x w, bool: neurons that y leaves silent at the initial weights, or nearly."""
        return self.start_margin(y) < 0.1


def _in_spreads(t: Tensor) -> Tensor:
    return t / t.std(1, keepdim=True) if len(t) else t


def pose(
    span: Span,
    first_start: Tensor,
    first_end: Tensor,
    next_change: Tensor,
    *,
    precision: float,
) -> Problem:
    """first_start, first_end: w x (d+1), [weights | bias]. next_change: v x w.

    Weights drift, so the features do not fill exactly n directions of the next layer's change. The
    soft projector gives weight 1/2 to direction number 3 n, instead of a cut; but not beyond half
    the width, where any point would fit.
    """
    width = first_start.shape[0]
    sizes, right = strong_directions(next_change, 1e-5)  # below that, drift hides the features
    half = sizes[min(3 * len(span.right), width // 2)]
    soft = (right.T / (1 + (half / sizes).square())) @ right
    return Problem(
        span=span,
        start=first_start @ span.right.T,
        end=first_end @ span.right.T,
        soft=soft.float(),
        features=right.float(),
        sizes=sizes,
        zero=zero_level(span, first_end, precision),
    )


def pose_output(
    span: Span,
    first_start: Tensor,
    first_end: Tensor,
    next_start: Tensor,
    next_end: Tensor,
    *,
    precision: float,
) -> Problem:
    """The same for a single hidden layer. next_start, next_end: c x w, the output layer's weights.

    Its change says little of the features; its rows hold what comes back through it (`signals`).
    """
    none = torch.zeros(0, 0)
    return Problem(
        span=span,
        start=first_start @ span.right.T,
        end=first_end @ span.right.T,
        soft=none,
        features=none,
        sizes=none,
        signals=torch.linalg.qr(torch.cat([next_start, next_end]).T)[0],
        zero=zero_level(span, first_end, precision),
    )


def zero_level(span: Span, weights: Tensor, precision: float) -> float:
    """Ten times what rounding the weights does to the weakest direction's duals."""
    rounding = precision / math.sqrt(12) * float(weights.square().mean().sqrt())
    return min(0.03, max(LEAST_ZERO, 10 * rounding / float(span.scale[-1])))


def strong_directions(change: Tensor, least: float) -> tuple[Tensor, Tensor]:
    """All w singular values of a layer's change (v x w), relative, and its right directions.

    None is below `least`, which is far above 1e-8: so eigenvectors of the Gram matrix do, which
    take a third of the time.
    """
    values, vectors = eigenvectors(change.T @ change)
    sizes = values.flip(0).clamp(min=0).sqrt()
    return (sizes / sizes[0]).clamp(min=least), vectors.flip(1).T
