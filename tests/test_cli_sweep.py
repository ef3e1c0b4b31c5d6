"""`remnant sweep` and `remnant runs`, as a user types them."""

import csv
import json

import numpy as np
import pytest
import safetensors.torch
import torch

from remnant.cli import main
from remnant.data import load
from remnant.models import build

MODEL = """model: mlp:64-8-8-10:nobias
weights: model.safetensors
"""
GRID = (
    MODEL
    + """data: train.npz
holdout: test.npz
attacks: [kkt]
settings:
  kkt: {starts: 2, steps: [2, 3]}
seed: [0, 1]
"""
)
BLIND = (
    MODEL
    + """records: 3
shape: 1x8x8
attacks: [kkt]
settings:
  kkt: {starts: [2, 3], steps: 2}
"""
)
SEARCH = (
    MODEL
    + """records: 3
loss: ce
shape: 1x8x8
bounds: [0, 1]
search: {attack: kkt, trials: 3, settings: {steps: 2, starts: 2}}
"""
)


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Files as a user has them, and the three sweeps of this module, done."""
    torch.set_num_threads(1)
    path = tmp_path_factory.mktemp("sweeps")
    digits = load("digits")
    for name, part in (("train", digits.take(range(3))), ("test", digits.take(range(9, 21)))):
        np.savez(path / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    model = build("mlp:64-8-8-10:nobias", generator=torch.Generator().manual_seed(0))
    weights = {name: p.detach() for name, p in model.named_parameters()}
    safetensors.torch.save_file(weights, path / "model.safetensors")
    for name, text in (("grid", GRID), ("blind", BLIND), ("search", SEARCH)):
        (path / f"{name}.yaml").write_text(text)
        words = ["sweep", str(path / f"{name}.yaml"), "--jobs", "1", "--quiet"]
        assert main([*words, "--out", str(path / "runs" / name)]) == 0
    return path


def sweep(folder, name, *more):
    return main(
        ["sweep", str(folder / f"{name}.yaml"), "--out", str(folder / "runs" / name), *more]
    )


def test_a_grid_is_a_table_rows_and_a_figure(folder, capsys):
    out = folder / "runs" / "grid"
    with (out / "table.csv").open() as file:
        table = list(csv.DictReader(file))
    assert [(row["settings.kkt.steps"], row["seed"]) for row in table] == [
        ("2", "0"), ("2", "1"), ("3", "0"), ("3", "1"),
    ]  # fmt: skip
    assert all(row["records"] == "3" and row["verdict"] for row in table)
    rows = [json.loads(line) for line in (out / "rows.jsonl").read_text().splitlines()]
    assert [row["share"] for row in rows] == [row["recovered"] / 3 for row in rows]
    assert (out / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert json.loads((out / "run.json").read_text())["finished"]
    assert not list(out.glob("state-*"))
    assert sweep(folder, "grid") == 0
    assert "done before" in capsys.readouterr().out
    assert sweep(folder, "grid", "--json") == 0
    assert json.loads(capsys.readouterr().out) == rows


def test_without_data_a_grid_says_what_an_adversary_sees(folder, capsys):
    assert sweep(folder, "blind", "--json") == 0
    rows = json.loads(capsys.readouterr().out)
    assert [row["settings.kkt.starts"] for row in rows] == [2, 3]
    assert all(row["counted"] == 3 and 0 <= row["consensus"] <= 1 for row in rows)
    assert all("recovered" not in row and "verdict" not in row for row in rows)


def test_a_sweep_of_something_else_is_not_taken_for_this_one(folder, capsys):
    (folder / "changed.yaml").write_text(BLIND.replace("records: 3", "records: 2"))
    out = str(folder / "runs" / "blind")
    assert main(["sweep", str(folder / "changed.yaml"), "--out", out]) == 2
    assert "expected a run of this spec, got another" in capsys.readouterr().err


def test_a_search_discloses_its_trials_in_the_finding(folder, capsys):
    assert sweep(folder, "search") == 0
    said = capsys.readouterr().out
    assert "3 trials by consensus: 3 complete, 0 failed, 0 pruned" in said
    finding = json.loads((folder / "runs" / "search" / "finding.json").read_text())
    disclosed = finding["figures"]["search"]
    assert len(disclosed["rows"]) == disclosed["trials"] == 3
    assert finding["records"] is None
    candidates = safetensors.torch.load_file(folder / "runs/search/candidates.safetensors")
    assert candidates["inputs"].shape[1:] == (1, 8, 8)


@pytest.mark.parametrize(
    ("text", "flags", "words"),
    [
        (MODEL, (), "sweep: expected a list of values to vary, got none"),
        (BLIND, ("--jobs", "0"), "--jobs: expected 1 to 1024, got 0"),
        (BLIND, ("--on", "moon"), "place of tasks: expected jobs:N"),
        (BLIND, ("--storage", "sqlite:///x"), "--storage: expected a spec with search:"),
        (BLIND.replace("[kkt]", "[kkt, ntk]"), (), "sweep without data: expected one attack"),
        (BLIND.replace("records: 3", "records: [3, 4]"), (), "expected one target, got several"),
        (BLIND.replace("steps: 2", "speed: 2"), ("--jobs", "1"), "settings of kkt: expected"),
        (GRID + "colour: red\n", (), "an unknown key"),
        ("- a\n- b\n", (), "expected fields such as weights:"),
        (SEARCH.replace("trials", "tries"), (), "search: expected some of attack, space, trials"),
        (SEARCH.replace("{attack: kkt, ", "{"), (), "search: expected fields such as attack:"),
        (SEARCH + "seed: x\n", (), "seed: expected a valid integer"),
        (SEARCH.replace("{steps: 2, starts: 2}", "3"), (), "search: settings: expected a valid"),
    ],
)  # fmt: skip
def test_what_a_sweep_refuses(folder, tmp_path, capsys, text, flags, words):
    (folder / "wrong.yaml").write_text(text)
    code = main(["sweep", str(folder / "wrong.yaml"), "--out", str(tmp_path / "out"), *flags])
    said = capsys.readouterr()
    assert code == 2
    assert words in said.err
    assert len(said.err.splitlines()) == 1
    assert not (tmp_path / "out").exists()


def test_runs_are_listed_and_compared(folder, tmp_path, capsys, monkeypatch):
    (folder / "runs" / "other").mkdir(exist_ok=True)
    (folder / "runs" / "other" / "run.json").write_text("{}")  # no run of ours
    assert main(["runs", "list", str(folder / "runs"), "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert [(row["verb"], row["state"]) for row in rows] == [
        ("sweep", "done"), ("sweep", "done"), ("search", "done"),
    ]  # fmt: skip
    assert [row["result"] for row in rows][:2] == ["2 rows", "4 rows"]
    assert main(["runs", "list", str(tmp_path)]) == 0
    assert "no runs in" in capsys.readouterr().out
    (tmp_path / "remnant-runs").symlink_to(folder / "runs")
    monkeypatch.chdir(tmp_path)
    assert main(["runs"]) == 0
    assert capsys.readouterr().out.count("done") == 3
    one, other = (str(folder / "runs" / name) for name in ("grid", "search"))
    assert main(["runs", "compare", one, other]) == 0
    said = capsys.readouterr().out
    assert 'spec verb: "sweep" | "search"' in said
    assert "finding status: nothing | " in said
    assert main(["runs", "compare", one, one]) == 0
    assert capsys.readouterr().out == "no difference\n"
    assert main(["runs", "list", str(tmp_path / "none")]) == 2
    assert "expected a folder of runs, got none" in capsys.readouterr().err


def test_only_runs_are_removed_and_only_when_confirmed(folder, tmp_path, capsys, monkeypatch):
    run = tmp_path / "run"
    words = ["sweep", str(folder / "blind.yaml"), "--jobs", "1", "--quiet", "--out", str(run)]
    assert main(words) == 0
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "thesis.txt").write_text("years")
    link = tmp_path / "link"
    link.symlink_to(run)
    (run / "sub").mkdir()
    for path, words in (
        (mine, "expected a run with run.json, got none"),
        (link, "expected a run's own directory, got a link"),
        (run, "expected a run's files alone, got also sub"),
    ):
        assert main(["runs", "remove", str(path), "--yes"]) == 2
        assert words in capsys.readouterr().err
    (run / "sub").rmdir()
    assert main(["runs", "remove", str(run), str(mine), "--yes"]) == 2  # one is none: all stay
    assert main(["runs", "remove", str(run)]) == 2
    assert "expected --yes, got nobody to ask" in capsys.readouterr().err
    assert run.exists()
    assert (mine / "thesis.txt").exists()
    with monkeypatch.context() as patch:
        patch.chdir(run)
        assert main(["runs", "remove", str(run), "--yes"]) == 2
    assert main(["runs", "remove", str(run), "--yes"]) == 0
    assert not run.exists()
