"""The part of attack `gradient` that plays transformers: texts of decoders, whose order shows, and
texts of encoders and images, whose tokens have none. All are certified by the gradient computed
again from them.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from remnant.attacks.about import Cost, Scene, seconds_of
from remnant.attacks.outcome import (
    in_box,
    nothing,
    stated_errors,
    status_of,
    with_weights,
    worst_of,
)
from remnant.evidence import stored_precision
from remnant.models.tokens import is_causal
from remnant.solvers.sequence.certificate import replayed
from remnant.solvers.sequence.encoders import recover_texts
from remnant.solvers.sequence.families import read_layout
from remnant.solvers.sequence.heads import Again, compute_again
from remnant.solvers.sequence.labels import alike_flows
from remnant.solvers.sequence.layouts import Layout
from remnant.solvers.sequence.recover import Held, Recovery, recover_sequences
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.solvers.sequence.vision import recover_images
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Evidence, Examples, Stated, Status, Target

NEEDS = "no gradient is known; give --gradient, or --initial for two checkpoints"
LIMITS = Tolerances()


def from_sequences(target: Target, generator: torch.Generator) -> Candidates:
    """What comes back of a transformer's batch, by the solver for its kind of input: texts in
    order, texts without order, or images. Where several things are held, such as a gradient and
    an optimizer's state, all are tried and the answer that proves most is returned."""
    layout = read_layout(target.model)
    if isinstance(layout, str):
        return nothing(target, Status.NOT_APPLICABLE, layout)
    if layout.kind == "encoder" and layout.embedding is not None:
        # nn.TransformerEncoder is used both ways: one that sees only what came before is a decoder.
        probe = torch.arange(min(4, *target.input_shape))[None]
        layout = replace(layout, kind="decoder") if is_causal(target.model, probe) else layout
    solve = from_decoder if layout.kind == "decoder" else from_unordered
    best = nothing(target, Status.NOT_APPLICABLE, NEEDS)
    for held in what_is_held(target):
        if not any(bool(value.any()) for value in held.vector.values()):
            found = nothing(target, Status.INCONCLUSIVE, f"{held.whose} is zero everywhere")
        else:
            found = solve(target, layout, held, generator)
        if best.reason == NEEDS or (found.stated.certified or 0) > (best.stated.certified or 0):
            best = found
        if best.status is Status.COMPLETE:
            break
    return best


def what_is_held(target: Target) -> list[Held]:
    """The gradient at the released weights; at the initial ones, if they are known too, since an
    optimizer's state is older than the weights beside it; or the change between two checkpoints."""
    gradient, initial = target.knowledge.gradient, target.knowledge.initial
    at = target.model if initial is None else with_weights(target.model, initial)
    if gradient is not None:
        precision = dict.fromkeys(gradient, stored_precision(gradient))
        now = Held(model=target.model, vector=gradient, precision=precision, whose="the gradient")
        then = replace(now, model=at, whose="the gradient, taken at the initial weights")
        return [now] if initial is None else [then, now]
    if initial is None:
        return []
    rounding = max(stored_precision(target.weights), stored_precision(initial))
    change = {name: initial[name].double() - w.double() for name, w in target.weights.items()}
    sizes = {name: float(initial[name].double().norm() / v.norm().clamp_min(1e-300))
             for name, v in change.items()}  # fmt: skip
    precision = {name: min(1.0, rounding * size) for name, size in sizes.items()}
    whose = "the change between two checkpoints"
    return [Held(model=at, vector=change, precision=precision, whose=whose, change=True)]


def from_decoder(
    target: Target, layout: Layout, held: Held, generator: torch.Generator
) -> Candidates:
    """Texts of a causal language model."""
    found = recover_sequences(held, layout, tolerances=LIMITS, generator=generator)
    if found.refused:
        return nothing(target, Status.NOT_APPLICABLE, found.stopped)
    if held.change and found.flows and not found.proved:
        found = _replayed(held, found)
    still = sum(not bool(value.any()) for value in held.vector.values())
    if still and not found.proved:
        why = f"{still} of {len(held.vector)} parameters did not change, as adapters leave them"
        found = replace(found, stopped=f"{found.stopped}; {why}".removeprefix("; "))
    return as_candidates(target, found, held.whose)


