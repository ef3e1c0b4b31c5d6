"""The states of all tokens inside a transformer's first block, out of one gradient, in any order.

The block's perceptron is two dense layers with an activation between them, and every token is a
record of theirs: `recover_batch` finds the inputs of all of them, and the gradient that comes back
to each. That gradient goes on through the norm, whose unknown size (one number a token) is linear
in the bias of attention's output layer, and so gives each token's own share of that layer's
gradient: what attention gathered for it. The state before attention is what remains. No order of
tokens is needed: it holds for encoders, images and decoders alike.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.batch.one_gradient import recover_batch
from remnant.solvers.batch.tolerances import Tolerances as Search
from remnant.solvers.sequence.layouts import (
    Layout,
    Norm,
    Weights,
    activation_of,
    linear,
    stacked,
)
from remnant.types import Evidence


@dataclass(frozen=True, kw_only=True, eq=False)
class States:
    """One row a token (T x width). before: the state that attention is added to, its mean taken
    off, which no norm shows. gathered: what attention gathered, before its output layer."""

    before: Tensor
    gathered: Tensor

    def __len__(self) -> int:
        return len(self.before)


def read_states(
    model: nn.Module,
    layout: Layout,
    evidence: Evidence,
    *,
    generator: torch.Generator,
    search: Search | None = None,
) -> States | str:
    """The states of all tokens in the first block, or why they could not be found."""
    block, weights, gradient = layout.blocks[0], evidence.start, evidence.vector
    norm = block.perceptron_norm if layout.norm_first else block.attention_norm
    for part, layer in (("up", block.up[0]), ("down", block.down), ("out", block.out)):
        if layer.bias is None or len(block.up) > 1:
            return f"the first block's {part} layer has no bias, or a gate: not a perceptron"
    activation = activation_of(model, block)
    recovery = recover_batch(
        stacked(weights, block.up)[0].T,
        stacked(gradient, block.up)[0].T,
        stacked(weights, [block.down])[0].T[:, :-1],
        stacked(gradient, [block.down])[0].T,
        activation if isinstance(activation, nn.Module) else _Applied(activation),
        precision=evidence.precision,
        last=False,
        settings=search,
        generator=generator,
    )
    again = recovery.resimulation
    if again is None:  # whether all are exact is told by the gradient computed again, at the end
        return f"the tokens' states in the first block: {recovery.reason}"
    up = stacked(weights, block.up)[0][:-1]
    unit = _unit(weights, norm, recovery.inputs)
    coming = again.duals @ up.T  # the gradient at the perceptron's inputs
    past = again.signals if layout.norm_first else torch.zeros_like(again.signals)
    coming = coming if layout.norm_first else coming + again.signals
    return _behind_norm(layout, evidence, norm, unit, past, coming)


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
    layout: Layout, evidence: Evidence, norm: Norm, unit: Tensor, past: Tensor, coming: Tensor
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
    return States(before=before - before.mean(1, keepdim=True), gathered=gathered)


def solve(columns: Tensor, wanted: Tensor) -> Tensor:
    """Least squares, by the driver whose last bits do not vary."""
    found: Tensor = torch.linalg.lstsq(columns, wanted, driver="gelsd").solution
    return found
