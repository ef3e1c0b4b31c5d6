"""Adversaries who know all records but one, inside an audit: who is tried, how it is scored."""

import functools
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from sklearn.linear_model import LinearRegression, LogisticRegression

from remnant.attacks import GLM, Informed
from remnant.auditing import Case, Plan, assess, audit, preflight
from remnant.auditing.fitting import fit_of_records, margins
from remnant.auditing.playing import OutOfTimeError, Stage, at_most, play, rows_left_out
from remnant.auditing.strangers import strangers_of
from remnant.data import load, split
from remnant.errors import InputError
from remnant.models import build
from remnant.models.linear_estimators import from_estimator
from remnant.progress import listening, task
from remnant.store import open_run
from remnant.training import SGD, GradientDescent, train
from remnant.types import Candidates, Knowledge, Scaling, Stated, Status, Target
from seeding import seeded

DIGITS = split(load("digits"), train=20, public=None, holdout=60, seed=0)
CANCER = split(load("breast_cancer"), train=60, public=None, holdout=60, seed=0)
RECIPE = GradientDescent(lr=0.2, momentum=0.9, steps=10)
QUICK = {"informed": {"replaying": {"evaluations": 25, "label_evaluations": 5, "labels_tried": 2}}}
SCALING = Scaling(mean=DIGITS.public.inputs.mean(0))


@functools.cache
def replayable(recipe=RECIPE, noise=0.0):
    model = build("mlp:64-8-10:elu", generator=seeded(1))
    trained = train(model, DIGITS.train, recipe, scaling=SCALING, generator=seeded(4))
    with torch.no_grad():
        for parameter in trained.model.parameters():
            parameter += noise * torch.randn(parameter.shape, generator=seeded(5))
    known = Knowledge(initial=trained.initial, recipe=recipe)
    return Target(model=trained.model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)


def linear(estimator, sides=CANCER, **changes):
    fitted = estimator.fit(standard(sides.train).inputs.numpy(), sides.train.labels.numpy())
    model = from_estimator(fitted, **changes)
    return Target(model=model, input_shape=sides.train.shape, bounds=None)


def standard(examples, sides=CANCER):
    mean, std = sides.public.inputs.mean(0), sides.public.inputs.std(0)
    return replace(examples, inputs=(examples.inputs - mean) / std)


def audited(target, sides, *, of=lambda examples: examples, **plan):
    held = {name: of(getattr(sides, name)) for name in ("holdout", "public")}
    return audit(target, of(sides.train), **held, plan=Plan(**plan))


def test_the_informed_adversary_gets_the_records_that_are_left_out():
    ids = DIGITS.train.ids[3:5]
    result = audited(replayable(), DIGITS, attacks=("informed",), settings=QUICK, targets=ids)
    assert result.verdict == "exposed"
    assert "2 of 20 training records" in result.sentence
    assert "only 2 were tried" in result.sentence
    (row,) = result.attacks
    assert row.reason.startswith("2 of 2 records tried recovered")
    assert row.finding.stated.targets == list(ids)
    assert {record["id"] for record in result.exposed} == set(ids)
    for record in row.finding.per_record:
        assert record["found_label"] == record["label"]
        assert record["squared_l2"] < 1e-3 < record["public_squared_l2"]
    assert set(row.finding.nulls) >= {"held_out", "nearest_public"}


def test_noise_in_the_weights_is_inconclusive_and_the_control_was_run():
    result = audited(
        replayable(noise=0.05), DIGITS, attacks=("informed",), settings=QUICK, targets=1
    )
    assert result.verdict == "inconclusive"
    (row,) = result.attacks
    assert row.control.recovered == row.control.records == 1
    assert "noise may have been added" in row.reason


