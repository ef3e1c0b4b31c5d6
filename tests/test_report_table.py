import pytest
import torch

from remnant.report.table import record_table

KNOWN = torch.tensor([[41.0, 1.0, 3.5, 0.0], [30.0, 2.0, 1.25, 1.0]])


def test_whole_numbers_are_rounded_and_checked():
    rows = record_table(
        [41.02, 1.04, 3.4999, 2.0],
        true=[41, 1, 3.5, 0],
        features=["age", "floors", "height"],
        known=KNOWN,
    )
    assert [row.feature for row in rows] == ["age", "floors", "height", "feature 4"]
    assert [row.recovered for row in rows] == ["41", "1", "3.4999", "2"]
    assert [row.true for row in rows] == ["41", "1", "3.5", "0"]
    assert [row.agrees for row in rows] == [True, True, True, False]
    assert all(row.clear for row in rows)


@pytest.mark.parametrize(
    ("value", "known", "shown"),
    [(2.5, torch.ones(3, 1), "2"), (float("nan"), None, "unknown")],
)
def test_what_cannot_be_a_value_is_unclear(value, known, shown):
    (row,) = record_table([value], known=known)
    assert not row.clear
    assert row.recovered == shown


def test_numbers_agree_within_a_hundredth_of_size_or_spread():
    known = torch.tensor([[0.5, 0.5, 0.5]]) + torch.tensor([[-1.0], [0.0], [1.0]])
    rows = record_table([0.005, 0.02, 101.1], true=[0.0, 0.0, 100.0], known=known)
    assert [row.agrees for row in rows] == [True, False, False]


def test_without_truth_nothing_is_said_to_agree():
    rows = record_table([1.5, 2.0], features=["a", "longer name"])
    assert [(row.feature, row.agrees) for row in rows] == [("a", None), ("longer name", None)]
