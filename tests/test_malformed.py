"""Malformed specs, weights and data: one clear line, exit code 2, soon, and little memory.

Every case runs in a forked child whose address space may grow by 2 GB and which is killed after
five seconds of CPU time.
"""

import os
import pickle
import resource
import signal
import subprocess
import sys
import traceback
from pathlib import Path

import numpy as np
import pytest
import torch

from malformed_files import (
    DATA,
    DIGITS,
    WEIGHTS,
    Bomb,
    archive,
    bomb,
    device,
    folder,
    loop,
    npy,
    npz,
    pipe,
    saved,
    tensors,
)
from remnant.attacks.made import make_attack
from remnant.cli import main
from remnant.errors import InputError

SECONDS, BYTES = 5, 2 * 1024**3

SPECS = {
    "empty": (b"", "fields such as"),
    "a list": (b"- weights: w", "fields such as"),
    "half a list": (b"weights: [", "expected YAML"),
    "a tab": (b"weights:\tw\n\tdata: x", "expected YAML"),
    "a Python object": (
        b"weights: !!python/object/apply:os.system ['true']",
        "expected plain YAML, got the tag",
    ),
    "a million laughs": (b"a: &a [x, x]\nb: &b [*a, *a]\nweights: *b\n", "an alias"),
    "latin-1": (b"weights: \xe9t\xe9\ndata: x", "UTF-8"),
    "UTF-16": ("weights: w\ndata: x".encode("utf-16"), "UTF-8"),
    "zeros": (bytes(100), "expected YAML"),
    "two megabytes": (b"# " + b"x" * 2**21, "at most"),
    "deep": (b"weights: " + b"[" * 50_000, "more than 20 levels"),
    "two documents": (b"weights: w\n---\ndata: x", "expected YAML"),
    "an unknown key": (b"weights: w\ndata: x\ncolour: red", "colour: expected one of weights"),
    "a number for a key": (b"weights: w\ndata: x\n1: 2", "names as keys"),
    "seed below 0": (b"weights: w\ndata: x\nseed: -1", "seed: expected"),
    "NaN": (b"weights: w\ndata: x\nthreshold: .nan", "threshold: expected"),
    "no steps of privacy": (b"weights: w\ndata: x\nprivacy: {noise: 1}", "privacy.steps"),
    "noise below 0": (b"weights: w\ndata: x\nprivacy: {noise: -1, steps: 3}", "privacy.noise"),
    "an endless budget": (b"weights: w\ndata: x\nbudget: .inf", "budget: expected"),
    "an unknown attack": (b"weights: w\ndata: x\nattacks: [magic]", "attacks.0"),
    "a folder": (folder, "a folder, a device or a pipe"),
    "a pipe": (pipe, "a folder, a device or a pipe"),
    "a device": (device, "a folder, a device or a pipe"),
    "a symlink loop": (loop, "symbolic links"),
}

FLAGS = {
    "no holdout": ({"holdout": None}, "a verdict needs a null"),
    "holdout trained on": ({"holdout": "{good}/train.npz"}, "must not have been trained on"),
    "no such data": ({"data": "{good}/none.npz"}, "looked at"),
    "data with a zero": ({"data": "a\0b"}, "looked at"),
    "data of 5000 letters": ({"data": "x" * 5000}, "expected"),
    "no such weights": ({"weights": "none.pt"}, "no such file"),
    "width 0": ({"model": "mlp:64-0-10"}, "a positive width"),
    "width below 0": ({"model": "mlp:64--3-10"}, "a positive width"),
    "an absurd width": ({"model": "mlp:64-999999999-10"}, "at most 1000000000 parameters"),
    "a model of 900 million": ({"model": "mlp:64-30000-30000-10"}, "the model of these weights"),
    "another model": ({"model": "mlp:64-10-9"}, "--weights"),
    "convolutions past the input": ({"model": "cnn:1x8x8-c4k9-10"}, "an input that it fits in"),
    "a model of words": ({"model": "resnet"}, "mlp:784-300-10"),
    "a factory that is not there": ({"model": "none.py:make"}, "none.py"),
    "a factory that raises": ({"model": "{good}/broken.py:make"}, "broken.py"),
    "a file that does not parse": ({"model": "{good}/syntax.py:make"}, "syntax.py"),
    "a factory of no module": ({"model": "{good}/broken.py:number"}, "broken.py"),
    "std 0": ({"std": "0"}, "positive numbers"),
    "mean NaN": ({"mean": "nan"}, "numbers such as"),
    "mean of another shape": ({"mean": "1,2,3"}, "expected 1 number, got 3"),
    "mean of nothing": ({"mean": "none.safetensors"}, "no such file"),
    "bounds that fall": ({"bounds": "1,0"}, "two rising numbers"),
    "shape below 0": ({"shape": "-1x64"}, "--shape: expected at least 1"),
    "another shape": ({"shape": "1x9x9"}, "64 numbers"),
    "an unknown loss": ({"loss": "hinge"}, "hinge"),
    "a gradient of another model": ({"gradient": "{good}/other.safetensors"}, "--gradient"),
    "a recipe that is none": ({"recipe": "{good}/broken.py"}, "a JSON file"),
    "a recipe of nothing": ({"recipe": "{good}/list.json"}, "a JSON object"),
}

