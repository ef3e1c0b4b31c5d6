"""Grids: a spec with lists becomes cells, rows and small multiples."""

import pytest

from remnant.errors import InputError
from remnant.report.lines import draw_lines, multiples, roles
from remnant.sweep.grid import axes_of, case_key, expand

SPEC = {
    "weights": "w",
    "attacks": ["kkt"],
    "bounds": [0, 1],
    "settings": {"kkt": {"starts": [2, 4], "steps": 9}},
    "seed": [0, 1, 2],
}


def test_lists_are_varied_and_fields_that_are_lists_are_not():
    assert axes_of(SPEC) == {"settings.kkt.starts": [2, 4], "seed": [0, 1, 2]}
    cells = expand(SPEC)
    assert len(cells) == 6
    point, spec = cells[4]
    assert point == {"settings.kkt.starts": 4, "seed": 1}
    assert spec == {**SPEC, "settings": {"kkt": {"starts": 4, "steps": 9}}, "seed": 1}
    assert SPEC["settings"]["kkt"]["starts"] == [2, 4]  # untouched


def test_a_list_of_lists_varies_a_field_that_is_a_list():
    cells = expand({"attacks": [["kkt"], ["ntk", "kkt"]], "bounds": [0, 1]})
    assert [spec["attacks"] for _, spec in cells] == [["kkt"], ["ntk", "kkt"]]
    assert all(spec["bounds"] == [0, 1] for _, spec in cells)


def test_what_a_grid_refuses():
    with pytest.raises(InputError, match="expected a list of values to vary, got none"):
        expand({"weights": "w", "attacks": ["kkt"]})
    with pytest.raises(InputError, match="seed: expected values to vary, got an empty list"):
        expand({"seed": []})
    with pytest.raises(InputError, match="at most 100000 cells, got 1000000"):
        expand({"seed": list(range(1000)), "threshold": list(range(1000))})


def test_cells_that_differ_in_how_share_a_case():
    first, second, third = (
        {"weights": w, "seed": s, "settings": {}} for w, s in (("a", 0), ("a", 1), ("b", 0))
    )
    assert case_key(first) == case_key(second) != case_key(third)


def rows():
    return [
        {"a.steps": steps, "word": word, "seed": seed, "attack": "kkt", "share": steps / 100 + seed}
        for steps in (10, 20, 40)
        for word in ("one", "two")
        for seed in (0, 0.2, 0.1)
    ]


def test_numbers_go_along_words_become_lines_and_seeds_medians():
    axes = ["a.steps", "word", "seed"]
    assert roles(rows(), axes) == ("a.steps", ["word"])
    (panel,) = multiples(rows(), axes, "share")
    assert panel.title == "kkt"
    assert panel.across == "steps"
    assert [line.name for line in panel.lines] == ["word one", "word two"]
    assert panel.lines[0].x == (10, 20, 40)
    assert panel.lines[0].y == pytest.approx((0.2, 0.3, 0.5))
    assert draw_lines((panel,)).startswith(b"\x89PNG")


def test_more_axes_become_panels_and_what_is_missing_a_gap():
    many = [row | {"deep": deep} for row in rows() for deep in (True, None)]
    many[0].pop("share")
    panels = multiples(many, ["word", "deep", "a.steps", "seed"], "share")
    assert [panel.title for panel in panels] == ["kkt, deep True", "kkt, deep None"]
    (seeds,) = multiples(
        [{"seed": s, "attack": "kkt", "share": s} for s in (0, 1)], ["seed"], "share"
    )
    assert seeds.lines[0].y == (0.0, 1.0)
    (words,) = multiples(rows(), ["word", "seed"], "share")
    assert words.places == ("one", "two")
