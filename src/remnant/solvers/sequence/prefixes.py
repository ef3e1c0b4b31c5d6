"""Which tokens are in the batch, and in which order: prefixes grown place by place.

Attention of the first block reads the norm of token + position alone, so its gradient tells which
tokens there are, by one pass over the vocabulary. The order comes from what the perceptron of the
first block and the attention of the second read: that depends on the whole prefix. All prefixes of
a length, each with every candidate for its next token, are tested at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers.sequence.decoder import Decoder
from remnant.solvers.sequence.layouts import centred
from remnant.solvers.sequence.spans import InputSpan, cut
from remnant.solvers.sequence.tolerances import Tolerances

Text = tuple[int, ...]


@torch.no_grad()
def token_residuals(decoder: Decoder, span: InputSpan, tokens: Tensor, places: range) -> Tensor:
    """How far each token at each place is from what the first block's attention read: n x places.

    The norm of (token + position) is linear in both but for its size, and the squared size has a
    part of each and their product: three matrix products for all pairs.
    """
    block, weights = decoder.layout.blocks[0], decoder.weights
    norm, states = block.attention_norm, decoder.tokens[tokens]
    spots = decoder.places[places.start : places.stop]
    probes = span.probes.to(states)
    width = states.shape[1]
    shift = probes[width] if span.biased else torch.zeros_like(probes[0])
    sample = decoder.read(block, states[:: max(1, len(states) // 256)] + spots[0])
    unit = span.unit / float(sample.norm(dim=1).median())
    if not decoder.layout.norm_first:
        near, far = states @ probes[:width], spots @ probes[:width]
        return torch.stack([(near + row + shift).norm(dim=1) for row in far], 1) * unit
    if norm.bias is not None:
        shift = shift + weights[norm.bias] @ probes[:width]
    if norm.centred:
        states, spots = centred(states), centred(spots)
    turned = weights[norm.weight][:, None] * probes[:width]
    near, far = states @ turned, spots @ turned
    size = states.square().mean(1), spots.square().mean(1), 2 * states @ spots.T / width
    residuals = states.new_empty(len(states), len(spots))
    for k in range(len(spots)):
        scale = (size[0] + size[1][k] + size[2][:, k] + norm.eps).rsqrt()
        residuals[:, k] = ((near + far[k]) * scale[:, None] + shift).norm(dim=1)
    return residuals * unit


def find_tokens(
    decoder: Decoder, span: InputSpan, among: Tensor, length: int | None, tolerances: Tolerances
) -> list[Tensor]:
    """Tokens of the batch out of `among`, at each place below `length`; None: until none is found.
    Where keys are rotated all places are alike, and one list stands for them."""
    longest = len(decoder.places) if length is None else length
    step = tolerances.places if length is None else longest
    if decoder.turns is not None:
        step = longest = 1
    parts = list[Tensor]()
    with task("tokens of the batch", longest) as advance:
        for start in range(0, longest, step):
            places = range(start, min(longest, start + step))
            parts.append(token_residuals(decoder, span, among, places))
            advance(len(places))
            if length is None and not bool((parts[-1] < cut(parts[0], tolerances)).any()):
                break
    residuals = torch.cat(parts, 1)
    hit = residuals < cut(residuals.flatten(), tolerances)
    return [among[column] for column in hit.T]


@dataclass(eq=False)
class _Grown:
    """Prefixes of one length: tokens (n x length), and keys and values of the first block."""

    tokens: Tensor
    keys: Tensor
    values: Tensor


@torch.no_grad()
def grow(
    decoder: Decoder,
    spans: Mapping[str, InputSpan],
    candidates: list[Tensor],
    longest: int,
    tolerances: Tolerances,
) -> list[Text] | None:
    """The prefixes that fit the gradients and that no further token continues: the batch's texts
    but for their last tokens. None where too many fit.

    spans: the inputs' spaces of the first block's perceptron ("up") and of the second block's
    attention ("next"), of which one may be missing. candidates: tokens by place, or one list for
    all places."""
    layout, like = decoder.layout, decoder.tokens
    empty = like.new_zeros(1, 0, layout.heads, layout.head_width)
    alive = _Grown(tokens=torch.zeros(1, 0, dtype=torch.int64), keys=empty, values=empty)
    leaves, level = list[Text](), tolerances.far
    with task("prefixes", longest) as advance:
        for place in range(longest):
            choice = candidates[place] if len(candidates) > 1 else candidates[0]
            residuals, keys, values = _tested(decoder, spans, alive, choice, place, tolerances)
            keep = residuals < min(cut(residuals.flatten(), tolerances), tolerances.room * level)
            if bool(keep.any()):
                usual = max(tolerances.near, float(residuals[keep].median()))
                level = usual if place == 0 else max(level, usual)
            if place:
                leaves += [tuple(row) for row in alive.tokens[~keep.any(1)].tolist()]
            old, new = keep.nonzero(as_tuple=True)
            if len(old) > tolerances.most_prefixes:
                return None
            alive = _Grown(
                tokens=torch.cat([alive.tokens[old], choice[new][:, None]], 1),
                keys=torch.cat([alive.keys[old], keys[new][:, None]], 1),
                values=torch.cat([alive.values[old], values[new][:, None]], 1),
            )
            advance(note=f"{len(old)} prefixes")
            # Repetitions of a first token alone, which nothing would end.
            repeats = decoder.turns is not None and bool(
                (alive.tokens == alive.tokens[:, :1]).all()
            )
            if not len(old) or (place and repeats):
                break
    leaves += [tuple(row) for row in alive.tokens.tolist()]
    return _told_apart(leaves)


def _tested(
    decoder: Decoder,
    spans: Mapping[str, InputSpan],
    alive: _Grown,
    choice: Tensor,
    place: int,
    tolerances: Tolerances,
) -> tuple[Tensor, Tensor, Tensor]:
    """Residuals of every prefix with every choice (n x c), and the choices' keys and values."""
    layout, block = decoder.layout, decoder.layout.blocks[0]
    states = decoder.enters(choice, place)
    query, key, value = decoder.heads(block, decoder.read(block, states), place)
    scale = layout.head_width**-0.5
    own = (query * key).sum(-1) * scale
    residuals = states.new_empty(len(alive.tokens), len(choice))
    each = max(1, len(choice) * max(layout.width, layout.heads * (place + 1)))
    step = max(1, tolerances.block // each)
    for start in range(0, len(alive.tokens), step):
        part = slice(start, start + step)
        scores = torch.einsum("chw,nkhw->nchk", query, alive.keys[part]) * scale
        mine = own[None, :, :, None].expand(len(scores), -1, -1, -1)
        share = torch.cat([scores, mine], -1).softmax(-1)
        mixed = torch.einsum("nchk,nkhw->nchw", share[..., :-1], alive.values[part])
        mixed = (mixed + share[..., -1:] * value).flatten(2)
        residuals[part] = _residuals(decoder, spans, states, mixed, tolerances)
    return residuals, key, value


def _residuals(
    decoder: Decoder,
    spans: Mapping[str, InputSpan],
    states: Tensor,
    mixed: Tensor,
    tolerances: Tolerances,
) -> Tensor:
    """The larger of the two residuals, n x c; the second is computed where the first is small."""
    block = decoder.layout.blocks[0]
    after, inputs = decoder.attended(block, states, mixed)
    found = spans["up"].residual(inputs) if "up" in spans else torch.zeros(inputs.shape[:2])
    close = found < tolerances.far
    if "next" in spans and bool(close.any()):
        left = decoder.leaves(block, after[close], inputs[close])
        read = decoder.read(decoder.layout.blocks[1], left)
        found[close] = torch.maximum(found[close], spans["next"].residual(read))
    return found


def _told_apart(leaves: list[Text]) -> list[Text]:
    """The prefixes without repetitions of a single token: where keys are rotated and values are
    not, [v, v] has the state that [v] has, so that both pass every test. Kept is [v], unless a
    longer prefix begins with v."""
    longer = {leaf[0] for leaf in leaves if len(set(leaf)) > 1}
    kept = dict[Text, None]()
    for leaf in leaves:
        if len(set(leaf)) > 1:
            kept[leaf] = None
        elif leaf and leaf[0] not in longer:
            kept[leaf[:1]] = None
    return list(kept)
