"""Studies at tiny settings: what they measure, that they go on where they were, what they draw."""

import csv
import dataclasses
import json

import pytest
import torch

from remnant.cli import Parser, study
from remnant.data import load
from remnant.errors import DataError
from remnant.experiments import defence_targets, defences
from remnant.experiments import fine_tuning as tuning
from remnant.experiments import gradient_batches as batches
from remnant.experiments import gradient_studies as pairs
from remnant.experiments import informed_studies as informed
from remnant.experiments import kkt_studies as kkt
from remnant.experiments import ntk_exposure as exposure
from remnant.experiments import ntk_studies as ntk
from remnant.experiments import private_study as private
from remnant.experiments.studies import (
    STUDIES,
    as_csv,
    read_rows,
    run_study,
    study_data,
    study_spec,
)
from remnant.report.lines import draw_lines, line_panels
from remnant.scoring import squared_l2
from remnant.store import open_run
from remnant.types import Candidates, Status

DIGITS = ("digits",)
INFORMED = {"fixed": 30, "shadows": 40, "targets": 2, "epochs": 3, "evaluations": 6}
TOY = {"starts": 2, "steps": 10, "data": DIGITS}
TINY = {
    "gradient-dimension": pairs.Dimension(width=800, dimensions=(5, 8), repeats=1),
    "gradient-pairs": pairs.Pairs(widths=(300,), repeats=1, data=DIGITS),
    "gradient-batch": batches.Batches(
        grid=((64, (1, 6, 40)),), least_steps=2, most_seconds=0.1, data=DIGITS
    ),
    "gradient-noise": batches.Noise(shares=(0.0, 0.01), sizes=((64, 4),), repeats=1, data=DIGITS),
    "gradient-defences": batches.Defences(
        width=64,
        records=4,
        keep=(1.0, 0.01),
        batch=(4, 10),
        clients=(1, 3),
        patience=1,
        repeats=1,
        data=DIGITS,
    ),
    "kernel-distance": ntk.KernelDistance(
        widths=(32,), records=3, others=(), steps=5, stop_loss=0.1, repeats=1, data=DIGITS
    ),
    "early-stopping": ntk.EarlyStopping(
        stops=(0.5, 0.1), records=4, width=32, steps=5, repeats=1, data=DIGITS
    ),
    "leak-factors": exposure.LeakFactors(
        records=6, per_root=13.0, classes=(2,), class_records=4, steps=5, repeats=1, data=DIGITS
    ),
    "fine-tuning": tuning.FineTuning(
        cases=(("dense head", "features"),), widths=(4,), epochs=1, hidden=32, per_class=1,
        tuning=5, inversion=5, data=DIGITS,
    ),
    "informed-factors": informed.Factors(
        factors=("default",), methods=("replay", "ridge"), **INFORMED
    ),
    "informed-cnn": informed.Convolutions(
        factors=("default",), methods=("ridge",), data=("mnist",), **INFORMED
    ),
    "informed-shadows": informed.Shadows(counts=(20, 40), methods=("ridge",), **INFORMED),
    "informed-batch": informed.Batches(lrs=(0.05,), sizes=(10,), methods=("ridge",), **INFORMED),
    "kkt-grid": kkt.Grid(widths=(24,), records=(4,), tasks=("ce",), **TOY),
    "kkt-classes": kkt.Classes(classes=(2,), records=4, width=24, repeats=1, **TOY),
    "kkt-decay": kkt.Decay(
        decays=(5e-3,), tasks=("ce",), records=4, width=24, training_steps=50, **TOY
    ),
    "kkt-exposure": kkt.Exposure(tasks=("ce",), records=5, width=24, **TOY),
    "kkt-assumptions": kkt.Assumptions(cases=("unfinished",), records=4, width=24, **TOY),
    "defences": defences.DefenceTable(
        defences=(("none", ""), ("rounding", "float16")), attacks=("gradient",),
        sizes=defence_targets.Sizes(records=4, gradient_width=48, rounds=2),
        data=DIGITS,
    ),
    "private-descent": private.PrivateStudy(
        epsilons=(100.0,), known=30, targets=2, shadows=40, test=50, steps=3, evaluations=4
    ),
    "ntk-grid": ntk.ExactGrid(widths=(48,), records=(4,), tasks=("odd-even",), data=DIGITS),
    "onion": exposure.Onion(
        records=8, remove=2, rounds=1, per_root=8.0, removals=(("random", True, "paper"),), steps=5,
        data=DIGITS,
    ),
}  # fmt: skip
ONLY_WITH_A_CERTIFICATE = {"certified", "wrongly_certified"}
ROWS_PER_CELL = {
    "gradient-batch": 2,
    "onion": 2,
    "informed-factors": 2,
    "informed-shadows": 2,
    "kkt-exposure": 5,
}


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    """Each study once: (result, run)."""
    torch.set_num_threads(1)
    done = {}
    for name, settings in TINY.items():
        data, _ = study_data(settings, None)
        run = open_run(tmp_path_factory.mktemp(name), study_spec(name, settings, data, 0))
        done[name] = run_study(name, settings, data, run), run
    return done


