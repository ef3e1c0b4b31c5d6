"""Studies at tiny settings: what they measure, that they go on where they were, what they draw."""

import csv
import dataclasses
import json
import re
from contextlib import nullcontext

import pytest
import torch

from remnant.cli import Parser, main, study
from remnant.cli.common import carry_out
from remnant.data import load
from remnant.errors import DataError, InputError
from remnant.experiments import batches as gradients
from remnant.experiments import informed_targets
from remnant.experiments.paper_002 import digit_pair, measure_deep
from remnant.experiments.studies import STUDIES
from remnant.experiments.study import (
    Figure,
    adjusted,
    cells,
    rank_correlation,
    run_study,
    shown_columns,
    study_data,
    study_spec,
)
from remnant.experiments.targets import squared_scores
from remnant.report.lines import Point, draw_lines, line_panels
from remnant.scoring import squared_l2
from remnant.store import open_run
from remnant.sweep.table import as_csv, read_rows
from remnant.training.shadows import Fleet
from remnant.types import Candidates, Stated, Status

INFORMED = {"records": 30, "shadows": 40, "targets": 2, "epochs": 3, "evaluations": 6}
TOY = {"starts": 2, "steps": 10, "width": 24, "data": "digits"}
TINY = {
    "gradient-dimension": {"width": 800, "d": [5, 8]},
    "gradient-pairs": {"width": [300], "data": "digits"},
    "gradient-deep": {
        "network method noise": [("server tanh", "paper", 0.0)], "d": 4, "width": 400
    },
    "gradient-batch": {
        "width records": [(64, 1), (64, 6), (64, 40)], "least_steps": 2, "most_seconds": 0.1,
        "data": "digits",
    },
    "gradient-noise": {"noise": [0.0, 0.01], "width records": [(64, 4)], "data": "digits"},
    "gradient-defences": {
        "defence strength": gradients.listed(
            {"noise": (0.0, 1.0), "clip": (0.01,), "clip each": (0.1,), "keep": (1.0, 0.01)}
            | {"format": ("float32", "sign"), "batch": (8,), "clients": (2,)}
        ),
        "width": 64, "records": 4, "patience": 2, "data": "digits",
    },
    "kernel-distance": {
        "dynamics records": [("standard", 3), ("lazy 3", 3), ("lazy 10", 3), ("linearised", 3)],
        "width": [32], "steps": 5, "stop_loss": 0.1, "data": "digits",
    },
    "early-stopping": {
        "stop_loss": [0.5, 0.1], "records": 4, "width": 32, "steps": 5, "data": "digits"
    },
    "leak-factors": {
        "part classes": [("records", 2), ("classes", 2)], "records": 6, "per_root": 13.0,
        "class_records": 4, "steps": 5, "data": "digits",
    },
    "against-haim": {
        "trained attack": [("margin", "haim"), ("kernel", "paper")], "records": 4, "width": 24,
        "steps": 5, "trials": 1, "data": "digits",
    },
    "distill-series": {
        "method records": [("random", 12)], "images": 4, "width": 24, "data": "digits",
    },
    "fine-tuning": {
        "case attack data": [("dense head", "exact", "digits")], "widths": (4,), "epochs": 1,
        "width": 32, "per_class": 1, "tuning": 5, "inversion": 5,
    },
    "informed-factors": INFORMED | {"factor": ["default"], "methods": ("replay", "ridge")},
    "informed-cnn": INFORMED | {"factor": ["default"], "methods": ("ridge",), "data": "mnist"},
    "informed-shadows": INFORMED | {"counts": (20, 40), "methods": ("ridge",)},
    "informed-batch": INFORMED
    | {"lr": [0.05], "order_known": [True, False], "batch_size": [10], "methods": ("ridge",)},
    "informed-paper": INFORMED
    | {"counts": (20,), "methods": ("ridge", "reconn of the paper"), "reconn_epochs": 1}
    | {"data": "digits"},
    "informed-images": INFORMED
    | {"methods": ("transposed",), "reconn_epochs": 1, "critic_width": 2, "data": "mnist"},
    "informed-starts": INFORMED | {"lr momentum": [(0.05, 0.9)], "data": "digits"},
    "informed-width": INFORMED
    | {"factor width": [("default", 4), ("second layer only", 4)], "data": "digits"},
    "informed-optimiser": INFORMED | {"records": [20], "more_epochs": [1.0], "data": "mnist"},
    "informed-transfer": INFORMED | {"counts": (10,), "reconn_epochs": 1, "data": "digits"},
    "informed-pool": {"bins": 4, "records": 30, "shadows": 40, "targets": 5, "data": "digits"},
    "informed-membership": INFORMED | {"models": 8, "data": "digits"},
    "kkt-headline": TOY | {"records": 4, "loss": ["ce"]},
    "kkt-convolutions": TOY | {"records": 4, "kernel": [3], "channels": [2], "weight_decay": 0.05},
    "kkt-grid": TOY | {"width": [24], "records": [4], "loss": ["ce"]},
    "kkt-classes": TOY | {"classes": [2], "records": 4},
    "kkt-decay": TOY
    | {"weight_decay": [5e-3], "loss": ["ce"], "records": 4, "training_steps": 50},
    "kkt-exposure": TOY | {"loss": ["ce"], "records": 5},
    "kkt-assumptions": TOY | {"case": ["unfinished"], "records": 4},
    "defences": {
        "defence strength": [("none", ""), ("rounding", "float16")], "attacks": ("gradient",),
        "records": 4, "gradient_width": 48, "rounds": 2, "data": "digits",
    },
    "private-descent": {
        "budget": ["100", "clip only", "no DP"], "records": 30, "targets": 2, "shadows": 40,
        "test": 50, "steps": 3, "evaluations": 4,
    },
    "ntk-grid": {"width": [48], "records": [4], "task": ["odd-even"], "data": "digits"},
    "onion": {
        "removed balanced attack dynamics": [("random", True, "paper", "standard")],
        "records": 8, "remove": 2, "rounds": 1, "per_root": 8.0, "steps": 5, "data": "digits",
    },
}  # fmt: skip


