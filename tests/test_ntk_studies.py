"""Why weight differences leak: each study on a few records, and its formulas against slow ways."""

import functools
import math
from dataclasses import replace

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.experiments import ntk_studies as studies
from remnant.experiments import ntk_targets as targets
from remnant.gradients import gram

TINY = {"width": 32, "seed": 0}


@functools.cache
def data():
    return {"mnist": load("mnist")}


def sides(records=6, seed=0):
    return studies.sides_of(studies.KernelDistance(), data(), records, seed)


def test_duals_and_influence_against_leaving_each_record_out():
    parts = sides()
    run = targets.finish_training(parts.train, parts.public, dynamics="linearised", **TINY)
    dual, influence = targets.duals_and_influence(run)
    kernel = run.kernel(run.initial)
    start = torch.func.functional_call(run.target.model, dict(run.initial), (run.inputs,)).detach()
    missing = (run.wanted - start)[:, 0]
    torch.testing.assert_close(kernel @ dual, missing)
    for i in range(6):
        rest = [j for j in range(6) if j != i]
        weights = torch.linalg.solve(kernel[rest][:, rest], missing[rest])
        assert influence[i].item() == pytest.approx(
            (missing[i] - kernel[i, rest] @ weights).item(), rel=1e-6
        )


def test_the_error_integral_is_the_dual_while_the_kernel_hardly_moves():
    parts = sides(4)
    run, integral = targets.train_and_integrate(
        parts.train, parts.public, width=256, seed=0, stop_loss=1e-4
    )
    assert run.loss < 1e-4
    dual, _ = targets.duals_and_influence(run)
    assert torch.corrcoef(torch.stack([dual, integral]))[0, 1] > 0.95
    # Each step adds residual times gradient, so the integral explains the output's bias exactly.
    bias = [name for name in run.initial if name.endswith("bias")][-1]
    moved = run.target.weights[bias] - run.initial[bias]
    assert moved.item() == pytest.approx(integral.sum().item(), rel=1e-9)


def test_a_linearised_kernel_stands_still_and_a_trained_one_moves():
    parts = sides()
    line, curve = (
        targets.finish_training(parts.train, parts.public, dynamics=kind, **TINY)
        for kind in ("linearised", "standard")
    )
    assert line.distance() == 0.0 < curve.distance() < 1.0
    assert line.loss < 1e-20
    assert curve.loss <= 1e-6
    assert torch.equal(
        curve.kernel(curve.initial), gram(curve.target.model, curve.inputs, weights=curve.initial)
    )


def test_kernel_distance_rows_and_correlation():
    settings = replace(studies.QUICK_KERNEL, widths=(32,), records=(4, 6), steps=20)
    cells = studies.kernel_cells(settings, 3)
    assert len(cells) == 4
    rows = [row for cell in cells for row in studies.measure_kernel(settings, cell, data())]
    assert all(math.isfinite(row["mean_error"]) and row["cpu_seconds"] > 0 for row in rows)
    panels = studies.plot_kernel(rows)
    assert [panel.title for panel in panels] == ["linearised dynamics", "standard dynamics"]
    rho = studies.rank_correlation(rows, "kernel_distance", "mean_error")
    assert f"rank correlation {rho:.2f} over 4 targets" in panels[0].across


def test_rank_correlation_knows_order_and_gaps():
    rows = [{"x": x, "y": y} for x, y in ((1, 10.0), (2, 20.0), (3, 21.0), (4, None))]
    assert studies.rank_correlation(rows, "x", "y") == pytest.approx(1.0)
    assert studies.rank_correlation(rows[:2], "x", "y") is None
    assert studies.rank_correlation([{"x": 1, "y": i} for i in range(5)], "x", "y") is None


def test_early_stopping_stops_earlier_and_the_exact_attack_does_not_mind():
    settings = replace(
        studies.QUICK_STOPPING, stops=(1e-1, 1e-4), attacks=("paper", "exact"),
        records=5, width=128, steps=10,
    )  # fmt: skip
    cells = studies.stopping_cells(settings, 0)
    rows = [row for cell in cells for row in studies.measure_stopping(settings, cell, data())]
    assert len(rows) == len(cells) == 4
    for row in rows:
        assert row["loss"] <= row["stop_loss"]
    exact = [row["mean_error"] for row in rows if row["attack"] == "exact"]
    assert max(exact) < 1e-3
    assert {line.name for line in studies.plot_stopping(rows)[0].lines} == {"paper", "exact"}


def test_leak_factors_have_a_row_a_record_and_a_row_a_number_of_classes():
    settings = replace(
        studies.QUICK_FACTORS, records=6, width=32, classes=(2, 3), class_records=6, steps=10
    )
    cells = studies.factor_cells(settings, 0)
    rows = [row for cell in cells for row in studies.measure_factors(settings, cell, data())]
    assert [row["part"] for row in rows] == ["records"] * 6 + ["classes"] * 2
    assert len({row["id"] for row in rows[:6]}) == 6
    assert all(row["dual"] > 0 and row["influence"] > 0 for row in rows[:6])
    panels = studies.plot_factors(rows)
    assert len(panels) == 4
    assert panels[-1].places == ("2", "3")


def test_the_onion_peels_a_balanced_layer_a_round():
    settings = replace(studies.QUICK_ONION, records=12, remove=4, rounds=1, per_root=8.0, steps=10)
    rows = []
    for cell in studies.onion_cells(settings, 0):
        rows += studies.measure_onion(settings, cell, data())
    assert [(row["removed"], row["round"], row["records"]) for row in rows] == [
        ("exposed", 0, 12), ("exposed", 1, 8), ("random", 0, 12), ("random", 1, 8),
    ]  # fmt: skip
    assert rows[0]["width"] == round(8 * math.sqrt(12))
    assert rows[0]["mean_error"] == rows[2]["mean_error"]  # the first round is the same
    assert rows[0]["top_before"] is None
    assert rows[1]["top_before"] > rows[0]["top_error"]  # what is left was less exposed
    assert all(0.3 < row["test_accuracy"] < 1 for row in rows)
    assert len(studies.plot_onion(rows)) == 2


def test_the_most_exposed_are_balanced_or_not():
    error, labels = torch.tensor([1.0, 2.0, 3.0, 9.0, 8.0]), torch.tensor([0, 0, 0, 1, 1])
    assert studies.most_exposed(error, labels, 2, False).tolist() == [0, 1]
    assert studies.most_exposed(error, labels, 2, True).tolist() == [0, 4]


def test_an_unknown_attack_is_refused():
    parts = sides()
    run = targets.finish_training(parts.train, parts.public, dynamics="linearised", **TINY)
    with pytest.raises(
        InputError, match="attack: expected paper or projected or projected-final or exact"
    ):
        targets.attacked(run, "guess", 1, 0)