def case_of(target, sides=DIGITS, loss="ce"):
    return Case(
        target=target, truth=sides.train, holdout=sides.holdout, public=sides.public, loss=loss
    )


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"recipe": None}, "the training recipe was not given"),
        ({"initial": None}, "the weights before training are unknown"),
        ({"recipe": replace(RECIPE, stop_loss=0.1)}, "a fixed number of steps"),
        ({"recipe": SGD(lr=0.1, epochs=2, batch_size=5)}, "the order of mini-batches is unknown"),
    ],
)
def test_preflight_says_why_it_does_not_apply(change, why):
    target = replayable()
    target = replace(target, knowledge=replace(target.knowledge, **change))
    (row,) = preflight(case_of(target), attacks=("informed",))
    assert not row["applies"]
    assert why in row["why"]


def test_preflight_tells_the_cost_of_every_record_that_is_left_out():
    one, four = (
        preflight(case_of(replayable()), attacks=("informed",), targets=k)[0] for k in (1, 4)
    )
    assert one["applies"]
    assert four["seconds"] > 1.5 * one["seconds"] > 0


def test_mini_batches_leave_out_the_last_record_alone():
    recipe = SGD(lr=0.1, epochs=2, batch_size=5)
    case = case_of(replayable(recipe))
    leave = Informed.about.leave_one
    assert rows_left_out(case, leave, None, 0) == [19]
    assert rows_left_out(case, leave, (DIGITS.train.ids[19],), 0) == [19]
    with pytest.raises(InputError, match="the last record alone"):
        rows_left_out(case, leave, (DIGITS.train.ids[0],), 0)
    settings = {"informed": {**QUICK["informed"], "order_seed": 4}}
    result = audited(replayable(recipe), DIGITS, attacks=("informed",), settings=settings)
    assert [row["id"] for row in result.exposed] == [DIGITS.train.ids[19]]


def test_who_is_left_out_is_drawn_by_the_seed_or_named():
    case = case_of(replayable())
    leave = Informed.about.leave_one
    drawn = rows_left_out(case, leave, None, 0)
    assert drawn == rows_left_out(case, leave, 3, 0) != rows_left_out(case, leave, 3, 1)
    assert len(set(rows_left_out(case, leave, 500, 0))) == 20
    assert rows_left_out(case, leave, (case.truth.ids[7],), 0) == [7]
    with pytest.raises(InputError, match="ids of records, got 'nobody'"):
        rows_left_out(case, leave, ("nobody",), 0)
    with pytest.raises(InputError, match="ids of records, got 'nobody'"):
        preflight(case, attacks=("kkt",), targets=("nobody",))  # though nobody is left out


def test_a_known_record_that_comes_back_for_another_is_not_recovered():
    """The adversary knew it. Free matching would have counted it."""
    first, second = DIGITS.train.take([0, 1]).inputs
    swapped = Candidates(
        inputs=torch.stack([second, first]),
        confidence=torch.ones(2),
        status=Status.INCONCLUSIVE,
        reason="",
        stated=Stated(targets=list(DIGITS.train.ids[:2])),
    )
    same = {
        "attack": "informed", "truth": DIGITS.train, "holdout": DIGITS.holdout,
        "public": DIGITS.public,
    }  # fmt: skip
    found = assess(swapped, **same, generator=seeded())
    assert (found.records, found.recovered, found.summary["recovered"]) == (2, 0, 0)
    right = assess(replace(swapped, inputs=swapped.inputs.flip(0)), **same, generator=seeded())
    assert right.recovered == right.summary["recovered"] == 2
    assert right.summary["excess"]["held_out"]["records"] == 2
    alone = assess(
        replace(swapped, inputs=first[None], confidence=torch.ones(1)), **same, generator=seeded()
    )
    assert (alone.recovered, alone.summary["matched"]) == (1, 1)
    by_id = {row["id"]: row for row in alone.per_record}
    assert by_id[DIGITS.train.ids[1]]["candidate"] is None
    for finding in (found, right, alone):  # nulls keep the order of the records
        for row, distance in zip(
            finding.per_record, finding.nulls["nearest_public"]["squared_l2"], strict=True
        ):
            assert row["public_squared_l2"] == distance


CONVERGED = LogisticRegression(solver="newton-cholesky", tol=1e-10)


