"""The command as a user types it: results, repeats, interruptions and every kind of bad input."""

import contextlib
import functools
import io
import json
import os
import signal
import subprocess
import sys
import time

import pytest
import torch
from safetensors.torch import load_file, save_file

from remnant.cli import main
from remnant.cli.common import Exit
from remnant.models import save_weights
from targets import faces_target

SMALL = ["--records", "12", "--width", "192", "--stop-loss", "0.05", "--no-page"]


def files(target, folder):
    """The target's checkpoints as a user has them: a state dict and a safetensors file."""
    torch.save(target.model.state_dict(), folder / "after.pt")
    save_weights(folder / "before.safetensors", target.knowledge.initial)
    save_weights(folder / "mean.safetensors", {"mean": target.scaling.mean})
    return ["--weights", str(folder / "after.pt"), "--initial", str(folder / "before.safetensors")]


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A small demo's directory, and the finding that it printed."""
    out, said = tmp_path_factory.mktemp("demo") / "run", io.StringIO()
    with contextlib.redirect_stdout(said):
        assert main(["demo", *SMALL, "--out", str(out), "--json"]) == 0
    return out, json.loads(said.getvalue())


def test_demo_recovers_everything_and_writes_what_it_promises(whole):
    out, finding = whole
    assert finding["schema"] == "remnant.finding/1"
    assert finding["counted"] == finding["recovered"] == finding["records"] == 12
    assert finding["summary"]["max_squared_l2"] < 1e-3
    assert min(r["correlation"] for r in finding["per_record"]) > 0.99
    assert finding["nulls"]["held_out"]["recovered"] < 3
    assert json.loads((out / "finding.json").read_text()) == finding
    assert (out / "sheet.png").read_bytes().startswith(b"\x89PNG")
    for name in ("curve.svg", "spectrum.svg"):
        assert (out / name).read_bytes().startswith(b"<svg")
    assert load_file(out / "candidates.safetensors")["inputs"].shape == (12, 1, 25, 25)
    record = json.loads((out / "run.json").read_text())
    assert record["finished"]
    assert record["seeds"] == {"seed": 0}
    assert set(record["hashes"]) == {"weights", "initial", "data"}
    assert out.stat().st_mode & 0o777 == 0o700
    assert all(path.stat().st_mode & 0o777 == 0o600 for path in out.iterdir())


@pytest.mark.slow
@pytest.mark.parametrize("seed", os.environ.get("REMNANT_DEMO_SEEDS", "0").split(","))
def test_the_demo_as_it_is_told_in_the_readme(tmp_path, capsys, seed):
    """All fifty faces, and a page on which each of four adversaries gets records. A seed takes
    minutes: before a release more are asked for (CONTRIBUTING)."""
    out = tmp_path / "run"
    assert main(["demo", "--seed", seed, "--out", str(out), "--quiet"]) == 0
    finding = json.loads((out / "finding.json").read_text())
    assert finding["recovered"] == finding["figures"]["certified"] == finding["records"] == 50
    audit = json.loads((out / "audit" / "finding.json").read_text())
    assert audit["verdict"] == "exposed"
    told = {row["attack"]: row["verdict"] for row in audit["attacks"] if row["attack"] != "written"}
    assert told == dict.fromkeys(("kkt", "ntk", "gradient", "informed"), "exposed")
    played = {row["attack"]: row for row in audit["attacks"] if row["attack"] != "written"}
    assert all(row["control"]["passed"] for row in played.values())
    assert "2 of 2 records" in played["informed"]["reason"]
    assert "Exposure against margin" in (out / "audit" / "report.html").read_text()


def test_demo_ends_in_a_page(tmp_path, capsys, monkeypatch):
    """With one of its four adversaries: the others take a minute."""
    monkeypatch.setattr("remnant.experiments.demo_page.ATTACKS", ("gradient",))
    out = tmp_path / "run"
    flags = [flag for flag in SMALL if flag != "--no-page"]
    assert main(["demo", *flags, "--out", str(out)]) == 0
    said = capsys.readouterr().out
    assert "12 of 12 records recovered" in said
    page = out / "audit" / "report.html"
    assert f"the page: {page}" in said
    audit = json.loads((out / "audit" / "finding.json").read_text())
    assert audit["verdict"] == "exposed"
    assert len(audit["exposed"]) == audit["target"]["records"] == 10
    assert "Exposure against margin" in page.read_text()
    assert (out / "sheet.png").exists()


