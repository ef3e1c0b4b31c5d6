"""The harness of known truth: what it builds is what it says, and its judge is not remnant's."""

import json
import sys
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

sys.path.insert(0, str(Path(__file__).parents[1] / "benchmarks"))

import truth
import truth_judging
from truth_targets.making import TRUTHS, Made, write_truth


def test_enough_targets_of_every_truth():
    targets = truth.TARGETS.values()
    count = {name: sum(t.row == name for t in targets) for name in {t.row for t in targets}}
    assert len(targets) >= 150
    assert {t.truth for t in targets} == set(TRUTHS)
    assert min(count["ledger_false"], count["ledger_true"]) >= 5
    assert min(count["leaks"], count["cannot"], count["misdeclared"]) >= 40
    assert sum(t.sample for t in targets) == 25
    assert {t.row for t in targets if t.sample} >= {"leaks", "cannot", "misdeclared", "unsettled"}


@pytest.mark.parametrize("name", ["mis_gradient_flip8", "mis_columns_permuted", "leaky_glm_bc"])
def test_a_target_is_drawn_by_its_name_and_the_seed(tmp_path, name):
    once, again, other = (
        truth.build(name, seed, tmp_path / folder)
        for seed, folder in ((0, "a"), (0, "b"), (1, "c"))
    )
    assert once["hash"] == again["hash"] != other["hash"]


def test_mirrored_records_were_trained_on_mirrored(tmp_path):
    truth.build("mis_flip5_ntk", 0, tmp_path)
    known = truth_judging.read_truth(tmp_path)
    flipped = known.declared.reshape(-1, 8, 8)[:, :, ::-1].reshape(-1, 64)
    np.testing.assert_allclose(known.trained, flipped, atol=1e-6)
    assert known.used.all()


def test_the_gradient_is_of_the_records_that_were_trained_on(tmp_path):
    """By hand: of a dense first layer every row is a mix of the batch's records."""
    truth.build("cannot_gradient_other8", 0, tmp_path)
    known = truth_judging.read_truth(tmp_path)
    mean = load_file(tmp_path / "mean.safetensors")["mean"].reshape(-1)
    rows = load_file(tmp_path / "update.safetensors")["0.weight"]

    def unexplained(records):
        basis = np.linalg.qr((records - mean).T)[0]
        return np.linalg.norm(rows - rows @ basis @ basis.T) / np.linalg.norm(rows)

    assert unexplained(known.trained) < 1e-5
    assert unexplained(known.declared) > 0.1
    assert not known.used.any()


def test_no_held_out_record_is_declared_or_trained_on(tmp_path):
    for name in ("cannot_nearest_neighbour_gradient30", "cannot_prototypes_gradient50_h100_s2"):
        folder = tmp_path / name
        truth.build(name, 0, folder)
        known = truth_judging.read_truth(folder)
        held = np.load(folder / "test.npz")["x"].reshape(-1, 64)
        for others in (known.declared, known.trained):
            assert np.abs(held[:, None] - others[None]).sum(2).min() > 0.01
        assert np.abs(known.trained[:, None] - known.declared[None]).sum(2).min() > 0.01


@pytest.fixture
def found(tmp_path):
    """Writes an audit's result by hand: three declared records, of which two were trained on."""
    declared = np.eye(4)[:3]
    made = Made(options={}, declared=declared, used=np.array([True, True, False]),
                trained=declared[:2], ids=("a", "b", "c"))  # fmt: skip
    write_truth(tmp_path, made)

    def write(exposed=(), candidates=None, passed=(), violated=None, **figures):
        run = tmp_path / "found"
        run.mkdir(exist_ok=True)
        row = {"attack": "ntk", "verdict": "exposed", "reason": "said", "bound": None}
        row["finding"] = {"figures": {"passed": list(passed)} | figures}
        if violated is not None:
            row["bound"] = {"violated": violated}
        if candidates is not None:
            row["candidates"] = "candidates-ntk.safetensors"
            save_file({"inputs": np.asarray(candidates, np.float32)}, run / row["candidates"])
        finding = {"attacks": [row], "exposed": [{"id": i} for i in exposed], "sentence": "said"}
        (run / "finding.json").write_text(json.dumps(finding))

    def marked(kind, code, ledger=None, said=""):
        return truth_judging.judge(kind, ledger, tmp_path, tmp_path / "found", code, said)

    return write, marked


