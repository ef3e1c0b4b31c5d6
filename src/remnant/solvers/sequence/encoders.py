"""Texts out of one gradient of an encoder, whose tokens see each other in any order.

The first block's states (`read_states`) are those of all tokens of the batch. Each is the embedding
of one token at one place, which the tables tell: the nearest of all. Attention tells which tokens
stood in one text (`stood_together`); padding is masked there and leaves no trace.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from remnant.solvers.sequence.layouts import Layout, centred, entering, longest_text, normed
from remnant.solvers.sequence.states import States, Unordered, read_states, stood_together
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.types import Evidence


def recover_texts(
    model: nn.Module, layout: Layout, evidence: Evidence, *, generator: torch.Generator
) -> Unordered:
    """The texts behind one gradient, as far as they were found."""
    states = read_states(model, layout, evidence, generator=generator)
    tables = states if isinstance(states, str) else read_tables(model, layout, len(states))
    if isinstance(states, str) or isinstance(tables, str):
        none = torch.zeros(0, 1, dtype=torch.int64)
        return Unordered(inputs=none, counted=None, reason=str(tables))
    weights, first = evidence.start, layout.blocks[0]
    tokens, places = locate(layout, evidence, *tables, states)
    counted = int((places == 0).sum()) if len(states) == states.counted else None
    pairs, kind = torch.stack([places, tokens], 1).unique(dim=0, return_inverse=True)
    inputs = tables[0][pairs[:, 1]] + tables[1][pairs[:, 0]]
    for norm in (layout.embedding_norm, first.attention_norm if layout.norm_first else None):
        inputs = inputs if norm is None else normed(weights, norm, inputs)
    records = stood_together(layout, weights, inputs, pairs[:, 0], kind, states.gathered)
    rows = [pairs[list(record), 1] for record in records]
    return Unordered(
        inputs=pad_sequence(rows, True, -1) if rows else torch.zeros(0, 1, dtype=torch.int64),
        counted=counted,
        reason=f"{len(rows)} texts put together from {len(states)} of {states.counted} tokens",
    )


def read_tables(model: nn.Module, layout: Layout, most: int) -> tuple[Tensor, Tensor] | str:
    """What a token (vocabulary x width) and a place (places x width, up to `most`) add to a state,
    by what the model does; or why it adds no such tables."""
    named = dict(model.named_parameters())
    if layout.embedding is None:
        return "texts, but no embedding of tokens was recognised"
    length = min(most, longest_text(model, layout))
    words = torch.arange(len(named[layout.embedding]))
    row = torch.ones(1, length, dtype=torch.int64)
    tokens, places = entering(model, layout, words[:, None])[:, 0], entering(model, layout, row)[0]
    places = places - tokens[1]
    mixed = 1 + torch.arange(length) % 2
    guess, seen = tokens[mixed] + places, entering(model, layout, mixed[None])[0]
    if not torch.allclose(guess, seen, atol=1e3 * torch.finfo(seen.dtype).eps, rtol=1e-4):
        return "texts, but states are not the sum of a token's and a place's embedding"
    return tokens.double(), places.double()


def locate(
    layout: Layout,
    evidence: Evidence,
    tokens: Tensor,
    places: Tensor,
    states: States,
) -> tuple[Tensor, Tensor]:
    """The token and the place (T each) whose embedding is nearest to each state, of those tokens
    whose row of the embedding has a gradient, or of all where it was not trained.
    """
    moved = evidence.vector[layout.embedding or ""].any(1)
    held = (moved | ~moved.any()).nonzero()[:, 0]
    tokens, places = centred(tokens[held]), centred(places)
    wanted, norm = states.before, layout.embedding_norm
    if norm is not None:
        shift = torch.zeros(1).double() if norm.bias is None else evidence.start[norm.bias]
        weight = evidence.start[norm.weight]
        wanted = (wanted - shift) / weight  # off by a constant over the weight: its mean was lost
        wanted = wanted - wanted.mean(1, keepdim=True) / (1 / weight).mean() / weight
    square = tokens.square().sum(1)[:, None] + places.square().sum(1) + 2 * tokens @ places.T
    found = list[Tensor]()
    for rows in wanted.split(max(1, Tolerances().block // square.numel())):
        along = (rows @ tokens.T)[:, :, None] + (rows @ places.T)[:, None, :]
        near = square - 2 * along if norm is None else -along / square.sqrt()
        found.append(near.flatten(1).argmin(1))
    best = torch.cat(found)
    return held[best // len(places)], best % len(places)