def test_another_seed_gives_other_bytes(whole, tmp_path, capsys):
    """That the same one gives the same bytes is shown by the run that is interrupted below."""
    assert main(["demo", *SMALL, "--seed", "4", "--out", str(tmp_path / "run")]) == 0
    assert "12 of 12 records recovered" in capsys.readouterr().out
    one, other = (out / "candidates.safetensors" for out in (whole[0], tmp_path / "run"))
    assert one.read_bytes() != other.read_bytes()


def test_a_finished_run_is_shown_again_and_another_spec_is_refused(whole, capsys):
    out = str(whole[0])
    stamp = (whole[0] / "candidates.safetensors").stat().st_mtime_ns
    assert main(["demo", *SMALL, "--out", out, "--quiet"]) == 0
    assert capsys.readouterr().out == ""
    assert main(["demo", *SMALL, "--out", out]) == 0
    assert "done before" in capsys.readouterr().out
    assert (whole[0] / "candidates.safetensors").stat().st_mtime_ns == stamp
    assert main(["demo", *SMALL, "--seed", "1", "--out", out]) == 2
    assert "seed" in capsys.readouterr().err


def test_an_interrupted_run_goes_on(whole, tmp_path):
    out = tmp_path / "run"
    command = [sys.executable, "-m", "remnant", "demo", *SMALL, "--out", str(out)]
    # A shell's background job passes on an ignored SIGINT; here it has to arrive.
    restore = functools.partial(signal.signal, signal.SIGINT, signal.default_int_handler)
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, preexec_fn=restore)
    while not (out / "state-trained.safetensors").exists() and process.poll() is None:
        time.sleep(0.01)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 130
    assert err.strip().splitlines()[-1] == (
        "remnant: interrupted; the same command goes on from here"
    )
    assert main(["demo", *SMALL, "--out", str(out), "--quiet"]) == 0
    for name in ("candidates.safetensors", "finding.json"):
        assert (out / name).read_bytes() == (whole[0] / name).read_bytes()


def test_reconstruct_runs_on_a_plain_pytorch_checkpoint_without_truth(tmp_path, capsys):
    target, truth, _ = faces_target()
    out = tmp_path / "out"
    given = files(target, tmp_path)
    mean = ["--mean", str(tmp_path / "mean.safetensors"), "--bounds", "0,1"]
    model = ["--model", "mlp:625-192-192-10"]
    assert main(["reconstruct", "ntk", *model, *given, *mean, "--out", str(out)]) == 0
    assert "12 of 12" in capsys.readouterr().out
    found = load_file(out / "candidates.safetensors")
    distance = torch.cdist(truth.flatten(1).double(), found["inputs"].flatten(1).double())
    assert float(distance.min(1).values.max()) < 1e-2
    assert found["confidence"].shape == (12,)
    assert (out / "sheet.png").exists()
    finding = json.loads((out / "finding.json").read_text())
    assert finding["records"] is None
    assert finding["figures"]["certified"] == 12


def test_reconstruct_needs_no_model_string_for_a_dense_stack(tmp_path, capsys):
    target, _, _ = faces_target()
    given = files(target, tmp_path)
    shaped = ["--public", "faces", "--mean", "public", "--shape", "1x25x25"]
    out = ["--out", str(tmp_path / "out"), "--json"]
    assert main(["reconstruct", "ntk", *given, *shaped, *out]) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] == "complete"
    assert load_file(tmp_path / "out/candidates.safetensors")["inputs"].shape == (12, 1, 25, 25)