LINEAR = {
    "not JSON": ("m.json", b"{", "a JSON file"),
    "not UTF-8": ("m.json", b'{"\xff"', "a JSON file"),
    "nested": ("m.json", b"[" * 100_000, "a JSON file"),
    "a list": ("m.json", b"[]", "a JSON object"),
    "no coef": ("m.json", b'{"family": "linear"}', "no coef"),
    "NaN": ("m.json", b'{"family": "linear", "coef": [NaN]}', "finite numbers"),
    "1e999": ("m.json", b'{"family": "linear", "coef": [1e999]}', "finite numbers"),
    "uneven rows": ("m.json", b'{"family": "linear", "coef": [[1], [1, 2]]}', "even rows"),
    "texts": ("m.json", b'{"family": "linear", "coef": ["a"]}', "finite numbers"),
    "a number of 9000 digits": ("m.json", b'{"coef": ' + b"9" * 9000 + b"}", "a JSON file"),
    "an unknown name": ("m.json", b'{"family": "linear", "coef": [1], "x": 1}', "names"),
    "an unknown family": ("m.json", b'{"family": "cox", "coef": [1]}', "'linear', 'logistic'"),
    "objects": ("m.npz", npz(x=np.array([{}], dtype=object)), "Python objects"),
    "an npz bomb": ("m.npz", bomb("coef", (2**29,)), "at most"),
    "an array that is not there": ("m.npz", archive(coef=npy((10**12,))), "GB declared"),
    "a solver that is none": (
        "m.npz",
        archive(coef=saved(np.ones(64)), family=saved(np.array("linear")), solver=saved("{")),
        "solver: expected JSON",
    ),
    "a skops file that is none": ("m.skops", b"PK\x03\x04", "m.skops"),
    "a skops file of code": (
        "m.skops",
        archive(a=b"x").replace(b"a.npy", b"b.npy"),
        "m.skops",
    ),
    "a pipe": ("m.skops", pipe, "m.skops"),
    "a pickled estimator": ("m.pkl", pickle.dumps(Bomb()), ".pkl"),
}

TABLES = {"weights": WEIGHTS, "data": DATA, "spec": SPECS, "flags": FLAGS, "linear": LINEAR}
CASES = [(table, name) for table, cases in TABLES.items() for name in cases]
BROKEN_FILE = "def make():\n    raise RuntimeError('two\\nlines')\ndef number():\n    return 3\n"


@pytest.fixture(scope="module")
def good(tmp_path_factory):
    """Files with which an audit would begin."""
    path = tmp_path_factory.mktemp("good")
    (path / "w.safetensors").write_bytes(tensors())
    (path / "other.safetensors").write_bytes(tensors(**{"1_weight": torch.ones(9, 64)}))
    (path / "train.npz").write_bytes(npz())
    held = DIGITS.take(range(100, 140))
    (path / "test.npz").write_bytes(npz(x=held.inputs.numpy(), y=held.labels.numpy()))
    (path / "broken.py").write_text(BROKEN_FILE)
    (path / "syntax.py").write_text("def make(:\n")
    (path / "list.json").write_text("[]")
    # What verbs import on first use is imported once here, and not in every child.
    assert main(["preflight", *whole(path), "--quiet", "--attacks=kkt"]) == 0
    return path


