"""Studies of final weights: cells, rows and what is drawn, on the smallest settings."""

import json

import pytest
import torch

from remnant.data import load
from remnant.experiments import kkt_studies as studies
from remnant.report.lines import draw_lines


@pytest.fixture(scope="module")
def data():
    return {"mnist": load("digits")}


TINY = {"starts": 2, "steps": 5}
CASES = {
    "grid": studies.Grid(widths=(20,), records=(10,), tasks=("bce",), **TINY),
    "classes": studies.Classes(classes=(2,), records=6, width=20, repeats=1, **TINY),
    "decay": studies.Decay(
        decays=(5e-3,), training_steps=300, tasks=("ce",), records=10, width=20, **TINY
    ),
    "exposure": studies.Exposure(tasks=("mse",), records=10, width=20, **TINY),
    "assumptions": studies.Assumptions(cases=("unfinished",), records=10, width=20, **TINY),
}


@pytest.mark.parametrize("name", CASES)
def test_a_study_measures_its_cells(name, data, monkeypatch):
    monkeypatch.setattr(studies, "TIME", 0.2)
    settings = CASES[name]
    cells = getattr(studies, f"{name}_cells")(settings, 7)
    assert len(cells) == 1
    rows = getattr(studies, f"measure_{name}")(settings, cells[0], data)
    assert all(row[key] == value for row in rows for key, value in cells[0].items())
    assert len(rows) == (10 if name == "exposure" else 1)
    json.dumps(rows, allow_nan=False)
    panels = getattr(studies, f"plot_{name}")(rows)
    assert draw_lines(panels).startswith(b"\x89PNG")


def test_what_a_record_is_ranked_by(data):
    victim = studies.make_victim(
        data["mnist"], records=10, width=30, seed=1, weight_decay=0.01, decay_time=3.0
    )
    margin = studies.hardness(victim)
    outputs = victim.target.model(victim.target.scaling.to_model(victim.truth.inputs))
    top = outputs.topk(2, dim=1).values
    assert (margin > 0).all()  # it fits its records
    torch.testing.assert_close(margin.float(), (top[:, 0] - top[:, 1]).detach())
    report = studies.stationarity(victim)
    early = studies.make_victim(
        data["mnist"], records=10, width=30, seed=1, weight_decay=0.01, decay_time=0.05
    )
    assert max(report["residual"]) < min(studies.stationarity(early)["residual"])
    assert min(report["cosine"]) > 0.8
    assert 0 <= report["kinks"] <= 1


def test_counts_are_one_to_one(data):
    truth = data["mnist"].take(range(4))
    assert studies.above(truth, truth.inputs, 0.9) == 4
    assert studies.above(truth, truth.inputs[:1].repeat(4, 1, 1, 1), 0.999) == 1
