"""Studies of final weights: what a record is ranked by, and how records are counted."""

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.experiments import paper_004 as studies
from remnant.experiments.targets import above


@pytest.fixture(scope="module")
def digits():
    return load("digits")


def test_a_broken_assumption_is_measured_beside_the_stationarity(digits):
    (row,) = studies.measure_target(
        digits, case="small first layer", records=6, width=20, starts=2, steps=5, seed=7
    )
    assert row["residual"] is None  # it was trained without decay
    assert len(row["cosine"]) == 3
    assert 0 <= row["share"] <= 1
    assert row["errors"] == 0


def test_what_a_record_is_ranked_by(digits):
    shared = {"records": 10, "width": 30, "seed": 1, "weight_decay": 0.01}
    victim = studies.make_victim(digits, decay_time=3.0, **shared)
    margin = studies.hardness(victim)
    outputs = victim.target.model(victim.target.scaling.to_model(victim.truth.inputs))
    top = outputs.topk(2, dim=1).values
    assert (margin > 0).all()  # it fits its records
    torch.testing.assert_close(margin.float(), (top[:, 0] - top[:, 1]).detach())
    report = studies.stationarity(victim)
    early = studies.make_victim(digits, decay_time=0.05, **shared)
    assert max(report["residual"]) < min(studies.stationarity(early)["residual"])
    assert min(report["cosine"]) > 0.8
    assert 0 <= report["kinks"] <= 1


def test_counts_are_one_to_one(digits):
    truth = digits.take(range(4))
    assert above(truth, truth.inputs, 0.9) == 4
    assert above(truth, truth.inputs[:1].repeat(4, 1, 1, 1), 0.999) == 1


def test_two_classes_follow_the_loss_and_the_kind_of_images(digits):
    shared = {"records": 4, "width": 10, "seed": 1, "decay_time": 0.01}
    two = studies.make_victim(digits, loss="bce", **shared)
    assert set(two.truth.labels.tolist()) == {0, 1}
    both = studies.make_victim(digits, loss="ce", task="odd-even", **shared)
    assert torch.equal(two.truth.labels, both.truth.labels)
    assert both.target.model(both.target.scaling.to_model(both.truth.inputs)).shape == (4, 2)
    with pytest.raises(InputError, match="--task"):
        studies.make_victim(digits, loss="mse", task="classes", **shared)


def test_counts_by_correlation_and_by_the_papers_score(digits):
    victim = studies.make_victim(digits, records=6, width=10, seed=1, decay_time=0.01)
    assert studies.counts(victim, victim.truth.inputs) == {"": 6, "_above_0.8": 6, "_good": 6}
    noise = torch.rand(6, 1, 8, 8, generator=torch.Generator().manual_seed(0))
    assert studies.counts(victim, noise)[""] == 0


def test_exposure_stands_beside_held_out_records():
    rows = studies.measure_exposure(
        load("digits"), records=4, width=24, starts=1, steps=5, seed=0, loss="ce"
    )
    assert len(rows) == 4
    assert all(0 < row["null_correlation"] <= 1 for row in rows)
