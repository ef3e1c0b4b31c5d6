"""Adversaries who know every training record but one: who is left out, and what they then hold."""

from __future__ import annotations

import copy
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch
from torch import nn

from remnant.attacks import Attack
from remnant.attacks.informed import Informed, batched
from remnant.attacks.outcome import status_of
from remnant.auditing.case import Case
from remnant.errors import InputError, expected
from remnant.models import load_weights
from remnant.models.linear_estimators import from_estimator, recipe
from remnant.models.linear_files import LinearModel, linear_target
from remnant.seeds import generator_for
from remnant.training import train
from remnant.training.fleet import FixedStep, rows_of
from remnant.types import Candidates, Examples, Knowledge, Status, Target

Targets = int | tuple[str, ...] | None
LINEAR = "it is a linear model, without hidden layers"
REFITS = 3  # records of a linear model that are looked for through its solver, if need be


def chosen_rows(case: Case, targets: Targets, most: int, seed: int) -> list[int]:
    """Rows of the records to leave out in turn: those named, or as many as asked, by the seed."""
    ids = case.truth.ids
    if isinstance(targets, tuple):
        missing = [name for name in targets if name not in ids]
        if missing:
            raise InputError(expected("targets", "ids of records", repr(missing[0])))
        return [ids.index(name) for name in dict.fromkeys(targets)]
    order = torch.randperm(len(ids), generator=generator_for(seed, "left out"))
    return order[: most if targets is None else targets].tolist()


def last_alone(case: Case) -> bool:
    """Whether only the last record can be left out: mini-batches are drawn by position."""
    known = case.target.knowledge.recipe
    return isinstance(known, FixedStep) and batched(known)


def informed_rows(case: Case, targets: Targets, most: int, seed: int) -> list[int]:
    if not last_alone(case):
        return chosen_rows(case, targets, most, seed)
    last = len(case.truth) - 1
    if isinstance(targets, tuple) and targets != case.truth.ids[last:]:
        do = "mini-batches are replayed with the unknown record at the end of the data"
        wanted = f"the last record alone, {case.truth.ids[last]}"
        raise InputError(expected("targets of informed", wanted, ", ".join(targets[:5]), do))
    return [last]


def others(truth: Examples, row: int) -> Examples:
    return truth.take([i for i in range(len(truth)) if i != row])


def without_informed(case: Case, rows: Sequence[int]) -> Iterator[Target]:
    held = replace(case.target.knowledge, labels=None, records=len(case.truth))
    for row in rows:
        yield replace(case.target, knowledge=replace(held, known=others(case.truth, row)))


def without_linear(case: Case, rows: Sequence[int]) -> Iterator[Target]:
    """The label is told only where nothing else could give the record: no intercept, no classes."""
    model = case.target.model
    assert isinstance(model, LinearModel)
    told = model.dense.bias is None and not model.classes
    again = recipe(model) if model.solver else None
    for k, row in enumerate(rows):
        yield linear_target(
            model,
            _flat(others(case.truth, row)),
            records=len(case.truth),
            labels=case.truth.labels[row : row + 1] if told else None,
            recipe=again if k < REFITS else None,
        )


def _flat(examples: Examples) -> Examples:
    return replace(examples, inputs=examples.inputs.flatten(1))


def joined(case: Case, rows: Sequence[int], found: Sequence[Candidates]) -> Candidates:
    """The best candidate for each record that was left out, in the order of figures["targets"].

    Records without a candidate come last there.
    """
    order = sorted(range(len(found)), key=lambda k: not len(found[k]))
    some = [found[k] for k in order if len(found[k])]
    passed = [bool(part.figures.get("certified")) for part in some]
    count, certified = len(rows), sum(passed)
    statuses = {part.status for part in found}
    labels = [part.labels for part in some if part.labels is not None]
    best = [part.inputs[0].reshape(case.truth.shape) for part in some]
    return Candidates(
        inputs=torch.stack(best) if best else torch.zeros(0, *case.truth.shape),
        confidence=torch.tensor([float(part.confidence[0]) for part in some]),
        labels=torch.cat([part[:1] for part in labels]) if len(labels) == len(some) > 0 else None,
        status=Status.NOT_APPLICABLE
        if statuses == {Status.NOT_APPLICABLE}
        else status_of(certified, count),
        reason=_words(found, certified, len(case.truth)),
        figures={
            "targets": [case.truth.ids[rows[k]] for k in order],
            "certified": certified,
            "passed": passed,
            "error": [(part.figures.get("error") or [None])[0] for part in some],
            "reasons": [found[k].reason for k in order],
        },
    )