def _replayed(held: Held, found: Recovery) -> Recovery:
    """The recovery, certified by several steps of descent on the recovered batch where a single
    step does not explain the change of the weights."""
    alike = alike_flows(found.texts)
    ways = [(alike, 0.0), (alike, found.smoothing)] if found.smoothing else [(alike, 0.0)]
    for flows, smoothing in (*ways, (found.flows, found.smoothing)):
        again, steps = replayed(held.model, flows, smoothing, held.vector)
        if again.error <= held.proven_below(LIMITS):
            figures = found.figures | {"steps": steps}
            return replace(found, error=again.error, proved=True, figures=figures)
    return found


def as_candidates(target: Target, found: Recovery, whose: str) -> Candidates:
    """Texts as rows of tokens, -1 after the end, each as often as it is in the batch."""
    figures = dict(found.figures) | ({} if found.tokens is None else {"tokens": found.tokens})
    if not found.texts:
        reason = f"{found.stopped} ({whose})"
        return nothing(target, Status.INCONCLUSIVE, reason, figures=figures)
    rows = [torch.tensor(text) for text, count in zip(found.texts, found.counts, strict=True)
            for _ in range(count)]  # fmt: skip
    sure, count = found.proved, len(rows)
    again = f"{whose} computed again from them differs by {found.error or 0:.1e}"
    if found.error is None:
        reason = f"{count} beginnings fit {whose}: {found.stopped}"
    elif sure:
        reason = f"{count} texts found and certified without the truth: {again}, as rounding does"
    else:
        reason = f"0 of {count} texts certified: {again}; {found.stopped}".removesuffix("; ")
    return Candidates(
        inputs=pad_sequence(rows, True, -1),
        confidence=torch.full((count,), 1.0 if sure else 0.5),
        status=Status.COMPLETE if sure else Status.INCONCLUSIVE,
        reason=reason,
        stated=Stated(
            counted=count if sure else None,
            certified=count if sure else 0,
            passed=[sure] * count,
            error=[0.0 if sure else None] * count,
        ),
        figures=figures | {"unexplained": found.error},
    )


def from_unordered(
    target: Target, layout: Layout, held: Held, generator: torch.Generator
) -> Candidates:
    """Texts of an encoder (what was masked for the loss is put back from its labels), or images,
    rounded to bytes if these give back the gradient."""
    texts, evidence = layout.kind == "encoder", evidence_of(held, layout)
    if texts:
        found = recover_texts(held.model, layout, evidence, generator=generator)
    else:
        shape = target.input_shape
        found = recover_images(held.model, layout, evidence, shape, generator=generator)
    none = Stated(counted=found.counted)
    if not len(found.inputs):
        reason = f"{found.reason} ({held.whose})"
        return nothing(target, Status.INCONCLUSIVE, reason, stated=none)
    data = found.inputs if texts else target.scaling.to_data(found.inputs)
    if not texts and bool(in_box(data, target.bounds or (0.0, 1.0)).all()):
        data = (data.clamp(0, 1) * 255).round() / 255
    inputs = data if texts else target.scaling.to_model(data)
    again = compute_again(held.model, layout, evidence, inputs, LIMITS)
    if isinstance(again, str):
        return nothing(target, Status.INCONCLUSIVE, f"{found.reason}, but {again}", stated=none)
    squared = torch.zeros(len(data), dtype=torch.float64)
    if not again.error < bound_of(held, again):
        squared += torch.inf
        if not texts:  # no bytes, then
            data = target.scaling.to_data(found.inputs)
            again, squared = as_they_are(target, layout, held, found.inputs, generator)
    sure = bool(squared.isfinite().all())
    passed = torch.full((len(data),), sure)
    stated = [0.0 if sure else None] * len(data)
    reason = f"{held.whose} computed again from them differs by {again.error:.1e}"
    if sure:
        reason = f"{found.reason}, certified without the truth: {reason}, as rounding does"
    else:
        reason = f"{found.reason}; {reason}, more than rounding does: none is certified"
    labels, counted = again.labels, found.counted
    if not texts:
        data, stated = data.float(), stated_errors(target, data, squared, passed)
        reason += f", {worst_of(stated)}" if sure else ""
    elif again.error > LIMITS.plausible:
        return nothing(target, Status.INCONCLUSIVE, reason)
    elif sure:
        counted = len(data)
    if texts and labels is not None and labels.ndim == 2:
        data, labels = data.where(labels < 0, labels), None
    return Candidates(
        inputs=data,
        confidence=torch.full((len(data),), 1.0 if sure else 0.5),
        labels=labels,
        status=status_of(len(data) if sure else 0, counted or len(data)),
        reason=reason,
        stated=Stated(
            counted=counted,
            certified=len(data) if sure else 0,
            passed=passed.tolist(),
            error=stated,
        ),
        figures={"unexplained": again.error},
    )


