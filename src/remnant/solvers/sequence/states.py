"""The states of all tokens inside a transformer's first block, out of one gradient, in any order.

The block's perceptron is two dense layers with an activation between them, and every token is a
record of theirs: `recover_batch` finds the inputs of all of them, and the gradient that comes back
to each. That gradient goes on through the norm, whose unknown size (one number a token) is linear
in the bias of attention's output layer, and so gives each token's own share of that layer's
gradient: what attention gathered for it. The state before attention is what remains. No order of
tokens is needed: it holds for encoders, images and decoders alike.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.progress import task
from remnant.solvers.dense.one_gradient import Layers, recover_batch
from remnant.solvers.dense.resimulate import resimulate
from remnant.solvers.dense.rounds import Search
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import best_fit, slope_at, with_one
from remnant.solvers.sequence.layouts import (
    Layout,
    Norm,
    activation_of,
    centred,
    linear,
    stacked,
)
from remnant.solvers.spans import rounding_level
from remnant.types import Evidence, Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Unordered:
    """Records of a batch of `counted` (None: not known), and in words how they were found: k x
    shape in the model's scale, or k x length tokens, -1 after the end."""

    inputs: Tensor
    counted: int | None
    reason: str


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
    perceptron = Layers(
        first=stacked(weights, block.up)[0].T,
        first_gradient=stacked(gradient, block.up)[0].T,
        next_weight=stacked(weights, [block.down])[0].T[:, :-1],
        next_gradient=stacked(gradient, [block.down])[0].T,
        activation=activation_of(model, block),
        bias=True,
        last=False,
        precision=evidence.precision,
    )
    found = all_records(perceptron, generator)
    if isinstance(found, str):
        return f"the tokens' states in the first block: {found}"
    inputs, counted = found
    again = resimulate(
        with_one(inputs),
        perceptron.first,
        perceptron.first_gradient,
        perceptron.next_weight,
        perceptron.next_gradient,
        perceptron.activation,
    )
    coming = again.duals @ perceptron.first[:, :-1]  # the gradient at the perceptron's inputs
    past = again.signals if layout.norm_first else torch.zeros_like(again.signals)
    coming = coming if layout.norm_first else coming + again.signals
    return _behind_norm(layout, evidence, norm, inputs, past, coming, counted)


def without(layers: Layers, inputs: Tensor, rank: int) -> Layers:
    """The layers with the gradients of all other records than these (k x width), of `rank` in all.

    The gradient a at a record's activation and the signal d that comes back to it are told by
    a = f'(t) * (W^T d), each in the space of its layer's gradient: a null vector. Its length is
    the one that lowers the rank of the layer's gradient.
    """
    records = with_one(inputs)
    t = records @ layers.first.T
    with torch.no_grad():
        features = with_one(layers.activation(t))
    up, down = layers.first_gradient, layers.next_gradient
    duals, signals = (
        torch.linalg.svd(gradient, full_matrices=False)[0][:, :rank] for gradient in (up, down)
    )
    inverse = torch.linalg.pinv(duals.T @ up)
    for x, h, slope in zip(records, features, slope_at(layers.activation, t), strict=True):
        both = torch.cat([duals, -slope[:, None] * (layers.next_weight.T @ signals)], 1)
        pair = torch.linalg.eigh(both.T @ both)[1][:, 0]
        pair = pair / (x @ inverse @ pair[:rank])
        up = up - torch.outer(duals @ pair[:rank], x)
        down = down - torch.outer(signals @ pair[rank:], h)
    return replace(layers, first_gradient=up, next_gradient=down)


def all_records(layers: Layers, generator: torch.Generator) -> tuple[Tensor, int] | str:
    """The inputs (T x width) of the records of a perceptron that were found, and how many it has.

    The search takes records that are nearly equal, as the first token of every text is, for one:
    what it finds is taken off, and the rest is searched again, until nothing more is found.
    """
    counted = count_down_to_rounding(layers)
    if counted is None:
        width = layers.first.shape[1] - 1
        return (
            f"there are at least as many as the width, {width}, or noise hides how many there are"
        )
    found, left = list[Tensor](), counted
    while left > 0:
        search = Search(iterations=8000, patience=5)
        recovery = recover_batch(layers, count=left, search=search, generator=generator)
        if not len(recovery.inputs) or not bool(recovery.inputs.isfinite().all()):
            if not found:
                return f"0 of {counted} found; {recovery.reason}"
            break
        found.append(recovery.inputs)
        if len(recovery.inputs) < left:
            layers = without(layers, recovery.inputs, left)
        left -= len(recovery.inputs)
    return torch.cat(found), counted


