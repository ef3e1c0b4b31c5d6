"""Studies of final weights: what a record is ranked by, and how records are counted."""

import pytest
import torch

from remnant.data import load
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
