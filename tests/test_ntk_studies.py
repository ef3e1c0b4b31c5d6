"""Why weight differences leak: each study on a few records, and its formulas against slow ways."""

import functools
import math

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.experiments import kernel_targets as targets
from remnant.experiments import paper_000 as studies
from remnant.experiments.study import cells
from remnant.experiments.targets import errors, squared_scores
from remnant.gradients import gram
from remnant.types import Candidates, Status

TINY = {"width": 32, "seed": 0}


@functools.cache
def digits():
    return load("mnist")


def sides(records=6, seed=0):
    return targets.sides_of(digits(), "odd-even", records, seed)


def rows_of(name, *, seed=0, **changes):
    """Rows of a study under other settings than its quick ones."""
    study = studies.STUDIES[name]
    values = dict(study.settings) | dict(study.quick) | changes | {"seed": [seed]}
    found = []
    for _, asked in cells(values):
        rest = {key: value for key, value in asked.items() if key != "data"}
        found += [asked | row for row in study.measure(digits(), **rest)]
    return found


def panels_of(name, rows):
    study = studies.STUDIES[name]
    drawn = study.condense(rows)
    return [panel for figure in study.figures for panel in figure.panels(drawn)]


def test_duals_and_influence_against_leaving_each_record_out():
    parts = sides()
    run = targets.finish_training(parts, dynamics="linearised", **TINY)
    dual, influence = targets.duals_and_influence(run)
    kernel = targets.kernel(run, run.initial)
    start = torch.func.functional_call(run.target.model, dict(run.initial), (run.inputs,)).detach()
    missing = (targets.targets(start, run.truth.labels) - start)[:, 0]
    torch.testing.assert_close(kernel @ dual, missing)
    for i in range(6):
        rest = [j for j in range(6) if j != i]
        weights = torch.linalg.solve(kernel[rest][:, rest], missing[rest])
        assert influence[i].item() == pytest.approx(
            (missing[i] - kernel[i, rest] @ weights).item(), rel=1e-6
        )


def test_the_error_integral_is_the_dual_while_the_kernel_hardly_moves():
    parts = sides(4)
    run, integral = targets.train_and_integrate(parts, width=256, seed=0, stop_loss=1e-4)
    assert run.training["loss"] < 1e-4
    dual, _ = targets.duals_and_influence(run)
    assert torch.corrcoef(torch.stack([dual, integral]))[0, 1] > 0.95
    # Each step adds residual times gradient, so the integral explains the output's bias exactly.
    bias = [name for name in run.initial if name.endswith("bias")][-1]
    moved = run.target.weights[bias] - run.initial[bias]
    assert moved.item() == pytest.approx(integral.sum().item(), rel=1e-9)


def test_a_linearised_kernel_stands_still_and_a_trained_one_moves():
    parts = sides()
    line, curve = (
        targets.finish_training(parts, dynamics=kind, **TINY) for kind in ("linearised", "standard")
    )
    assert targets.distance(line) == 0.0 < targets.distance(curve) < 1.0
    assert line.training["loss"] < 1e-20
    assert curve.training["loss"] <= 1e-6
    assert torch.equal(
        targets.kernel(curve, curve.initial),
        gram(curve.target.model, curve.inputs, weights=curve.initial),
    )


def test_kernel_distance_rows_and_correlation():
    pairs = [("standard", 6), ("lazy 5", 6), ("linearised", 6), ("standard", 4)]
    rows = rows_of("kernel-distance", seed=3, width=[32], steps=20, **{"dynamics records": pairs})
    assert [(row["dynamics"], row["records"]) for row in rows] == pairs
    assert all(math.isfinite(row["mean_error"]) and row["cpu_seconds"] > 0 for row in rows)
    panels = panels_of("kernel-distance", rows)
    assert panels[0].across.startswith("d(K0, Kf)\nrank correlation with mean error ")
    assert panels[0].across.endswith(" over 3")
    titles = ["6 records, by kernel distance", "6 records, by dynamics", "standard dynamics"]
    assert [panel.title for panel in panels] == titles
    assert panels[1].places == ("standard", "lazy 5", "linearised")
    assert [line.name for line in panels[2].lines] == ["6 records", "4 records"]


def test_lazy_training_ends_between_standard_and_linearised():
    parts = sides()
    given = {"width": 64, "seed": 0}
    runs = [
        targets.finish_training(parts, dynamics=kind, **given)
        for kind in ("lazy 1", "standard", "lazy 4", "lazy 1000", "linearised")
    ]
    plain, same, lazier, laziest, line = runs
    for name, value in plain.target.weights.items():
        assert torch.equal(value, same.target.weights[name])
    moved = [targets.distance(run) for run in (same, lazier, laziest, line)]
    assert moved == sorted(moved, reverse=True)
    assert moved[0] > moved[1] > moved[2] >= moved[3] == 0
    assert all(run.training["loss"] <= 1e-6 for run in runs)
    # In the labels' units its weights move as the linearised model's do.
    for name, start in line.initial.items():
        moved, straight = (run.target.weights[name] - start for run in (laziest, line))
        assert (1000 * moved - straight).norm() < 0.1 * straight.norm()


def test_a_target_is_the_mean_of_its_repeats():
    cell = {"dynamics": "standard", "records": 8}
    rows = [
        cell | {"width": width, "seed": seed, "kernel_distance": k, "mean_error": 2.0 * k}
        for k, (width, seed) in enumerate([(32, 5), (32, 6), (32, 7), (64, 5), (64, 6), (64, 7)])
    ]
    means = studies.averaged(rows)
    assert [(row["width"], row["kernel_distance"], row["mean_error"]) for row in means] == [
        (32, 1.0, 2.0), (64, 4.0, 8.0),
    ]  # fmt: skip
    assert all(row["usual"] for row in means)