def _words(found: Sequence[Candidates], certified: int, records: int) -> str:
    count = len(found)
    said = f"of {records} records {count} were left out in turn, {certified} of them certified"
    rest = [part.reason for part in found if not part.figures.get("certified")]
    return f"{said}; {'another' if certified else 'the first'}: {rest[0]}" if rest else said


def twin_of_run(case: Case, attack: Attack, generator: torch.Generator) -> tuple[Target, Examples]:
    """The same run, by the same recipe from the same weights, on other records."""
    strangers = case.strangers
    model = copy.deepcopy(case.target.model)
    known = case.target.knowledge
    assert known.initial is not None
    assert isinstance(known.recipe, FixedStep)
    assert isinstance(attack, Informed)
    load_weights(model, dict(known.initial))
    trained = train(
        model, strangers, known.recipe, scaling=case.target.scaling, generator=attack.order()
    )
    held = Knowledge(initial=trained.initial, recipe=known.recipe, loss=case.loss)
    return replace(case.target, model=trained.model, knowledge=held), strangers


def twin_of_linear(
    case: Case, attack: Attack, generator: torch.Generator
) -> tuple[Target, Examples]:
    """The same family and penalty, fitted by scikit-learn until it converged, on other records."""
    from sklearn import linear_model as sk

    model, strangers = case.target.model, case.strangers
    assert isinstance(model, LinearModel)
    penalty = max(model.penalty, 1e-3) * (len(strangers) if model.penalty_per == "record" else 1)
    to_the_end: dict[str, Any] = {"solver": "newton-cholesky", "tol": 1e-12, "max_iter": 10_000}
    if model.family == "linear":
        made = sk.Ridge(alpha=penalty)
    elif model.family == "poisson":
        made = sk.PoissonRegressor(alpha=penalty / len(strangers), **to_the_end)
    else:
        made = sk.LogisticRegression(C=1 / penalty, **to_the_end)
    inputs = model.scaling.to_model(strangers.inputs.double()).flatten(1).numpy()
    made.fit(inputs, np.asarray(strangers.labels))
    twin = from_estimator(made, scaling=model.scaling)
    return linear_target(twin, _flat(strangers)), strangers


def steps_of(case: Case) -> int:
    """Steps of the known run, 0 where there is none."""
    known = case.target.knowledge.recipe
    if not isinstance(known, FixedStep):
        return 0
    return len(rows_of(known, len(case.truth), torch.Generator()))


def why_not_informed(case: Case, attack: Attack) -> str | None:
    assert isinstance(attack, Informed)
    if isinstance(case.target.model, LinearModel):
        return LINEAR
    if case.target.knowledge.recipe is None:
        return "the training recipe was not given"
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in case.target.model.modules()):
        return "batch norm: what a batch's own statistics did in training is not replayed"
    if case.truth.labels.is_floating_point():
        return "labels are numbers, not classes: replay finds inputs, not targets"
    if len(case.truth) < 2:
        return "with one record there is none that is known"
    return attack.unmet(next(without_informed(case, [len(case.truth) - 1]))) or None


def why_not_linear(case: Case, attack: Attack) -> str | None:
    if not isinstance(case.target.model, LinearModel):
        return "it is no linear model"
    return "with one record there is none that is known" if len(case.truth) < 2 else None
