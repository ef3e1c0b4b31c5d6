"""Stationarity as a misfit between a network's weights and gradients at candidates.

    theta = sum_i lambda_i grad_theta <direction_i, f(x_i)>          (003, 004)

Layer by layer W_l = sum_i lambda_i d_il h_il^T with inputs h and signals d; each layer's squared
misfit is divided by |W_l|^2. Three facts make the descent easier than on pixels:

- W1 = sum_i lambda_i d_i1 x_i^T, so records lie in W1's row space, where candidates are sought;
- for the same reason every d_i1 on its own lies in W1's column space (`range_misfit`);
- small singular directions of W1 hold as much about records as large ones, so its misfit may be
  weighted by singular values to a negative power (`whiten`).

`k` independent starts of `m` candidates are carried through at once.
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


@dataclass(frozen=True, kw_only=True, eq=False)
class Term:
    """One layer in the working precision. `norm` is |W|^2 + |b|^2 of the whole layer.

    A dense weight is `left @ right` where a low rank is as good; `right` is None otherwise.
    `bias_target` is what the signals must add up to: the bias, or zero where it was not decayed.
    """

    left: Tensor
    right: Tensor | None
    bias: Tensor | None
    bias_target: Tensor | None
    norm: float
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @property
    def conv(self) -> bool:
        return self.left.ndim == 4

    def forward(self, h: Tensor) -> Tensor:
        """rows x i -> rows x o, or images -> images."""
        if self.conv:
            return F.conv2d(h, self.left, self.bias, self.stride, self.padding)
        z = h @ self.left.T if self.right is None else (h @ self.right.T) @ self.left.T
        return z if self.bias is None else z + self.bias

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
    scale: r singular values of W1 in that basis. columns: w x r, W1's column space.
    rows: r x features, the row space of the first dense layer behind convolutions, else None.
    low, high: the box of an input, d, or None.
    """

    terms: tuple[Term, ...]
    input_shape: tuple[int, ...]
    basis: Tensor | None
    scale: Tensor | None
    columns: Tensor
    rows: Tensor | None
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
    rank: int,
    inner_rank: int | None,
    bias_decayed: bool = True,
    box: tuple[Tensor, Tensor] | None = None,
    dtype: torch.dtype = torch.float32,
) -> Problem:
    """The problem at that rank of the first dense layer; `inner_rank` bounds those between."""
    first = next(i for i, layer in enumerate(layers) if not layer.conv)
    left, values, right = torch.linalg.svd(_affine(layers[first]), full_matrices=False)
    columns = left[:, :rank]
    _, values, right = torch.linalg.svd(layers[first].weight, full_matrices=False)
    span = right[:rank]
    terms = []
    for i, layer in enumerate(layers):
        weight, factor = layer.weight, None
        if i == 0 and first == 0:
            weight = weight @ span.T
        elif first < i < len(layers) - 1 and inner_rank and 2 * inner_rank < min(weight.shape):
            u, s, v = torch.linalg.svd(weight, full_matrices=False)
            weight, factor = u[:, :inner_rank] * s[:inner_rank], v[:inner_rank]
        terms.append(_term(layer, weight, factor, bias_decayed, dtype))
    flat = None if box is None else [end.double().reshape(-1).to(dtype) for end in box]
    return Problem(
        terms=tuple(terms),
        input_shape=input_shape,
        basis=span.T.contiguous().to(dtype) if first == 0 else None,
        scale=values[:rank] if first == 0 else None,
        columns=columns.contiguous().to(dtype),
        rows=None if first == 0 else span.contiguous().to(dtype),
        low=None if flat is None else flat[0],
        high=None if flat is None else flat[1],
    )


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
        stride=layer.stride,
        padding=layer.padding,
    )


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Inputs and pre-activations of every layer at km candidates; the last are the outputs."""

    inputs: list[Tensor]
    outputs: list[Tensor]

    def spreads(self) -> list[float]:
        """The deviation of each hidden layer's pre-activations: the unit of their smoothing."""
        return [float(z.detach().std()) or 1.0 for z in self.outputs[:-1]]


def forward(problem: Problem, s: Tensor) -> Pass:
    """At coordinates k x m x r; rows of the result are k * m."""
    h = s.flatten(0, 1)
    inputs: list[Tensor] = []
    outputs: list[Tensor] = []
    for i, term in enumerate(problem.terms):
        if i:
            h = outputs[-1].relu()
        if term.conv and i == 0:
            h = h.view(-1, *problem.input_shape)
        elif not term.conv:
            h = h.flatten(1)
        inputs.append(h)
        outputs.append(term.forward(h))
    return Pass(inputs=inputs, outputs=outputs)


def signals(
    problem: Problem, seen: Pass, direction: Tensor, sharpness: float, spreads: Sequence[float]
) -> list[Tensor]:
    """Per layer, what arrives at its outputs; ReLU's slope is sigmoid(sharpness z / spread)."""
    found = [direction]
    for i in range(len(problem.terms) - 1, 0, -1):
        z = seen.outputs[i - 1]
        arrived = problem.terms[i].back(found[0], seen.inputs[i].shape).view_as(z)
        found.insert(0, arrived * torch.sigmoid(sharpness / spreads[i - 1] * z))
    return found


