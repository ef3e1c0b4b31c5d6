"""A run's directory: what is refused, what is resumed, what a kill leaves behind."""

import hashlib
import json
import math
import os
import stat
import subprocess
import sys

import pytest
import safetensors.torch
import torch
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from remnant.errors import StoreError
from remnant.store import (
    finish,
    hash_tensors,
    load_state,
    open_run,
    read_candidates,
    read_json,
    read_run,
    save_state,
    spec_hash,
    take_lock,
    write_bytes,
    write_candidates,
    write_json,
    write_text,
)
from remnant.store.files import write_whole
from remnant.types import Candidates, Status

SPEC = {"attack": "kkt", "seed": 1, "model": {"width": 64, "layers": [3, 4]}}


def mode(path):
    return stat.S_IMODE(os.stat(path).st_mode)


def candidates(**changes):
    values = {
        "inputs": torch.rand(3, 1, 4, 4, generator=torch.Generator().manual_seed(0)),
        "confidence": torch.tensor([0.9, 0.5, 0.1]),
        "labels": torch.tensor([1, 0, 1]),
        "status": Status.PARTIAL,
        "reason": "two of three certified",
        "figures": {"rank": 3, "gap": math.inf},
        "trace": {"singular_values": [3.0, 2.0, 1.0]},
    }
    return Candidates(**values | changes)


@pytest.fixture
def run(tmp_path):
    return open_run(tmp_path / "run", SPEC)


def test_a_new_run_is_private_and_unfinished(tmp_path):
    run = open_run(tmp_path / "a" / "b", SPEC)
    assert mode(run.path) == 0o700
    assert not run.finished
    record = json.loads((run.path / "run.json").read_text())
    assert record["spec"] == SPEC
    assert record["spec_hash"] == spec_hash(SPEC)
    assert set(record["versions"]) >= {"python", "torch", "numpy", "remnant"}
    write_text(run, "report.html", "<p>hello")
    assert {mode(path) for path in run.path.iterdir()} == {0o600}


def test_an_unfinished_run_resumes_and_a_finished_one_is_found(run):
    write_json(run, "finding.json", {"recovered": 3})
    assert not open_run(run.path, SPEC).finished
    done = finish(run, seeds={"attack": 1}, hashes={"weights": "ab"}, timings={"attack": 2.5})
    assert done.finished
    again = open_run(run.path, dict(reversed(SPEC.items())))
    assert again.finished
    assert again.record["timings"] == {"attack": 2.5}
    assert again.record["seeds"] == {"attack": 1}
    text = (run.path / "finding.json").read_bytes()
    assert again.record["files"] == {"finding.json": hashlib.sha256(text).hexdigest()}
    assert read_run(run.path) == again


def test_a_finished_run_that_lost_a_file_is_not_finished(run):
    write_text(run, "finding.json", "{}")
    save_state(run, "search", {"x": torch.ones(2)})
    finish(run)
    assert not (run.path / "state-search.safetensors").exists()  # scratch: nobody needs it now
    assert open_run(run.path, SPEC).finished
    (run.path / "finding.json").unlink()
    assert not open_run(run.path, SPEC).finished


def edited(path, old, new):
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_state_that_goes_when_a_run_is_done_is_none_of_its_files(run):
    write_candidates(run, candidates(), "state-control-ntk.safetensors")
    assert finish(run).finished


def test_an_altered_file_of_a_finished_run_is_refused_by_name(run):
    write_json(run, "finding.json", {"verdict": "exposed"})
    write_candidates(run, candidates())
    write_text(run, "report.html", "<p>drawn")
    finish(run)
    (run.path / "report.html").write_text("<p>drawn again")  # as `remnant report` may
    assert open_run(run.path, SPEC).finished
    edited(run.path / "finding.json", "exposed", "not exposed")
    for read in (lambda: open_run(run.path, SPEC), lambda: read_run(run.path)):
        with pytest.raises(StoreError, match=r"finding\.json: expected the file that the run"):
            read()
    assert read_run(run.path, verify=False).finished  # to be removed