def bad_weights(folder, kind):
    target, _, _ = faces_target()
    weights = {name: w.clone() for name, w in target.weights.items()}
    if kind == "nan":
        weights["1.weight"][3, 4] = float("nan")
    if kind == "shape":
        weights["3.weight"] = weights["3.weight"][:, :7].contiguous()
    save_file(weights, folder / "bad.safetensors")
    if kind == "truncated":
        data = (folder / "bad.safetensors").read_bytes()
        (folder / "bad.safetensors").write_bytes(data[: len(data) // 2])
    return ["--weights", str(folder / "bad.safetensors")]


@pytest.mark.parametrize(
    ("kind", "words"),
    [
        ("truncated", "bad.safetensors"),
        ("nan", "1.weight"),
        ("shape", "(192, 192)"),
    ],
)
def test_bad_weights_are_one_line(tmp_path, capsys, kind, words):
    target, _, _ = faces_target()
    initial = files(target, tmp_path)[2:]
    out = tmp_path / "out"
    model = ["--model", "mlp:625-192-192-10"]
    given = bad_weights(tmp_path, kind)
    code = main(["reconstruct", "ntk", *model, *given, *initial, "--out", str(out)])
    one_line(code, capsys, words)
    assert not out.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["demo", "--records", "0"], "--records: expected at least 1, got 0"),
        (["demo", "--records", "99"], "--records: expected at most 98"),
        (["demo", "--records", "many"], "--records"),
        (["demo", "--width", "-5"], "--width: expected at least 1"),
        (["demo", "--data", "no-such-set"], "no-such-set"),
        (["demo", "--data", "no-such-file.npz"], "no-such-file.npz"),
        (["demo", "--loss", "hinge"], "hinge"),
        (["demo", "--lr", "nan"], "lr"),
        (["demo", "--threads", "0"], "--threads: expected 1 to"),
        (["demo", "--threads", "100000"], "--threads: expected 1 to"),
        (["demo", "--lr", "1e10"], "training: expected a falling loss, got divergence"),
        (["demo", "--seed", "-1"], "--seed"),
        (["demo", "--data", "breast_cancer", "--task", "odd-even"], "breast_cancer"),
        (["demo", "--batch-size", "0"], "batch"),
        (["demo", "--zzz"], "unrecognized arguments: --zzz; see remnant demo --help"),
        (["study", "onion", "--nope"], "--nope; see remnant study onion --help"),
        (["study", "onion", "nope"], "nope; see remnant study onion --help"),
        (["--nope", "runs"], "--nope; see remnant --help"),
        (["frobnicate"], "frobnicate"),
        (["bound", "--noise=--", "--steps=2"], "--noise: expected a value, got --"),
        (["adit"], "did you mean audit?"),
        (["demo", "--recrods", "3"], "did you mean --records? see remnant demo --help"),
        (["reconstruct", "nkt"], "did you mean ntk?"),
        (["reconstruct", "ntk", "--wieghts", "w.pt"], "did you mean --weights?"),
        (["reconstruct", "kkt", "--preset", "papr"], "did you mean paper?"),
        (["runs", "list", "--threads", "1"], "unrecognized arguments: --threads"),
        ([], "VERB"),
        (["reconstruct", "ntk"], "--weights"),
        (["reconstruct", "ntk", "--weights", "x.pt", "--initial", "y.pt"], "x.pt"),
    ],
)
def test_bad_flags_are_one_line(tmp_path, monkeypatch, capsys, arguments, words):
    monkeypatch.chdir(tmp_path)
    one_line(main(arguments), capsys, words)
    assert [p for p in tmp_path.rglob("*") if p.is_file()] == []


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--shape", "1x5"], "625 numbers"),
        (["--shape", "axb"], "--shape"),
        (["--mean", "0.1,0.2", "--shape", "1x25x25"], "--mean: expected 1 number, got 2"),
        (["--mean", "soon"], "--mean"),
        (["--mean", "public"], "give --public"),
        (["--std", "0"], "std"),
        (["--bounds", "1,0"], "--bounds"),
        (["--records", "0"], "--records: expected at least 1, got 0"),
        (["--model", "mlp:10-10-10"], "expected"),
        (["--model", "mlp:"], "mlp:"),
        (["--model", "nothing.py:make"], "nothing.py"),
    ],
)
def test_bad_reconstruct_flags_are_one_line(tmp_path, capsys, flags, words):
    target, _, _ = faces_target()
    given = files(target, tmp_path)
    out = tmp_path / "out"
    one_line(main(["reconstruct", "ntk", *given, *flags, "--out", str(out)]), capsys, words)
    assert not out.exists()


