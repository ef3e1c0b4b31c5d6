"""All sequences of a batch out of one gradient of a causal transformer, and the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn

from remnant.solvers.sequence.certificate import compare, gradient_of
from remnant.solvers.sequence.decoder import Decoder, read_decoder
from remnant.solvers.sequence.labels import (
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
) -> Recovery:
    """The sequences whose mean loss has this gradient at the model's weights, as far as they show.

    vector: the gradient by parameter name, at any scale; tensors of zeros alone are not held.
    precision: relative rounding of its numbers, by name. longest: the most tokens of a text.
    """
    rounding = overall(vector, precision)
    near = max(tolerances.near, tolerances.noise * rounding)
    tolerances = replace(tolerances, near=near)
    places = used_places(vector, layout, rounding)
    decoder = read_decoder(model, layout, min(longest, (places or longest) + 1))
    if isinstance(decoder, str):
        return Recovery(stopped=decoder, refused=True)
    first = layout.blocks[0]
    if not _held(vector, first.reads):
        why = "the gradient of the first block is not held (its attention was not trained)"
        return Recovery(stopped=why, refused=True)

    def span_of(layers: tuple[Linear, ...]) -> InputSpan | None:
        if not _held(vector, layers):
            return None
        worst = max(precision[layer.weight] for layer in layers)
        return input_span(
            vector, layers, precision=worst, tolerances=tolerances, generator=generator
        )

    moved = moved_rows(vector.get(layout.embedding or ""))
    tokens = _tokens(decoder, span_of(first.reads), moved, places, tolerances)
    if tokens is None:
        return Recovery(stopped=_filled("attention", layout))
    certain = sorted(tokens.found.tolist())
    spans = {"up": span_of(first.up)}
    if len(layout.blocks) > 1:
        spans["next"] = span_of(layout.blocks[1].reads)
    usable = {name: span for name, span in spans.items() if span is not None and span.null}
    figures: dict[str, float | int] = {
        "tokens_found": len(certain), "token_worst": tokens.worst, "token_next": tokens.best,
        **{f"rank_{name}": span.rank for name, span in spans.items() if span is not None},
    }  # fmt: skip
    if not usable:
        why = f"{_filled('perceptron', layout)}; the set of {len(certain)} tokens is certain"
        return Recovery(stopped=why, tokens=certain, figures=figures)
    if len(certain) > tolerances.most_tokens:
        why = f"{len(certain)} tokens fit the first block: its null space tells too little"
        return Recovery(stopped=why, figures=figures)
    length = len(decoder.places) if places is None else places
    found = grow(decoder, usable, tokens.at, length, tolerances)
    return _concluded(model, layout, vector, found, certain, rounding, tolerances, figures)


def _filled(part: str, layout: Layout) -> str:
    """The reason where more different states than the width went through a layer."""
    width = layout.width
    return (
        f"the inputs of the first {part} fill its whole width of {width}: the batch has at least "
        f"as many different prefixes, and no order can be told"
    )


def _held(vector: Weights, layers: tuple[Linear, ...]) -> bool:
    return all(layer.weight in vector and bool(vector[layer.weight].any()) for layer in layers)


def _tokens(
    decoder: Decoder,
    span: InputSpan | None,
    moved: Tensor | None,
    places: int | None,
    tolerances: Tolerances,
) -> Tokens | None:
    """Tokens by the first block's attention, among those whose embedding moved, if that is known;
    None where neither tells anything."""
    among = torch.arange(len(decoder.tokens)) if moved is None else moved
    if span is not None and span.null:
        return find_tokens(decoder, span, among, places, tolerances)
    if moved is None:
        return None
    count = len(decoder.places) if places is None else places
    return Tokens(found=moved, at=[moved] * (1 if decoder.turns else count), worst=0.0, best=1.0)


def moved_rows(table: Tensor | None) -> Tensor | None:
    """The rows of an embedding's gradient that are not zero: exactly the tokens that went in, if the
    output layer is another table; None where most rows moved, or none."""
    if table is None:
        return None
    moved = (table != 0).any(1)
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
    if found.crowded or not found.leaves:
        much = "too many prefixes fit" if found.crowded else "no prefix fits"
        why = f"{much} what the first blocks read; the set of {len(certain)} tokens is what fits"
        return Recovery(stopped=why, tokens=certain, figures=figures)
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
    figures |= {"smoothing": labels.smoothing, "label_fit": labels.fit}
    proved = again.error <= certified_below(precision, tolerances)
    return Recovery(
        texts=texts,
        counts=counts_of(weights, tolerances),
        sure=[proved] * len(texts),
        proved=proved,
        tokens=certain,
        error=again.error,
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
    return max(tolerances.returned, tolerances.rounded * precision)