def test_what_a_finished_run_does_not_list_is_not_believed(run):
    write_json(run, "finding.json", {"verdict": "exposed"})
    done = finish(run)
    (run.path / "control-ntk.json").write_text("{}")
    with pytest.raises(StoreError, match="expected the file that the run wrote"):
        read_json(done, "control-ntk.json")


@pytest.mark.parametrize(
    ("old", "new"),
    [('"finished": false', '"finished": true'), ('"numpy"', '"numby"'), ('"digest"', '"other"')],
)
def test_run_json_has_a_hash_of_itself(run, old, new):
    write_json(run, "finding.json", {"verdict": "not exposed"})
    edited(run.path / "run.json", old, new)
    with pytest.raises(StoreError, match="it was altered"):
        open_run(run.path, SPEC)


def test_an_unfinished_run_makes_again_what_was_torn_edited_or_planted(run):
    write_json(run, "control-ntk.json", {"recovered": 0})
    write_candidates(run, candidates(), "candidates-ntk.safetensors")
    write_candidates(run, candidates(), "state-control-ntk.safetensors")
    save_state(run, "search", {"x": torch.ones(2)})
    names = sorted(p.name for p in run.path.iterdir())
    open_run(run.path, SPEC)
    assert sorted(p.name for p in run.path.iterdir()) == names  # all of it is ours
    edited(run.path / "control-ntk.json", "0", "9")
    whole = (run.path / "candidates-ntk.safetensors").read_bytes()
    (run.path / "candidates-ntk.safetensors").write_bytes(whole[:-9])
    (run.path / "candidates-kkt.safetensors").write_bytes(whole)  # never written by the run
    (run.path / "notes.txt").write_text("the user's")
    open_run(run.path, SPEC)
    left = sorted(p.name for p in run.path.iterdir())
    kept = ["state-control-ntk.safetensors", "state-search.safetensors"]
    assert left == ["notes.txt", "run.json", *kept]


def test_a_state_of_another_run_is_none_of_ours(run, tmp_path):
    other = open_run(tmp_path / "other", {**SPEC, "seed": 2})
    theirs = save_state(other, "search", {"x": torch.ones(2)}).read_bytes()
    mine = save_state(run, "search", {"x": torch.ones(2)})
    assert load_state(run, "search") is not None
    mine.write_bytes(theirs)
    assert load_state(run, "search") is None
    open_run(run.path, SPEC)
    assert not mine.exists()


def test_a_kill_between_the_promise_and_the_file_loses_nothing(run, monkeypatch):
    write_json(run, "control-ntk.json", {"recovered": 1})

    def killed(path, name, value):
        if name != "run.json":  # which holds the promise
            raise KeyboardInterrupt
        return write_whole(path, name, value)

    with monkeypatch.context() as patch:
        patch.setattr("remnant.store.write_whole", killed)
        for recovered in (2, 3):
            with pytest.raises(KeyboardInterrupt):
                write_json(run, "control-ntk.json", {"recovered": recovered})
    again = open_run(run.path, SPEC)
    assert read_json(again, "control-ntk.json") == {"recovered": 1}
    write_json(again, "control-ntk.json", {"recovered": 3})
    assert read_json(open_run(run.path, SPEC), "control-ntk.json") == {"recovered": 3}


OTHER = """
import sys
from remnant.errors import StoreError
from remnant.store import open_run
try:
    run = open_run(sys.argv[1], {"seed": 1})
except StoreError as error:
    sys.exit(f"refused: {error}")
if len(sys.argv) > 2:
    print("mine", flush=True)
    sys.stdin.read()
"""


