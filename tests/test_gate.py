"""What could open the gate by accident: a user's own code, an edited run, two commands at once."""

import json
import os
import subprocess
import sys

import numpy as np
import pytest
import torch
from torch import nn

from remnant.cli import main
from remnant.data import load, split
from remnant.models.foreign import check_outputs

SIDES = split(load("digits"), train=8, public=None, holdout=60, seed=0)

NET = """
import sys
import torch
from torch import nn

class Net(nn.Module):
    calls = 0

    def __init__(self):
        super().__init__()
        self.a, self.b = nn.Linear(64, 30), nn.Linear(30, 10)

    def forward(self, x):
        y = self.b(torch.relu(self.a(x.flatten(1))))
        {body}

    {method}
"""


@pytest.fixture
def folder(tmp_path):
    """A model that was trained on a few digits, in a user's folder."""
    for name, part in (("train", SIDES.train), ("test", SIDES.holdout)):
        np.savez(tmp_path / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(64, 30), nn.ReLU(), nn.Linear(30, 10)]
    model = nn.Sequential(*layers)
    names = {"1": "a", "3": "b"}

    def save(file):
        state = {f"{names[k[0]]}{k[1:]}": v for k, v in model.state_dict().items()}
        torch.save(state, tmp_path / file)

    save("before.pt")
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for _ in range(60):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(SIDES.train.inputs), SIDES.train.labels).backward()
        optimiser.step()
    save("after.pt")
    return tmp_path


def words(folder, verb="audit", *more):
    files = {"weights": "after.pt", "initial": "before.pt", "data": "train.npz"}
    flags = [f"--{k}={folder / v}" for k, v in (files | {"holdout": "test.npz"}).items()]
    flags += ["--attacks=ntk", f"--model={folder / 'net.py'}:Net"]
    flags += ["--gate", f"--out={folder / 'out'}"] if verb == "audit" else []
    return [verb, *flags, *more]


def refused(folder, capsys, body, method="", verb="audit"):
    text = NET.format(body=body.replace("\n", "\n        "), method=method)
    (folder / "net.py").write_text(text)
    assert main(words(folder, verb)) == 2
    err = capsys.readouterr().err
    assert err.count("\n") == 1
    assert not (folder / "out").exists()  # nothing stands in the mended model's way
    return err


@pytest.mark.parametrize("verb", ["audit", "preflight"])
@pytest.mark.parametrize(
    ("body", "said"),
    [
        ("sys.exit(0)", "got an error: SystemExit: 0"),
        ("raise BaseException('stop\\nhere')", "got an error: BaseException: stop"),
        ("raise ValueError('\\x1b[2J' + 'x' * 10**6)", "got an error: ValueError: \\x1b[2J"),
        ("return {'scores': y}", "n x c finite real numbers, got a dict"),
        ("return y, y", "got a tuple"),
        ("return None", "got a NoneType"),
        ("return y[:, None]", "got the shape (2, 1, 10) for 2 records"),
        ("return y[:1]", "got the shape (1, 10) for 2 records"),
        ("return y[:, 0]", "got the shape (2,) for 2 records"),
        ("return y * torch.nan", "got NaN or infinity"),
        ("return y.to(torch.complex64)", "got torch.complex64"),
        ("return y.argmax(1, keepdim=True)", "got torch.int64"),
        ("return y.detach()", "got outputs without a gradient"),
        ("return self.forward(x)", "got an error: RecursionError"),
    ],
)
def test_a_forward_that_cannot_be_attacked_is_one_line(folder, capsys, verb, body, said):
    assert said in refused(folder, capsys, body, verb=verb)


@pytest.mark.parametrize(
    ("method", "said"),
    [
        ("def __call__(self, x, mask): return x", "missing 1 required positional argument"),
        ("def eval(self): sys.exit(0)", "SystemExit"),
        ("def named_parameters(self, *a, **k): sys.exit(0)", "SystemExit: 0"),
        ("def buffers(self, *a): return 3\n    named_buffers = buffers", "TypeError"),
    ],
)
def test_any_method_of_theirs_may_raise(folder, capsys, method, said):
    assert said in refused(folder, capsys, "return y", method)


def test_a_fault_that_comes_late_names_the_line(folder, capsys):
    # The first calls are ours that look at it; what follows comes from the middle of an audit.
    late = "Net.calls += 1\nif Net.calls > {}: sys.exit(0)\nreturn y * 1.0"
    codes, said = [], ""
    for calls in (2, 3):
        err = refused(folder, capsys, late.format(calls))
        codes.append("SystemExit: 0" in err)
        said += err
    assert all(codes)
    assert f"{folder / 'net.py'}, line 16: it raised SystemExit: 0" in said


def test_a_state_dict_of_their_own_does_not_matter(folder):
    body = "return y"
    for method in ("def state_dict(self, *a, **k): return 5", "def load_state_dict(self): 1 / 0"):
        (folder / "net.py").write_text(NET.format(body=body, method=method))
        assert main(words(folder, "preflight", "--quiet")) == 0


def test_outputs_come_back_without_a_gradient():
    model = nn.Sequential(nn.Flatten(), nn.Linear(4, 3))
    outputs = check_outputs(model, torch.rand(2, 2, 2))
    assert outputs.shape == (2, 3)
    assert not outputs.requires_grad


def test_redacting_where_no_attack_ran_still_ends_in_a_page(folder):
    out = folder / "out"
    flags = [f"--weights={folder / 'after.pt'}", f"--data={folder / 'train.npz'}"]
    flags += [f"--holdout={folder / 'test.npz'}", "--attacks=gradient", "--redact", "--quiet"]
    assert main(["audit", *flags, "--out", str(out), "--gate"]) == 4
    assert "<html" in (out / "report.html").read_text()


def run_in_one(folder, *more, **environment):
    """The command in a process of its own, for its exit code and whatever stands in its way."""
    (folder / "net.py").write_text(NET.format(body="return y", method=""))
    command = [sys.executable, "-m", "remnant", *words(folder, "audit", *more)]
    environment = os.environ | {"OMP_NUM_THREADS": "1"} | environment
    return subprocess.run(command, env=environment, capture_output=True, text=True, check=False)


def test_an_edited_finding_does_not_open_the_gate(folder, capsys):
    out = folder / "out"
    flags = ("audit", "--attacks=gradient", f"--out={out}")  # which does not apply: quick
    assert run_in_one(folder, *flags[1:], MPLBACKEND="nonsense").returncode == 4
    assert main(words(folder, *flags, "--quiet")) == 4  # shown again
    file = out / "finding.json"
    values = json.loads(file.read_text())
    file.write_text(json.dumps(values | {"verdict": "not exposed"}))
    assert main(words(folder, *flags)) == 2
    err = capsys.readouterr().err
    assert f"{file}: expected the file that the run wrote, got another" in err
    assert err.count("\n") == 1
    assert main(["report", str(out)]) == 2
    assert main(["runs", "compare", str(out), str(out)]) == 2
    capsys.readouterr()
    assert main(["runs", "list", str(folder), "--json"]) == 0
    assert [row["state"] for row in json.loads(capsys.readouterr().out)] == ["altered"]
    assert main(["runs", "remove", str(out), "--yes"]) == 0
    assert not out.exists()
