"""Kill commands at random moments, resume them, compare what they find: python benchmarks/kill.py

Every run is killed (SIGKILL) after a random share of the time that an undisturbed one takes, as
often as `--kills` says; then it may end. What it found must be that of the undisturbed run, byte
for byte. After each kill every file that lies in its directory must be whole, its workers must be
gone soon, and at the end nothing may be left in the temporary folder. `--runs 100` are twenty of
each verb: audit, reconstruct, sweep (a grid and a search, two workers), distill, demo.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from remnant.capturing import capture, save_gradient
from remnant.data import load, split

SPEC = """\
weights: after.pt
gradient: gradient.safetensors
data: train.npz
holdout: test.npz
mean: 0.3
attacks: [gradient, kkt]
settings: {kkt: {starts: 2, steps: MANY, candidates: 10}}
"""
GRID = SPEC.replace("attacks: [gradient, kkt]", "attacks: [gradient]\nseed: [0, 1, 2, 3, 4, 5]")
SEARCH = """\
weights: after.pt
mean: 0.3
records: 10
shape: 1x8x8
search: {attack: kkt, trials: 4, batch: 2, settings: {starts: 2, steps: MANY, candidates: 10}}
"""
CLOCKS = ("cpu_seconds", "seconds", "timings")  # what two runs may differ in
GONE = 60.0  # seconds in which workers must end; one that is still importing ends after that


def make_case(folder: Path, steps: int = 50) -> list[str]:
    """A plain training loop's weights, its data, specs; returns the audit's arguments."""
    sides = split(load("digits"), train=10, public=None, holdout=80, seed=0)
    for name, part in (("train", sides.train), ("test", sides.holdout)):
        np.savez(folder / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10)
    )  # fmt: skip
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(sides.train.inputs - 0.3), sides.train.labels)
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), folder / "after.pt")
    gradient = capture(model, "ce", (sides.train.inputs - 0.3, sides.train.labels))
    save_gradient(folder / "gradient.safetensors", gradient)
    for name, text in (("audit", SPEC), ("grid", GRID), ("search", SEARCH)):
        (folder / f"{name}.yaml").write_text(text.replace("MANY", str(8 * steps)))
    return ["audit", str(folder / "audit.yaml"), "--out", str(folder / "out"), "--quiet"]


def make_cases(folder: Path) -> dict[str, list[str]]:
    """The arguments of every verb, all with the same --out."""
    audit = make_case(folder, steps=20)
    end = ["--out", str(folder / "out"), "--quiet"]
    alone = ["--weights", str(folder / "after.pt"), "--mean", "0.3", "--shape", "1x8x8"]
    alone += ["--records", "10", "--starts", "3", "--steps", "400"]
    small = ["--data", "digits", "--records", "20", "--width", "64"]
    demo = ["--data", "digits", "--records", "10", "--width", "256", "--no-page"]
    return {
        "audit": audit,
        "reconstruct": ["reconstruct", "kkt", *alone, *end],
        "sweep": ["sweep", str(folder / "grid.yaml"), "--jobs", "2", *end],
        "search": ["sweep", str(folder / "search.yaml"), "--jobs", "2", *end],
        "distill": ["distill", "rkip", *small, "--task", "none", "--images", "10",
                    "--steps", "300", "--test", "100", *end],
        "demo": ["demo", *demo, *end],
    }  # fmt: skip


def start(arguments: list[str], temporary: Path | None = None) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    if temporary is not None:
        temporary.mkdir(exist_ok=True)
        environment["TMPDIR"] = str(temporary)
    command = [sys.executable, "-m", "remnant", *arguments]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def at_work(
    arguments: list[str], temporary: Path | None = None
) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that has begun with its work, and where that goes."""
    out = Path(arguments[arguments.index("--out") + 1])
    process = start(arguments, temporary)
    while not (out / "run.json").exists() and process.poll() is None:
        time.sleep(0.01)
    return process, out


def kill_after(arguments: list[str], seconds: float, temporary: Path | None = None) -> list[str]:
    """Kill so long after the work began; the files there were then, all of them whole."""
    process, out = at_work(arguments, temporary)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    wait_until_gone(process.pid)
    return whole_files(out)


