"""Curve and spectrum: the data that is drawn, and that it can be drawn."""

import io
import itertools
import math

import pytest
from PIL import Image

from remnant.report import Series, Spectrum, curve_data, draw_curve, draw_spectrum, spectrum_data
from remnant.report.curve import spread
from remnant.types import Finding


def finding(**changes):
    values = {
        "attack": "kkt", "status": "partial", "reason": "", "records": 3, "counted": 2,
        "recovered": 1, "threshold": 0.9, "summary": {},
        "per_record": [{"squared_l2": 4.0}, {"squared_l2": None}, {"squared_l2": 0.5}],
        "nulls": {
            "held_out": {"squared_l2": [9.0, 7.0, 8.0]}, "blends": {"squared_l2": [None] * 3}
        },
        "trace": {"singular_values": [5.0, 1e-3, 7.0, 0.0]},
    }  # fmt: skip
    return Finding(**values | changes)


def size(png):
    image = Image.open(io.BytesIO(png))
    image.verify()
    assert image.format == "PNG"
    return image.size


def test_the_curve_is_sorted_and_counts_who_is_missing():
    assert curve_data(finding()) == (
        Series(name="candidates", distances=(0.5, 4.0), unmatched=1),
        Series(name="held_out", distances=(7.0, 8.0, 9.0), unmatched=0),
        Series(name="blends", distances=(), unmatched=3),
    )
    wild = curve_data(finding(per_record=[{"squared_l2": math.inf}, {}], nulls={"x": {}}))
    assert wild[0] == Series(name="candidates", distances=(), unmatched=2)
    assert wild[1] == Series(name="x", distances=(), unmatched=0)


@pytest.mark.parametrize(
    "distances",
    [(), (0.0,), (1e-300, 1.0), (0.0, 1e-28, 50.0), tuple(range(1, 500))],
)
def test_any_curve_can_be_drawn(distances):
    null = Series(name="a_new_null", distances=(3.0, 4.0), unmatched=0)
    mine = Series(name="candidates", distances=distances, unmatched=2)
    assert size(draw_curve([mine, null])) == (1200, 630)


def test_a_curve_alone_is_drawn_twice_the_same():
    for data in ([Series(name="candidates", distances=(5.0, 5.0), unmatched=0)], []):
        assert draw_curve(data) == draw_curve(data)


def test_the_spectrum_falls_and_knows_its_gap():
    assert spectrum_data(finding()) == Spectrum(
        values=(7.0, 5.0, 1e-3, 0.0), counted=2, gap=pytest.approx(5000.0)
    )
    assert spectrum_data(finding(counted=None)).gap is None
    assert spectrum_data(finding(counted=3)).gap is None  # over zero there is no ratio
    assert spectrum_data(finding(counted=9)).gap is None
    assert spectrum_data(finding(trace={})) is None


@pytest.mark.parametrize(
    ("values", "counted"),
    [((3.0, 2.0, 1e-9), 2), ((1.0,), 1), ((0.0, 0.0), 0), ((2.0, 2.0), None), ((3.0, 1.0), 99)],
)
def test_any_spectrum_can_be_drawn(values, counted):
    data = spectrum_data(finding(counted=counted, trace={"singular_values": values}))
    assert size(draw_spectrum(data)) == (1200, 630)


@pytest.mark.parametrize(
    "places", [[], [5.0], [5.0, 5.0, 5.0], [0.0, 100.0], [3.0, 1.0, 2.0, 90.0], [10.0, 0.0, 10.5]]
)
def test_labels_are_moved_apart_and_keep_their_order(places):
    moved = spread(places, 10.0)
    order = sorted(range(len(places)), key=lambda i: places[i])
    gaps = [moved[b] - moved[a] for a, b in itertools.pairwise(order)]
    assert all(gap >= 10.0 - 1e-3 for gap in gaps)
    assert sum(moved) == pytest.approx(sum(places))
    if places == [0.0, 100.0]:
        assert moved == places
