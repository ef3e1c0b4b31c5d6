"""All sequences of a batch out of one gradient of a causal transformer, and the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.solvers.sequence.certificate import compare, gradient_of
from remnant.solvers.sequence.decoder import Decoder, read_decoder
from remnant.solvers.sequence.labels import (
    Flows,
    alike_flows,
    counts_of,
    find_labels,
    sequences_of,
    snapped,
)
from remnant.solvers.sequence.layouts import Layout, Linear, Weights
from remnant.solvers.sequence.prefixes import Prefixes, Text, Tokens, find_tokens, grow
from remnant.solvers.sequence.spans import InputSpan, input_span
from remnant.solvers.sequence.tolerances import Tolerances


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """What a gradient gave away.

    texts: sequences, certified ones first; counts: how often each is in the batch; sure: which are
    certified. tokens: those that are certainly in the batch, in any order. error: relative, of the
    gradient computed again from the texts. stopped: why there are no texts, or not all.
    """

    texts: list[Text] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    sure: list[bool] = field(default_factory=list)
    tokens: list[int] | None = None
    error: float | None = None
    stopped: str = ""
    figures: dict[str, float | int] = field(default_factory=dict)
    flows: Flows = field(default_factory=dict)  # loss weights by prefix and next token
    smoothing: float = 0.0
    proved: bool = False  # the texts give back the whole gradient, so that they are all of it
    refused: bool = False  # the model is none that this solver knows


def recover_sequences(
    model: nn.Module,
    layout: Layout,
    vector: Weights,
    *,
    precision: Mapping[str, float],
    longest: int,
    tolerances: Tolerances,
    generator: torch.Generator,
    noise: float = 0.0,
    start: Tensor | None = None,
    known: dict[str, tuple[Tensor, Tensor]] | None = None,
) -> Recovery:
    """The sequences whose mean loss has this gradient at the model's weights, as far as they show.

    vector: the gradient by parameter name, at any scale; tensors of zeros alone are not held.
    precision: relative rounding of its numbers, by name. longest: the most tokens of a text.
    noise: what else may have changed the numbers, relative to them: it widens what counts as near,
    never what is certified. start: the embedding before a change between checkpoints.
    known: decompositions of an earlier call with the same vector.
    """
    rounding = overall(vector, precision)
    near = max(tolerances.near, tolerances.noise * max(rounding, noise))
    tolerances = replace(tolerances, near=near)
    places = used_places(vector, layout, rounding)
    decoder = read_decoder(model, layout, min(longest, (places or longest) + 1))
    if isinstance(decoder, str):
        return Recovery(stopped=decoder, refused=True)
    if not _held(vector, layout.blocks[0].reads):
        why = "the gradient of the first block is not held (its attention was not trained)"
        return Recovery(stopped=why, refused=True)

    spans = _spans_of(vector, layout, precision, noise, tolerances, generator, known)
    moved = None if layout.tied else moved_rows(vector.get(layout.embedding or ""), start)
    tokens = _tokens(decoder, spans["reads"], moved, places, tolerances)
    if tokens is None:
        return Recovery(stopped=f"{_filled(layout)}; nor can tokens be told")
    certain = sorted((tokens.found if moved is None else moved).tolist())
    figures: dict[str, float | int] = {
        "tokens_found": len(certain), "token_worst": tokens.worst, "token_next": tokens.best,
        **{f"rank_{name}": span.rank for name, span in spans.items() if name != "reads"},
    }  # fmt: skip
    usable = {name: span for name, span in spans.items() if name != "reads" and span.null}
    told = len(certain) <= min(tolerances.most_tokens, len(decoder.tokens) // 2)
    if not usable or not told:
        why = "the null space of the first block tells too little" if usable else _filled(layout)
        also = f"the set of {len(certain)} tokens is certain" if told else "nor can tokens be told"
        kept = certain if told else None
        return Recovery(stopped=f"{why}; {also}", tokens=kept, figures=figures)
    found = grow(decoder, usable, tokens.at, places or len(decoder.places), tolerances)
    if found.crowded or not found.leaves:
        much = "too many prefixes fit" if found.crowded else "no prefix fits"
        also = "" if moved is None else f"; the set of {len(certain)} tokens is certain"
        why = f"{much} what the first blocks read{also}"
        return Recovery(stopped=why, tokens=None if moved is None else certain, figures=figures)
    return _concluded(model, layout, vector, found, certain, rounding, tolerances, figures)


def _spans_of(
    vector: Weights,
    layout: Layout,
    precision: Mapping[str, float],
    noise: float,
    tolerances: Tolerances,
    generator: torch.Generator,
    known: dict[str, tuple[Tensor, Tensor]] | None,
) -> dict[str, InputSpan]:
    """What the first block's attention ("reads") and perceptron ("up") and the second's attention
    ("next") read, as far as their gradients are held."""
    first, *more = layout.blocks
    places = {"reads": first.reads, "up": first.up}
    if more:
        places["next"] = more[0].reads
    known = {} if known is None else known
    return {
        name: input_span(
            vector,
            layers,
            precision=max(noise, *(precision[layer.weight] for layer in layers)),
            tolerances=tolerances,
            generator=generator,
            known=known,
        )
        for name, layers in places.items()
        if _held(vector, layers)
    }


def _filled(layout: Layout) -> str:
    """The reason where a gradient's spectrum does not end within the width."""
    return (
        f"the batch has at least as many different prefixes as the model is wide ({layout.width}), "
        "or noise hides how many: nothing stands out, and no order can be told"
    )


def _held(vector: Weights, layers: tuple[Linear, ...]) -> bool:
    return all(layer.weight in vector and bool(vector[layer.weight].any()) for layer in layers)


