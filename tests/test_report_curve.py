"""Curve and spectrum: the data that is drawn, and the file that it is drawn to."""

import itertools
import math
from xml.etree.ElementTree import fromstring

import pytest

from audits import EVIL
from remnant.report.charts import curve_chart, moved_apart, spectrum_chart, svg_file
from remnant.report.figures import Series, Spectrum, curve_data, spectrum_data
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


def test_the_curve_is_sorted_and_counts_who_is_missing():
    assert curve_data(finding()) == (
        Series(name="candidates", distances=(0.5, 4.0), unmatched=1),
        Series(name="held_out", distances=(7.0, 8.0, 9.0), unmatched=0),
        Series(name="blends", distances=(), unmatched=3),
    )
    wild = curve_data(finding(per_record=[{"squared_l2": math.inf}, {}], nulls={"x": {}}))
    assert wild[0] == Series(name="candidates", distances=(), unmatched=2)
    assert wild[1] == Series(name="x", distances=(), unmatched=0)


def test_a_chart_is_a_file_of_its_own_without_variables_or_scripts():
    file = svg_file(curve_chart(curve_data(finding(nulls={EVIL: {"squared_l2": [9.0]}}))))
    assert file == svg_file(curve_chart(curve_data(finding(nulls={EVIL: {"squared_l2": [9.0]}}))))
    drawn = fromstring(file)
    tags = {part.tag.rpartition("}")[2] for part in drawn.iter()}
    assert tags == {"svg", "style", "rect", "path", "text"}
    assert b"var(" not in file
    said = [part.text for part in drawn.iter() if part.tag.endswith("text")]
    assert EVIL in said
    assert "reconstructions" in said
    assert b"no record has a candidate" in svg_file(curve_chart([]))
    fromstring(svg_file(spectrum_chart(spectrum_data(finding()))))
    fromstring(svg_file(curve_chart([Series(name="\x00\ud800", distances=(1.0,), unmatched=0)])))


def test_the_spectrum_falls_and_knows_its_gap():
    assert spectrum_data(finding()) == Spectrum(
        values=(7.0, 5.0, 1e-3, 0.0), counted=2, gap=pytest.approx(5000.0)
    )
    assert spectrum_data(finding(counted=None)).gap is None
    assert spectrum_data(finding(counted=3)).gap is None  # over zero there is no ratio
    assert spectrum_data(finding(counted=9)).gap is None
    assert spectrum_data(finding(trace={})) is None


@pytest.mark.parametrize(
    "places", [[], [5.0], [5.0, 5.0, 5.0], [0.0, 100.0], [3.0, 1.0, 2.0, 90.0], [10.0, 0.0, 10.5]]
)
def test_labels_are_moved_apart_and_keep_their_order(places):
    moved = moved_apart(places, 10.0)
    order = sorted(range(len(places)), key=lambda i: places[i])
    gaps = [moved[b] - moved[a] for a, b in itertools.pairwise(order)]
    assert all(gap >= 10.0 - 1e-9 for gap in gaps)
    assert sum(moved) == pytest.approx(sum(places))
    if places == [0.0, 100.0]:
        assert moved == places
