"""Why weight differences leak: each study on a few records, and its formulas against slow ways."""

import functools
import math
from dataclasses import replace

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.experiments import ntk_exposure as exposure
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
    settings = replace(
        studies.QUICK_KERNEL, widths=(32,), dynamics=("standard", "lazy 5", "linearised"),
        records=6, others=(4,), steps=20,
    )  # fmt: skip
    cells = studies.kernel_cells(settings, 3)
    assert [(cell["dynamics"], cell["records"]) for cell in cells] == [
        ("standard", 6), ("lazy 5", 6), ("linearised", 6), ("standard", 4),
    ]  # fmt: skip
    rows = [row for cell in cells for row in studies.measure_kernel(settings, cell, data())]
    assert all(math.isfinite(row["mean_error"]) and row["cpu_seconds"] > 0 for row in rows)
    panels = studies.plot_kernel(rows)
    rho, all_rho = (
        studies.rank_correlation(some, "kernel_distance", "mean_error") for some in (rows[:3], rows)
    )
    wanted = f"rank correlation {rho:.2f} over 3 targets\n({all_rho:.2f} over all 4)"
    assert panels[0].across == f"d(K0, Kf); {wanted}"
    titles = ["6 records, by kernel distance", "6 records, by dynamics", "standard dynamics"]
    assert [panel.title for panel in panels] == titles
    assert panels[1].places == ("standard", "lazy 5", "linearised")
    assert [line.name for line in panels[2].lines] == ["6 records", "4 records"]


def test_lazy_training_ends_between_standard_and_linearised():
    parts = sides()
    given = {"width": 64, "seed": 0}
    runs = [
        targets.finish_training(parts.train, parts.public, dynamics=kind, **given)
        for kind in ("lazy 1", "standard", "lazy 4", "lazy 1000", "linearised")
    ]
    plain, same, lazier, laziest, line = runs
    for name, value in plain.target.weights.items():
        assert torch.equal(value, same.target.weights[name])
    assert same.distance() > lazier.distance() > laziest.distance() >= line.distance() == 0
    assert all(run.loss <= 1e-6 for run in runs)
    # In the labels' units its weights move as the linearised model's do.
    for name, start in line.initial.items():
        moved, straight = (run.target.weights[name] - start for run in (laziest, line))
        assert (1000 * moved - straight).norm() < 0.1 * straight.norm()


def test_a_target_is_the_mean_of_its_repeats():
    settings = replace(studies.QUICK_KERNEL, repeats=3)
    cells = studies.kernel_cells(settings, 5)
    assert [cell["seed"] for cell in cells[:4]] == [5, 6, 7, 5]
    rows = [cell | {"kernel_distance": i, "mean_error": 2.0 * i} for i, cell in enumerate(cells)]
    means = studies.averaged(rows)
    assert [(row["width"], row["kernel_distance"], row["mean_error"]) for row in means[:2]] == [
        (32, 1.0, 2.0), (64, 4.0, 8.0),
    ]  # fmt: skip
    assert len(means) == len(cells) / 3 == 15


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
        exposure.QUICK_FACTORS, records=6, per_root=13.0, classes=(2, 3), class_records=6, steps=10
    )
    cells = exposure.factor_cells(settings, 0)
    rows = [row for cell in cells for row in exposure.measure_factors(settings, cell, data())]
    assert [row["part"] for row in rows] == ["records"] * 6 + ["classes"] * 2
    assert len({row["id"] for row in rows[:6]}) == 6
    assert all(row["dual"] > 0 and row["influence"] > 0 for row in rows[:6])
    assert rows[0]["null_error"] == pytest.approx(sum(row["null"] for row in rows[:6]) / 6)
    panels = exposure.plot_factors(rows)
    assert len(panels) == 4
    assert panels[-1].places == ("2", "3")


def test_networks_have_the_papers_variance_and_biases():
    model = targets.network(sides().train, 100, 1, 0)
    weights = [p for p in model.parameters() if p.ndim == 2]
    assert [w.shape for w in weights] == [(100, 784), (100, 100), (1, 100)]
    for weight in weights[:2]:
        assert weight.var().item() * weight.shape[1] == pytest.approx(1.0, rel=0.05)
    assert all(p.any() for p in model.parameters())


def test_the_null_is_what_other_images_give():
    parts = sides()
    run = targets.finish_training(parts.train, parts.public, dynamics="linearised", **TINY)
    row = targets.scored(run, run.null, {})
    assert row["mean_error"] == row["null_error"]
    assert row["near"] == row["null_near"]
    assert targets.scored(run, torch.zeros(6), {})["near"] == 6
    assert targets.scored(run, torch.full((6,), torch.inf), {})["mean_error"] is None


def test_the_exact_grid_recovers_up_to_the_width():
    settings = replace(studies.QUICK_GRID, widths=(64,), records=(4, 60))
    cells = studies.grid_cells(settings, 0)
    assert len(cells) == 4
    few, many = (studies.measure_grid(settings, cell, data())[0] for cell in cells[:2])
    assert few["share"] == 1.0
    assert few["certified"] == 4
    assert few["mean_error"] < 1e-4
    assert many["status"] == "inconclusive"
    assert many["mean_error"] is None
    assert studies.plot_grid([few, many])[0].lines[0].y[0] == 1.0


def test_the_onion_peels_a_balanced_layer_a_round():
    settings = replace(exposure.QUICK_ONION, records=12, remove=4, rounds=1, per_root=8.0, steps=10)
    rows = []
    for cell in exposure.onion_cells(settings, 0):
        rows += exposure.measure_onion(settings, cell, data())
    assert [(row["removed"], row["round"], row["records"]) for row in rows] == [
        ("exposed", 0, 12), ("exposed", 1, 8), ("random", 0, 12), ("random", 1, 8),
    ]  # fmt: skip
    assert rows[0]["width"] == round(8 * math.sqrt(12))
    assert rows[0]["mean_error"] == rows[2]["mean_error"]  # the first round is the same
    assert rows[0]["top_before"] is None
    assert rows[1]["top_before"] > rows[0]["top_error"]  # what is left was less exposed
    assert all(0.3 < row["test_accuracy"] < 1 for row in rows)
    assert len(exposure.plot_onion(rows)) == 2


def test_the_most_exposed_are_balanced_or_not():
    error, labels = torch.tensor([1.0, 2.0, 3.0, 9.0, 8.0]), torch.tensor([0, 0, 0, 1, 1])
    assert exposure.most_exposed(error, labels, 2, False).tolist() == [0, 1]
    assert exposure.most_exposed(error, labels, 2, True).tolist() == [0, 4]


def test_an_unknown_attack_is_refused():
    parts = sides()
    run = targets.finish_training(parts.train, parts.public, dynamics="linearised", **TINY)
    with pytest.raises(InputError, match="attack: expected paper or exact, got 'guess'"):
        targets.attacked(run, "guess", 1, 0)
