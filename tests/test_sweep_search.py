"""Searches: the same wherever they run, interrupted or not, and chosen without the truth."""

import ast
import json
import math
import shutil
import stat
import subprocess
import sys
import tempfile
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import pytest
import safetensors.torch
import torch

import remnant.sweep
from remnant.attacks import ATTACKS
from remnant.attacks.made import check_names, make_attack
from remnant.checkpoints import unpack
from remnant.data import load
from remnant.errors import InputError, StoreError
from remnant.models import build
from remnant.solvers.kkt.paper import RANGES
from remnant.store import hash_tensors, read_run, spec_hash
from remnant.sweep.executors import Outcome
from remnant.sweep.search import (
    OWN,
    Search,
    consensus,
    judge,
    read_space,
    residual,
    run_trial,
    search_spec,
    with_count,
)
from remnant.sweep.trials import JOURNAL, open_study, storage_in
from remnant.training import GradientDescent, train
from remnant.types import Knowledge, Scaling, Target
from sweep_clusters import ENVIRONMENT, TESTS, dask_cluster, end
from sweep_search_case import HOW, after, run_search
from sweep_tasks import wait_for

optuna = pytest.importorskip("optuna")
CASE = TESTS / "sweep_search_case.py"


@pytest.fixture(scope="module")
def here(tmp_path_factory):
    """The search of all tests, in this process, uninterrupted."""
    torch.set_num_threads(1)
    return run_search(tmp_path_factory.mktemp("here") / "run", on="jobs:1")


def test_a_search_discloses_every_trial(here):
    disclosed, _, run = here
    assert disclosed["trials"] == disclosed["complete"] == len(disclosed["rows"]) == 24
    assert disclosed["failed"] == disclosed["pruned"] == disclosed["unfinished"] == 0
    rows = disclosed["rows"]
    assert [row["number"] for row in rows] == list(range(24))
    assert all(set(row["settings"]) == set(read_space("kkt", "papers").axes) for row in rows)
    values = [*(row["value"] for row in rows), disclosed["own_value"]]
    assert disclosed["chosen_value"] == min(values)
    best = disclosed["chosen"]
    assert best == OWN or rows[best]["value"] == min(values)
    assert len({json.dumps(row["settings"]) for row in rows}) == 24
    mode = stat.S_IMODE((run.path / JOURNAL).stat().st_mode)
    assert mode == 0o600


def test_the_answer_is_what_the_trials_agree_on(tmp_path):
    how = replace(HOW, trials=3)
    pooled, digest, run = run_search(tmp_path / "pool", how, on="jobs:1")
    assert pooled["pooled"] == [OWN, 0, 1, 2]
    best, other, _ = run_search(tmp_path / "best", replace(how, answer="best"), on="jobs:1")
    assert best["pooled"] == []
    assert best["chosen"] == pooled["chosen"]
    trials = [safetensors.torch.load_file(path) for path in run.path.glob("state-*")]
    held = [unpack(one).get("tensors", {}) for one in trials if "tree" in one]
    inputs = {hash_tensors({"x": one["inputs"]}) for one in held if "inputs" in one}
    assert other in inputs
    assert digest not in inputs


def test_the_same_search_on_processes_is_the_same_hash_for_hash(here, tmp_path):
    assert run_search(tmp_path / "run", on="jobs:2")[:2] == here[:2]


def test_the_same_search_on_dask_though_a_worker_is_killed(here, tmp_path):
    pytest.importorskip("distributed")
    with dask_cluster(tmp_path) as (address, workers), after(10, lambda: end(workers[0])):
        found = run_search(tmp_path / "run", on=f"dask://{address}")
        assert workers[0].poll() is not None
    assert found[:2] == here[:2]
    assert len(list((tmp_path / "run").glob("state-*"))) == 24 + 2  # own settings, this driver


def test_the_same_search_on_ray(here, tmp_path):
    ray = pytest.importorskip("ray", reason="ray is not installed")
    try:
        assert run_search(tmp_path / "run", on="ray://local")[:2] == here[:2]
    finally:
        ray.shutdown()