def misfits(
    problem: Problem,
    seen: Pass,
    arrived: Sequence[Tensor],
    dual: Tensor,
    whiten: float,
) -> Tensor:
    """k x layers: |W_l - sum_i dual_i d_il h_il^T|^2 / |W_l|^2, the bias beside the weights."""
    k, m = dual.shape
    found = []
    for i, (term, h, d, z) in enumerate(
        zip(problem.terms, seen.inputs, arrived, seen.outputs, strict=True)
    ):
        d = d.reshape(k, m, *d.shape[1:]) * dual.view(k, m, *[1] * (d.ndim - 1))
        h = h.reshape(k, m, *h.shape[1:])
        if term.conv:
            found.append(_conv_misfit(term, h, d))
        elif i == 0 and problem.scale is not None:
            found.append(_first_misfit(term, h, d, problem.scale ** (-2 * whiten)))
        else:
            found.append(_dense_misfit(term, h, d, z.reshape(k, m, -1)))
    return torch.stack(found, dim=1)


def _bias_misfit(term: Term, d: Tensor) -> Tensor | float:
    if term.bias_target is None:
        return 0.0
    return (term.bias_target - d.sum(1)).square().sum(1)


def _first_misfit(term: Term, s: Tensor, d: Tensor, weights: Tensor) -> Tensor:
    """In the basis of right singular vectors, column j weighted by weights[j]."""
    factor = weights.to(s)
    residual = (term.left - d.transpose(1, 2) @ s).square()
    held = term.left.square()
    unit = float((held * factor).sum() / held.sum())  # the bias keeps its share of the layer
    total = (residual * factor).sum((1, 2)) + unit * _bias_misfit(term, d)
    return total / (unit * term.norm)


def gram_product(d: Tensor, h: Tensor) -> Tensor:
    """k: |sum_i d_i h_i^T|^2 from k x m x o and k x m x i, without the o x i sum itself."""
    return ((d @ d.transpose(1, 2)) * (h @ h.transpose(1, 2))).sum((1, 2))


def _dense_misfit(term: Term, h: Tensor, d: Tensor, z: Tensor) -> Tensor:
    m, o, i = d.shape[1], d.shape[2], h.shape[2]
    if term.right is None and o * i <= m * (o + i):  # the sum itself is smaller than Gram matrices
        plain = (term.left - d.transpose(1, 2) @ h).square().sum((1, 2))
    else:
        linear = z if term.bias is None else z - term.bias
        held = term.norm - (
            0.0 if term.bias_target is None else float(term.bias_target.square().sum())
        )
        plain = gram_product(d, h) - 2 * (d * linear).sum((1, 2)) + held
    return (plain + _bias_misfit(term, d)) / term.norm


def _conv_misfit(term: Term, h: Tensor, d: Tensor) -> Tensor:
    k, m = h.shape[:2]
    size = (term.left.shape[2], term.left.shape[3])
    patches = F.unfold(h.flatten(0, 1), size, padding=term.padding, stride=term.stride)
    patches = patches.view(k, m, *patches.shape[1:])
    total = torch.einsum("kmop,kmip->koi", d.flatten(3), patches)
    plain = (term.left.flatten(1) - total).square().sum((1, 2))
    return (plain + _bias_misfit(term, d.flatten(3).sum(3))) / term.norm


def range_misfit(problem: Problem, arrived: Sequence[Tensor], dual: Tensor) -> Tensor:
    """k x m: the share of each record's own signal outside the first dense layer's columns."""
    d = arrived[problem.first_dense].view(*dual.shape, -1)
    inside = (d @ problem.columns).square().sum(2)
    return 1 - inside / d.square().sum(2).clamp(min=torch.finfo(d.dtype).tiny)


def span_misfit(problem: Problem, seen: Pass) -> Tensor:
    """The share of features outside the row space of the first dense layer, over all starts."""
    assert problem.rows is not None
    h = seen.inputs[problem.first_dense]
    outside = h - (h @ problem.rows.T) @ problem.rows
    return outside.square().sum() / h.detach().square().sum().clamp(min=torch.finfo(h.dtype).tiny)


def box_misfit(problem: Problem, s: Tensor) -> Tensor:
    """k: squared violation of the box, summed over pixels, mean over candidates."""
    if problem.low is None or problem.high is None:
        return s.new_zeros(len(s))
    x = problem.inputs(s)
    outside = x - x.clamp(problem.low, problem.high)
    return outside.square().sum(2).mean(1)


def variation(problem: Problem, s: Tensor) -> Tensor:
    """k: mean absolute difference of neighbouring pixels."""
    x = problem.inputs(s)
    x = x.view(*x.shape[:2], *problem.input_shape)
    down, across = x.diff(dim=-2).abs(), x.diff(dim=-1).abs()
    return down.flatten(1).mean(1) + across.flatten(1).mean(1)