def test_every_study_has_a_line_of_help_and_a_tiny_variant():
    assert STUDIES.keys() == study.SUMMARIES.keys() == TINY.keys()


@pytest.mark.parametrize("name", STUDIES)
def test_every_row_says_what_was_measured(results, name):
    result, run = results[name]
    cells = STUDIES[name].cells(TINY[name], 0)
    if name != "leak-factors":  # its first cell has a row a record
        assert len(result.rows) == len(cells) * ROWS_PER_CELL.get(name, 1)
        shown = set(STUDIES[name].columns) - ONLY_WITH_A_CERTIFICATE
        assert all(shown <= row.keys() for row in result.rows)
    for row in result.rows:
        assert row["cpu_seconds"] >= 0
        assert row["seed"] == 0
    assert read_rows(run) == list(result.rows)
    with (run.path / "table.csv").open() as file:
        assert len(list(csv.DictReader(file))) == len(result.rows)
    assert (run.path / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((run.path / "run.json").read_text())["finished"]


@pytest.mark.parametrize("name", ["gradient-dimension", "gradient-pairs"])
def test_the_exact_solver_finds_pairs_that_the_tensor_only_comes_near(results, name):
    rows = results[name][0].rows
    exact = [row for row in rows if row["method"] == "exact"]
    assert max(row["max_l2_error"] for row in exact) < 1e-6
    assert all(row["certified"] for row in exact)
    paper = [row["l2_error"] for row in rows if row["method"] == "paper"]
    assert min(paper) > 1e-3
    assert max(paper) < 2.0
    assert not any(row["certified"] for row in rows if row["method"] == "paper")


def test_batches_come_back_until_they_are_too_large(results):
    rows = {(r["records"], r["method"]): r for r in results["gradient-batch"][0].rows}
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
    monkeypatch.setattr(batches, "attack", lambda target, how, seed: (None, next(ticks)))
    assert batches.affordable(None, 7.5 if steps > 5 else 0.0, 5, 0) == steps


def test_noise_costs_exactness_but_certifies_nothing_wrong(results):
    clean, noisy = results["gradient-noise"][0].rows
    assert clean["recovered"] == clean["near"] == noisy["near"] == 4
    assert noisy["recovered"] == 0
    assert clean["max_error"] < 1e-9 < noisy["median_error"] < 0.1
    assert noisy["wrongly_certified"] == 0


def test_only_some_defences_defend(results):
    rows = {(r["defence"], r["strength"]): r for r in results["gradient-defences"][0].rows}
    for undefended in [
        ("noise", 0.0),
        ("clip", 0.01),
        ("clip each", 0.1),
        ("keep", 1.0),
        ("format", "float32"),
        ("batch", 10),
        ("clients", 3),
    ]:
        assert rows[undefended]["recovered"] == rows[undefended]["records"], undefended
    assert rows["clients", 3]["records"] == 12
    for defended in [("keep", 0.01), ("format", "sign"), ("noise", 1.0)]:
        assert rows[defended]["recovered"] == rows[defended]["near"] == 0
        assert rows[defended]["count_told"]
    assert not any(row["wrongly_certified"] for row in rows.values())


def test_clients_summed_are_one_larger_batch():
    clients = batches.meet_clients(load("digits"), 16, 6, 0)
    apart = batches.sent("clients", 3, clients, 2, 0)
    for name, whole in clients.gradient().items():
        assert torch.allclose(apart[name], 3 * whole, atol=1e-6)


def test_a_certified_candidate_without_a_record_of_its_own_is_wrong():
    clients = batches.meet_clients(load("digits"), 16, 3, 0)
    truth = clients.truth.inputs
    found = Candidates(
        inputs=torch.stack([truth[0], truth[0], truth[1] + 1, truth[1]]),
        confidence=torch.ones(4),
        status=Status.PARTIAL,
        reason="",
        figures={"passed": [True, True, False, True], "counted": 3},
    )
    row = batches.scores(clients, found, 0.0)
    assert (row["recovered"], row["certified"], row["wrongly_certified"]) == (2, 3, 1)
    assert row["near"] == 2
    assert row["median_error"] == 0.0
    assert row["max_error"] == float(squared_l2(truth[2:], truth[:1]).min())


def test_digit_pairs_agree_or_differ():
    digits = load("digits")
    unit = torch.nn.functional.normalize(digits.inputs.flatten(1).double(), dim=1)
    for same in (True, False):
        pair = pairs.digit_pair(digits, same=same, seed=3)
        assert torch.allclose(pair.norm(dim=1), torch.ones(2, dtype=torch.float64))
        first, second = digits.labels[(pair @ unit.T).argmax(1)].tolist()
        assert (first == second) is same


def test_rows_that_are_there_are_not_measured_again(results, tmp_path, monkeypatch):
    result, _ = results["gradient-noise"]
    settings = TINY["gradient-noise"]
    data, _ = study_data(settings, None)
    run = open_run(tmp_path, study_spec("gradient-noise", settings, data, 0))
    held = json.dumps(result.rows[1] | {"reason": "from before"})
    (tmp_path / "rows.jsonl").write_text(f"{held}\n" + '{"half a li')
    measured = []

    def measure(settings, cell, data):
        measured.append(cell["noise"])
        return [result.rows[0]]

    table = {"gradient-noise": dataclasses.replace(STUDIES["gradient-noise"], measure=measure)}
    monkeypatch.setattr("remnant.experiments.studies.STUDIES", table)
    again = run_study("gradient-noise", settings, data, run)
    assert measured == [0.0]
    assert [row["noise"] for row in again.rows] == [0.0, 0.01]
    assert again.rows[1]["reason"] == "from before"


def test_data_that_is_not_there_is_named_and_left_out(tmp_path):
    settings = batches.Batches(data=("digits", "cifar10"))
    data, missing = study_data(settings, tmp_path)
    assert list(data) == ["digits"]
    assert missing == ("cifar10",)
    with pytest.raises(DataError, match="cifar10"):
        study_data(batches.Batches(data=("cifar10",)), tmp_path)


def command(*words):
    top = Parser(prog="remnant")
    study.add(top.add_subparsers(parser_class=Parser))
    given = top.parse_args(["study", *words])
    return given.run(given)


def test_the_command_prints_a_table_or_json_and_shows_a_finished_study_again(
    tmp_path, capsys, monkeypatch
):
    tiny = dataclasses.replace(STUDIES["gradient-pairs"], quick=TINY["gradient-pairs"])
    monkeypatch.setattr("remnant.experiments.studies.STUDIES", {"gradient-pairs": tiny})
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


def test_help_lists_the_studies(capsys):
    with pytest.raises(SystemExit):
        command("--help")
    shown = " ".join(capsys.readouterr().out.split())
    for name, summary in study.SUMMARIES.items():
        assert name in shown
        assert summary in shown


def test_tables_keep_every_field():
    assert as_csv([{"a": 1, "b": None}, {"a": 2, "c": "x, y"}]) == 'a,b,c\n1,,\n2,,"x, y"\n'


ROWS = [
    {"kind": "p", "how": "one", "n": 10, "error": 4.0},
    {"kind": "p", "how": "one", "n": 2, "error": 1.0},
    {"kind": "p", "how": "one", "n": 10, "error": 2.0},
    {"kind": "p", "how": "two", "n": 5, "error": None},
    {"kind": "q", "how": "one", "n": 0, "error": 0.0},
    {"kind": "q", "how": "one", "n": 3, "error": 1e-9},
    {"kind": "r", "how": "two", "n": "sign", "error": 0.5},
]


def panels(**changes):
    return line_panels(
        ROWS,
        panel=lambda row: row["kind"],
        line="how",
        x="n",
        y="error",
        across=str.upper,
        up="error",
        **changes,
    )


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
