"""The verdict is right on small targets whose truth is known."""

import dataclasses
import tempfile
from pathlib import Path

import pytest
import torch
from torch import nn

from remnant.auditing import Case, Plan, audit
from remnant.auditing.run import run_audit
from remnant.auditing.verdict import exposed_records, judge, overall
from remnant.bounds import Ledger
from remnant.bundle import Attacked, Control, Verdict
from remnant.capturing import capture
from remnant.data import load, split
from remnant.errors import InputError
from remnant.models import build
from remnant.store import open_run
from remnant.training import Adam, GradientDescent, train
from remnant.types import Finding, Knowledge, Scaling, Target


def seeded(seed=0):
    return torch.Generator().manual_seed(seed)


SIDES = split(load("digits"), train=12, public=None, holdout=200, seed=0)
OTHERS = split(load("digits"), train=12, public=None, holdout=200, seed=5).train
SCALING = Scaling(mean=SIDES.public.inputs.mean(0))
GD = GradientDescent(lr=0.1, momentum=0.9, steps=2000, stop_loss=0.02)


def trained(recipe=GD, *, on=SIDES.train, model="mlp:64-192-192-10", seed=1):
    network = build(model, generator=seeded(seed)) if isinstance(model, str) else model
    result = train(network, on, recipe, scaling=SCALING, generator=seeded(2))
    known = Knowledge(initial=result.initial)
    return Target(model=result.model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)


def gradient_target(on=SIDES.train, *, change=lambda g: g):
    model = build("mlp:64-128-128-10", generator=seeded(1))
    gradient = capture(model, "ce", (SCALING.to_model(on.inputs), on.labels))
    known = Knowledge(gradient={name: change(g) for name, g in gradient.items()})
    return Target(model=model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)


def shuffled(target):
    """The same numbers in each layer, in another order: nothing of the data is left."""
    model = build("mlp:64-192-192-10", generator=seeded(1))
    with torch.no_grad():
        for mine, theirs in zip(model.parameters(), target.model.parameters(), strict=True):
            order = torch.randperm(mine.numel(), generator=seeded(9))
            mine.copy_(theirs.flatten()[order].reshape(mine.shape))
    return dataclasses.replace(target, model=model)


def with_batch_norm():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 64), nn.BatchNorm1d(64), nn.ReLU(), nn.Linear(64, 10)
    )


def large_noise(g):
    return g + g.std() * torch.randn(g.shape, generator=seeded(3))


CASES = {
    "trained on them": (lambda: trained(), "exposed"),
    "mini-batch stop": (lambda: trained(dataclasses.replace(GD, stop_loss=0.2)), "exposed"),
    "square loss": (lambda: trained(dataclasses.replace(GD, loss="mse", lr=0.02)), "exposed"),
    "gradient of them": (lambda: gradient_target(), "exposed"),
    "gradient, rounded": (lambda: gradient_target(change=lambda g: g.half().float()), "exposed"),
    "trained on others": (lambda: trained(on=OTHERS), "not exposed"),
    "gradient of others": (lambda: gradient_target(OTHERS), "not exposed"),
    "adam": (lambda: trained(Adam(steps=300)), "inconclusive"),
    "shuffled weights": (lambda: shuffled(trained()), "inconclusive"),
    "noisy gradient": (lambda: gradient_target(change=large_noise), "inconclusive"),
    "not trained": (lambda: trained(dataclasses.replace(GD, steps=1, lr=1e-30)), "inconclusive"),
    "batch norm": (lambda: trained(Adam(steps=200), model=with_batch_norm()), "inconclusive"),
}


@pytest.mark.parametrize("name", CASES)
def test_the_verdict_is_right_where_the_truth_is_known(name):
    make, wanted = CASES[name]
    plan = Plan(attacks=("ntk", "gradient"))
    result = audit(make(), SIDES.train, holdout=SIDES.holdout, public=SIDES.public, plan=plan)
    assert result.verdict == wanted, result.sentence
    assert bool(result.exposed) == (wanted == "exposed")
    if wanted == "exposed":
        assert {row["id"] for row in result.exposed} <= set(SIDES.train.ids)


def test_a_promise_stands_beside_the_measurement_and_a_broken_one_is_loud():
    """A ledger that claims much privacy for training that had none."""
    case = Case(
        target=trained(),
        truth=SIDES.train,
        holdout=SIDES.holdout,
        public=SIDES.public,
        loss="ce",
        ledger=Ledger(noise_multiplier=20.0, steps=2),
    )
    with tempfile.TemporaryDirectory() as folder:
        run = open_run(Path(folder) / "audit", {"verb": "audit"})
        result = run_audit(case, Plan(attacks=("ntk",)), run)
    (attacked,) = result.attacks
    assert attacked.bound["violated"]
    assert attacked.reason.startswith("ACCOUNTING ERROR")
    assert attacked.bound["gamma"]["tight"] <= attacked.bound["gamma"]["renyi"] + 1e-9
    assert attacked.bound["kappa"] <= attacked.bound["gamma"]["tight"] < 0.8


