"""Texts out of one gradient of an encoder, whose tokens see each other in any order.

The first block's states (`read_states`) are those of all tokens of the batch. Each is the embedding
of one token at one place, which the tables tell: the nearest of all. Attention tells which tokens
stood in one text (`group`); padding is masked there and leaves no trace.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.sequence.grouping import Kinds, group, most_said
from remnant.solvers.sequence.layouts import Layout, Weights, at_path, normed
from remnant.solvers.sequence.states import States, read_states
from remnant.types import Evidence


@dataclass(frozen=True, kw_only=True, eq=False)
class Texts:
    """Tokens of each text found, of a batch of `counted` (None: not known); in words how."""

    rows: list[list[int]]
    counted: int | None
    reason: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Tables:
    """What is added to a token's state: vocabulary x width, places x width (types with them)."""

    tokens: Tensor
    places: Tensor

    def states(self, layout: Layout, weights: Weights, tokens: Tensor, places: Tensor) -> Tensor:
        """What the blocks are given for tokens (k) at places (k)."""
        both = self.tokens[tokens] + self.places[places]
        return (
            both if layout.embedding_norm is None else normed(weights, layout.embedding_norm, both)
        )


def read_tables(model: nn.Module, layout: Layout, weights: Weights, longest: int) -> Tables | str:
    """The tables, by what the model does with a few tokens; or why it adds no such tables."""
    if layout.embedding is None:
        return "texts, but no embedding of tokens was recognised"
    table, like = weights[layout.embedding], next(model.parameters())
    tries = torch.stack([torch.full((longest,), token) for token in (1, 2)])
    with torch.no_grad():
        first, second = (_entering(model, layout, row[None])[0] for row in tries)
        mixed = _entering(model, layout, (1 + torch.arange(longest) % 2)[None])[0]
    apart = table[2] - table[1]
    scale = ((second - first) @ apart / apart.square().sum()).mean()  # some models multiply them
    places = first - scale * table[1]
    guess = scale * table[1 + torch.arange(longest) % 2] + places
    if not torch.allclose(guess, mixed, atol=1e3 * torch.finfo(like.dtype).eps, rtol=1e-4):
        return "texts, but states are not the sum of a token's and a place's embedding"
    return Tables(tokens=scale * table, places=places)


def _entering(model: nn.Module, layout: Layout, tokens: Tensor) -> Tensor:
    """What enters the embedding's norm, or else the first block: n x length x width, float64."""
    norm = layout.embedding_norm
    path = _block_path(layout) if norm is None else norm.weight.removesuffix(".weight")
    seen = list[Tensor]()
    hook = at_path(model, path).register_forward_pre_hook(
        lambda module, given, named: seen.append((given or tuple(named.values()))[0]),
        with_kwargs=True,
    )
    try:
        model(tokens)
    finally:
        hook.remove()
    return seen[0].detach().double()


def _block_path(layout: Layout) -> str:
    """The path of the first block: what the names of its parts have in common."""
    block = layout.blocks[0]
    names = [block.attention_norm.weight, block.out.weight, block.up[0].weight, block.down.weight]
    parts = zip(*(name.split(".") for name in names), strict=False)
    return ".".join(part[0] for part in parts if len(set(part)) == 1).removesuffix(".weight")


def recover_texts(
    model: nn.Module,
    layout: Layout,
    evidence: Evidence,
    longest: int,
    *,
    generator: torch.Generator,
) -> Texts:
    """The texts behind one gradient, as far as they were found."""
    states = read_states(model, layout, evidence, generator=generator)
    if isinstance(states, str):
        return Texts(rows=[], counted=None, reason=states)
    length = min(longest, len(states), _learned_places(layout, evidence.start))
    tables = read_tables(model, layout, evidence.start, length)
    if isinstance(tables, str):
        return Texts(rows=[], counted=None, reason=tables)
    tokens, places = locate(layout, evidence, tables, states)
    counted = int((places == 0).sum()) if len(states) == states.counted else None
    pairs, kind = torch.stack([places, tokens], 1).unique(dim=0, return_inverse=True)
    inputs = tables.states(layout, evidence.start, pairs[:, 1], pairs[:, 0])
    if layout.norm_first:
        inputs = normed(evidence.start, layout.blocks[0].attention_norm, inputs)
    kinds = Kinds(inputs=inputs, places=pairs[:, 0])
    said = group(layout, evidence.start, kinds, kind, states.gathered)
    rows = [pairs[list(record), 1].tolist() for record in most_said(said)]
    return Texts(
        rows=rows,
        counted=counted,
        reason=f"{len(rows)} texts put together from {len(states)} of {states.counted} tokens",
    )


def _learned_places(layout: Layout, weights: Weights, *, otherwise: int = 1 << 20) -> int:
    """How many places the model has learned, if it learned any."""
    if layout.positions is None:
        return otherwise
    return weights[layout.positions].shape[-2] - layout.first_position


def locate(
    layout: Layout, evidence: Evidence, tables: Tables, states: States, *, block: int = 1 << 24
) -> tuple[Tensor, Tensor]:
    """The token and the place (T each) whose embedding is nearest to each state.

    block: how many numbers are held at a time.
    """
    held = candidates(layout, evidence)
    tokens, places = _centred(tables.tokens[held]), _centred(tables.places)
    wanted, norm = states.before, layout.embedding_norm
    if norm is not None:
        shift = torch.zeros(1).double() if norm.bias is None else evidence.start[norm.bias]
        weight = evidence.start[norm.weight]
        wanted = (wanted - shift) / weight  # off by a constant over the weight: its mean was lost
        wanted = wanted - wanted.mean(1, keepdim=True) / (1 / weight).mean() / weight
    square = tokens.square().sum(1)[:, None] + places.square().sum(1) + 2 * tokens @ places.T
    found = list[Tensor]()
    for rows in wanted.split(max(1, block // square.numel())):
        along = (rows @ tokens.T)[:, :, None] + (rows @ places.T)[:, None, :]
        near = square - 2 * along if norm is None else -along / square.sqrt()
        found.append(near.flatten(1).argmin(1))
    best = torch.cat(found)
    return held[best // len(places)], best % len(places)


def candidates(layout: Layout, evidence: Evidence) -> Tensor:
    """Tokens that may have been in the batch: rows of the embedding that have a gradient, or all
    of them where it was not trained."""
    assert layout.embedding is not None
    moved = evidence.vector[layout.embedding].any(1)
    return (moved | ~moved.any()).nonzero()[:, 0]


def _centred(rows: Tensor) -> Tensor:
    return rows - rows.mean(-1, keepdim=True)