def test_a_search_whose_driver_is_killed_goes_on_with_the_rest(here, tmp_path):
    words = [sys.executable, str(CASE), str(tmp_path / "run"), "jobs:1", "", "", "13"]
    killed = subprocess.run(words, env=ENVIRONMENT, capture_output=True)
    assert killed.returncode == -9
    held = {p.name: p.stat().st_mtime_ns for p in (tmp_path / "run").glob("state-*")}
    assert len(held) == 12 + 1  # the second batch counts the attack's own settings once more
    again = run_search(tmp_path / "run", on="jobs:1")
    assert again[:2] == here[:2]
    assert {n: (tmp_path / "run" / n).stat().st_mtime_ns for n in held} == held
    assert len(list((tmp_path / "run").glob("state-*"))) == 26


def test_sqlite_in_place_of_the_journal(here, tmp_path):
    storage = storage_in(tmp_path, "sqlite:///trials.db")
    how = replace(HOW, trials=5)
    disclosed, _, run = run_search(tmp_path / "run", how, on="jobs:1", storage=storage)
    assert disclosed["rows"] == here[0]["rows"][:5]
    assert (tmp_path / "trials.db").exists()
    assert not (run.path / JOURNAL).exists()
    assert storage_in(tmp_path, "sqlite:////a/b") == "sqlite:////a/b"


@contextmanager
def postgresql():
    """The URL of a server of our own, on a socket in a temporary folder."""
    programs = sorted(Path("/usr/lib/postgresql").glob("*/bin/initdb"))
    if not programs:
        pytest.skip("PostgreSQL is not installed: no /usr/lib/postgresql/*/bin/initdb")
    pytest.importorskip("psycopg2")
    import os
    import pwd

    user = {}
    if os.getuid() == 0:  # the server refuses to run as root
        names = {entry.pw_name for entry in pwd.getpwall()}
        if "postgres" not in names:
            pytest.skip("PostgreSQL does not run as root, and there is no user postgres")
        user = {"user": "postgres", "group": "postgres"}
    folder = Path(tempfile.mkdtemp(prefix="pg", dir="/tmp"))
    if user:
        shutil.chown(folder, **user)
    control, data = programs[-1].parent, folder / "data"
    quiet = {"cwd": folder, "capture_output": True, "check": True, **user}
    try:
        words = ["-U", "postgres", "-A", "trust", "--no-sync", "-D", data]
        subprocess.run([control / "initdb", *words], **quiet)
        options = f"-k {folder} -c listen_addresses='' -c fsync=off"
        subprocess.run(
            [control / "pg_ctl", "-D", data, "-o", options, "-l", folder / "log", "-w", "start"],
            cwd=folder, stdout=subprocess.DEVNULL, check=True, **user,
        )  # fmt: skip
        yield f"postgresql+psycopg2://postgres@/postgres?host={folder}"
        subprocess.run([control / "pg_ctl", "-D", data, "-m", "immediate", "stop"], **quiet)
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def test_two_searches_at_once_share_the_trials_of_one_database(tmp_path):
    with postgresql() as url:
        gate = tmp_path / "gate"
        processes = [
            subprocess.Popen(
                [sys.executable, CASE, tmp_path / name, "jobs:1", url, gate, "inf"],
                env=ENVIRONMENT, stdout=subprocess.PIPE, text=True,
            )
            for name in ("a", "b")
        ]  # fmt: skip
        for name in ("a", "b"):
            wait_for(tmp_path / f"{name}.ready", 120)
        gate.touch()  # both begin at once
        said = [process.communicate(timeout=120)[0] for process in processes]
        assert [process.returncode for process in processes] == [0, 0]
        disclosed = [json.loads(text)[0] for text in said]
        hashes = read_run(tmp_path / "a").spec
        study = f"remnant-{spec_hash(hashes)[:16]}"
        trials = optuna.load_study(study_name=study, storage=url).trials
    counted = [trial for trial in trials if trial.number < 24]
    assert [trial.number for trial in counted] == list(range(24))
    assert all(trial.state.name == "COMPLETE" for trial in counted)
    assert all(t.user_attrs["reason"] == "one too many" for t in trials[24:])
    assert {t.state.name for t in trials[24:]} <= {"FAIL"}
    drivers = [trial.user_attrs["driver"] for trial in counted]
    assert len(set(drivers)) == 2
    ran = [{p.name for p in (tmp_path / name).glob("state-*")} for name in ("a", "b")]
    both = ran[0] & ran[1]
    assert len(both) == 2  # the attack's own settings, and the file that names the driver
    assert len(ran[0] | ran[1]) == 24 + 2
    assert sorted(len(r) - 2 for r in ran) == sorted(drivers.count(d) for d in set(drivers))
    assert sum(24 - d["elsewhere"] for d in disclosed) in range(1, 25)