def whole(good):
    """The flags of an audit that would begin."""
    files = {"weights": "w.safetensors", "data": "train.npz", "holdout": "test.npz"}
    return [f"--{flag}={good / file}" for flag, file in files.items()]


def written(path, content):
    if callable(content):
        content(path)
    else:
        path.write_bytes(content)
    return str(path)


def arguments(table, name, good, tmp_path):
    """What a user types, and what the line has to say."""
    flags = dict(flag.removeprefix("--").split("=") for flag in whole(good))
    *file, content, words = TABLES[table][name]
    if table == "spec":
        return ["audit", written(tmp_path / "audit.yaml", content)], words
    if table == "flags":
        changes = {
            flag: value and value.replace("{good}", str(good)) for flag, value in content.items()
        }
        flags |= changes
    else:
        flags["data" if table == "data" else "weights"] = written(tmp_path / file[0], content)
    given = [f"--{flag}={value}" for flag, value in flags.items() if value]
    return ["audit", *given], words


def limited(given, out):
    """Exit code and both outputs of a forked child, within SECONDS and BYTES."""
    child = os.fork()
    if not child:  # nothing of the parent's is touched from here on
        code = 1
        try:
            for stream in (1, 2):
                os.dup2(os.open(out / f"stream{stream}", os.O_CREAT | os.O_WRONLY), stream)
            sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
            now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
            resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))
            resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
            signal.alarm(120)  # of waiting for what never comes
            code = main([*given, "--out", str(out / "found")])
        except BaseException:
            traceback.print_exc()
        finally:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(code)
    status = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return status, (out / "stream1").read_text(), (out / "stream2").read_text()


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="limits are Linux's")
@pytest.mark.filterwarnings("ignore::DeprecationWarning")  # TorchScript; fork beside threads
@pytest.mark.parametrize(("table", "name"), CASES, ids=lambda part: part.replace(" ", "_"))
def test_a_malformed_file_is_one_clear_line(good, tmp_path, table, name):
    given, words = arguments(table, name, good, tmp_path)
    code, out, err = limited(given, tmp_path)
    assert (code, out) == (2, ""), err
    assert err.startswith("remnant: ")
    assert err.count("\n") == 1, err
    assert words in err
    assert len(err) < 1200
    assert not Path("/tmp/remnant-test-bomb").exists()
    assert not (tmp_path / "found").exists()


@pytest.mark.parametrize(
    ("attack", "settings"),
    [
        ("ntk", {"starts": "many"}),
        ("ntk", {"starts": -3}),
        ("ntk", {"patience": None}),
        ("ntk", {"speed": 3}),
        ("ntk", {"preset": "magic"}),
        ("kkt", {"steps": 0.5}),
        ("kkt", {"steps": [1]}),
        ("kkt", {"whiten": float("nan")}),
        ("gradient", {"walkers": {"a": 1}}),
        ("informed", {"replaying": {"evaluations": "a\nb"}}),
        ("glm", {"trusted": float("inf")}),
    ],
    ids=str,
)
def test_a_malformed_setting_is_one_clear_line(attack, settings):
    with pytest.raises(InputError) as caught:
        make_attack(attack, settings)
    said = str(caught.value)
    assert attack in said or "expected" in said
    assert len(said.splitlines()) == 1


def test_there_are_many_of_them():
    assert len(CASES) >= 150
    assert {name: len(cases) for name, cases in TABLES.items()}["spec"] >= 20


@pytest.mark.parametrize("name", ["20 GB of nothing", "a zip bomb by torch"])
def test_a_fresh_command_says_the_same(good, tmp_path, name):
    given, words = arguments("weights", name, good, tmp_path)
    command = [sys.executable, "-m", "remnant", *given, "--out", str(tmp_path / "found")]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 2
    assert done.stderr.count("\n") == 1
    assert words in done.stderr