def test_one_process_writes_at_a_time(tmp_path):
    command = [sys.executable, "-c", OTHER, str(tmp_path / "run")]
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "text": True}
    first = subprocess.Popen([*command, "stay"], **pipes)
    assert first.stdout.readline() == "mine\n"
    scrap = tmp_path / "run" / ".remnant-live"
    scrap.write_bytes(b"being written")
    second = subprocess.run(command, capture_output=True, text=True, check=False)
    who = f"process {first.pid}" if os.path.exists("/proc/locks") else "another process"
    assert f"got one that {who} is writing to; wait until it is done" in second.stderr
    assert second.returncode == 1
    assert scrap.exists()
    first.kill()
    first.communicate()
    assert subprocess.run(command, check=False).returncode == 0  # the lock went with its process
    assert not scrap.exists()


def test_a_finished_run_is_read_while_another_reads_it(run):
    finish(run)
    script = f"{OTHER}\nprint('read')"
    lock = take_lock(run.path)
    spec = script.replace('{"seed": 1}', repr(SPEC))
    there = [sys.executable, "-c", spec, str(run.path)]
    assert subprocess.run(there, capture_output=True, check=False).stdout == b"read\n"
    lock.release()


def test_without_locks_a_run_goes_on_and_sweeps_nothing(tmp_path, monkeypatch):
    def unsupported(*_):
        raise OSError(38, "Function not implemented")

    monkeypatch.setattr("fcntl.flock", unsupported)
    open_run(tmp_path / "run", SPEC)
    (tmp_path / "run" / ".remnant-maybe-live").write_bytes(b"")
    assert not open_run(tmp_path / "run", SPEC).finished
    assert (tmp_path / "run" / ".remnant-maybe-live").exists()


def test_directories_above_a_run_are_private_whatever_the_umask(tmp_path):
    before = os.umask(0)
    try:
        run = open_run(tmp_path / "a" / "b" / "c", SPEC)
        write_text(run, "finding.json", "{}")
    finally:
        os.umask(before)
    assert [mode(tmp_path / p) for p in ("a", "a/b", "a/b/c")] == [0o700] * 3
    assert mode(run.path / "finding.json") == 0o600


def test_another_spec_is_refused_by_what_differs(run):
    other = {"attack": "kkt", "seed": 1.0, "model": {"width": 32, "layers": [3, 4], "bias": False}}
    with pytest.raises(StoreError) as error:
        open_run(run.path, other)
    text = str(error.value)
    assert "model.width: 64 there, 32 here" in text
    assert "model.bias: nothing there, false here" in text
    assert "seed: 1 there, 1.0 here" in text
    assert "layers" not in text
    assert text.endswith("choose another --out or remove it")


def test_a_directory_of_other_things_is_refused_and_left_alone(tmp_path):
    (tmp_path / "thesis.tex").write_text("precious")
    with pytest.raises(StoreError, match="expected a run or an empty directory, got other files"):
        open_run(tmp_path, SPEC)
    assert [p.name for p in tmp_path.iterdir()] == ["thesis.tex"]


def test_places_that_cannot_be_written_are_refused_before_work(tmp_path):
    file = tmp_path / "file"
    file.write_text("")
    with pytest.raises(StoreError, match="expected a directory, got a file"):
        open_run(file, SPEC)
    with pytest.raises(StoreError, match="a place to write, got not a directory; choose another"):
        open_run(file / "below", SPEC)
    with pytest.raises(StoreError, match="expected a place to write"):
        open_run("/proc/remnant-run", SPEC)
    with pytest.raises(StoreError, match="expected a place to write"):
        open_run(tmp_path / ("x" * 5000), SPEC)
    with pytest.raises(StoreError, match="null byte"):
        open_run(tmp_path / "a\0b", SPEC)


def test_an_unwritable_directory_is_refused_even_for_root(tmp_path, monkeypatch):
    def refuse(*args, **kwargs):
        raise PermissionError(13, "Permission denied")

    monkeypatch.setattr("tempfile.NamedTemporaryFile", refuse)
    with pytest.raises(StoreError, match="a place to write, got permission denied"):
        open_run(tmp_path / "run", SPEC)


