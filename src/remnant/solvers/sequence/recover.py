"""All sequences of a batch out of one gradient of a causal transformer, and the proof."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace

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
)
from remnant.solvers.sequence.layouts import Layout, Linear, longest_text
from remnant.solvers.sequence.prefixes import Text, find_tokens, grow
from remnant.solvers.sequence.spans import Decompositions, InputSpan, input_span
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """What an adversary holds of a transformer's training: a gradient, or what is proportional to
    one, with the model at the weights where it was taken. Tensors are as they were stored; those of
    zeros alone were not trained.

    precision: the relative rounding of each tensor's numbers. whose: what it is, in words.
    """

    model: nn.Module
    vector: Weights
    precision: Mapping[str, float]
    whose: str
    change: bool = False  # it is a change of weights, by one step of gradient descent or more

    @property
    def rounding(self) -> float:
        """The relative rounding of the whole vector, out of that of its tensors."""
        squares = {n: float(value.double().square().sum()) for n, value in self.vector.items()}
        whole = sum(squares.values())
        noise = sum(square * self.precision[n] ** 2 for n, square in squares.items())
        return (noise / whole) ** 0.5 if whole else 1.0

    def proven_below(self, tolerances: Tolerances) -> float:
        """The relative error at which what was computed again proves what it was computed of."""
        rounded = tolerances.rounded * self.rounding
        return min(tolerances.loosest, max(tolerances.returned, rounded))


@dataclass(frozen=True, kw_only=True, eq=False)
class Recovery:
    """What a gradient gave away.

    texts: sequences; counts: how often each is in the batch. tokens: those that are certainly in
    the batch, in any order. error: relative, of the gradient computed again from the texts.
    stopped: why there are no texts, or not all.
    """

    texts: list[Text] = field(default_factory=list)
    counts: list[int] = field(default_factory=list)
    tokens: list[int] | None = None
    error: float | None = None
    stopped: str = ""
    figures: dict[str, float | int] = field(default_factory=dict)
    flows: Flows = field(default_factory=dict)  # loss weights by prefix and next token
    smoothing: float = 0.0
    proved: bool = False  # the texts give back the whole gradient, so that they are all of it
    refused: bool = False  # the model is none that this solver knows


def recover_sequences(
    held: Held,
    layout: Layout,
    *,
    tolerances: Tolerances,
    generator: torch.Generator,
) -> Recovery:
    """The sequences whose mean loss has this gradient, at any scale.

    Where that proves nothing, at growing levels of noise until all is proved, or of all levels the
    one whose texts leave least unexplained. So nothing has to be known of how far weights drifted
    between the gradients that the vector sums. Noise widens what counts as near, never what is
    certified.
    """
    rounding = held.rounding
    places = used_places(held.vector, layout, rounding)
    longest = longest_text(held.model, layout)
    decoder = read_decoder(held.model, layout, min(longest, (places or longest) + 1))
    if isinstance(decoder, str):
        return Recovery(stopped=decoder, refused=True)
    if not _trained(held.vector, layout.blocks[0].reads):
        why = "the gradient of the first block is not held (its attention was not trained)"
        return Recovery(stopped=why, refused=True)
    known: Decompositions = {}
    best: Recovery | None = None
    for noise, near in ((0.0, tolerances.near), *tolerances.levels):
        limits = replace(tolerances, near=max(near, tolerances.noise * max(rounding, noise)))
        spans = _spans(held, layout, noise, limits, generator, known)
        found = _at_noise(held, decoder, spans, places, limits)
        if found.proved:
            return found
        if best is None and (found.error or 0.0) >= tolerances.plausible:
            left = f"leaves {found.error:.0%} of the gradient unexplained"  # none of the batch's
            why = f"what fits the first blocks {left}"
            best = Recovery(stopped=why, tokens=found.tokens, figures=found.figures)
        elif best is None or (found.error or 1.0) < min(tolerances.plausible, best.error or 1.0):
            best = found
    assert best is not None
    return best


def _at_noise(
    held: Held,
    decoder: Decoder,
    spans: dict[str, InputSpan],
    places: int | None,
    tolerances: Tolerances,
) -> Recovery:
    """Tokens, then prefixes of them, then labels and the certificate."""
    layout, reads = decoder.layout, spans.pop("reads")
    filled = (
        f"the batch has at least as many different prefixes as the model is wide ({layout.width}), "
        "or noise hides how many: nothing stands out, and no order can be told"
    )
    moved = moved_rows(held, layout)
    among = torch.arange(len(decoder.tokens)) if moved is None else moved
    if reads.probes.shape[1]:
        at = find_tokens(decoder, reads, among, places, tolerances)
    elif moved is None:
        return Recovery(stopped=f"{filled}; nor can tokens be told")
    else:
        at = [moved] * (1 if decoder.turns else places or len(decoder.places))
    certain = (torch.cat(at) if moved is None else moved).unique().tolist()
    told = len(certain) <= min(tolerances.most_tokens, len(decoder.tokens) // 2)
    usable = {name: span for name, span in spans.items() if span.probes.shape[1]}
    if not usable or not told:
        why = "the null space of the first block tells too little" if usable else filled
        also = f"the set of {len(certain)} tokens is certain" if told else "nor can tokens be told"
        return Recovery(stopped=f"{why}; {also}", tokens=certain if told else None)
    leaves = grow(decoder, usable, at, places or len(decoder.places), tolerances)
    if not leaves:
        much = "too many prefixes fit" if leaves is None else "no prefix fits"
        also = "" if moved is None else f"; the set of {len(certain)} tokens is certain"
        why = f"{much} what the first blocks read{also}"
        return Recovery(stopped=why, tokens=None if moved is None else certain)
    return _concluded(held, layout, leaves, certain, tolerances)


def _spans(
    held: Held,
    layout: Layout,
    noise: float,
    tolerances: Tolerances,
    generator: torch.Generator,
    known: Decompositions,
) -> dict[str, InputSpan]:
    """What the first block's attention ("reads") and perceptron ("up") and the second's attention
    ("next") read, as far as their gradients are held."""
    first, *more = layout.blocks
    places = {"reads": first.reads, "up": first.up}
    if more:
        places["next"] = more[0].reads
    return {
        name: input_span(
            held.vector,
            layers,
            precision=max(noise, *(held.precision[layer.weight] for layer in layers)),
            tolerances=tolerances,
            generator=generator,
            known=known,
        )
        for name, layers in places.items()
        if _trained(held.vector, layers)
    }


def _trained(vector: Weights, layers: tuple[Linear, ...]) -> bool:
    return all(layer.weight in vector and bool(vector[layer.weight].any()) for layer in layers)


def moved_rows(held: Held, layout: Layout) -> Tensor | None:
    """The tokens that went in, by the rows of the embedding that have a gradient, if the output
    layer is another table. None where most rows have one, as they do if it is the same table.

    Of a change between two checkpoints: the rows that moved otherwise than by the common factor by
    which weight decay shrinks all of them; that holds for any optimizer."""
    table = held.vector.get(layout.embedding or "")
    if table is None or layout.tied:
        return None
    moved = (table != 0).any(1)
    if held.change:
        before = dict(held.model.named_parameters())[layout.embedding or ""].detach().double()
        change, squares = table.double(), before.square().sum(1)
        decay = ((change * before).sum(1) / squares.clamp_min(1e-300)).median()
        off = (change - decay * before).abs().amax(1)
        moved = off > 10 * max(float(off.median()), 2.0**-24 * float(before.abs().max()))
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
    held: Held, layout: Layout, leaves: list[Text], certain: list[int], tolerances: Tolerances
) -> Recovery:
    """Labels, ends and the certificate of what was grown."""
    model, vector = held.model, held.vector
    labels = find_labels(model, layout, vector, leaves, tolerances)
    if isinstance(labels, str):
        return Recovery(texts=leaves, counts=[1] * len(leaves), tokens=certain, stopped=labels)
    flows, smoothing = labels
    texts, weights = sequences_of(flows, tolerances)
    again = compare(vector, gradient_of(model, flows, smoothing))
    level = held.proven_below(tolerances)
    if again.error > level:  # noise may be in the weights alone
        alike = alike_flows(texts)
        other = compare(vector, gradient_of(model, alike, smoothing))
        flows, again = (alike, other) if other.error < again.error else (flows, again)
    return Recovery(
        texts=texts,
        counts=counts_of(weights, tolerances),
        proved=again.error <= level,
        tokens=certain,
        error=again.error,
        flows=flows,
        smoothing=smoothing,
        figures={"smoothing": smoothing},
    )