def test_pruned_and_failed_trials_are_disclosed(tmp_path):
    how = replace(HOW, prune=0.4, trials=8)
    disclosed, _, _ = run_search(tmp_path / "a", how, on="jobs:1")
    assert (disclosed["complete"], disclosed["pruned"]) == (4, 4)
    assert all(r["value"] is None for r in disclosed["rows"] if r["state"] == "pruned")
    space = {"starts": [1, 2], "candidates": [4, 6]}
    how = Search(attack="kkt", space=space, trials=6, settings={"steps": 2})
    disclosed, _, _ = run_search(tmp_path / "b", how, on="jobs:1")
    values = [disclosed["own_value"], *(row["value"] or 0.0 for row in disclosed["rows"])]
    assert disclosed["chosen_value"] == max(values)
    failed = [row for row in disclosed["rows"] if row["state"] == "fail"]
    assert 0 < len(failed) == disclosed["failed"] < 6
    reasons = {row["reason"] for row in failed}
    assert reasons == {"one run of this attack has nothing to agree with; give runs: 2 or more"}


def test_a_search_in_which_nothing_has_a_value_says_so(tmp_path):
    how = Search(attack="ntk", space={"starts": [1, 2]}, trials=2)
    with pytest.raises(StoreError, match="expected a trial with a value, got none"):
        run_search(tmp_path / "run", how, on="jobs:1")


def test_a_search_over_ntk_counts_the_records_that_nobody_told(tmp_path):
    digits = load("digits").take(range(3))
    model = build("mlp:64-32-32-10", generator=torch.Generator().manual_seed(0))
    trained = train(
        model, digits, GradientDescent(lr=0.05, steps=30),
        scaling=Scaling(), generator=torch.Generator(),
    )  # fmt: skip
    known = Knowledge(initial=trained.initial)
    target = Target(model=trained.model, input_shape=(1, 8, 8), knowledge=known)
    how = Search(attack="ntk", trials=1)
    counted = with_count(target, how)
    assert counted.knowledge.records == 3
    assert with_count(counted, how) is counted
    assert with_count(target, Search(attack="kkt")) is target  # which counts by itself
    settings = {"preset": "projected", "steps": 2, "runs": 1}
    spec = {"attack": "ntk", "settings": settings, "seed": 0, "run": "0.0"}
    assert "give --records" in run_trial(spec, target)[0]["reason"]
    assert len(run_trial(spec, counted)[1]["inputs"]) >= 3


def outcome(inputs, confidence, **figures):
    value = {"status": "partial", "reason": "", "figures": figures, "cpu_seconds": 0.0}
    tensors = {"inputs": inputs, "confidence": confidence}
    return Outcome(spec={}, digest="", value=value, tensors=tensors)


def test_consensus_counts_what_runs_agree_on_once():
    pictures = torch.eye(6)[:3].double()
    twice = [outcome(pictures, torch.zeros(3), counted=3) for _ in range(2)]
    assert math.isclose(consensus(twice), 1.0)
    shuffled = [twice[0], outcome(pictures.flip(0), torch.zeros(3), counted=3)]
    assert math.isclose(consensus(shuffled), 1.0)
    same = [outcome(pictures[:1].expand(3, 6), torch.zeros(3), counted=3) for _ in range(2)]
    assert math.isclose(consensus(same), 1 / 3)  # one picture, thrice
    half = outcome(pictures, torch.tensor([0.1, 1.0, 0.5]), counted=2)
    assert math.isclose(consensus([half]), 0.75)