def test_early_stopping_stops_earlier_and_the_exact_attack_does_not_mind():
    rows = rows_of("early-stopping", stop_loss=[1e-1, 1e-4], records=5, steps=10)
    assert len(rows) == 4
    for row in rows:
        assert row["loss"] <= row["stop_loss"]
    exact = [row["mean_error"] for row in rows if row["attack"] == "exact"]
    assert max(exact) < 1e-3
    (panel,) = panels_of("early-stopping", rows)
    assert {line.name for line in panel.lines} == {"paper", "exact"}


def test_leak_factors_have_a_row_a_record_and_a_row_a_number_of_classes():
    parts = [("records", 2), ("classes", 2), ("classes", 3)]
    small = {"records": 6, "per_root": 13.0, "class_records": 6, "steps": 10}
    rows = rows_of("leak-factors", **small, **{"part classes": parts})
    assert [row["part"] for row in rows] == ["records"] * 6 + ["classes"] * 2
    assert len({row["id"] for row in rows[:6]}) == 6
    assert all(row["dual"] > 0 and row["influence"] > 0 for row in rows[:6])
    assert rows[0]["null_error"] == pytest.approx(sum(row["null"] for row in rows[:6]) / 6)
    panels = panels_of("leak-factors", rows)
    assert [panel.title for panel in panels] == [
        "dual", "error integral", "influence", "number of classes",
    ]  # fmt: skip
    assert "rank correlation with null" in panels[0].across
    assert panels[-1].places == ("2", "3")


def test_networks_have_the_papers_variance_and_biases():
    model = targets.network(sides().public, 100, 0)
    weights = [p for p in model.parameters() if p.ndim == 2]
    assert [w.shape for w in weights] == [(100, 784), (100, 100), (1, 100)]
    for weight in weights[:2]:
        assert weight.var().item() * weight.shape[1] == pytest.approx(1.0, rel=0.05)
    assert all(p.any() for p in model.parameters())


def candidates(inputs):
    return Candidates(
        inputs=inputs, confidence=torch.zeros(len(inputs)), status=Status.INCONCLUSIVE, reason=""
    )


def test_the_null_is_what_other_images_give():
    run = targets.finish_training(sides(), dynamics="linearised", **TINY)
    row = squared_scores(run, candidates(run.public.inputs[:12]), 0.0)
    assert row["mean_error"] == row["null_error"]
    assert row["near"] == row["null_near"]
    assert squared_scores(run, candidates(run.truth.inputs), 0.0)["near"] == 6
    none = candidates(run.truth.inputs[:0])
    assert squared_scores(run, none, 0.0)["mean_error"] is None
    assert errors(run.truth, none.inputs).isinf().all()


def test_the_exact_grid_recovers_up_to_the_width():
    few, many = rows_of("ntk-grid", task="odd-even", width=64, records=[4, 60])
    assert few["share"] == 1.0
    assert few["certified"] == 4
    assert few["mean_error"] < 1e-4
    assert many["status"] == "inconclusive"
    assert many["mean_error"] is None
    assert panels_of("ntk-grid", [few, many])[0].lines[0].y[0] == 1.0


def test_the_onion_peels_a_balanced_layer_a_round():
    rows = rows_of("onion", records=12, remove=4, rounds=1, per_root=8.0, steps=10)
    assert [(row["removed"], row["round"], row["records"]) for row in rows] == [
        ("exposed", 0, 12), ("exposed", 1, 8), ("random", 0, 12), ("random", 1, 8),
        ("exposed", 0, 12), ("exposed", 1, 8),
    ]  # fmt: skip
    assert rows[0]["width"] == round(8 * math.sqrt(12))
    assert rows[0]["mean_error"] == rows[2]["mean_error"]  # the first round is the same
    assert rows[0]["top_before"] is None
    assert rows[1]["top_before"] > rows[0]["top_error"]  # what is left was less exposed
    assert all(0.3 < row["test_accuracy"] < 1 for row in rows[:4])
    assert "test_accuracy" not in rows[4]
    assert len(panels_of("onion", rows)) == 2


def test_the_most_exposed_are_balanced_or_not():
    error, labels = torch.tensor([1.0, 2.0, 3.0, 9.0, 8.0]), torch.tensor([0, 0, 0, 1, 1])
    assert studies.most_exposed(error, labels, 2, False).tolist() == [0, 1]
    assert studies.most_exposed(error, labels, 2, True).tolist() == [0, 4]


def test_an_unknown_attack_is_refused():
    run = targets.finish_training(sides(), dynamics="linearised", **TINY)
    with pytest.raises(InputError, match="attack: expected paper or exact, got 'guess'"):
        targets.attacked(run, "guess", 1, 0)


def test_kernel_distance_takes_all_classes():
    pairs = [("standard", 6), ("linearised", 6)]
    given = {"task": "all classes", "width": [32], "steps": 20, "dynamics records": pairs}
    rows = rows_of("kernel-distance", **given)
    assert [row["task"] for row in rows] == ["all classes"] * 2
    assert all(math.isfinite(row["mean_error"]) for row in rows)
    assert rows[1]["kernel_distance"] == 0 < rows[0]["kernel_distance"]


def test_the_descent_finds_records_of_a_training_that_stopped_early():
    """000, Appendix I: nothing is hidden by stopping, once duals have the size of the evidence."""
    scene = targets.finish_training(sides(3), width=128, seed=0, stop_loss=0.3)
    _, row = targets.attacked(scene, "paper", 1500, 0)
    assert row["near"] >= 2 > row["null_near"]
    assert row["mean_error"] < row["null_error"] / 3