@pytest.mark.parametrize(
    ("text", "says"),
    [
        ("{half", "expected JSON, got a fault"),
        ("[]", "expected remnant.run/1, got list"),
        ('{"schema": "remnant.run/9"}', "got remnant.run/9"),
        ('{"schema": "remnant.run/1", "spec": {}, "spec_hash": "0"}', "it was altered"),
        ("[" * 100_000, "expected JSON, got a fault"),
    ],
)
def test_a_damaged_run_file_is_refused(run, text, says):
    (run.path / "run.json").write_text(text)
    with pytest.raises(StoreError, match=says):
        open_run(run.path, SPEC)


def test_reading_what_is_not_a_run(tmp_path, run):
    with pytest.raises(StoreError, match=r"expected a run with run\.json, got none"):
        read_run(tmp_path / "nowhere")
    with pytest.raises(StoreError, match="candidates, got no file; run the attack first"):
        read_candidates(run)


@pytest.mark.parametrize("fault", [OSError(28, "No space left on device"), KeyboardInterrupt()])
def test_a_failed_write_keeps_the_old_file_and_no_scraps(run, monkeypatch, fault):
    write_bytes(run, "sheet.png", b"old")
    before = sorted(p.name for p in run.path.iterdir())

    def fail(*args):
        raise fault

    monkeypatch.setattr("os.fsync", fail)
    wanted = KeyboardInterrupt if isinstance(fault, KeyboardInterrupt) else StoreError
    with pytest.raises(wanted):
        write_bytes(run, "sheet.png", b"new")
    assert (run.path / "sheet.png").read_bytes() == b"old"
    assert sorted(p.name for p in run.path.iterdir()) == before


def test_scraps_of_a_killed_run_are_swept(tmp_path):
    (tmp_path / ".remnant-x7f").write_bytes(b"half a run.json")
    run = open_run(tmp_path, SPEC)
    (tmp_path / ".remnant-y8g").write_bytes(b"half a sheet")
    assert "files" not in run.record
    assert finish(run).record["files"] == {}
    open_run(tmp_path, SPEC)
    assert [p.name for p in tmp_path.iterdir()] == ["run.json"]


@pytest.mark.parametrize("name", ["../x", "a/b", "", "..", ".hidden", "/etc/x"])
def test_a_file_of_a_run_stays_in_the_run(run, name):
    with pytest.raises(StoreError, match="expected a plain name"):
        write_text(run, name, "x")


def test_json_takes_json_only(run):
    for value in (math.nan, {"x": math.inf}, {"x": torch.ones(1)}, {1, 2}):
        with pytest.raises(StoreError, match="expected JSON values, finite numbers"):
            write_json(run, "finding.json", value)
    with pytest.raises(StoreError, match="spec: expected JSON values"):
        open_run(run.path, {"path": run.path})


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)  # fmt: skip