def as_they_are(
    target: Target, layout: Layout, held: Held, inputs: Tensor, generator: torch.Generator
) -> tuple[Again, Tensor]:
    """Images that are no bytes: the gradient computed again, and the squared error of each (k,
    model's scale), infinite where nothing is certified: that of solving once more, from the
    answer's own gradient with as much rounding."""
    again = compute_again(held.model, layout, evidence_of(held, layout), inputs, LIMITS)
    assert not isinstance(again, str)
    unknown = torch.full((len(inputs),), torch.inf, dtype=torch.float64)
    if again.error >= LIMITS.close:
        return again, unknown
    vector = {}
    for name, value in again.gradient.items():
        size = held.precision[name] * held.vector[name].double().abs()
        noise = torch.rand(size.shape, generator=generator, dtype=torch.float64) - 0.5
        vector[name] = value + size * noise
    evidence = evidence_of(held, layout, vector)
    other = recover_images(held.model, layout, evidence, target.input_shape, generator=generator)
    if len(other.inputs) != len(inputs):
        return again, unknown
    flat = inputs.flatten(1)
    apart = torch.cdist(flat, other.inputs.flatten(1)).min(1).values
    return again, LIMITS.safety * apart.square() + (again.error * flat.norm(dim=1)).square()


def evidence_of(held: Held, layout: Layout, vector: dict[str, Tensor] | None = None) -> Evidence:
    """What is held as the solvers take it, its precision that of the first block's perceptron."""
    weights = {name: p.detach().double() for name, p in held.model.named_parameters()}
    return Evidence(
        vector=vector or {name: held.vector[name].detach().double() for name in weights},
        start=weights,
        end=weights,
        precision=held.precision[layout.blocks[0].up[0].weight],
    )


def bound_of(held: Held, again: Again) -> float:
    """The largest error of the recomputed gradient that rounding can explain; a text is
    certified below it."""
    return float(max(LIMITS.least, LIMITS.exact * again.rounding + held.rounding))


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
        return Cost(seconds=0.0, memory=0.0)
    d, n, places = layout.width, scene.records, min(32, *scene.target.input_shape)
    pairs = n * places * min(n * places, 4000)
    again = 6.0 * scene.parameters * n * places
    work = pairs * (2.0 * d * d + 4.0 * places * d) + again + 60.0 * d**3
    return Cost(seconds=seconds_of(work * 1e-9), memory=16.0 * scene.parameters + 4.0 * (1 << 26))


def twin(scene: Scene, strangers: Examples) -> Target:
    """The gradient of other texts (or images) at the same weights."""
    target = scene.target
    gradient = batch_gradient(target.model, scene.loss, strangers)
    held = replace(
        target.knowledge, gradient=gradient, initial=None, labels=None, records=len(strangers)
    )
    return replace(target, knowledge=held)
