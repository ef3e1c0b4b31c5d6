"""What follows from an adversary's knowledge alone, before anything is solved: how many records
it does not know, which labels and starting weights they can have, and in what order they were
trained on."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace

import torch
from torch import Tensor, nn

from remnant.attacks.kkt import fresh_model
from remnant.attacks.outcome import model_box, with_weights
from remnant.errors import InputError
from remnant.models.folding import statistics_moved
from remnant.solvers.descent.label_counts import labels_of_run
from remnant.solvers.replay.run import end_of_run
from remnant.training.fleet import SharedRun
from remnant.training.losses import predicted
from remnant.training.recipes import FixedStep, GradientDescent
from remnant.types import Examples, Knowledge, Target


def with_labels(target: Target, *, most_steps: int = 60, most_records: int = 16) -> Target:
    """Where no record is known: told the labels, if the output's bias gives them away. It does
    after a short full-batch descent on cross-entropy; and no replay was seen to find more records.
    """
    held, recipe = target.knowledge, target.knowledge.recipe
    if held.known is not None or held.labels is not None or held.initial is None:
        return target
    if not isinstance(recipe, GradientDescent) or recipe.loss != "ce":
        return target
    count = held.records or 0
    if recipe.steps > most_steps or not 0 < count <= most_records:
        return target
    with suppress(InputError):  # an output without a bias tells nothing
        shape = target.input_shape
        labels = labels_of_run(target.model, held.initial, recipe, count=count, shape=shape)
        return replace(target, knowledge=replace(held, labels=labels))
    return target


def batched(recipe: FixedStep) -> bool:
    """Whether a recipe trains on mini-batches rather than on all records at a time."""
    return getattr(recipe, "batch_size", None) is not None


def drawn_by_position(target: Target) -> bool:
    """Whether the run's mini-batches are drawn by position, so that the unknown record has to
    stand last in the data."""
    recipe = target.knowledge.recipe
    return isinstance(recipe, FixedStep) and batched(recipe)


def unknown_count(target: Target) -> int:
    """How many records of the run are unknown: one, unless the number of all is given."""
    held = target.knowledge
    if held.known is None:
        return 0 if held.labels is None else len(held.labels)
    return 1 if held.records is None else held.records - len(held.known)


def fresh_starts(model: nn.Module, count: int, generator: torch.Generator) -> dict[str, Tensor]:
    """New weights for so many models (K x shape each), where the initial ones are unknown."""
    each = [dict(fresh_model(model, generator).named_parameters()) for _ in range(count)]
    return {name: torch.stack([w[name].detach() for w in each]) for name in each[0]}


def unknown_labels(target: Target, extra: int) -> Tensor | None:
    """Their labels, where known: the last of all labels, or just theirs."""
    labels = target.knowledge.labels
    return None if labels is None or len(labels) < extra else labels[-extra:]


def public_labels(target: Target) -> Tensor:
    """Labels of the public inputs: what is known of them, or what the released model says."""
    held = target.knowledge
    if held.public_labels is not None:
        return held.public_labels
    assert held.public is not None
    with torch.no_grad():
        like = next(target.model.parameters())
        outputs: Tensor = target.model(target.scaling.to_model(held.public.to(like)))
    return predicted(outputs)


def outputs_of(target: Target) -> int:
    """How many classes there are to try."""
    with torch.no_grad():
        like = next(target.model.parameters())
        wide = target.model(torch.zeros(1, *target.input_shape).to(like)).shape[1]
    return max(2, int(wide))


def ends_of(target: Target) -> tuple[float, float]:
    """The least and the greatest entry, about, that an input may have in the model's scale."""
    box = model_box(target)
    return (-1.0, 1.0) if box is None else (float(box[0].mean()), float(box[1].mean()))


def norms_in_training(target: Target) -> bool:
    """Whether batch norm's running statistics moved, so that training took those of each batch."""
    initial = target.knowledge.initial
    return initial is not None and statistics_moved(target.model, initial)


def trained_by(
    run_of: Callable[[Target, torch.dtype], SharedRun], target: Target, records: Examples
) -> Target:
    """The target as its run trains it on these records. run_of: the run of which a target tells."""
    held = target.knowledge
    nothing_known = replace(held, known=records.take([]), records=len(records))
    run = run_of(replace(target, knowledge=nothing_known), torch.float32)
    inputs = target.scaling.to_model(records.inputs)[None].to(run.start[0])
    ends = run.named(end_of_run(run, inputs, records.labels[None]))
    model = with_weights(target.model, {name: end[0] for name, end in ends.items()})
    known = Knowledge(initial=held.initial, recipe=held.recipe, loss=run.recipe.loss)
    return replace(target, model=model, knowledge=known)


def blank_records(target: Target, count: int) -> Examples:
    """So many records of zeros and class 0, in place of those that nobody has."""
    return Examples(
        inputs=torch.zeros(count, *target.input_shape),
        labels=torch.zeros(count, dtype=torch.long),
        ids=tuple(map(str, range(count))),
    )
