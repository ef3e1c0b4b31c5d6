"""Short trainings of a known recipe: all records by replay, where no rank gap shows them."""

from dataclasses import replace

import pytest
import torch

from remnant.attacks import NTK
from remnant.attacks.ntk_replay import label_counts, replay_records, why_no_replay
from remnant.data import load
from remnant.models import build
from remnant.solvers.replay.ways import ReplaySettings
from remnant.training import SGD, Adam, GradientDescent, train
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded

MOMENTUM = GradientDescent(lr=0.05, momentum=0.9, steps=5)
CONVOLUTION_FIRST = "cnn:1x8x8-c4k3-16-10:elu"


def short_target(spec=CONVOLUTION_FIRST, recipe=MOMENTUM, rows=(10, 11), told=True, coarse=False):
    examples = load("digits")
    truth, scaling = examples.take(rows), Scaling(mean=examples.inputs[500:].mean(0))
    model = build(spec, generator=seeded(1), dtype=torch.float64)
    trained = train(model, truth, recipe, scaling=scaling, generator=seeded(0))
    released = trained.model.to(torch.bfloat16).double() if coarse else trained.model
    knowledge = Knowledge(
        initial=trained.initial,
        records=len(truth),
        labels=truth.labels if told else None,
        recipe=recipe,
    )
    target = Target(
        model=released, input_shape=examples.shape, scaling=scaling, knowledge=knowledge
    )
    return target, truth


def errors(truth, found):
    return torch.cdist(truth.inputs.flatten(1), found.inputs.flatten(1)).square().min(1).values


def test_auto_replays_where_a_convolution_comes_first():
    target, truth = short_target()
    found = NTK()(target, generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert found.reason.startswith("not exact, since the model must begin with dense layers")
    assert "instead replay of 5 steps: the run with them leaves" in found.reason
    assert found.stated.certified == 2
    assert errors(truth, found).max() < 1e-8


def test_why_it_did_not_replay_is_said_too():
    target, _ = short_target()
    longer = replace(target.knowledge, recipe=replace(MOMENTUM, steps=500), records=None)
    longer = replace(longer, labels=None)
    found = NTK()(replace(target, knowledge=longer), generator=seeded(0))
    assert not len(found)
    assert "(nor by replay: 500 steps are too many to replay (at most 60))" in found.reason


def test_classes_are_read_off_the_bias_where_they_are_not_told():
    target, truth = short_target("mlp:64-32-10:elu", rows=(10, 11, 12), told=False)
    counts = label_counts(target, MOMENTUM, 3)
    assert counts.tolist() == truth.labels.bincount(minlength=10).tolist()
    found = replay_records(target, generator=seeded(0), restarts=2)
    assert "classes read off the output's bias" in found.reason
    assert found.status is Status.COMPLETE, found.reason
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())
    assert errors(truth, found).max() < 1e-8


def test_rounded_weights_are_not_matched_and_nothing_is_claimed():
    target, _ = short_target("mlp:64-24-24-10:elu", coarse=True)
    settings = ReplaySettings(evaluations=30)
    found = replay_records(target, generator=seeded(0), restarts=1, settings=settings)
    assert found.status is Status.INCONCLUSIVE
    assert "the run was not matched" in found.reason
    assert found.stated.certified == 0


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"recipe": None}, "the recipe is unknown"),
        ({"recipe": replace(MOMENTUM, stop_loss=0.1)}, "a fixed number of steps"),
        ({"recipe": SGD(lr=0.1, epochs=2, batch_size=2)}, "mini-batches is unknown"),
        ({"recipe": replace(MOMENTUM, steps=500)}, "500 steps are too many"),
        ({"labels": None, "records": None}, "the number of records is unknown"),
        ({"labels": torch.zeros(40, dtype=torch.long)}, "40 records are too many"),
        ({"labels": None, "recipe": Adam(steps=3)}, "only after cross-entropy and gradient"),
    ],
)
def test_what_a_replay_lacks_is_said(change, said):
    target, _ = short_target("mlp:64-8-10:elu")
    assert why_no_replay(target) == ""
    known = replace(target.knowledge, **change)
    assert said in why_no_replay(replace(target, knowledge=known))
