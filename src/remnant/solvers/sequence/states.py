"""The states of all tokens inside a transformer's first block, out of one gradient, in any order.

The block's perceptron is two dense layers with an activation between them, and every token is a
record of theirs: `recover_batch` finds the inputs of all of them, and the gradient that comes back
to each. That gradient goes on through the norm, whose unknown size (one number a token) is linear
in the bias of attention's output layer, and so gives each token's own share of that layer's
gradient: what attention gathered for it. The state before attention is what remains. No order of
tokens is needed: it holds for encoders, images and decoders alike.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.solvers.dense.one_gradient import Layers, recover_batch
from remnant.solvers.dense.resimulate import Resimulation, resimulate
from remnant.solvers.dense.rounds import Search
from remnant.solvers.dense.tolerances import TOLERANCES, Tolerances
from remnant.solvers.numerics import slope_at
from remnant.solvers.sequence.layouts import (
    Layout,
    Norm,
    Weights,
    activation_of,
    linear,
    stacked,
)
from remnant.solvers.spans import rounding_level
from remnant.types import Evidence


@dataclass(frozen=True, kw_only=True, eq=False)
class States:
    """One row a token (T x width). before: the state that attention is added to, its mean taken
    off, which no norm shows. gathered: what attention gathered, before its output layer. counted:
    how many tokens there are; where some are not found (nearly equal to others, mostly), the share
    of each is attributed to those that are, and all figures are off by a little."""

    before: Tensor
    gathered: Tensor
    counted: int

    def __len__(self) -> int:
        return len(self.before)


def read_states(
    model: nn.Module,
    layout: Layout,
    evidence: Evidence,
    *,
    generator: torch.Generator,
) -> States | str:
    """The states of all tokens in the first block, or why they could not be found."""
    block, weights, gradient = layout.blocks[0], evidence.start, evidence.vector
    norm = block.perceptron_norm if layout.norm_first else block.attention_norm
    for part, layer in (("up", block.up[0]), ("down", block.down), ("out", block.out)):
        if layer.bias is None or len(block.up) > 1:
            return f"the first block's {part} layer has no bias, or a gate: not a perceptron"
    activation = activation_of(model, block)
    layers = Perceptron(
        up=stacked(weights, block.up)[0].T,
        up_gradient=stacked(gradient, block.up)[0].T,
        down=stacked(weights, [block.down])[0].T[:, :-1],
        down_gradient=stacked(gradient, [block.down])[0].T,
        activation=activation if isinstance(activation, nn.Module) else _Applied(activation),
    )
    found = all_records(layers, evidence.precision, generator)
    if isinstance(found, str):
        return f"the tokens' states in the first block: {found}"
    inputs, counted = found
    again = layers.again(inputs)
    up = stacked(weights, block.up)[0][:-1]
    unit = _unit(weights, norm, inputs)
    coming = again.duals @ up.T  # the gradient at the perceptron's inputs
    past = again.signals if layout.norm_first else torch.zeros_like(again.signals)
    coming = coming if layout.norm_first else coming + again.signals
    return _behind_norm(layout, evidence, norm, unit, past, coming, counted)


@dataclass(frozen=True, kw_only=True, eq=False)
class Perceptron:
    """Two dense layers and their gradients, outputs x (inputs + 1), but the weight `down`, which
    has no bias beside it."""

    up: Tensor
    up_gradient: Tensor
    down: Tensor
    down_gradient: Tensor
    activation: nn.Module

    def again(self, inputs: Tensor) -> Resimulation:
        """What these inputs (T x width), if they are all, say of the gradient at each of them."""
        records = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        return resimulate(
            records, self.up, self.up_gradient, self.down, self.down_gradient, self.activation
        )

    def without(self, inputs: Tensor, rank: int) -> Perceptron:
        """The same of all other records than these (k x width), of `rank` in all.

        The gradient a at a record's activation and the signal d that comes back to it are told by
        a = f'(t) * (W^T d), each in the space of its layer's gradient: a null vector. Its length is
        the one that lowers the rank of the layer's gradient.
        """
        records = torch.cat([inputs, torch.ones_like(inputs[:, :1])], 1)
        t = records @ self.up.T
        with torch.no_grad():
            features = self.activation(t)
        features = torch.cat([features, torch.ones_like(features[:, :1])], 1)
        duals, signals = (
            torch.linalg.svd(gradient, full_matrices=False)[0][:, :rank]
            for gradient in (self.up_gradient, self.down_gradient)
        )
        inverse = torch.linalg.pinv(duals.T @ self.up_gradient)
        up, down = self.up_gradient, self.down_gradient
        for x, h, slope in zip(records, features, slope_at(self.activation, t), strict=True):
            both = torch.cat([duals, -slope[:, None] * (self.down.T @ signals)], 1)
            pair = torch.linalg.eigh(both.T @ both)[1][:, 0]
            pair = pair / (x @ inverse @ pair[:rank])
            up = up - torch.outer(duals @ pair[:rank], x)
            down = down - torch.outer(signals @ pair[rank:], h)
        return replace(self, up_gradient=up, down_gradient=down)


def all_records(
    layers: Perceptron, precision: float, generator: torch.Generator
) -> tuple[Tensor, int] | str:
    """The inputs (T x width) of the records of a perceptron that were found, and how many it has.

    The search takes records that are nearly equal, as the first token of every text is, for one:
    what it finds is taken off, and the rest is searched again, until nothing more is found.
    """
    counted = count_down_to_rounding(layers, precision)
    if counted is None:
        width = layers.up.shape[1] - 1
        return (
            f"there are at least as many as the width, {width}, or noise hides how many there are"
        )
    found, left = list[Tensor](), counted
    while left > 0:
        dense = Layers(
            first=layers.up,
            first_gradient=layers.up_gradient,
            next_weight=layers.down,
            next_gradient=layers.down_gradient,
            activation=layers.activation,
            bias=True,
            last=False,
            precision=precision,
        )
        search = Search(iterations=8000, patience=5)
        recovery = recover_batch(dense, count=left, search=search, generator=generator)
        if not len(recovery.inputs) or not bool(recovery.inputs.isfinite().all()):
            if not found:
                return f"0 of {counted} found; {recovery.reason}"
            break
        found.append(recovery.inputs)
        if len(recovery.inputs) < left:
            layers = layers.without(recovery.inputs, left)
        left -= len(recovery.inputs)
    return torch.cat(found), counted


def count_down_to_rounding(
    layers: Perceptron, precision: float, limits: Tolerances = TOLERANCES
) -> int | None:
    """The number of records, nearly equal ones too: where the spectrum of either layer's gradient
    falls onto its rounding, however wide the gap above those. None without such a fall."""
    counts = list[int]()
    for gradient in (layers.up_gradient, layers.down_gradient):
        values, level = torch.linalg.svdvals(gradient), rounding_level(gradient, precision)
        inner = values[: len(values) - limits.noise_values]
        fall = inner[:-1] > limits.smallest_gap * inner[1:].clamp_min(level)
        ends = fall & (inner[1:] < limits.rounding_room * level)
        counts += (ends.nonzero()[-1:, 0] + 1).tolist()
    return max(counts, default=None)


class _Applied(nn.Module):
    """A function as a module."""

    def __init__(self, function: object) -> None:
        super().__init__()
        self.function = function

    def forward(self, inputs: Tensor) -> Tensor:
        result: Tensor = self.function(inputs)  # type: ignore[operator]
        return result


def _unit(weights: Weights, norm: Norm, outputs: Tensor) -> Tensor:
    """Norms' outputs (T x width) before weight and bias: centred, of unit size."""
    shift = 0.0 if norm.bias is None else weights[norm.bias]
    return (outputs - shift) / weights[norm.weight]


def _behind_norm(
    layout: Layout,
    evidence: Evidence,
    norm: Norm,
    unit: Tensor,
    past: Tensor,
    coming: Tensor,
    counted: int,
) -> States:
    """Back through the norm: its sizes, what attention gathered, and the states before it.

    unit: the norm's outputs, T x width. coming: the gradient at what follows its weight and bias;
    past: the gradient that goes around the norm.
    """
    out = layout.blocks[0].out
    through = coming * evidence.start[norm.weight]
    through = (
        through - through.mean(1, keepdim=True) - unit * (through * unit).mean(1, keepdim=True)
    )
    matrix = stacked(evidence.vector, [out])[0].T  # width x (width + 1), the bias last
    inverse = solve(through.T, (matrix[:, -1] - past.sum(0))[:, None])
    signals = past + inverse * through
    gathered = solve(signals.T, matrix)[:, :-1]
    added = linear(evidence.start, out, gathered)
    before = unit / inverse - added
    centred = before - before.mean(1, keepdim=True)
    return States(before=centred, gathered=gathered, counted=counted)


def solve(columns: Tensor, wanted: Tensor) -> Tensor:
    """Least squares, by the driver whose last bits do not vary."""
    found: Tensor = torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    return found
