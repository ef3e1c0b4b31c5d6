"""The records' span seen through two consecutive dense layers."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import torch
from torch import Tensor

from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import eigenvectors
from remnant.solvers.spans import Span


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """What two consecutive dense layers say of n records, in coordinates of the records' span.

    A point is a row y (n): the input x~ = y right, with pre-activations start y and end y. A dual
    is a row z (n): what each of the w neurons learned is left z (see `duals`).
    """

    span: Span  # left (w x n), scale (n) and right (n x (d+1)) of the first layer's change
    start: Tensor  # w x n: pre-activations of y at the initial weights
    end: Tensor  # w x n: and at the final ones
    soft: Tensor  # w x w float32: soft projector on the features' space
    follows: Tensor  # w x w: Gram matrix of the next layer's change, its largest eigenvalue 1
    sizes: Tensor  # w: singular values of that change, relative, none below `faint`
    signals: Tensor | None = None  # w x c: before the output layer, what comes back from it
    zero: float  # below this, relative to its root-mean-square, an entry of a dual is zero
    noise: float  # root-mean-square error of an entry of the first layer's change

    @property
    def count(self) -> int:
        return self.start.shape[1]

    @property
    def search_dtype(self) -> torch.dtype:
        """What the search multiplies in. Many records in a wide network bear rounding to 8 bits,
        which takes a third of the time on processors that have such products."""
        quick = getattr(torch.cpu, "_is_avx512_bf16_supported", lambda: False)
        wide = self.count > TOLERANCES.dense and len(self.start) > 6 * self.count
        return torch.bfloat16 if wide and quick() else torch.float32

    @cached_property
    def ends(self) -> Tensor:
        """2w x n: pre-activations of y at both ends, as the search weighs them."""
        return torch.cat([self.start, math.sqrt(TOLERANCES.end_weight) * self.end])

    @cached_property
    def gram(self) -> Tensor:
        """n x n: of the columns of `ends`."""
        return self.ends.T @ self.ends

    @cached_property
    def directions(self) -> Tensor:
        """w x w float32: right singular directions of the next layer's change, as rows. They cost
        more than all else here, so they are made only when asked for."""
        return eigenvectors(self.follows)[1].flip(1).T.float()

    def penalty(self, exponent: float = 0.75) -> Tensor:
        """w x w float32: rows whose products with features measure how far these are outside the
        next layer's change; its weakest directions count most, by the power `exponent`."""
        return (self.sizes / self.sizes[-1]).pow(-exponent).float()[:, None] * self.directions

    @cached_property
    def _triangle(self) -> Tensor:
        """w x w: of the next layer's Gram matrix, its faint directions filled up."""
        triangle: Tensor = torch.linalg.cholesky(raised(self.follows, TOLERANCES.faint**2))
        return triangle

    def foreign(self, fired: Tensor) -> Tensor:
        """k: the share of features (k x w) that is outside the next layer's change. What is in one
        of its weak directions counts as outside by the inverse square of that direction's size."""
        across: Tensor = torch.linalg.solve_triangular(self._triangle, fired.T, upper=False)
        part = across.square().sum(0) / fired.square().sum(1).clamp(min=1e-30)
        return self.sizes[-1] ** 2 * part

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
    """The problem of a first layer that another hidden one follows.

    first_start, first_end: w x (d+1), [weights | bias]. next_change: v x w. precision: the relative
    rounding of stored weights.
    """
    follows = next_change.T @ next_change
    sizes = torch.linalg.eigvalsh(follows).flip(0).clamp(min=0).sqrt()
    follows, sizes = follows / sizes[0] ** 2, (sizes / sizes[0]).clamp(min=TOLERANCES.faint)
    return Problem(
        span=span,
        start=first_start @ span.right.T,
        end=first_end @ span.right.T,
        soft=soft_projector(follows, sizes, len(span.right)),
        follows=follows,
        sizes=sizes,
        zero=zero_level(span, first_end, precision),
        noise=max(span.noise, rounding_of(first_end, precision)),
    )


def soft_projector(follows: Tensor, sizes: Tensor, count: int) -> Tensor:
    """w x w float32: soft projector on the features of `count` records, from the next layer's Gram
    matrix G and its singular values.

    Weights drift, so features do not fill exactly n directions of the next layer's change. Instead
    of a cut, direction number 3 n gets the weight 1/2 (but none beyond half the width, where any
    point would fit): G / (G + half). Faint directions are filled up first: a next layer of few
    neurons leaves most of them empty, and features are there too.
    """
    half = float(sizes[min(3 * count, len(sizes) // 2)]) ** 2
    rest = torch.cholesky_inverse(
        torch.linalg.cholesky(raised(follows, half + TOLERANCES.faint**2))
    )
    return raised(-half * rest, 1.0).float()


def raised(matrix: Tensor, by: float) -> Tensor:
    """The same with `by` added to its diagonal."""
    copy = matrix.clone()
    copy.diagonal().add_(by)
    return copy


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
        follows=none,
        sizes=none,
        signals=torch.linalg.qr(torch.cat([next_start, next_end]).T)[0],
        zero=zero_level(span, first_end, precision),
        noise=max(span.noise, rounding_of(first_end, precision)),
    )


def zero_level(span: Span, weights: Tensor, precision: float) -> float:
    """Ten times what rounding the weights does to the weakest direction's duals."""
    rounding = rounding_of(weights, precision)
    return min(0.03, max(TOLERANCES.least_zero, 10 * rounding / float(span.scale[-1])))


def rounding_of(weights: Tensor, precision: float) -> float:
    """The root-mean-square error of a weight that is stored so."""
    return precision / math.sqrt(12) * float(weights.square().mean().sqrt())