def test_every_record_of_a_linear_model_comes_back_with_its_label():
    result = audited(linear(CONVERGED), CANCER, of=standard, attacks=("glm",))
    assert result.verdict == "exposed"
    (row,) = result.attacks
    assert row.finding.records == 60
    assert len(result.exposed) >= 55
    agree = [record["found_label"] == record["label"] for record in row.finding.per_record]
    assert sum(agree) >= 55


@pytest.mark.parametrize(
    ("estimator", "labels"), [(CONVERGED, "classes"), (LinearRegression(), "numbers")]
)
def test_the_twin_of_a_linear_model_leaks(tmp_path, estimator, labels):
    target = linear(estimator)
    held = {name: standard(getattr(CANCER, name)) for name in ("holdout", "public")}
    case = Case(target=target, truth=standard(CANCER.train), loss="mse", **held)
    strangers = case.strangers
    twin = GLM().twin(case.scene, strangers, seeded())
    swapped = replace(case, target=twin, truth=strangers, holdout=case.truth, public=case.truth)
    run = open_run(tmp_path / "run", {})
    plan, others = Plan(targets=20), strangers_of(swapped)
    found = play(Stage(case=swapped, strangers=others, plan=plan, run=run), "glm", GLM())
    score = assess(
        found, attack="glm", truth=strangers, holdout=case.truth, public=case.truth,
        generator=seeded(),
    )  # fmt: skip
    assert score.recovered >= 18


def test_a_linear_model_of_other_records_is_not_exposed():
    others = replace(CANCER, train=CANCER.holdout)
    target = linear(LinearRegression(), others)
    result = audited(target, replace(CANCER, holdout=CANCER.public), of=standard, attacks=("glm",),
                     targets=10)  # fmt: skip
    assert result.verdict != "exposed", result.sentence
    assert not result.exposed


def test_margins_and_losses_are_the_model_s():
    outputs = torch.tensor([[1.0, 3.0, 0.5], [2.0, 1.0, 0.0]])
    assert margins(outputs, torch.tensor([1, 2])).tolist() == [2.0, -2.0]
    assert margins(torch.tensor([[1.0], [1.0]]), torch.tensor([1, 0])).tolist() == [1.0, -1.0]
    case = case_of(replayable())
    told = fit_of_records(case)
    with torch.no_grad():
        outputs = case.target.model(SCALING.to_model(DIGITS.train.inputs))
    losses = torch.nn.functional.cross_entropy(outputs, DIGITS.train.labels, reduction="none")
    assert torch.allclose(torch.tensor([row["loss"] for row in told.values()]), losses, atol=1e-5)
    cancer = linear(CONVERGED)
    fit = fit_of_records(
        Case(target=cancer, truth=standard(CANCER.train), holdout=standard(CANCER.holdout),
             public=standard(CANCER.public), loss="ce")
    )  # fmt: skip
    right = [row["margin"] > 0 for row in fit.values()]
    score = CONVERGED.score(standard(CANCER.train).inputs.numpy(), CANCER.train.labels.numpy())
    assert sum(right) / len(right) == pytest.approx(score)


def test_a_budget_ends_work_at_a_step_and_progress_is_still_heard():
    heard = []

    def listener(name, total):
        heard.append(name)
        return lambda amount=1.0, note="": heard.append(amount), lambda: heard.append("end")

    def work():
        with task("work", 3) as step:
            for _ in range(3):
                step()

    with listening(listener):
        with at_most(None):
            work()
        with at_most(1000.0):
            work()
        with pytest.raises(OutOfTimeError), at_most(-1.0):
            work()
    whole = ["work", 1.0, 1.0, 1.0, "end"]
    assert heard == [*whole, *whole, "work", 1.0, "end"]


def test_an_audit_that_runs_out_of_time_is_inconclusive(tmp_path: Path):
    run = open_run(tmp_path / "run", {})
    from remnant.auditing.run import run_audit

    plan = Plan(attacks=("informed",), settings=QUICK, budget=1e-6)
    result = run_audit(case_of(replayable()), plan, run)
    assert result.verdict == "inconclusive"
    assert "s are left" in result.attacks[0].reason
