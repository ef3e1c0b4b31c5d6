"""A causal transformer's first blocks, computed for many prefixes at once.

The states of a decoder at a place depend on the tokens up to it alone. So the attacker can compute
what the second half of the first block, and the second block, would have read for a prefix, and
test that against their gradients.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.sequence.layouts import (
    Block,
    Layout,
    activation_of,
    at_path,
    entering,
    linear,
    normed,
    watched,
)
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Decoder:
    """tokens: vocabulary x width and places: length x width, what a token and a position add to the
    state that enters the first block. turns: cosine and sine of each place (length x width of a
    head), where keys and queries are rotated."""

    model: nn.Module
    layout: Layout
    weights: Weights
    tokens: Tensor
    places: Tensor
    turns: tuple[Tensor, Tensor] | None

    def enters(self, tokens: Tensor, place: int) -> Tensor:
        """The states of tokens at a place, before the first block."""
        return self.tokens[tokens] + self.places[place]

    def read(self, block: Block, states: Tensor) -> Tensor:
        """What attention reads."""
        first = self.layout.norm_first
        return normed(self.weights, block.attention_norm, states) if first else states

    def heads(self, block: Block, inputs: Tensor, place: int) -> tuple[Tensor, Tensor, Tensor]:
        """Queries, keys and values, each n x heads x width of a head."""
        layout = self.layout
        sizes = [n * layout.head_width for n in (layout.heads, layout.key_heads, layout.key_heads)]
        every = torch.cat([linear(self.weights, part, inputs) for part in block.reads], -1)
        query, key, value = (
            part.unflatten(-1, (-1, layout.head_width)) for part in every.split(sizes, -1)
        )
        if self.turns is not None:
            query, key = self._turned(query, place), self._turned(key, place)
        shared = layout.heads // layout.key_heads
        return query, key.repeat_interleave(shared, -2), value.repeat_interleave(shared, -2)

    def _turned(self, vectors: Tensor, place: int) -> Tensor:
        assert self.turns is not None
        cosine, sine = (table[place] for table in self.turns)
        left, right = vectors.chunk(2, -1)
        return vectors * cosine + torch.cat([-right, left], -1) * sine

    def attended(self, block: Block, states: Tensor, mixed: Tensor) -> tuple[Tensor, Tensor]:
        """The states after attention (mixed: ... x width, its values), and what `up` reads."""
        after = states + linear(self.weights, block.out, mixed)
        if self.layout.norm_first:
            return after, normed(self.weights, block.perceptron_norm, after)
        after = normed(self.weights, block.attention_norm, after)
        return after, after

    def leaves(self, block: Block, after: Tensor, inputs: Tensor) -> Tensor:
        """The states after the whole block."""
        act = activation_of(self.model, block)
        first, *more = (linear(self.weights, part, inputs) for part in block.up)
        inner = act(first) * more[0] if more else act(first)
        states = after + linear(self.weights, block.down, inner)
        if self.layout.norm_first:
            return states
        return normed(self.weights, block.perceptron_norm, states)


@torch.no_grad()
def read_decoder(model: nn.Module, layout: Layout, longest: int) -> Decoder | str:
    """The decoder for texts of up to `longest` tokens, checked against the model itself; or a
    sentence that says which part of it does not act as its name says."""
    weights = {name: p.detach() for name, p in model.named_parameters()}
    vocabulary = len(weights[layout.embedding or ""])
    alone = entering(model, layout, torch.arange(vocabulary)[:, None])
    if layout.rotary is None:
        row, turns = entering(model, layout, torch.zeros(1, longest, dtype=torch.int64))[0], None
    else:
        row = alone[:1, 0].expand(longest, -1)
        cosine, sine = at_path(model, layout.rotary)(row[None, :1], torch.arange(longest)[None])
        turns = cosine[0].to(row), sine[0].to(row)
    decoder = Decoder(
        model=model, layout=layout, weights=weights, tokens=alone[:, 0], places=row - row[0],
        turns=turns,
    )  # fmt: skip
    fault = _probe(decoder, layout.blocks[0], vocabulary, longest)
    return fault or decoder


def _probe(decoder: Decoder, block: Block, vocabulary: int, longest: int) -> str | None:
    """Whether the first block, as computed here, gives the states that the model itself has."""
    layout, length = decoder.layout, min(5, longest)
    draw = torch.Generator().manual_seed(0)
    rows = torch.randint(0, vocabulary, (2, length), generator=draw)
    parts = {"embedding, positions, norm or attention": block.up[0].weight}
    if len(layout.blocks) > 1:
        parts["perceptron"] = layout.blocks[1].reads[0].weight
    with watched(decoder.model, parts) as seen:
        decoder.model(rows)
    mine: dict[str, list[Tensor]] = {part: [] for part in parts}
    keys, values = list[Tensor](), list[Tensor]()
    for place in range(length):
        states = decoder.enters(rows[:, place], place)
        query, key, value = decoder.heads(block, decoder.read(block, states), place)
        keys.append(key)
        values.append(value)
        scores = torch.einsum("nhw,nkhw->nhk", query, torch.stack(keys, 1))
        share = (scores * layout.head_width**-0.5).softmax(-1)
        mixed = torch.einsum("nhk,nkhw->nhw", share, torch.stack(values, 1)).flatten(1)
        after, inputs = decoder.attended(block, states, mixed)
        read = [inputs]
        if len(parts) > 1:
            read.append(decoder.read(layout.blocks[1], decoder.leaves(block, after, inputs)))
        for part, state in zip(parts, read, strict=True):
            mine[part].append(state)
    for part, states_seen in mine.items():
        own, other = torch.stack(states_seen, 1), seen[part][0]
        if not torch.allclose(own, other, rtol=1e-3, atol=1e-3 * float(other.abs().max())):
            where = f"the {part} of the first block"
            return f"{layout.name}'s layout, but {where} acts otherwise: it was not recognised"
    return None