def test_values_are_what_the_adversary_sees():
    found = outcome(torch.zeros(2, 3), torch.ones(2), misfit=[1.0, 3.0])
    assert residual([found, replace(found, value=found.value | {"figures": {"loss": 4.0}})]) == 3.0
    assert judge([outcome(torch.zeros(2, 3), torch.ones(2))], "residual") == (
        None,
        "no finite residual",
    )
    assert judge([replace(found, error="why")], "residual") == (None, "why")
    value, reason = judge([outcome(torch.zeros(2, 3), torch.zeros(2))], "consensus")
    assert value is None
    assert "nothing to agree with" in reason


@pytest.mark.parametrize("name", ["search", "trials", "executors"])
def test_a_search_cannot_see_the_truth(name):
    path = Path(remnant.sweep.__file__).with_name(f"{name}.py")
    modules = [
        n.module for n in ast.walk(ast.parse(path.read_text())) if isinstance(n, ast.ImportFrom)
    ]
    rooms = {module.split(".")[1] for module in modules if module.startswith("remnant.")}
    assert not rooms & {"data", "scoring", "auditing", "experiments", "bundle", "cli"}


def test_named_spaces_are_of_fields_that_attacks_have():
    papers = read_space("kkt", "papers").axes
    assert {n: (a.low, a.high) for n, a in papers.items()} == dict(RANGES)
    assert [n for n, axis in papers.items() if axis.log] == ["lr", "sigma"]
    for attack in ATTACKS:
        space = read_space(attack, "default")
        check_names(attack, space.axes)
        make_attack(attack, space.fixed)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"attack": "magic"}, "attack: expected one of ntk"),
        ({"space": "best"}, "space best: expected one of default, papers"),
        ({"answer": "worst"}, "search: answer: expected 'pool' or 'best', got 'worst'"),
        ({"attack": "ntk", "space": "papers"}, "space papers: expected one for kkt, got ntk"),
        ({"space": {"speed": [1]}}, "settings of kkt: expected some of preset"),
        ({"space": {}}, "at least one field"),
        ({"space": 3}, "at least one field, got 3"),
        ({"space": {"lr": {"low": 2, "high": 1}}}, "low below high"),
        ({"space": {"lr": {"low": 0, "high": 1, "log": True}}}, "both positive"),
        ({"space": {"starts": {"low": 0.5, "high": 2, "integer": True}}}, "whole numbers"),
        ({"space": {"lr": {"from": 1}}}, "space of lr: low: expected a value, got none"),
        ({"space": {"lr": 3}}, "space of lr: expected a list"),
        ({"space": {"lr": [[1]]}}, "space of lr: 0.0"),
        ({"settings": {"speed": 1}}, "settings of kkt"),
        ({"attack": ["x"]}, "attack: expected one of ntk"),
        ({"space": {"lr": {"low": "a", "high": 1}}}, "space of lr: low.* expected a valid"),
        ({"space": {"starts": [4, 0]}}, "expected 1 or more, got 0"),
        ({"space": {"shadows": [-1]}, "attack": "informed"}, "shadows: expected 1 to 1000000"),
        ({"settings": {"steps": -1}}, "steps"),
        ({"trials": 0}, "search: trials: expected at least 1"),
        ({"objective": "truth"}, "search: objective: expected 'consensus' or 'residual'"),
        ({"prune": 2.0}, "search: prune: expected below 1"),
        ({"prune": "half"}, "search: prune: expected a valid number"),
        ({"prune": 0.5, "settings": {}}, "settings with steps"),
    ],
)  # fmt: skip
def test_what_a_search_refuses(wrong, words):
    with pytest.raises(InputError, match=words):
        Search(**{"attack": "kkt", **wrong})


def test_a_storage_that_is_none_is_said_without_its_password(tmp_path, here):
    with pytest.raises(InputError, match="expected a database") as error:
        open_study("x", here[2], "postgresql+psycopg2://me:secret@127.0.0.1:9/x", maximise=True)
    assert "secret" not in str(error.value)


def test_all_that_decides_a_search_is_in_its_spec():
    specs = [
        search_spec(how, {"weights": "a"})
        for how in (HOW, replace(HOW, seed=1), replace(HOW, runs=2), replace(HOW, space="default"))
    ]
    assert len({spec_hash(spec) for spec in specs}) == 4