@settings(
    max_examples=40, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
@given(value=JSON)
def test_json_survives(run, value):
    write_json(run, "value.json", value)
    assert read_json(run, "value.json") == value


@settings(max_examples=40)
@given(spec=st.dictionaries(st.text(), JSON, min_size=1, max_size=4))
def test_the_spec_hash_knows_values_and_not_their_order(spec):
    assert spec_hash(dict(reversed(spec.items()))) == spec_hash(spec)
    assert spec_hash(json.loads(json.dumps(spec))) == spec_hash(spec)
    assert spec_hash({**spec, next(iter(spec)): "another value entirely"}) != spec_hash(spec)


@pytest.mark.parametrize("labels", [torch.tensor([1, 0, 1]), torch.rand(3, 2), None])
def test_candidates_survive_with_everything_about_them(run, labels):
    kept = candidates(labels=labels)
    path = write_candidates(run, kept)
    back = read_candidates(run)
    assert torch.equal(back.inputs, kept.inputs)
    assert torch.equal(back.confidence, kept.confidence)
    assert (back.labels is None) if labels is None else torch.equal(back.labels, labels)
    assert (back.status, back.reason) == (kept.status, kept.reason)
    assert (back.figures, back.trace) == (kept.figures, kept.trace)
    names = {"inputs", "confidence"} | (set() if labels is None else {"labels"})
    assert set(safetensors.torch.load_file(path)) == names


def test_the_same_candidates_are_the_same_bytes(tmp_path):
    def written(name, **changes):
        run = open_run(tmp_path / name, SPEC)
        return write_candidates(run, candidates(**changes)).read_bytes()

    first = written("a")
    turned = {"gap": math.inf, "rank": 3}
    assert all(written(f"b{i}", figures=turned) == first for i in range(8))
    assert written("c", reason="another") != first


def test_candidates_may_be_none_views_or_with_a_gradient(run):
    empty = candidates(inputs=torch.zeros(0, 2), confidence=torch.zeros(0), labels=None)
    write_candidates(run, empty)
    assert read_candidates(run).inputs.shape == (0, 2)
    whole = torch.rand(3, 3, requires_grad=True)
    write_candidates(run, candidates(inputs=whole.T, confidence=whole[0], labels=None))
    assert torch.equal(read_candidates(run).inputs, whole.T)
    with pytest.raises(StoreError, match="figures and trace: expected JSON values"):
        write_candidates(run, candidates(figures={"x": torch.ones(1)}))


def test_damaged_candidates_are_refused(run):
    path = write_candidates(run, candidates())
    whole = path.read_bytes()
    for damaged in (whole[:-5], b"", b"pickled" * 9, safetensors.torch.save({"x": torch.ones(1)})):
        path.write_bytes(damaged)
        with pytest.raises(StoreError, match="expected candidates, got a damaged file"):
            read_candidates(run)


def test_states_survive_and_what_was_touched_is_ignored(run):
    generator = torch.Generator().manual_seed(4)
    state = {"x": torch.rand(3, 2), "rng": generator.get_state(), "step": torch.tensor(7)}
    assert load_state(run, "search") is None
    path = save_state(run, "search", state)
    back = load_state(run, "search")
    assert back is not None
    assert set(back) == set(state)
    assert all(torch.equal(back[name], state[name]) for name in state)
    whole = path.read_bytes()
    for touched in (whole[:-1], whole[:40], b"", whole[:-1] + bytes([whole[-1] ^ 1])):
        path.write_bytes(touched)
        assert load_state(run, "search") is None
    path.write_bytes(safetensors.torch.save(state))  # no hash at all
    assert load_state(run, "search") is None


def test_the_hash_of_tensors_knows_names_types_shapes_and_bytes():
    a, b = torch.arange(6.0), torch.ones(2, dtype=torch.bool)
    base = hash_tensors({"a": a, "b": b})
    assert hash_tensors({"b": b, "a": a}) == base
    assert hash_tensors({"a": a.reshape(3, 2).T.T.reshape(6), "b": b}) == base
    others = [
        {"a": a, "c": b},
        {"a": a.double(), "b": b},
        {"a": a.reshape(2, 3), "b": b},
        {"a": a + torch.eye(1, 6)[0] * 1e-6, "b": b},
        {"a": a, "b": b.to(torch.uint8)},
        {"a": a},
        {},
    ]
    hashes = {hash_tensors(other) for other in others}
    assert len(hashes) == len(others)
    assert base not in hashes
    assert hash_tensors({"a": torch.tensor(1.0)}) != hash_tensors({"a": torch.tensor([1.0])})
    assert hash_tensors({"h": torch.ones(3, dtype=torch.bfloat16), "e": torch.zeros(0)})


def test_a_number_cut_from_a_matrix_hashes_as_itself():
    cut = torch.arange(8.0).reshape(2, 4)[:1, 1:2]
    assert hash_tensors({"a": cut}) == hash_tensors({"a": torch.tensor([[1.0]])})
