"""`remnant init`, `preflight` and `audit` as a user types them, on a model that is not ours."""

import json
import os
import random
import signal
import subprocess
import sys
import time

import numpy as np
import pytest
import torch
from torch import nn

from remnant.cli import main
from remnant.data import load, split

SIDES = split(load("digits"), train=10, public=None, holdout=80, seed=0)


def plain_model(seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(), nn.Linear(64, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(),
        nn.Linear(160, 10),
    )  # fmt: skip


@pytest.fixture
def folder(tmp_path):
    """A user's folder: weights before and after a plain training loop, data as npz."""
    for name, part in (("train", SIDES.train), ("test", SIDES.holdout)):
        np.savez(tmp_path / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    model = plain_model()
    torch.save(model.state_dict(), tmp_path / "before.pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(300):
        optimiser.zero_grad()
        loss = nn.functional.cross_entropy(model(SIDES.train.inputs - 0.3), SIDES.train.labels)
        if loss < 0.05:
            break
        loss.backward()
        optimiser.step()
    torch.save(model.state_dict(), tmp_path / "after.pt")
    text = "weights: after.pt\ninitial: before.pt\ndata: train.npz\nholdout: test.npz\nmean: 0.3\n"
    (tmp_path / "audit.yaml").write_text(text + "attacks: [ntk, gradient]\n")
    return tmp_path


def test_an_audit_from_a_spec_ends_in_a_page_and_a_gate(folder, capsys):
    out = folder / "out"
    assert main(["audit", str(folder / "audit.yaml"), "--out", str(out), "--gate"]) == 3
    said = capsys.readouterr().out
    assert said.startswith("exposed: ")
    finding = json.loads((out / "finding.json").read_text())
    assert finding["schema"] == "remnant.audit/1"
    assert len(finding["exposed"]) >= 9  # exact zeros of a plain float32 loop may blur one
    assert [row["verdict"] for row in finding["attacks"]] == ["exposed", "not applicable"]
    assert finding["command"].startswith("remnant audit ")
    assert "<html" in (out / "report.html").read_text()
    before = (out / "finding.json").read_bytes()
    assert main(["audit", str(folder / "audit.yaml"), "--out", str(out)]) == 0  # shown again
    assert (out / "finding.json").read_bytes() == before


def test_flags_alone_do_and_pictures_can_stay_out(folder, capsys):
    out = folder / "out"
    flags = ["--weights", str(folder / "after.pt"), "--initial", str(folder / "before.pt")]
    flags += ["--data", str(folder / "train.npz"), "--holdout", str(folder / "test.npz")]
    flags += ["--mean", "0.3", "--attacks", "ntk", "--no-images", "--json", "--out", str(out)]
    assert main(["audit", *flags]) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["verdict"] == "exposed"
    assert not finding["images"]
    assert not (out / "originals.safetensors").exists()
    assert "data:image" not in (out / "report.html").read_text()


def test_init_writes_a_spec_that_preflight_reads(folder, capsys):
    out = folder / "new"
    flags = ["--weights", str(folder / "after.pt"), "--data", str(folder / "train.npz")]
    flags += ["--initial", str(folder / "before.pt"), "--holdout", str(folder / "test.npz")]
    assert main(["init", *flags, "--out", str(out)]) == 0
    assert main(["preflight", str(out / "audit.yaml"), "--json"]) == 0
    text = capsys.readouterr().out
    rows = {row["attack"]: row for row in json.loads(text[text.index("[") :])}
    assert rows["ntk"]["applies"]
    assert rows["ntk"]["seconds"] > 0
    assert "no gradient was given" in rows["gradient"]["why"]
    assert main(["init", *flags, "--out", str(out)]) == 2
    assert "remove it" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"holdout": None}, "give --holdout or --public"),
        ({"holdout": "train.npz"}, "a null must not have been trained on"),
        ({"weights": "train.npz"}, "expected a .safetensors, .pt, .pth or .ckpt file"),
        ({"weights": "none.pt"}, "no such file"),
        ({"data": "mnist"}, "expected 64 numbers"),
        ({"attacks": "[magic]"}, "attacks.0: expected 'ntk', 'gradient'"),
        ({"colour": "red"}, "colour: expected one of weights"),
        ({"loss": "hinge"}, "hinge"),
        ({"shape": "3x3"}, "shape"),
        ({"settings": "{ntk: {speed: 3}}"}, "speed"),
    ],
)
def test_bad_input_is_one_line(folder, capsys, change, said):
    path = folder / "audit.yaml"
    lines = dict(line.split(": ", 1) for line in path.read_text().splitlines()) | change
    path.write_text("".join(f"{k}: {v}\n" for k, v in lines.items() if v is not None))
    assert main(["audit", str(path), "--out", str(folder / "out")]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


def test_killed_at_random_moments_it_ends_with_the_same_finding(folder):
    spec = str(folder / "audit.yaml")
    assert main(["audit", spec, "--out", str(folder / "whole"), "--quiet"]) == 0
    out = str(folder / "out")
    # The command is part of the finding, so it has to be the same one.
    command = [sys.executable, "-m", "remnant", "audit", spec, "--out", out, "--quiet"]
    chance = random.Random(0)
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    for _ in range(3):
        process = subprocess.Popen(command, env=environment, start_new_session=True)
        time.sleep(chance.uniform(0.5, 6))
        process.send_signal(signal.SIGKILL)
        process.wait()
    assert subprocess.run(command, env=environment, check=False).returncode == 0
    first, second = (
        json.loads((folder / d / "finding.json").read_text()) for d in ("whole", "out")
    )
    assert first | {"command": ""} == second | {"command": ""}
