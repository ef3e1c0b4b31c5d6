import pytest

from remnant.report.table import kinds_of, record_table


def test_whole_numbers_are_rounded_and_checked():
    table = record_table(
        [41.02, 1.04, 3.4999, 2.0],
        true=[41, 1, 3.5, 0],
        features=["age", "floors", "height", "rooms"],
        kinds=["integer", "integer", "number", "integer"],
    )
    assert [row.recovered for row in table.rows] == ["41", "1", "3.4999", "2"]
    assert [row.true for row in table.rows] == ["41", "1", "3.5", "0"]
    assert [row.agrees for row in table.rows] == [True, True, True, False]
    assert table.agreeing == 3
    assert all(row.clear for row in table.rows)


@pytest.mark.parametrize(
    ("value", "kind", "shown"),
    [
        (2.5, "integer", "2"),
        (float("nan"), "number", "unknown"),
    ],
)
def test_what_cannot_be_a_value_is_unclear(value, kind, shown):
    (row,) = record_table([value], kinds=[kind]).rows
    assert not row.clear
    assert row.recovered == shown


def test_numbers_agree_within_a_hundredth_of_size_or_spread():
    table = record_table([0.005, 0.02, 101.1], true=[0.0, 0.0, 100.0], spread=[1.0, 1.0, 1.0])
    assert [row.agrees for row in table.rows] == [True, False, False]


def test_without_truth_nothing_is_said_to_agree():
    table = record_table([1.5, 2.0], features=["a", "longer name"])
    assert table.agreeing is None
    assert [row.feature for row in table.rows] == ["a", "longer name"]


def test_kinds_come_from_the_known_records():
    assert kinds_of([[1.0, 2.5], [3.0, 4.0]]) == ("integer", "number")


def test_a_wrong_number_of_names_is_refused():
    with pytest.raises(ValueError, match="features: expected 2, one a feature, got 1"):
        record_table([1.0, 2.0], features=["a"])
