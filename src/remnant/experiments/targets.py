"""Targets of studies, the attack on one, and its scores: one builder and one score of each kind.

An adversary gets a `Target`; a `Scene` adds what only the study holds, to score with.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import torch
from torch import Tensor, nn

from remnant.data import Split, mean_image, split
from remnant.errors import InputError, expected
from remnant.report.sheet import draw_sheet
from remnant.scoring import greedy, score, squared_l2
from remnant.seeds import generator_for
from remnant.sweep.table import Row
from remnant.training import Recipe, accuracy, train
from remnant.types import Candidates, Examples, Knowledge, Scaling, Target, Weights, finite

Attack = Callable[..., Candidates]


@dataclass(frozen=True, kw_only=True)
class Criteria:
    """When a candidate counts. recovered: squared L2 below which a record is back. near: a share of
    what the mean image is off by; below it a candidate shows its record."""

    recovered: float = 1e-6
    near: float = 0.1


CRITERIA = Criteria()


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A target as an adversary sees it, the records it was trained on and others that it was not.

    holdout: as many candidates as a null needs. training: what the training said of itself.
    """

    target: Target
    truth: Examples
    holdout: Examples
    public: Examples
    training: Mapping[str, Any]

    @property
    def inputs(self) -> Tensor:
        """The records as the model sees them, n x shape, float64."""
        return self.target.scaling.to_model(self.truth.inputs.double())

    @property
    def initial(self) -> Weights:
        assert self.target.knowledge.initial is not None
        return self.target.knowledge.initial


def dense(examples: Examples, *hidden: int, outputs: int | None = None, options: str = "") -> str:
    """The dense network of these hidden layers for such records: `mlp:784-300-300-10`."""
    sizes = [math.prod(examples.shape), *hidden, examples.classes if outputs is None else outputs]
    return "mlp:" + "-".join(map(str, sizes)) + options


def of_classes(examples: Examples, count: int) -> Examples:
    """The records of the first `count` classes."""
    return examples.take((examples.labels < count).nonzero().flatten())


def draw_sides(
    examples: Examples, records: int, seed: int, *, holdout: int | None = None
) -> tuple[Split, Scaling]:
    """Records to train on, held-out ones (None: twice as many) and the rest, whose mean image is
    subtracted."""
    held = 2 * records if holdout is None else holdout
    sides = split(examples, train=records, public=None, holdout=held, seed=seed)
    return sides, Scaling(mean=mean_image(sides.public))


def draw_parts(examples: Examples, seed: int, *sizes: int) -> tuple[Examples, ...]:
    """Disjoint draws of these sizes, whatever the classes; the last may fall short."""
    if sum(sizes[:-1]) > len(examples):
        raise InputError(expected("records", f"at most {len(examples)} in all", sum(sizes[:-1])))
    order = torch.randperm(len(examples), generator=generator_for(seed, "split"))
    ends = accumulate(sizes)
    return tuple(examples.take(order[end - n : end]) for n, end in zip(sizes, ends, strict=True))


def with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    mine = copy.deepcopy(model)
    mine.load_state_dict(mine.state_dict() | dict(weights))
    return mine


def place(
    model: nn.Module,
    sides: Split,
    scaling: Scaling,
    *,
    training: Mapping[str, Any] | None = None,
    **known: Any,
) -> Scene:
    """A model and its records as a scene. known: what the adversary knows (`Knowledge`)."""
    target = Target(
        model=model,
        input_shape=sides.train.shape,
        bounds=sides.train.bounds,
        scaling=scaling,
        knowledge=Knowledge(**known),
    )
    return Scene(
        target=target, truth=sides.train, holdout=sides.holdout, public=sides.public,
        training=training or {},
    )  # fmt: skip