def _tokens(
    decoder: Decoder,
    span: InputSpan,
    moved: Tensor | None,
    places: int | None,
    tolerances: Tolerances,
) -> Tokens | None:
    """Tokens by the first block's attention, among those whose embedding moved, if that is known;
    None where neither tells anything."""
    among = torch.arange(len(decoder.tokens)) if moved is None else moved
    if span.null:
        return find_tokens(decoder, span, among, places, tolerances)
    if moved is None:
        return None
    count = len(decoder.places) if places is None else places
    return Tokens(found=moved, at=[moved] * (1 if decoder.turns else count), worst=0.0, best=1.0)


def moved_rows(table: Tensor | None, start: Tensor | None = None) -> Tensor | None:
    """The rows of an embedding's gradient that are not zero: exactly the tokens that went in, if
    the output layer is another table. Of a change between two checkpoints (start: the table before
    it), rows that moved otherwise than all others, which may have decayed by a common factor, under
    any optimizer. None where most rows moved, as they do if the output layer is the same table."""
    if table is None:
        return None
    moved = (table != 0).any(1)
    if start is not None:
        change, before = table.double(), start.double()
        squares = before.square().sum(1)
        decay = ((change * before).sum(1) / squares.clamp_min(1e-300)).median()
        off = (change - decay * before).abs().amax(1)
        usual = max(float(off.median()), 2.0**-24 * float(before.abs().max()))
        moved = off > 10 * usual
    share = float(moved.double().mean())
    return moved.nonzero()[:, 0] if 0 < share < 0.5 else None


def used_places(vector: Weights, layout: Layout, precision: float) -> int | None:
    """How many places the batch used, by the gradient of learned positions."""
    if layout.positions is None or layout.positions not in vector:
        return None
    table = vector[layout.positions].reshape(-1, layout.width)[layout.first_position :]
    sizes = table.norm(dim=1)
    used = sizes > 1e-2 * precision * sizes.max()
    return int(used.nonzero().max()) + 1 if bool(used.any()) else None


def _concluded(
    model: nn.Module,
    layout: Layout,
    vector: Weights,
    found: Prefixes,
    certain: list[int],
    precision: float,
    tolerances: Tolerances,
    figures: dict[str, float | int],
) -> Recovery:
    """Labels, ends and the certificate of what was grown."""
    figures["prefix_worst"] = max(found.accepted, default=0.0)
    figures["prefix_next"] = min(found.rejected, default=1.0)
    labels = find_labels(model, layout, vector, found.leaves, tolerances)
    if isinstance(labels, str):
        texts = found.leaves
        return Recovery(
            texts=texts, counts=[1] * len(texts), sure=[False] * len(texts), tokens=certain,
            stopped=labels, figures=figures,
        )  # fmt: skip
    texts, weights = sequences_of(labels.flows, tolerances)
    flows = snapped(labels.flows, weights, tolerances)
    again = compare(vector, gradient_of(model, flows, labels.smoothing))
    if again.error > certified_below(precision, tolerances):  # noise may be in the weights alone
        alike = alike_flows(texts)
        other = compare(vector, gradient_of(model, alike, labels.smoothing))
        flows, again = (alike, other) if other.error < again.error else (flows, again)
    figures |= {"smoothing": labels.smoothing, "label_fit": labels.fit}
    proved = again.error <= certified_below(precision, tolerances)
    return Recovery(
        texts=texts,
        counts=counts_of(weights, tolerances),
        sure=[proved] * len(texts),
        proved=proved,
        tokens=certain,
        error=again.error,
        flows=flows,
        smoothing=labels.smoothing,
        figures=figures,
    )


def overall(vector: Weights, precision: Mapping[str, float]) -> float:
    """The relative rounding of the whole vector, out of that of its tensors."""
    squares = {name: float(value.double().square().sum()) for name, value in vector.items()}
    whole = sum(squares.values())
    noise = sum(square * precision[name] ** 2 for name, square in squares.items())
    return (noise / whole) ** 0.5 if whole else 1.0


def certified_below(precision: float, tolerances: Tolerances) -> float:
    """The relative error at which a gradient that was computed again proves what it was of."""
    return min(tolerances.loosest, max(tolerances.returned, tolerances.rounded * precision))


def _emptied(found: Recovery) -> Recovery:
    """Without texts that leave most of the gradient unexplained: they are none of the batch's."""
    why = f"what fits the first blocks leaves {found.error:.0%} of the gradient unexplained"
    return Recovery(stopped=why, tokens=found.tokens, figures=found.figures)


def recover_in_noise(
    model: nn.Module,
    layout: Layout,
    vector: Weights,
    *,
    tolerances: Tolerances,
    generator: torch.Generator,
    **told: Any,
) -> Recovery:
    """As `recover_sequences`; where that proves nothing, at growing levels of noise until all is
    proved, or of all levels the one whose texts leave least of the vector unexplained. So nothing
    has to be known of how far weights drifted between the gradients that the vector sums."""
    cache = dict[str, tuple[Tensor, Tensor]]()
    best: Recovery | None = None
    for noise, near in ((0.0, tolerances.near), *tolerances.levels):
        found = recover_sequences(
            model, layout, vector, tolerances=replace(tolerances, near=near), generator=generator,
            noise=noise, known=cache, **told,
        )  # fmt: skip
        if found.proved or found.refused:
            return found
        if best is None:
            best = found if (found.error or 0.0) < tolerances.plausible else _emptied(found)
        elif (found.error or 1.0) < min(tolerances.plausible, best.error or 1.0):
            best = found
    assert best is not None
    return best