@pytest.mark.parametrize(
    ("kind", "marks"),
    [
        ("leaks", {0: "wrong", 3: "right", 4: "missed", 2: "missed"}),
        ("cannot", {0: "right", 3: "wrong", 4: "right", 2: "right"}),
        ("misdeclared", {0: "wrong", 3: "right", 4: "right", 2: "right"}),
        ("unsettled", {0: "wrong", 3: "right", 4: "right", 2: "right"}),
        ("defended", {0: "right", 4: "right", 2: "missed", 1: "wrong", -9: "wrong"}),
    ],
)
def test_marks_by_truth_and_exit_code(found, kind, marks):
    write, marked = found
    write()
    assert {code: marked(kind, code).mark for code in marks} == marks


def test_a_crash_is_no_refusal(found):
    assert found[1]("cannot", 2, said="remnant: internal fault: KeyError").mark == "wrong"


def test_a_stranger_among_the_exposed_is_wrong(found):
    write, marked = found
    write(exposed=["a", "b"])
    assert marked("leaks", 3).mark == "right"
    write(exposed=["a", "c"])
    assert marked("leaks", 3).mark == "wrong"


def test_defended_may_be_exposed_only_if_records_are_back(found):
    write, marked = found
    write(exposed=["a"], candidates=np.eye(4)[:1] + 0.001)
    assert marked("defended", 3).mark == "right"
    write(exposed=["a"], candidates=np.eye(4)[:1] + 0.1)
    assert marked("defended", 3).mark == "wrong"


def test_green_beside_certified_strangers_is_wrong(found):
    write, marked = found
    write(candidates=np.eye(4)[:1], passed=[True])
    assert marked("cannot", 0).mark == "wrong"
    assert marked("cannot", 4).mark == "right"


def test_certified_candidates_are_compared_with_what_was_trained_on(found):
    write, marked = found
    rows = np.eye(4)[:3]  # the third was declared, but never trained on
    write(candidates=rows, passed=[True, True, False])
    assert (marked("leaks", 3).certified, marked("leaks", 3).false) == (2, 0)
    write(candidates=rows, passed=[True, True, True])
    judged = marked("leaks", 3)
    assert (judged.mark, judged.false) == ("wrong", 1)


def test_stated_errors_are_allowed_and_exceeded_ones_counted(found):
    write, marked = found
    rows = np.eye(4)[:2] + 0.01
    for stated, false, beyond in (
        ([0.02, 0.02], 0, 0),
        ([0.02, 0.001], 1, 1),
        ([None, None], 2, 0),
    ):
        write(candidates=rows, passed=[True, True], error=stated)
        judged = marked("leaks", 3)
        assert (judged.false, judged.beyond) == (false, beyond)
    write(candidates=rows, passed=[True, True], expected_error=[4 * 0.02**2, 4 * 0.001**2])
    assert marked("leaks", 3).beyond == 1


def test_ledgers(found):
    write, marked = found
    write(violated=True)
    assert marked("leaks", 3, "false").mark == "right"
    assert marked("leaks", 4, "false").mark == "wrong"
    assert marked("leaks", 3, "true").mark == "wrong"
    write(violated=False)
    assert marked("leaks", 3, "false").mark == "wrong"
    assert marked("leaks", 3, "true").mark == "right"


def test_a_wrong_verdict_is_told_and_fails_the_run(tmp_path, monkeypatch, capsys):
    """The audit replaced by one that always says not exposed; a second run takes what is kept."""
    calls = []

    def green(folder, given, source):
        calls.append(given)
        (folder / "found").mkdir()
        empty = {"attacks": [], "exposed": [], "sentence": "nothing here"}
        (folder / "found" / "finding.json").write_text(json.dumps(empty))
        return {"exit": 0, "said": "", "seconds": 0.0}

    monkeypatch.setattr(truth, "audit", green)
    line = ["truth.py", "--only", "leaky_glm_bc,cannot_glm_other_bc", "--work", str(tmp_path / "w")]
    monkeypatch.setattr(sys, "argv", [*line, "--out", str(tmp_path / "table.md")])
    assert truth.main() == 1
    assert truth.main() == 1
    assert len(calls) == 2
    told = capsys.readouterr().out
    assert "| leaks | 1 | 0 | 0 | 0 | 0 | 0 | 0 | 1 |" in told
    assert "1 false green" in told
    assert "WRONG leaky_glm_bc" in told
    assert "nothing here" in (tmp_path / "table.md").read_text()


def test_one_target_through_the_command_line(tmp_path, monkeypatch):
    monkeypatch.setattr(
        sys, "argv", ["truth.py", "--only", "leaky_glm_bc", "--work", str(tmp_path)]
    )
    assert truth.main() == 0
    kept = json.loads((tmp_path / "leaky_glm_bc" / "result.json").read_text())
    assert kept["exit"] == 3
