"""What the descent on final weights works on: layers in one precision, spans, expected sizes.

`pose` prepares once what every step needs: coordinates in the row space of the first layer, the
column space of that layer, the row spaces that features must lie in, and inner layers in low rank.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.nn.grad import conv2d_input

from remnant.solvers.kkt.network import Layer
from remnant.solvers.kkt.prior import expected_sizes
from remnant.solvers.kkt.tolerances import TOLERANCES, Tolerances


@dataclass(frozen=True, kw_only=True, eq=False)
class Term:
    """One layer in the working precision. `norm` is |W|^2 + |b|^2 of the whole layer.

    A dense weight is `left @ right` where a low rank is as good, `left` with orthonormal columns;
    `right` is None otherwise. `bias_target` is what the signals must add up to: the bias, or zero
    where it was not decayed. factor, shift: of frozen batch norm behind it, along its outputs.
    """

    left: Tensor
    right: Tensor | None
    bias: Tensor | None
    bias_target: Tensor | None
    norm: float
    factor: Tensor | None = None
    shift: Tensor | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @property
    def conv(self) -> bool:
        return self.left.ndim == 4

    def forward(self, h: Tensor) -> Tensor:
        """rows x i -> rows x o, or images -> images."""
        if self.conv:
            z = F.conv2d(h, self.left, self.bias, self.stride, self.padding)
        else:
            z = h @ self.left.T if self.right is None else (h @ self.right.T) @ self.left.T
            z = z if self.bias is None else z + self.bias
        return z if self.factor is None or self.shift is None else z * self.factor + self.shift

    def back(self, d: Tensor, shape: torch.Size) -> Tensor:
        """Signals at the outputs -> signals at inputs of `shape`."""
        if self.conv:
            images: Tensor = conv2d_input(
                list(shape), self.left, d, stride=self.stride, padding=self.padding
            )
            return images
        found = d @ self.left
        found = found if self.right is None else found @ self.right
        return found.view(shape)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """All that the descent works on, in one precision.

    basis: d x r, inputs are coordinates times its transpose (None: coordinates are pixels).
    scale: r singular values of W1 in that basis. sizes: r, how large coordinates are expected to be
    against each other, mean square 1. columns: w x r, W1's column space. rows: by the number of a
    dense layer, K x features: the row space that its inputs must lie in. low, high: the box of an
    input, d, or None.
    """

    terms: tuple[Term, ...]
    input_shape: tuple[int, ...]
    basis: Tensor | None
    scale: Tensor | None
    sizes: Tensor
    columns: Tensor
    rows: dict[int, Tensor]
    low: Tensor | None
    high: Tensor | None

    @property
    def first_dense(self) -> int:
        return next(i for i, term in enumerate(self.terms) if not term.conv)

    @property
    def coordinates(self) -> int:
        return math.prod(self.input_shape) if self.basis is None else self.basis.shape[1]

    def inputs(self, s: Tensor) -> Tensor:
        """Coordinates ... x r -> inputs ... x d."""
        return s if self.basis is None else s @ self.basis.T


def pose(
    layers: Sequence[Layer],
    input_shape: tuple[int, ...],
    *,
    records: int,
    rank: int,
    inner_rank: int | None,
    bias_decayed: bool = True,
    box: tuple[Tensor, Tensor] | None = None,
    public: Tensor | None = None,
    dtype: torch.dtype = torch.float32,
    tolerances: Tolerances = TOLERANCES,
) -> Problem:
    """The problem at that rank of the first dense layer; `inner_rank` bounds those between.

    public: p x d, other inputs of the kind in the model's scale, whose covariance says how large
    coordinates are; without them, that pictures are smooth and fit the box does.
    """
    first = next(i for i, layer in enumerate(layers) if not layer.conv)
    columns = torch.linalg.svd(_affine(layers[first]), full_matrices=False)[0][:, :rank]
    terms, rows = [], dict[int, Tensor]()
    basis, scale = None, None
    for i, layer in enumerate(layers):
        weight, factor = layer.weight, None
        if first <= i < len(layers) - 1:
            u, s, v = torch.linalg.svd(weight, full_matrices=False)
            if i == 0:
                basis, scale, weight = v[:rank].T.contiguous(), s[:rank], weight @ v[:rank].T
            else:
                held = row_space(s, v, records, tolerances)
                rows |= {} if held is None else {i: held.contiguous().to(dtype)}
                if inner_rank and i > first and 2 * inner_rank < min(weight.shape):
                    weight, factor = u[:, :inner_rank], s[:inner_rank, None] * v[:inner_rank]
        terms.append(_term(layer, weight, factor, bias_decayed, dtype))
    flat = None if box is None else [end.double().reshape(-1).to(dtype) for end in box]
    if basis is None:
        sizes = torch.ones(math.prod(input_shape), dtype=torch.float64)
    else:
        bounded = box if rows else None  # without a row space it finds a little less: docs/research
        sizes = expected_sizes(basis, input_shape, public, bounded, tolerances)
    return Problem(
        terms=tuple(terms),
        input_shape=input_shape,
        basis=None if basis is None else basis.to(dtype),
        scale=scale,
        sizes=sizes.to(dtype),
        columns=columns.contiguous().to(dtype),
        rows=rows,
        low=None if flat is None else flat[0],
        high=None if flat is None else flat[1],
    )


def row_space(
    values: Tensor, right: Tensor, records: int, tolerances: Tolerances = TOLERANCES
) -> Tensor | None:
    """records x features: the leading directions of a layer's inputs.

    The layer is sum_i lambda_i d_i h_i^T, so every input h_i lies in as many directions as there
    are records, however weak the last of them are: what lies beyond is noise, what is left of the
    layer's start. None where there is no beyond, or where so few singular values stand above the
    noise that records share them (two classes, one output): it says nothing there.
    """
    edge = tolerances.noise_edge * float(values.median())
    above = int((values > edge).sum())
    if above < tolerances.spanned * records or records >= right.shape[1]:
        return None
    return right[:records]


def _affine(layer: Layer) -> Tensor:
    if layer.bias is None:
        return layer.weight
    return torch.cat([layer.weight, layer.bias[:, None]], dim=1)


def _term(
    layer: Layer, weight: Tensor, factor: Tensor | None, decayed: bool, dtype: torch.dtype
) -> Term:
    bias, norm = layer.bias, float(layer.weight.square().sum())
    target = None
    if bias is not None:
        target = bias if decayed else torch.zeros_like(bias)
        norm += float(target.square().sum())
    return Term(
        left=weight.contiguous().to(dtype),
        right=None if factor is None else factor.contiguous().to(dtype),
        bias=None if bias is None else bias.to(dtype),
        bias_target=None if target is None else target.to(dtype),
        norm=norm,
        factor=_along(layer, layer.factor, dtype),
        shift=_along(layer, layer.shift, dtype),
        stride=layer.stride,
        padding=layer.padding,
    )


def _along(layer: Layer, values: Tensor | None, dtype: torch.dtype) -> Tensor | None:
    """One value for each output, in the shape that multiplies them."""
    if values is None:
        return None
    return values.to(dtype).view(-1, 1, 1) if layer.conv else values.to(dtype)
