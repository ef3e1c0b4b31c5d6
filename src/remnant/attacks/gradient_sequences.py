"""The part of attack `gradient` that plays transformers: one solver a kind of layout."""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.attacks.about import Cost, Scene
from remnant.attacks.gradient_unordered import from_encoder, from_images
from remnant.attacks.outcome import nothing
from remnant.evidence import stored_precision
from remnant.models.tokens import is_causal, longest_of
from remnant.solvers.sequence.certificate import replayed
from remnant.solvers.sequence.labels import alike_flows
from remnant.solvers.sequence.layouts import Kind, Layout, read_layout
from remnant.solvers.sequence.recover import (
    Recovery,
    certified_below,
    overall,
    recover_in_noise,
)
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Examples, Stated, Status, Target, Weights

NEEDS = "no gradient is known; give --gradient, or --initial for two checkpoints"


@dataclass(frozen=True, kw_only=True, eq=False)
class Held:
    """What an adversary holds of a transformer's training: a gradient, or what is proportional to
    one, with the model at the weights where it was taken; tensors are as they were stored.

    precision: the relative rounding of each tensor's numbers. whose: what it is, in words.
    """

    model: nn.Module
    vector: Weights
    precision: dict[str, float]
    whose: str
    change: bool = False  # it is a change of weights, by one step of gradient descent or more


Solve = Callable[[Target, Layout, Held, torch.Generator], Candidates]


def from_sequences(target: Target, generator: torch.Generator) -> Candidates:
    """What comes back of a transformer's batch, by the solver for its kind of layout; of several
    things that are held, the one that proves most."""
    layout = read_layout(target.model)
    if isinstance(layout, str):
        return nothing(target, Status.NOT_APPLICABLE, layout)
    layout = _kind_probed(target, layout)
    if layout.kind not in SOLVERS:
        reason = f"no solver reads a gradient of {layout.name}'s layout"
        return nothing(target, Status.NOT_APPLICABLE, reason)
    held = what_is_held(target)
    if not held:
        return nothing(target, Status.NOT_APPLICABLE, NEEDS)
    best: Candidates | None = None
    for one in held:
        if not any(bool(value.any()) for value in one.vector.values()):
            found = nothing(target, Status.INCONCLUSIVE, f"{one.whose} is zero everywhere")
        else:
            found = SOLVERS[layout.kind](target, layout, one, generator)
        if best is None or (found.stated.certified or 0) > (best.stated.certified or 0):
            best = found
        if best.status is Status.COMPLETE:
            break
    assert best is not None
    return best


def _kind_probed(target: Target, layout: Layout) -> Layout:
    """nn.TransformerEncoder is used both ways: one that sees only what came before is a decoder."""
    if layout.kind != "encoder" or layout.embedding is None:
        return layout
    probe = torch.arange(min(4, *target.input_shape))[None]
    return replace(layout, kind="decoder") if is_causal(target.model, probe) else layout


def what_is_held(target: Target) -> list[Held]:
    """The gradient at the released weights; at the initial ones, if they are known too, since an
    optimizer's state is older than the weights beside it; or the change between two checkpoints."""
    known, initial = target.knowledge, target.knowledge.initial
    found = list[Held]()
    if known.gradient is not None:
        rounding = stored_precision(known.gradient)
        precision = dict.fromkeys(known.gradient, rounding)
        whose = "the gradient"
        found.append(Held(model=target.model, vector=known.gradient, precision=precision,
                          whose=whose))  # fmt: skip
        if initial is not None:
            at = _with_weights(target.model, initial)
            whose = "the gradient, taken at the initial weights"
            found.insert(0, replace(found[0], model=at, whose=whose))
    elif initial is not None:
        rounding = max(stored_precision(target.weights), stored_precision(initial))
        change = {
            name: initial[name].double() - weight.double()
            for name, weight in target.weights.items()
        }
        precision = {
            name: min(1.0, rounding * _size(initial[name]) / max(_size(value), 1e-300))
            for name, value in change.items()
        }
        found.append(
            Held(
                model=_with_weights(target.model, initial),
                vector=change,
                precision=precision,
                whose="the change between two checkpoints",
                change=True,
            )
        )
    return found


def _size(value: Tensor) -> float:
    return float(value.double().square().mean().sqrt())


def _with(model: nn.Module, name: str | None) -> Tensor | None:
    return next((p.detach() for own, p in model.named_parameters() if own == name), None)


def _with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    """A copy of the model with other weights."""
    other = copy.deepcopy(model)
    with torch.no_grad():
        for name, parameter in other.named_parameters():
            parameter.copy_(weights[name])
    return other


def from_decoder(
    target: Target, layout: Layout, held: Held, generator: torch.Generator
) -> Candidates:
    """Texts of a causal language model."""
    tolerances = Tolerances()
    changed = held.change and layout.embedding is not None
    found = recover_in_noise(
        held.model,
        layout,
        held.vector,
        precision=held.precision,
        longest=longest_of(held.model),
        start=_with(held.model, layout.embedding) if changed else None,
        tolerances=tolerances,
        generator=generator,
    )
    if found.refused:
        return nothing(target, Status.NOT_APPLICABLE, found.stopped)
    if held.change and found.flows and not found.proved:
        found = _replayed(held, found, tolerances)
    still = sum(not bool(value.any()) for value in held.vector.values())
    if still and not found.proved:
        why = f"{still} of {len(held.vector)} parameters did not change, as adapters leave them"
        found = replace(found, stopped=f"{found.stopped}; {why}".removeprefix("; "))
    return as_candidates(target, found, held.whose)


