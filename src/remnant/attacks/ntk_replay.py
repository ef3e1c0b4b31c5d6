"""The fallback of `ntk` for short trainings of a known recipe: all records by replay.

Where weights changed by a few known steps there is no need of a rank gap, nor of a kernel that
stands still: the training itself, differentiated, is the equation (`solvers.replay`). Nothing is
known of the records but their number and classes. The found ones are certified if the run with them
matches the released weights and depends on each of them. The order of the classes does not matter:
a full batch has none.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor, nn

from remnant.attacks.informed import Informed, batched
from remnant.errors import InputError
from remnant.solvers.replay.ways import ReplaySettings
from remnant.training.fleet import FixedStep, check_recipe, rows_of
from remnant.training.recipes import Adam
from remnant.types import Candidates, Target


def why_no_replay(target: Target, *, most_steps: int = 60, most_records: int = 16) -> str:
    """What a replay of the whole training lacks, in a few words; empty if nothing.

    A solve takes some hundred runs of the training, and was not seen to find more records.
    """
    held = target.knowledge
    try:
        recipe = check_recipe(held.recipe)
    except InputError as error:
        return "the recipe is unknown" if held.recipe is None else str(error)
    if batched(recipe):
        return "the order of its mini-batches is unknown"
    steps = len(rows_of(recipe, 1, None))
    if steps > most_steps:
        return f"{steps} steps are too many to replay (at most {most_steps})"
    count = records_of(target)
    if count is None:
        return "the number of records is unknown"
    if count > most_records:
        return f"{count} records are too many to replay (at most {most_records})"
    if held.labels is None and isinstance(label_counts(target, recipe, count), str):
        return "the labels are unknown, and " + str(label_counts(target, recipe, count))
    return ""


def records_of(target: Target) -> int | None:
    """The number of records, where it is told or follows from their labels."""
    held = target.knowledge
    return held.records if held.labels is None else len(held.labels)


def replay_records(
    target: Target,
    *,
    generator: torch.Generator,
    restarts: int = 4,
    settings: ReplaySettings | None = None,
) -> Candidates:
    """All records of a run for which `why_no_replay` has nothing to say."""
    held = target.knowledge
    words = f"replay of {len(rows_of(check_recipe(held.recipe), 1, None))} steps"
    labels = held.labels
    if labels is None:
        counts = label_counts(target, check_recipe(held.recipe), records_of(target) or 0)
        assert isinstance(counts, Tensor)
        labels = torch.arange(len(counts)).repeat_interleave(counts)
        words += ", classes read off the output's bias"
    told = replace(held, labels=labels, records=len(labels), known=None)
    attack = Informed(restarts=restarts, replaying=settings or ReplaySettings())
    found = attack(replace(target, knowledge=told), generator=generator)
    return replace(found, reason=f"{words}: {found.reason}")


def replay_instead(target: Target, found: Candidates, *, generator: torch.Generator) -> Candidates:
    """What replay finds instead of the candidates `found`, which certified nothing."""
    replayed = replay_records(target, generator=generator)
    said = f"not exact, since {found.reason}; instead {replayed.reason}"
    return replace(replayed, reason=said, figures={**found.figures, **replayed.figures})


def label_counts(target: Target, recipe: FixedStep, count: int) -> Tensor | str:
    """How many records each class has, by what cross-entropy did to the output's bias.

    A step moves it by minus the rate times the mean of p_i - y_i. Summed over a short run, with the
    probabilities p_i of the mean input standing for those of all records, that gives the mean of
    y_i; a replay that matches shows that the roundings were right.
    """
    if recipe.loss != "ce" or isinstance(recipe, Adam):
        return "they can be read off only after cross-entropy and gradient descent"
    last = [(n, m) for n, m in target.model.named_modules() if isinstance(m, nn.Linear)][-1:]
    if not last or last[0][1].bias is None or last[0][1].out_features < 2:
        return "the output has no bias that would tell them"
    name = f"{last[0][0]}.bias" if last[0][0] else "bias"
    assert target.knowledge.initial is not None
    before, after = target.knowledge.initial[name].double(), target.weights[name].double()
    velocity, moved = 0.0, 0.0  # of a weight whose gradient is 1 in every step
    for _ in rows_of(recipe, 1, None):
        velocity = recipe.momentum * velocity + 1.0
        moved += recipe.lr * velocity
    with torch.no_grad():
        like = next(target.model.parameters())
        outputs = target.model(torch.zeros(1, *target.input_shape).to(like))[0].double()
    mean = (outputs - (after - before) / 2).softmax(0) + (after - before) / moved
    share = (count * mean).clamp(min=0)
    share = share * (count / share.sum().clamp(min=1e-12))
    counts: Tensor = share.floor().long()
    short = count - int(counts.sum())
    counts[(share - counts).topk(short).indices] += 1
    return counts
