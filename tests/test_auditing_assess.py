"""Candidates and truth together: units of a table, nulls beside scores, findings without truth."""

import torch

from remnant.attacks.outcome import in_box, status_of
from remnant.auditing import assess, without_truth
from remnant.data import load, split
from remnant.types import Candidates, Stated, Status
from seeding import seeded


def exact_candidates(inputs):
    return Candidates(
        inputs=inputs,
        confidence=torch.ones(len(inputs)),
        status=Status.COMPLETE,
        reason="copied",
        stated=Stated(counted=len(inputs)),
    )


def test_a_table_is_scored_in_units_of_its_spread():
    sides = split(load("breast_cancer"), train=20, public=None, holdout=20, seed=0)
    finding = assess(
        exact_candidates(sides.train.inputs),
        attack="ntk",
        truth=sides.train,
        holdout=sides.holdout,
        public=sides.public,
        generator=seeded(),
    )
    assert finding.recovered == finding.counted == 20
    # Raw features correlate above 0.9 for any two patients: that null would recover all.
    assert finding.nulls["held_out"]["recovered"] < 5
    assert finding.nulls["nearest_public"]["recovered"] < 10


def test_without_truth_there_are_candidates_and_no_scores():
    finding = without_truth(exact_candidates(torch.rand(3, 4)), attack="ntk")
    assert (finding.records, finding.recovered, finding.counted) == (None, None, 3)
    assert [row["confidence"] for row in finding.per_record] == [1.0] * 3


def test_a_box_and_a_status():
    data = torch.tensor([[0.0, 1.04], [0.5, 0.5], [-0.2, 0.5]])
    assert in_box(data, (0.0, 1.0)).tolist() == [True, True, False]
    assert in_box(data, None).tolist() == [True, True, True]
    assert [status_of(k, 3) for k in (3, 1, 0)] == [
        Status.COMPLETE,
        Status.PARTIAL,
        Status.INCONCLUSIVE,
    ]