def _replayed(held: Held, found: Recovery, tolerances: Tolerances) -> Recovery:
    """Proved by several steps of descent on the batch, if one does not explain the change."""
    level = certified_below(overall(held.vector, held.precision), tolerances)
    alike = alike_flows(found.texts)
    ways = [(alike, 0.0), (alike, found.smoothing)] if found.smoothing else [(alike, 0.0)]
    for flows, smoothing in (*ways, (found.flows, found.smoothing)):
        again, steps = replayed(held.model, flows, smoothing, held.vector)
        if again.error <= level:
            figures = {**found.figures, "steps": steps}
            sure = [True] * len(found.texts)
            return replace(found, error=again.error, proved=True, sure=sure, figures=figures)
    return found


def as_candidates(target: Target, found: Recovery, whose: str) -> Candidates:
    """Texts as rows of tokens, -1 after the end, each as often as it is in the batch."""
    texts, sure = list[tuple[int, ...]](), list[bool]()
    for text, count, certain in zip(found.texts, found.counts, found.sure, strict=True):
        texts += [text] * count
        sure += [certain] * count
    figures = dict(found.figures) | ({} if found.tokens is None else {"tokens": found.tokens})
    if not texts:
        reason = f"{found.stopped} ({whose})"
        return nothing(target, Status.INCONCLUSIVE, reason, figures=figures)
    rows = torch.full((len(texts), max(map(len, texts))), -1, dtype=torch.int64)
    for row, text in zip(rows, texts, strict=True):
        row[: len(text)] = torch.tensor(text)
    certified = sum(sure)
    whole = found.error is not None and found.proved
    status = Status.COMPLETE if whole else Status.PARTIAL if certified else Status.INCONCLUSIVE
    return Candidates(
        inputs=rows,
        confidence=torch.tensor([1.0 if certain else 0.5 for certain in sure]),
        status=status,
        reason=_said(found, whose, len(texts), certified),
        stated=Stated(
            counted=len(texts) if whole else None,
            certified=certified,
            passed=sure,
            error=[0.0 if certain else None for certain in sure],
        ),
        figures=figures | {"unexplained": found.error},
    )


def _said(found: Recovery, whose: str, texts: int, certified: int) -> str:
    if found.error is None:
        return f"{texts} beginnings fit {whose}: {found.stopped}"
    again = f"{whose} computed again from them differs by {found.error:.1e}"
    if found.proved:
        return f"{texts} texts found and certified without the truth: {again}, as rounding does"
    more = f"; {found.stopped}" if found.stopped else ""
    return f"{certified} of {texts} texts certified: {again}{more}"


SOLVERS: dict[Kind, Solve] = {
    "decoder": from_decoder,
    "encoder": from_encoder,
    "vision": from_images,
}


def why_not(scene: Scene) -> str | None:
    """Why texts or images cannot come back, before anything is run."""
    held = scene.target.knowledge
    if held.gradient is None and held.initial is None:
        return "no gradient was given, and no initial weights"
    layout = read_layout(scene.target.model)
    return layout if isinstance(layout, str) else None


def limit(scene: Scene) -> str | None:
    """Where the records have more tokens to predict than the model is wide: no order comes back,
    unless many texts begin alike."""
    layout = read_layout(scene.target.model) if scene.tokens is not None else ""
    if isinstance(layout, str) or layout.kind != "decoder" or scene.tokens is None:
        return None
    if scene.tokens < layout.width:
        return None
    left = "order is lost" if layout.tied else "only the set of tokens comes back"
    return f"{scene.tokens} tokens to predict are no fewer than the width, {layout.width}: {left}"


def cost(scene: Scene) -> Cost:
    """Of growing prefixes, each with every token of the batch: `records` texts of some 32 tokens,
    by measured runs. The vocabulary is passed over in blocks."""
    layout = read_layout(scene.target.model)
    if isinstance(layout, str):
        return Cost(work=0.0, memory=0.0)
    d, n, places = layout.width, scene.records, min(32, *scene.target.input_shape)
    pairs = n * places * min(n * places, 4000)
    again = 6.0 * scene.parameters * n * places
    work = pairs * (2.0 * d * d + 4.0 * places * d) + again + 60.0 * d**3
    return Cost(work=work * 1e-9, memory=16.0 * scene.parameters + 4.0 * (1 << 26))


def twin(scene: Scene, strangers: Examples) -> Target:
    """The gradient of other texts (or images) at the same weights."""
    target = scene.target
    gradient = batch_gradient(target.model, scene.loss, strangers)
    held = replace(
        target.knowledge, gradient=gradient, initial=None, labels=None, records=len(strangers)
    )
    return replace(target, knowledge=held)
