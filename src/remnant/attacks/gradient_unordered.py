"""The part of attack `gradient` that plays transformers whose tokens have no order: encoders of
texts, and images. Nothing is certified but by the gradient computed again from all that was found.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from remnant.attacks.outcome import in_box, nothing, stated_errors, status_of, worst_of
from remnant.models.tokens import longest_of, outputs_for
from remnant.solvers.sequence.encoders import recover_texts
from remnant.solvers.sequence.heads import Again, Tolerances, compute_again
from remnant.solvers.sequence.layouts import Layout
from remnant.solvers.sequence.vision import Images, recover_images
from remnant.types import Candidates, Evidence, Stated, Status, Target

if TYPE_CHECKING:
    from remnant.attacks.gradient_sequences import Held


def from_encoder(
    target: Target, layout: Layout, held: Held, generator: torch.Generator
) -> Candidates:
    """Texts of an encoder; what was masked for the loss is put back from its labels."""
    evidence = evidence_of(held, layout)
    longest = longest_of(held.model)
    found = recover_texts(held.model, layout, evidence, longest, generator=generator)
    if not found.rows:
        return nothing(target, Status.INCONCLUSIVE, f"{found.reason} ({held.whose})")
    rows = pad_sequence([torch.tensor(row) for row in found.rows], True, -1)
    again = compute_again(held.model, layout, evidence, rows, outputs_for)
    if isinstance(again, str):
        return nothing(target, Status.INCONCLUSIVE, f"{found.reason}, but {again}")
    if again.error > Tolerances().plausible:
        reason = in_words(found.reason, again, False, held.whose)
        return nothing(target, Status.INCONCLUSIVE, reason)
    sure = again.error < bound_of(held, again)
    texts, labels = rows, again.labels
    if labels is not None and labels.ndim == 2:
        texts, labels = rows.where(labels < 0, labels), None
    return Candidates(
        inputs=texts,
        confidence=torch.full((len(texts),), 1.0 if sure else 0.5),
        labels=labels,
        status=Status.COMPLETE if sure else Status.INCONCLUSIVE,
        reason=in_words(found.reason, again, sure, held.whose),
        stated=Stated(
            counted=len(texts) if sure else found.counted,
            certified=len(texts) if sure else 0,
            passed=[sure] * len(texts),
            error=[0.0 if sure else None] * len(texts),
        ),
        figures={"unexplained": again.error},
    )


def from_images(
    target: Target, layout: Layout, held: Held, generator: torch.Generator
) -> Candidates:
    """Images of a vision transformer, rounded to bytes if these give back the gradient."""
    evidence = evidence_of(held, layout)
    found = recover_images(held.model, layout, evidence, target.input_shape, generator=generator)
    counted = Stated(counted=found.counted)
    if not len(found.inputs):
        reason = f"{found.reason} ({held.whose})"
        return nothing(target, Status.INCONCLUSIVE, reason, stated=counted)
    data = target.scaling.to_data(found.inputs)
    if bool(in_box(data, target.bounds or (0.0, 1.0)).all()):
        data = (data.clamp(0, 1) * 255).round() / 255
    again = compute_again(held.model, layout, evidence, target.scaling.to_model(data), outputs_for)
    if isinstance(again, str):
        return nothing(target, Status.INCONCLUSIVE, f"{found.reason}, but {again}", stated=counted)
    squared = torch.zeros(len(data), dtype=torch.float64)
    if not again.error < bound_of(held, again):
        data = target.scaling.to_data(found.inputs)
        again, squared = as_they_are(target, layout, held, found, generator)
    sure = bool(squared.isfinite().all())
    passed = torch.full((len(data),), sure)
    stated = stated_errors(target, data, squared, passed)
    words = in_words(found.reason, again, sure, held.whose)
    return Candidates(
        inputs=data.float(),
        confidence=torch.full((len(data),), 1.0 if sure else 0.5),
        labels=again.labels,
        status=status_of(int(passed.sum()), found.counted or len(data)),
        reason=f"{words}, {worst_of(stated)}" if sure else words,
        stated=Stated(
            counted=found.counted, certified=int(passed.sum()), passed=passed.tolist(), error=stated
        ),
        figures={"unexplained": again.error},
    )


def as_they_are(
    target: Target, layout: Layout, held: Held, found: Images, generator: torch.Generator
) -> tuple[Again, Tensor]:
    """Images that are no bytes: the gradient computed again, and the squared error of each (k,
    model's scale), infinite where nothing is certified."""
    again = compute_again(held.model, layout, evidence_of(held, layout), found.inputs, outputs_for)
    assert not isinstance(again, str)
    if again.error < Tolerances().near:
        return again, own_errors(target, layout, held, found, again, generator)
    return again, torch.full((len(found.inputs),), torch.inf, dtype=torch.float64)


def own_errors(
    target: Target,
    layout: Layout,
    held: Held,
    found: Images,
    again: Again,
    generator: torch.Generator,
) -> Tensor:
    """The squared error (k, model's scale) that the answer has: that of solving once more, from its
    own gradient with as much rounding."""
    rounding = {n: held.precision[n] * held.vector[n].double().abs() for n in again.gradient}
    noise = {
        name: size * (torch.rand(size.shape, generator=generator, dtype=torch.float64) - 0.5)
        for name, size in rounding.items()
    }
    vector = {name: value + noise[name] for name, value in again.gradient.items()}
    evidence = evidence_of(held, layout, vector)
    other = recover_images(held.model, layout, evidence, target.input_shape, generator=generator)
    if len(other.inputs) != len(found.inputs):
        return torch.full((len(found.inputs),), torch.inf).double()
    apart = torch.cdist(found.inputs.flatten(1), other.inputs.flatten(1)).min(1).values
    own = (again.error * found.inputs.flatten(1).norm(dim=1)).square()
    error: Tensor = Tolerances().safety * apart.square() + own
    return error


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
    """The error of the gradient computed again that rounding explains."""
    sizes = {name: float(value.double().norm()) for name, value in held.vector.items()}
    whole = sum(size**2 for size in sizes.values()) ** 0.5
    stored = sum((held.precision[name] * size) ** 2 for name, size in sizes.items()) ** 0.5
    limits = Tolerances()
    return float(max(limits.least, limits.exact * again.rounding + stored / max(whole, 1e-300)))


def in_words(reason: str, again: Again, sure: bool, whose: str) -> str:
    said = f"{whose} computed again from them differs by {again.error:.1e}"
    if sure:
        return f"{reason}, certified without the truth: {said}, as rounding does"
    return f"{reason}; {said}, more than rounding does: none is certified"