def wait_until_gone(session: int) -> None:
    """Workers find out by themselves that nobody waits for them."""
    end = time.monotonic() + GONE
    while left := list(members(session)):
        if time.monotonic() > end:
            raise AssertionError(f"{len(left)} workers live {GONE:g} s after the kill: {left}")
        time.sleep(0.1)


def members(session: int) -> Iterator[int]:
    """Processes that the one of this number started, where the system has a list of them."""
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            fields = (entry / "stat").read_text().rpartition(")")[2].split()
        except OSError:
            continue  # it ended meanwhile
        if int(fields[3]) == session and fields[0] != "Z":
            yield int(entry.name)


def whole_files(out: Path) -> list[str]:
    """The names of all files but those half written under names that nobody reads."""
    names = []
    for path in sorted(out.iterdir()):
        if path.name.startswith(".") or not path.is_file():
            continue
        if path.suffix == ".safetensors":
            safetensors.torch.load(path.read_bytes())
        elif path.suffix == ".json":
            json.loads(path.read_text())
        names.append(path.name)
    return names


def results(out: Path) -> dict[str, bytes]:
    """What must not depend on kills: all files, but for what a clock wrote into them."""
    found = {}
    for path in sorted(p for p in out.rglob("*") if p.is_file()):
        name = str(path.relative_to(out))
        if path.name in ("run.json", "search.journal", "table.csv", "training.json"):
            continue  # clocks, versions, and the same again as in rows.jsonl
        text = path.read_bytes()
        if path.name in ("rows.jsonl", "result.json"):
            lines = text.splitlines() if path.suffix == ".jsonl" else [text]
            text = json.dumps([timeless(json.loads(line)) for line in lines]).encode()
        found[name] = text
    return found


def timeless(value: object) -> object:
    if isinstance(value, dict):
        return {k: timeless(v) for k, v in value.items() if k not in CLOCKS}
    return [timeless(v) for v in value] if isinstance(value, list) else value


def measure(name: str, arguments: list[str], runs: int, kills: int, chance: random.Random) -> int:
    """How many of the runs ended as the undisturbed one did."""
    out = Path(arguments[arguments.index("--out") + 1])
    temporary = out.parent / "tmp"
    shutil.rmtree(out, ignore_errors=True)
    process, _ = at_work(arguments, temporary)
    begun = time.monotonic()
    assert process.wait() == 0, f"{name}: exit code {process.returncode}"
    whole, took = results(out), time.monotonic() - begun
    print(f"{name}, undisturbed: {took:.1f} s of work, {sorted(whole)}", flush=True)
    same = 0
    for number in range(runs):
        shutil.rmtree(out)
        left, faults = [], []
        for _ in range(kills):
            moment = chance.uniform(0, took if kills == 1 else 2 * took / kills)
            try:
                files = len(kill_after(arguments, moment, temporary))
            except AssertionError as error:
                faults.append(str(error))
                files = len(whole_files(out))
            done = json.loads((out / "run.json").read_text())["finished"]
            left.append(f"at {moment:.1f} s with {files} files" + " (done)" * done)
        process = start(arguments, temporary)
        if code := process.wait():
            faults.append(f"exit code {code}")
        ended = results(out)
        faults += [
            f"other {name}" for name in {*whole, *ended} if ended.get(name) != whole.get(name)
        ]
        faults += [f"left {path.name}" for path in temporary.iterdir()]
        faults += [f"left {path.name}" for path in out.rglob(".*")]
        same += not faults
        print(f"{number:3d} killed {', '.join(left)}: {'; '.join(faults) or 'same'}", flush=True)
        shutil.rmtree(temporary)
    return same


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=100, help="of all verbs together")
    parser.add_argument("--kills", type=int, default=1, help="of each run")
    parser.add_argument("--only", help="verbs, such as audit,search")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        cases = make_cases(Path(name))
        chosen = asked.only.split(",") if asked.only else list(cases)
        share = dict.fromkeys(chosen, asked.runs // 5)
        for half in ("sweep", "search"):  # one verb
            share |= {half: asked.runs // 10} if half in share else {}
        same = {
            verb: measure(verb, cases[verb], share[verb], asked.kills, chance) for verb in chosen
        }
    for verb, count in same.items():
        print(f"{verb}: {count} of {share[verb]} the same")
    print(f"{sum(same.values())} of {sum(share.values())} the same")
    sys.exit(same != share)


if __name__ == "__main__":
    main()