def test_a_place_that_cannot_be_written_is_one_line(tmp_path, capsys):
    (tmp_path / "file").write_text("in the way")
    one_line(main(["demo", *SMALL, "--out", str(tmp_path / "file" / "run")]), capsys, "file")
    (tmp_path / "file").unlink()
    (tmp_path / "mine").mkdir()
    (tmp_path / "mine" / "thesis.tex").write_text("keep me")
    one_line(main(["demo", *SMALL, "--out", str(tmp_path / "mine")]), capsys, "other files")
    assert [p.name for p in (tmp_path / "mine").iterdir()] == ["thesis.tex"]


def one_line(code, capsys, words):
    printed = capsys.readouterr()
    assert code == 2
    assert printed.out == ""
    assert printed.err.startswith("remnant: ")
    assert printed.err.count("\n") == 1
    assert words in printed.err


@pytest.mark.parametrize("verb", [["demo"], ["reconstruct", "ntk"]])
def test_help_has_an_example_and_the_shared_flags(verb, capsys):
    with pytest.raises(SystemExit) as stop:
        main([*verb, "--help"])
    assert stop.value.code == 0
    text = capsys.readouterr().out
    assert "example: remnant " + " ".join(verb) in text
    for flag in ("--seed", "--out", "--quiet", "--json", "--threads", "--device"):
        assert flag in text


def test_help_is_quick_because_torch_is_not_imported():
    script = "import sys; from remnant.cli import parser; parser(); print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True)
    assert done.stdout.strip() == "False", done.stderr


def test_the_listed_names_exist():
    import remnant

    assert all(hasattr(remnant, name) for name in remnant.__all__)
    with pytest.raises(AttributeError, match="no attribute 'nonsense'"):
        _ = remnant.nonsense
    assert os.path.isfile(remnant.__file__)


def test_reconstruct_gradient_runs_on_a_captured_step(tmp_path, capsys):
    import remnant
    from remnant.data import load

    digits = load("digits")
    model = torch.nn.Sequential(
        torch.nn.Linear(64, 96),
        torch.nn.ReLU(),
        torch.nn.Linear(96, 96),
        torch.nn.ReLU(),
        torch.nn.Linear(96, 10),
    )
    sent, update = tmp_path / "sent.safetensors", tmp_path / "update.safetensors"
    remnant.save_weights(sent, model.state_dict())
    inputs, labels = digits.inputs[:9].flatten(1), digits.labels[:9]
    with remnant.capture_step(model, update):
        torch.nn.functional.cross_entropy(model(inputs), labels).backward()
    given = ["--weights", str(sent), "--gradient", str(update), "--shape", "1x8x8"]
    out = tmp_path / "out"
    command = ["reconstruct", "gradient", *given, "--bounds", "0,1", "--out", str(out)]
    assert main(command) == 0
    assert "complete" in capsys.readouterr().out
    found = load_file(out / "candidates.safetensors")
    distance = torch.cdist(inputs.double(), found["inputs"].flatten(1).double())
    assert float(distance.min(1).values.max()) < 1e-3
    assert found["labels"][distance.argmin(1)].equal(labels)
    assert main([*command[:-1], str(tmp_path / "m"), "--preset", "matching"]) == Exit.NOT_APPLICABLE
    assert "--records and --loss" in capsys.readouterr().out
    assert main(["report", str(out)]) == 2
    assert "expected an audit, got a run of reconstruct gradient" in capsys.readouterr().err
    assert main(["reconstruct", "gradient", *given[:2], "--gradient", str(sent)]) == 2
    assert "expected a gradient, got the released weights again" in capsys.readouterr().err
    wrong = ["--gradient", str(sent.with_name("none.safetensors"))]
    assert main(["reconstruct", "gradient", *given[:2], *wrong]) == 2
    assert "none.safetensors" in capsys.readouterr().err