def row(correlation, distance):
    return {
        "id": "a",
        "label": 0,
        "recovered": correlation > 0.9,
        "correlation": correlation,
        "squared_l2": distance,
        "confidence": 1.0,
    }


def finding(rows, null, status="complete"):
    return Finding(
        attack="ntk",
        status=status,
        reason="seen",
        counted=len(rows),
        records=len(rows),
        recovered=sum(r["recovered"] for r in rows),
        threshold=0.9,
        per_record=rows,
        nulls={"held_out": {"squared_l2": null, "recovered": 0}},
        summary={"candidates": len(rows)},
    )


LEAKS = Control(recovered=5, records=5, status="complete", reason="")
FAILS = Control(recovered=0, records=5, status="inconclusive", reason="nothing")


@pytest.mark.parametrize(
    ("found", "control", "wanted"),
    [
        (finding([row(0.95, 1.0)], [2.0]), LEAKS, Verdict.NOT_EXPOSED),  # one alike may be chance
        (finding([row(0.95, 0.01)], [2.0]), None, Verdict.EXPOSED),  # none is that near by chance
        (finding([row(0.95, 1.0)] * 30, [2.0] * 30), None, Verdict.EXPOSED),
        (finding([row(0.95, 3.0)] * 30, [2.0] * 30), LEAKS, Verdict.NOT_EXPOSED),  # nulls nearer
        (finding([row(0.5, 3.0)], [2.0]), FAILS, Verdict.INCONCLUSIVE),
        (finding([row(0.5, 3.0)], [2.0]), None, Verdict.INCONCLUSIVE),
        (finding([row(0.5, 3.0)], [2.0], "not applicable"), None, Verdict.NOT_APPLICABLE),
    ],
)
def test_judging(found, control, wanted):
    assert judge(found, control)[0] is wanted


def test_a_record_counts_only_if_it_is_nearer_than_every_null():
    both = finding([row(0.99, 1.0), row(0.99, 1.0)], [0.5, 2.0])
    assert exposed_records(both) == [both.per_record[1]]


def test_not_exposed_needs_every_attack_to_fail_where_it_could_succeed():
    def attacked(verdict):
        return Attacked(
            attack="ntk", title="T", holds="h", settings={}, verdict=verdict, reason="r"
        )

    safe, unsure = attacked(Verdict.NOT_EXPOSED), attacked(Verdict.INCONCLUSIVE)
    assert overall([safe], 5)[0] is Verdict.NOT_EXPOSED
    assert overall([safe, unsure], 5)[0] is Verdict.INCONCLUSIVE
    assert overall([attacked(Verdict.NOT_APPLICABLE)], 5)[0] is Verdict.INCONCLUSIVE


def test_a_wrong_mean_is_never_not_exposed():
    """The records came back, but for a shift: silence about them would be a false all-clear."""
    target = dataclasses.replace(trained(), scaling=Scaling())
    plan = Plan(attacks=("ntk",))
    result = audit(target, SIDES.train, holdout=SIDES.holdout, public=SIDES.public, plan=plan)
    assert result.verdict != "not exposed"


def test_a_single_record_is_not_hidden_by_noise_in_its_own_span():
    one = SIDES.train.take([0])
    plan = Plan(attacks=("ntk",))
    target = trained(on=SIDES.train.take(range(8)))
    result = audit(target, one, holdout=SIDES.holdout, public=SIDES.public, plan=plan)
    assert result.verdict == "exposed", result.sentence


def test_near_copies_in_the_holdout_are_refused():
    copies = dataclasses.replace(SIDES.holdout, inputs=SIDES.holdout.inputs.clone())
    copies.inputs[:3] = SIDES.train.inputs[:3] + 1e-5
    with pytest.raises(InputError, match="3 of the training set's"):
        Case(target=trained(), truth=SIDES.train, holdout=copies, public=SIDES.public, loss="ce")


def test_an_empty_id_is_refused():
    """Nobody could say which record is exposed."""
    ids = (*SIDES.train.ids[:-1], " ")
    nameless = dataclasses.replace(SIDES.train, ids=ids)
    with pytest.raises(InputError, match="ids of truth: expected a text each, got an empty one in"):
        Case(
            target=trained(), truth=nameless, holdout=SIDES.holdout, public=SIDES.public, loss="ce"
        )
