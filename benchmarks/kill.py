"""Kill an audit at random moments, resume it, compare what it finds: python benchmarks/kill.py

Every run is killed (SIGKILL) after a random share of the time that an undisturbed one takes, and
again, until it was killed as often as `--kills` says; then it may end. Its finding and its
candidates must be those of the undisturbed run, byte for byte, and after each kill every file that
lies in its directory must be whole.
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
from pathlib import Path

import numpy as np
import safetensors.torch
import torch
from torch import nn

from remnant.data import load, split

SPEC = """\
weights: after.pt
initial: before.pt
data: train.npz
holdout: test.npz
mean: 0.3
attacks: [ntk, kkt]
settings: {ntk: {steps: FEW}, kkt: {starts: 2, steps: MANY, candidates: 10}}
"""


def make_case(folder: Path, steps: int = 50) -> list[str]:
    """A plain training loop's weights, its data, a spec; returns the audit's arguments."""
    sides = split(load("digits"), train=10, public=None, holdout=80, seed=0)
    for name, part in (("train", sides.train), ("test", sides.holdout)):
        np.savez(folder / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Flatten(), nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(),
        nn.Linear(160, 10),
    )  # fmt: skip
    torch.save(model.state_dict(), folder / "before.pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(sides.train.inputs - 0.3), sides.train.labels)
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), folder / "after.pt")
    (folder / "audit.yaml").write_text(
        SPEC.replace("FEW", str(steps)).replace("MANY", str(8 * steps))
    )
    return ["audit", str(folder / "audit.yaml"), "--out", str(folder / "out"), "--quiet"]


def start(arguments: list[str]) -> subprocess.Popen[bytes]:
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    command = [sys.executable, "-m", "remnant", *arguments]
    return subprocess.Popen(command, env=environment, start_new_session=True)


def at_work(arguments: list[str]) -> tuple[subprocess.Popen[bytes], Path]:
    """A process that has begun with its work, and where that goes."""
    out = Path(arguments[arguments.index("--out") + 1])
    process = start(arguments)
    while not (out / "run.json").exists() and process.poll() is None:
        time.sleep(0.01)
    return process, out


def kill_after(arguments: list[str], seconds: float) -> list[str]:
    """Kill so long after the work began; the files there were then, all of them whole."""
    process, out = at_work(arguments)
    try:
        process.wait(seconds)
    except subprocess.TimeoutExpired:
        process.send_signal(signal.SIGKILL)
        process.wait()
    return whole_files(out)


def whole_files(out: Path) -> list[str]:
    """The names of all files but those half written under names that nobody reads."""
    names = []
    for path in sorted(out.iterdir()):
        if path.name.startswith(".remnant-"):
            continue
        if path.suffix == ".safetensors":
            safetensors.torch.load(path.read_bytes())
        elif path.suffix == ".json":
            json.loads(path.read_text())
        names.append(path.name)
    return names


def results(out: Path) -> dict[str, bytes]:
    """What must not depend on kills."""
    found = [out / "finding.json", *sorted(out.glob("candidates-*")), *sorted(out.glob("*.html"))]
    return {path.name: path.read_bytes() for path in found}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--runs", type=int, default=20)
    parser.add_argument("--kills", type=int, default=1, help="of each run")
    parser.add_argument("--seed", type=int, default=0)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    chance = random.Random(asked.seed)
    with tempfile.TemporaryDirectory() as name:
        arguments = make_case(Path(name))
        out = Path(name) / "out"
        process, _ = at_work(arguments)
        begun = time.monotonic()
        assert process.wait() == 0
        whole, took = results(out), time.monotonic() - begun
        print(f"undisturbed: {took:.1f} s of work, {sorted(whole)}", flush=True)
        same = 0
        for number in range(asked.runs):
            shutil.rmtree(out)
            left = []
            for _ in range(asked.kills):
                moment = chance.uniform(0, took)
                left.append(f"at {moment:.1f} s with {len(kill_after(arguments, moment))} files")
            code = start(arguments).wait()
            ended = results(out)
            other = [name for name in whole if ended.get(name) != whole[name]]
            same += code == 0 and not other
            verdict = f"exit code {code}, other {', '.join(other)}" if code or other else "same"
            print(f"{number:3d} killed {', '.join(left)}: {verdict}", flush=True)
        print(f"{same} of {asked.runs} the same")
    sys.exit(same != asked.runs)


if __name__ == "__main__":
    main()