def tiny(name):
    return dict(STUDIES[name].settings) | TINY[name] | {"seed": [0]}


ONLY_WITH_A_CERTIFICATE = {"certified", "wrongly_certified"}
ROWS_PER_CELL = {
    "gradient-batch": 2,
    "onion": 2,
    "informed-factors": 2,
    "informed-shadows": 2,
    "informed-paper": 4,
    "informed-transfer": 3,
    "informed-pool": 4,
    "informed-membership": 2,
    "kkt-exposure": 5,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Each study once: (rows, run)."""
    torch.set_num_threads(1)
    done = {}
    for name in TINY:
        data, _ = study_data(tiny(name), None)
        run = open_run(tmp_path_factory.mktemp(name), study_spec(name, tiny(name), data))
        done[name] = run_study(STUDIES[name], tiny(name), data, run), run
    return done


def test_every_study_has_a_line_of_help_and_a_tiny_variant():
    assert STUDIES.keys() == study.SUMMARIES.keys() == TINY.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_says_what_was_measured(results, name):
    rows, run = results[name]
    if name != "leak-factors":  # its first cell has a row a record
        assert len(rows) == len(cells(tiny(name))) * ROWS_PER_CELL.get(name, 1)
        shown = set(STUDIES[name].columns) - ONLY_WITH_A_CERTIFICATE
        assert all(shown <= row.keys() for row in rows)
    for row in rows:
        assert row["cpu_seconds"] >= 0
        assert row["seed"] == 0
    assert read_rows(run) == rows
    with (run.path / "table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(rows)
    assert (run.path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run.path / "run.json").read_text())["finished"]


@pytest.mark.parametrize("name", ["gradient-dimension", "gradient-pairs"])
def test_the_exact_solver_finds_pairs_that_the_tensor_only_comes_near(results, name):
    rows = results[name][0]
    exact = [row for row in rows if row["method"] == "exact"]
    assert max(row["max_l2_error"] for row in exact) < 1e-6
    assert all(row["certified"] for row in exact)
    paper = [row["l2_error"] for row in rows if row["method"] == "paper"]
    assert min(paper) > 1e-3
    assert max(paper) < 2.0
    assert not any(row["certified"] for row in rows if row["method"] == "paper")


def test_batches_come_back_until_they_are_too_large(results):
    rows = {(r["records"], r["method"]): r for r in results["gradient-batch"][0]}
    for records in (1, 6):
        row = rows[records, "exact"]
        assert row["recovered"] == row["certified"] == records
        assert row["status"] == "complete"
    assert rows[40, "exact"]["status"] == "inconclusive"
    assert rows[40, "exact"]["max_error"] is None
    for records in (1, 6, 40):
        assert rows[records, "matching"]["steps"] >= 2
        assert rows[records, "matching"]["certified"] == 0


@pytest.mark.parametrize(
    ("clock", "steps"),
    [
        ([9.0, 1.5, 3.0], 13),  # half a second a step, one to start with: (7.5 - 1) / 0.5
        ([9.0, 3.0, 3.0], 16),  # a stumble: no faster than 3 / 4 / 2 a step, 1.5 to start with
        ([9.0, 5.0, 8.0], 5),
    ],
)
def test_matching_gets_no_more_steps_than_the_time_buys(monkeypatch, clock, steps):
    ticks = iter(clock)
    monkeypatch.setattr(gradients, "attack", lambda how, target, seed: (None, next(ticks)))
    assert gradients.affordable(None, 7.5 if steps > 5 else 0.0, 5, 0) == steps


def test_noise_costs_exactness_but_certifies_nothing_wrong(results):
    clean, noisy = results["gradient-noise"][0]
    assert clean["recovered"] == clean["near"] == noisy["near"] == 4
    assert noisy["recovered"] == 0
    assert clean["max_error"] < 1e-9 < noisy["median_error"] < 0.1
    assert noisy["wrongly_certified"] == 0


def test_only_some_defences_defend(results):
    rows = {(r["defence"], r["strength"]): r for r in results["gradient-defences"][0]}
    for undefended in [
        ("noise", 0.0),
        ("clip", 0.01),
        ("clip each", 0.1),
        ("keep", 1.0),
        ("format", "float32"),
        ("batch", 8),
        ("clients", 2),
    ]:
        assert rows[undefended]["recovered"] == rows[undefended]["records"], undefended
    assert rows["clients", 2]["records"] == 8
    for defended in [("keep", 0.01), ("format", "sign"), ("noise", 1.0)]:
        assert rows[defended]["recovered"] == rows[defended]["near"] == 0
        assert rows[defended]["count_told"]
    assert not any(row["wrongly_certified"] for row in rows.values())


def test_clients_summed_are_one_larger_batch():
    clients = gradients.meet_clients(load("digits"), 16, 6, 0)
    apart = gradients.sent("clients", 3, clients, 2, 0)
    for name, whole in gradients.gradient_of(clients).items():
        assert torch.allclose(apart[name], 3 * whole, atol=1e-6)


def test_a_certified_candidate_without_a_record_of_its_own_is_wrong():
    clients = gradients.meet_clients(load("digits"), 16, 3, 0)
    truth = clients.truth.inputs
    found = Candidates(
        inputs=torch.stack([truth[0], truth[0], truth[1] + 1, truth[1]]),
        confidence=torch.ones(4),
        status=Status.PARTIAL,
        reason="",
        stated=Stated(passed=[True, True, False, True], counted=3),
    )
    row = squared_scores(clients, found, 0.0)
    assert (row["recovered"], row["certified"], row["wrongly_certified"]) == (2, 3, 1)
    assert row["near"] == 2
    assert row["median_error"] == 0.0
    assert row["max_error"] == float(squared_l2(truth[2:], truth[:1]).min())


def test_digit_pairs_agree_or_differ():
    digits = load("digits")
    unit = torch.nn.functional.normalize(digits.inputs.flatten(1).double(), dim=1)
    for same in (True, False):
        pair = digit_pair(digits, same=same, seed=3)
        assert torch.allclose(pair.norm(dim=1), torch.ones(2, dtype=torch.float64))
        first, second = digits.labels[(pair @ unit.T).argmax(1)].tolist()
        assert (first == second) is same


@pytest.mark.parametrize(
    ("network", "method", "most"),
    [
        ("server leaky", "exact", 1e-8), ("server tanh", "paper", 0.3),
        ("server relu", "paper", 0.6), ("eavesdropper tanh", "exact", 1e-6),
    ],
)  # fmt: skip
def test_deep_networks_are_read_by_server_and_eavesdropper(network, method, most):
    given = {"noise": 0.0, "d": 8, "width": 2000, "output_bias": 30.0, "seed": 1}
    (row,) = measure_deep(network=network, method=method, **given)
    assert row["l2_error"] < most < row["null_error"]
    if method == "exact":
        (noisy,) = measure_deep(network=network, method=method, **given | {"noise": 0.1})
        assert noisy["l2_error"] > row["l2_error"]


def test_the_pictures_of_a_study_are_drawn(results):
    for name in ("gradient-pairs", "ntk-grid"):
        drawn = (results[name][1].path / "sheet.png").read_bytes()
        assert drawn.startswith(b"\x89PNG")


def test_rows_that_are_there_are_not_measured_again(results, tmp_path):
    rows, _ = results["gradient-noise"]
    values = tiny("gradient-noise")
    data, _ = study_data(values, None)
    run = open_run(tmp_path, study_spec("gradient-noise", values, data))
    held = json.dumps(rows[1] | {"reason": "from before"})
    (tmp_path / "rows.jsonl").write_text(f"{held}\n" + '{"half a li')
    measured = []

    def measure(examples, *, noise, **settings):
        measured.append(noise)
        return [rows[0]]

    study = dataclasses.replace(STUDIES["gradient-noise"], measure=measure)
    again = run_study(study, values, data, run)
    assert measured == [0.0]
    assert [row["noise"] for row in again] == [0.0, 0.01]
    assert again[1]["reason"] == "from before"


def test_data_that_is_not_there_is_named_and_left_out(tmp_path):
    values = {"data": ["digits", "cifar10"], "seed": [0]}
    data, missing = study_data(values, tmp_path)
    assert list(data) == ["digits"]
    assert missing == ("cifar10",)
    with pytest.raises(DataError, match="cifar10"):
        study_data(values | {"data": "cifar10"}, tmp_path)


def test_the_headline_has_a_sheet_of_what_came_back(results):
    _, run = results["kkt-headline"]
    assert (run.path / "sheet-ce-0.png").read_bytes().startswith(b"\x89PNG")
    assert "files" not in read_rows(run)[0]


@pytest.mark.parametrize("name", STUDIES)
def test_every_quick_grid_has_the_settings_of_the_whole_one(name):
    study = STUDIES[name]
    whole, quick = (cells(adjusted(study, {}, 3, quick=q)) for q in (False, True))
    assert 0 < len(quick) <= len(whole)
    assert all(asked["seed"] == 3 for _, asked in quick)
    seeds = {asked["seed"] for _, asked in whole}
    assert seeds == set(range(3, 3 + study.seeds))


def test_flags_stand_in_place_of_a_setting_alone_or_among_others():
    noise = STUDIES["gradient-noise"]
    values = adjusted(noise, {"width": (64, 128), "records": (5,)}, 7, 2)
    assert values["width records"] == [(64, 5), (128, 5)]
    assert values["seed"] == [7, 8]
    varied, asked = cells(values)[1]
    assert varied == {"width": 64, "records": 5, "noise": 0.0, "seed": 8}
    assert asked == varied | {"patience": 5, "data": "mnist"}
    onion = STUDIES["onion"]
    values = adjusted(onion, {"data": ("digits", "mnist"), "width": (40,)}, 0)
    assert (values["width"], values["data"]) == (40, ["digits", "mnist"])
    assert shown_columns(onion, values)[0] == "data"
    assert shown_columns(onion, adjusted(onion, {}, 0)) == list(onion.columns)
    paper = STUDIES["informed-paper"]
    for asked in (("replay",), ("ridge", "reconn")):  # methods share a cell
        values = adjusted(paper, {"methods": asked}, 0)
        assert [one["methods"] for _, one in cells(values)] == [asked]


def test_a_method_that_there_is_not_is_named(capsys, tmp_path):
    given = ["--methods", "ridge,wizard", "--quick", "--out", str(tmp_path)]
    assert main(["study", "informed-paper", *given]) == 2
    assert "--methods: expected replay or ridge or reconn" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("name", "flags", "text"),
    [
        ("gradient-dimension", {"records": (3,)}, "--records: expected none"),
        ("gradient-dimension", {"data": ("mnist",)}, "--data: expected none"),
    ],
)
def test_flags_that_mean_nothing_are_refused(name, flags, text):
    with pytest.raises(InputError, match=text):
        adjusted(STUDIES[name], flags, 0)


@pytest.mark.parametrize(
    ("flags", "text"),
    [
        (["--width", "0"], "--width: expected at least 1, got '0'"),
        (["--init", "0.1,inf"], "--init: expected a finite number, got 'inf'"),
        (["--seeds", "0"], "--seeds: expected 1 to 1000000, got 0"),
    ],
)
def test_flags_of_no_size_are_refused(flags, text, capsys):
    assert main(["study", "kkt-grid", *flags]) == 2
    assert text in capsys.readouterr().err


def test_figures_fill_in_names_and_leave_out_what_a_row_has_not():
    rows = [
        {"n": 1, "how": "a", "error": 4.0, "null": 8.0, "kind": "p"},
        {"n": 2, "how": "a", "error": 2.0, "null": 8.0, "kind": "p"},
        {"n": 3, "how": "b", "null": 8.0, "kind": "p"},
        {"n": 4, "how": "b", "error": 1.0, "null": 9.0, "kind": "q"},
    ]
    figure = Figure(
        x="n", lines={"error": "by {how}", "null": "null"}, across="n", up="", panel="{kind}!",
        only={"kind": "p"}, rank="n",
    )  # fmt: skip
    (panel,) = figure.panels(rows)
    assert panel.title == "p!"
    assert [(line.name, line.y) for line in panel.lines] == [
        ("by a", (4.0, 2.0)),
        ("null", (8.0, 8.0, 8.0)),
    ]
    assert panel.across == (
        "n\nrank correlation with error unknown\nrank correlation with null unknown"
    )


def test_rank_correlation_knows_order_and_gaps():
    rows = [{"x": x, "y": y} for x, y in ((1, 10.0), (2, 20.0), (3, 21.0), (4, None))]
    assert rank_correlation(rows, "x", "y") == "1.00 over 3"
    assert rank_correlation(rows[:2], "x", "y") == "unknown"
    assert rank_correlation([{"x": 1, "y": i} for i in range(5)], "x", "y") == "unknown"


def command(*words):
    top = Parser(prog="remnant")
    study.add(top.add_subparsers(parser_class=Parser))
    given = top.parse_args(["study", *words])
    return carry_out(given)


def test_a_data_directory_is_refused_where_no_data_is_read(tmp_path):
    with pytest.raises(InputError, match="--data-dir: expected none"):
        command("gradient-dimension", "--quick", "--data-dir", str(tmp_path))


def test_shadow_models_of_a_killed_study_are_not_trained_again(tmp_path, monkeypatch):
    study, values = STUDIES["informed-paper"], tiny("informed-paper") | {"methods": ("ridge",)}
    data, _ = study_data(values, None)
    trained, original, ridge = [], Fleet.train, informed_targets.LEARNED["ridge"]

    def counted(fleet, *part):
        trained.append(part)
        return original(fleet, *part)

    def killed(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(Fleet, "train", counted)
    for way in (killed, ridge):
        monkeypatch.setitem(informed_targets.LEARNED, "ridge", way)
        run = open_run(tmp_path / "run", study_spec("informed-paper", values, data))
        with nullcontext() if way is ridge else pytest.raises(KeyboardInterrupt):
            run_study(study, values, data, run)
        del run
    assert len(trained) == 2  # once whole, once to check one chunk of what was kept
    assert not (tmp_path / "run" / "fleets").exists()


def test_the_command_prints_a_table_or_json_and_shows_a_finished_study_again(
    tmp_path, capsys, monkeypatch
):
    small = dataclasses.replace(STUDIES["gradient-pairs"], quick=TINY["gradient-pairs"])
    monkeypatch.setattr("remnant.experiments.studies.STUDIES", {"gradient-pairs": small})
    words = ["gradient-pairs", "--quick", "--out", str(tmp_path / "found")]
    assert command(*words) == 0
    shown = capsys.readouterr().out
    assert "l2 error" in shown
    assert "exact" in shown
    assert command(*words, "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["method"] for row in rows] == ["paper", "exact"] * 2
    assert command(*words) == 0
    assert "done before" in capsys.readouterr().out
    assert command(*words, "--quiet") == 0
    assert capsys.readouterr().out == ""
    again = [*words[:-1], str(tmp_path / "two"), "--width", "200,250", "--seeds", "2", "--json"]
    assert command(*again) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {(row["m"], row["seed"]) for row in rows} == {(m, s) for m in (200, 250) for s in (0, 1)}
    assert len(rows) == 16


def test_a_study_that_is_refused_leaves_nothing_behind(tmp_path):
    words = ["kkt-grid", "--data", "digits", "--records", "100000", "--width", "8"]
    with pytest.raises(DataError, match="at least 100000"):
        command(*words, "--out", str(tmp_path / "found"))
    assert not list(tmp_path.iterdir())


def test_help_lists_the_studies(capsys):
    with pytest.raises(SystemExit):
        command("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for name, summary in study.SUMMARIES.items():
        assert name in shown
        assert summary in shown


def test_the_list_names_paper_and_figure_of_every_study(capsys):
    with pytest.raises(SystemExit) as left:
        command("--list")
    assert left.value.code == 0
    shown = " ".join(capsys.readouterr().out.split())
    assert all(name in shown for name in STUDIES)
    assert set(study.SUMMARIES) == set(STUDIES)
    said = study.SUMMARIES.values()
    assert all(re.match(r"00\d, (Figure|Table|section)|no paper's: ", words) for words in said)


def test_data_is_looked_for_by_studies_that_read_some(tmp_path):
    with pytest.raises(InputError, match="--data-dir: expected none"):
        command("gradient-dimension", "--data-dir", str(tmp_path))


def test_tables_keep_every_field():
    assert as_csv([{"a": 1, "b": None}, {"a": 2, "c": "x, y"}]) == 'a,b,c\n1,,\n2,,"x, y"\n'


POINTS = [
    Point("p", "one", 10, 4.0),
    Point("p", "one", 2, 1.0),
    Point("p", "one", 10, 2.0),
    Point("p", "two", 5, None),
    Point("q", "one", 0, 0.0),
    Point("q", "one", 3, 1e-9),
    Point("r", "two", "sign", 0.5),
]


def panels(**changes):
    across = {"p": "P", "q": "Q", "r": "R"}
    return line_panels(POINTS, across=across, up="error", **changes)


def test_lines_are_medians_in_order():
    p, q, r = panels()
    assert [panel.title for panel in (p, q, r)] == ["p", "q", "r"]
    assert p.places == (2.0, 5.0, 10.0)
    assert p.lines[0].x == (2.0, 10.0)
    assert p.lines[0].y == (1.0, 3.0)
    assert p.lines[1].y == (None,)
    assert p.across == "P"
    assert p.log_x
    assert (q.places, q.log_x) == (("0", "3"), False)  # a log axis has no zero
    assert r.lines[0].x == ("sign",)


@pytest.mark.parametrize("log_y", [True, False])
def test_lines_are_drawn_alike_each_time(log_y):
    drawn = draw_lines(panels(log_y=log_y), title="a title")
    assert drawn.startswith(b"\x89PNG")
    assert drawn == draw_lines(panels(log_y=log_y), title="a title")
    assert draw_lines(()).startswith(b"\x89PNG")
