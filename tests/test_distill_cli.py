"""`remnant distill` at tiny settings: its files, its table, going on after an interruption."""

import csv
import json

import numpy as np
import pytest
import torch

from remnant.cli import Parser, distill
from remnant.cli.common import carry_out
from remnant.data import load
from remnant.errors import DataError, InputError
from remnant.experiments import distill_table as table
from remnant.experiments.distill_table import Distilling, Material, divide, nearness, read, summary

TINY = ["--data", "digits", "--records", "40", "--images", "4", "--width", "64", "--test", "200"]


def command(*words):
    top = Parser(prog="remnant")
    distill.add(top.add_subparsers(dest="verb", required=True, parser_class=Parser))
    given = top.parse_args(["distill", *words])
    return carry_out(given)


@pytest.fixture
def scene():
    return Distilling(data="digits", records=40, images=4, width=64, test=200, steps=20)


@pytest.mark.parametrize("method", ["kip", "rkip", "rkip-finite"])
def test_a_run_leaves_images_a_sheet_and_accuracies(method, tmp_path, capsys):
    words = [method, *TINY, "--steps", "40", "--out", str(tmp_path / "run"), "--json"]
    assert command(*words) == 0
    result = json.loads(capsys.readouterr().out)
    assert result["rows"].keys() == {method, "full", "random"}
    mine = result["rows"][method]
    assert all(0 <= mine[name] <= 1 for name in table.NETWORKS)
    assert mine["images"] == 4
    assert result["trace"][-1] < result["trace"][0]
    with np.load(tmp_path / "run" / "distilled.npz", allow_pickle=False) as held:
        assert held["x"].shape == (4, 1, 8, 8)
        if method != "rkip-finite":
            assert held["y"].tolist() == [-1, 1, -1, 1]
    # What was written is a dataset again.
    assert load(tmp_path / "run" / "distilled.npz").labels.is_floating_point()
    assert (tmp_path / "run" / "sheet.png").read_bytes().startswith(b"\x89PNG")
    before = (tmp_path / "run" / "run.json").read_bytes()
    assert command(*words[:-1]) == 0
    assert "done before" in " ".join(capsys.readouterr().out.split())
    assert (tmp_path / "run" / "run.json").read_bytes() == before


def test_the_table_has_every_method_and_goes_on_where_it_was(tmp_path, monkeypatch, capsys):
    monkeypatch.setattr(table, "STEPS", dict.fromkeys(table.STEPS, (15, 0.02)))
    measure, done = table.measure_cell, []

    def some(cell, examples):
        if len(done) == 3:
            raise KeyboardInterrupt
        done.append(cell.method)
        return measure(cell, examples)

    words = ["table", *TINY, "--seeds", "2", "--out", str(tmp_path / "run")]
    monkeypatch.setattr(table, "measure_cell", some)
    with pytest.raises(KeyboardInterrupt):
        command(*words)
    monkeypatch.setattr(table, "measure_cell", lambda *a: done.append(a[0].method) or measure(*a))
    assert command(*words) == 0
    assert done == [*table.METHODS, *table.METHODS]
    with (tmp_path / "run" / "table.csv").open() as file:
        lines = list(csv.DictReader(file))
    assert [line["method"] for line in lines] == list(table.METHODS)
    assert {line["seeds"] for line in lines} == {"2"}
    assert float(lines[0]["infinite"]) > float(lines[-1]["infinite"])
    rows = [json.loads(line) for line in (tmp_path / "run" / "rows.jsonl").read_text().splitlines()]
    assert len(rows) == 10
    assert summary(rows)[0]["standard"] == pytest.approx(float(lines[0]["standard"]))
    assert (tmp_path / "run" / "figure.png").read_bytes().startswith(b"\x89PNG")
    assert "±" in capsys.readouterr().out


def test_copies_are_told_from_what_held_out_data_looks_like(scene):
    material = divide(scene, read(scene, None))
    assert isinstance(material, Material)
    copies = nearness(scene, material, material.seen(material.train)[:4])
    assert copies["copies_records"] == 4
    assert copies["near_records"] == pytest.approx(1)
    assert copies["copies_held_out"] < 4
    noise = torch.randn(4, 64, generator=torch.Generator().manual_seed(0))
    assert nearness(scene, material, noise)["copies_records"] == 0


def test_networks_of_rkip_finite_and_kernels_are_a_choice(scene):
    from dataclasses import replace

    examples = read(scene, None)
    finite = replace(scene, method="rkip-finite", steps=10)
    results = [
        table.distilled(s, divide(s, examples)).images
        for s in (finite, replace(finite, trained="standard"))
    ]
    assert results[0].shape == results[1].shape
    assert not torch.allclose(*results)
    ten = replace(scene, task=None, images=10, kernel="matched")
    found = table.distilled(ten, divide(ten, read(ten, None)))
    assert found.labels.shape == (10, 10)
    assert table.kernel_of(ten).width == 64


def test_faults_are_said_in_one_line(tmp_path):
    out = ["--out", str(tmp_path / "run")]
    with pytest.raises(InputError, match="--images: expected at most the 40 records, got 50"):
        command("rkip", *TINY, "--images", "50", *out)
    with pytest.raises(InputError, match="--seeds: expected 1 to 1000000, got 0"):
        command("table", *TINY, "--seeds", "0", *out)
    with pytest.raises(InputError, match="lr: expected more than 0"):
        command("rkip", *TINY, "--lr", "-1", *out)
    with pytest.raises(InputError, match="labels: expected classes, got real numbers"):
        command("rkip", *TINY, "--data", "diabetes", "--task", "none", *out)
    with pytest.raises(DataError, match="different records: expected at least"):
        command("rkip", *TINY, "--records", "1500", *out)
    assert not (tmp_path / "run").exists()