def train_scene(
    model: nn.Module,
    sides: Split,
    scaling: Scaling,
    recipe: Recipe,
    *,
    seed: int,
    tell: Collection[str],
    release: Callable[[Weights, Weights], Weights] | None = None,
    dtype: torch.dtype | None = None,
) -> Scene:
    """Train a model on the training records and put it, as it is released, into its scene.

    tell: what the adversary is told, any of initial, records, loss. release(final, initial): the
    weights that are released, where a defence changes them. dtype: of the training alone.
    """
    generator, own = generator_for(seed, "training"), next(model.parameters()).dtype
    trained = train(model, sides.train, recipe, scaling=scaling, generator=generator, dtype=dtype)
    final, initial = (
        {name: w.to(own) for name, w in each.items()} for each in (trained.final, trained.initial)
    )
    out = final if release is None else release(final, initial)
    known = {"initial": initial, "records": len(sides.train), "loss": recipe.loss}
    told = {name: known[name] for name in tell}
    return place(with_weights(model, out), sides, scaling, training=trained.ledger, **told)


def attack(how: Attack, target: Target, seed: int) -> tuple[Candidates, float]:
    """What comes back, and the CPU seconds it took."""
    begun = time.process_time()
    found = how(target, generator=generator_for(seed, "attack"))
    return found, round(time.process_time() - begun, 3)


def accuracy_on(target: Target, test: Examples) -> float:
    """Of the target's model on records that it was not trained on."""
    dtype = next(target.model.parameters()).dtype
    with torch.no_grad():
        outputs = target.model(target.scaling.to_model(test.inputs.to(dtype)))
    return accuracy(outputs, test.labels)


def above(truth: Examples, candidates: Tensor, threshold: float) -> int:
    """How many records correlate above the threshold with a candidate of their own."""
    return int((score(truth, candidates).correlation > threshold).sum())


def matched_sheet(truth: Examples, candidates: Tensor, title: str, footer: str = "") -> bytes:
    """A picture of the records over their candidates, closest first, one to one."""
    matches = greedy(squared_l2(truth.inputs, candidates))
    shown = torch.full((len(truth), *truth.shape), torch.nan, dtype=torch.float64)
    back = matches.candidate >= 0
    shown[back] = candidates[matches.candidate[back]].double()
    captions = [
        (name, f"{float(e):.1e}") for name, e in zip(truth.ids, matches.distance, strict=True)
    ]
    return draw_sheet(
        truth.inputs, shown, captions, rows=("record", "squared L2"), title=title, footer=footer,
        bounds=truth.bounds or (0.0, 1.0),
    )  # fmt: skip


def errors(truth: Examples, candidates: Tensor) -> Tensor:
    """n: squared L2 of each record to its candidate, closest first, one to one; inf without one."""
    return greedy(squared_l2(truth.inputs, candidates)).distance


def squared_scores(scene: Scene, found: Candidates, seconds: float) -> Row:
    """Squared L2 errors beside the null's: as many images again that were not trained on.

    A certified candidate without a record of its own is wrong.
    """
    matches = greedy(squared_l2(scene.truth.inputs, found.inputs))
    error = matches.distance
    null = errors(scene.truth, scene.public.inputs[: 2 * len(scene.truth)])
    close = CRITERIA.near * float(scene.inputs.flatten(1).square().sum(1).mean())
    own = torch.full((len(found),), torch.inf, dtype=torch.float64)  # each candidate's error
    matched = matches.candidate >= 0
    own[matches.candidate[matched]] = error[matched]
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    certified = own[passed] if len(passed) else own[:0]
    row = {
        "counted": found.stated.counted,
        "found": len(found),
        "recovered": int((error < CRITERIA.recovered).sum()),
        "near": int((error < close).sum()),
        "mean_error": float(error.mean()),
        "median_error": float(error.median()),
        "max_error": float(error.max()),
        "null_error": float(null.mean()),
        "null_near": int((null < close).sum()),
        "certified": len(certified) if found.stated.certified is None else found.stated.certified,
        "wrongly_certified": int((certified > close).sum()),
        "worst_certified": float(certified.max()) if len(certified) else None,
        "status": str(found.status),
        "reason": found.reason,
        "cpu_seconds": seconds,
    }
    return finite(row)  # type: ignore[no-any-return]