def count_down_to_rounding(layers: Layers) -> int | None:
    """The number of records, nearly equal ones too: where the spectrum of either layer's gradient
    falls onto its rounding, however wide the gap above those. None without such a fall."""
    counts = list[int]()
    for gradient in (layers.first_gradient, layers.next_gradient):
        level = rounding_level(gradient, layers.precision)
        inner = torch.linalg.svdvals(gradient)[: -TOLERANCES.noise_values]
        fall = inner[:-1] > TOLERANCES.smallest_gap * inner[1:].clamp_min(level)
        ends = fall & (inner[1:] < TOLERANCES.rounding_room * level)
        counts += (ends.nonzero()[-1:, 0] + 1).tolist()
    return max(counts, default=None)


def _behind_norm(
    layout: Layout,
    evidence: Evidence,
    norm: Norm,
    outputs: Tensor,
    past: Tensor,
    coming: Tensor,
    counted: int,
) -> States:
    """Back through the norm: its sizes, what attention gathered, and the states before it.

    outputs: of the norm, T x width. coming: the gradient at them; past: that which goes around it.
    """
    out, weights = layout.blocks[0].out, evidence.start
    shift = 0.0 if norm.bias is None else weights[norm.bias]
    unit = (outputs - shift) / weights[norm.weight]
    through = coming * weights[norm.weight]
    through = centred(through) - unit * (through * unit).mean(1, keepdim=True)
    matrix = stacked(evidence.vector, [out])[0].T  # width x (width + 1), the bias last
    inverse = best_fit(through.T, (matrix[:, -1] - past.sum(0))[:, None])
    gathered = best_fit((past + inverse * through).T, matrix)[:, :-1]
    before = unit / inverse - linear(weights, out, gathered)
    return States(before=centred(before), gathered=gathered, counted=counted)


def stood_together(
    layout: Layout, weights: Weights, inputs: Tensor, places: Tensor, kind: Tensor, gathered: Tensor
) -> list[tuple[int, ...]]:
    """The records, each as one kind of token a place, from the first place on; most likely first.

    inputs (N x width), places (N): of the different kinds at the first attention. kind: of each
    token (T). gathered: what attention gathered for it, a = sum_s p_s v_s over the tokens s of its
    record, p_s proportional to e^(q.k_s). So in every head sum_s m_s e^(q.k_s) (v_s - a) = 0, where
    m_s is 1 for tokens of the record and 0 for others: linear in m, as many equations as the model
    is wide, for each token anew. A token whose equations name no whole record says nothing.
    """
    states = torch.cat([linear(weights, part, inputs) for part in layout.blocks[0].reads], 1)
    shape = (len(places), layout.heads, layout.head_width)
    query, key, value = (part.reshape(shape) for part in states.chunk(3, dim=1))
    said = Counter[tuple[int, ...]]()
    with task("putting tokens together", len(kind)) as step:
        for own, sum_of_values in zip(kind.tolist(), gathered, strict=True):
            score = torch.einsum("hd,shd->sh", query[own], key) * layout.head_width**-0.5
            weight = (score - score.max(0).values).exp()
            aside = value - sum_of_values.reshape(shape[1:])
            columns = (weight[:, :, None] * aside).flatten(1).T  # width x N
            record = _members(columns, places, own)
            said.update([record] if record else [])
            step(1)
    # Tokens whose states differ by less than rounding count as one, so kinds may be in many
    # records; each record that is kept has one that those before it do not have.
    covered, kept = set[int](), list[tuple[int, ...]]()
    for record, _ in sorted(said.items(), key=lambda item: (-item[1], item[0])):
        if not covered.issuperset(record):
            covered.update(record)
            kept.append(record)
    return kept


def _members(columns: Tensor, places: Tensor, own: int) -> tuple[int, ...] | None:
    """The kinds whose columns add up to 0 with that of `own`, the likeliest of each place."""
    others = (places != places[own]).nonzero()[:, 0]
    share = torch.zeros(len(places), dtype=columns.dtype)
    share[own] = 1.0
    if len(others):
        share[others] = best_fit(columns[:, others], -columns[:, own])
    chosen = [int((share - 2.0 * (places != place)).argmax()) for place in places.unique()]
    chosen = [kind for kind in chosen if share[kind] > 0.5]
    whole = [int(places[kind]) for kind in chosen] == list(range(len(chosen)))
    return tuple(chosen) if whole else None
