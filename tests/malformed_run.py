"""Run generated malformed inputs: one short line, exit 2, soon, little memory, nothing left behind.

    python tests/malformed_run.py --seed 0              all of them
    python tests/malformed_run.py --seed 1 --sample 150 --only flags

A case is (name, files, argv) or (name, files, argv, codes). files: what lies in a folder of its
own, bytes or a function that writes to a path. argv: with {dir} for that folder and {good} for one
with files that an audit would begin with. codes: exit codes that may come (2 if not given).
Every case runs in a fork of this warm process, within limits on CPU time and memory.
"""

import argparse
import contextlib
import itertools
import json
import os
import random
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from pathlib import Path

import safetensors.torch
import torch

from malformed_files import DIGITS, STATE, npz, tensors
from remnant.cli import main

SECONDS, BYTES = 5, 2 * 1024**3  # CPU time of a case, and what its address space may grow by
WAIT = 60  # seconds of waiting for what never comes
LINE = 500  # letters of what is said
BOMB = Path("/tmp/remnant-test-bomb")  # what a pickle that runs would write
CANARY = "canary"  # what a user's file that should not run would write in its folder
BAD_INPUT = 2


def make_good(path):
    """Files with which every verb would begin, and finished runs; imports all that verbs import."""
    path.mkdir(parents=True, exist_ok=True)
    (path / "w.safetensors").write_bytes(tensors())
    (path / "i.safetensors").write_bytes(tensors(**{"1_bias": torch.full((10,), 0.01)}))
    (path / "g.safetensors").write_bytes(
        safetensors.torch.save({name: 0.01 * value for name, value in STATE.items()})
    )
    (path / "train.npz").write_bytes(npz())
    held = DIGITS.take(range(100, 140))
    (path / "test.npz").write_bytes(npz(x=held.inputs.numpy(), y=held.labels.numpy()))
    recipe = {"name": "gradient-descent", "lr": 0.1, "steps": 3}
    (path / "recipe.json").write_text(json.dumps(recipe))
    linear = {"family": "linear", "coef": [0.1] * 64, "intercept": 0.1}
    (path / "linear.json").write_text(json.dumps(linear))
    files = {"weights": "w.safetensors", "data": "train.npz", "holdout": "test.npz"}
    lines = [f"{name}: {path / file}\n" for name, file in files.items()]
    short = "attacks: [kkt]\nsettings: {kkt: {steps: 2, starts: 1, candidates: 4}}\n"
    (path / "audit.yaml").write_text("".join(lines) + short)
    search = "search: {attack: kkt, trials: 1, settings: {steps: 2, starts: 2, candidates: 4}}\n"
    (path / "search.yaml").write_text(lines[0] + "shape: 1x8x8\nrecords: 3\n" + search)
    assert main(["audit", f"{path / 'audit.yaml'}", "--quiet", f"--out={path / 'audited'}"]) == 0
    assert main(["preflight", f"{path / 'audit.yaml'}", "--quiet"]) == 0
    assert main(["sweep", f"{path / 'search.yaml'}", "--quiet", f"--out={path / 'searched'}"]) == 0
    assert main(["report", f"{path / 'audited'}", "--quiet", f"--out={path / 'page'}"]) == 0
    return path


def start(case, good, place):
    """The process id of a case's child, whose folder is `place`."""
    _, files, argv, *_ = case
    for name in ("case", "tmp"):
        (place / name).mkdir(parents=True)
    for name, content in files.items():
        path = place / "case" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        content(path) if callable(content) else path.write_bytes(content)
    words = [w.replace("{dir}", str(place / "case")).replace("{good}", str(good)) for w in argv]
    if "--out" not in " ".join(words) and words[:1] not in (["runs"], ["preflight"]):
        words += ["--out", str(place / "found")]
    sys.stdout.flush()
    sys.stderr.flush()
    child = os.fork()
    if child:
        return child
    code = 1  # nothing of the parent's is touched from here on
    try:
        for stream in (1, 2):
            os.dup2(os.open(place / f"stream{stream}", os.O_CREAT | os.O_WRONLY), stream)
        sys.stdout, sys.stderr = os.fdopen(1, "w"), os.fdopen(2, "w")
        os.dup2(os.open(os.devnull, os.O_RDONLY), 0)
        os.environ["TMPDIR"], tempfile.tempdir = str(place / "tmp"), None
        os.chdir(place / "case")
        now = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
        resource.setrlimit(resource.RLIMIT_AS, (now + BYTES, now + BYTES))
        resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
        signal.alarm(WAIT)
        code = main(words)
    except SystemExit as left:  # --help
        code = left.code or 0
    except BaseException:
        traceback.print_exc()
    finally:
        with contextlib.suppress(OSError, ValueError):
            sys.stdout.flush()
            sys.stderr.flush()
        os._exit(code)


def faults(case, status, place):
    """What is wrong with how a case ended, in words; nothing if all is well."""
    _, _, argv, *codes = case
    allowed = codes[0] if codes else (BAD_INPUT,)
    code = os.waitstatus_to_exitcode(status)
    out, err = ((place / f"stream{n}").read_text(errors="replace") for n in (1, 2))
    wrong = [] if code in allowed else [f"exit {code}, expected one of {allowed}"]
    if "Traceback" in err or "internal fault" in err:
        wrong.append("a fault that nobody foresaw")
    if code == BAD_INPUT:
        if not err.startswith("remnant: ") or err.count("\n") != 1:
            wrong.append("not one line on stderr")
        if len(err) > LINE:
            wrong.append(f"a line of {len(err)} letters")
        if out:
            wrong.append("something on stdout")
        if (place / "found").exists():
            wrong.append("a run left behind")
    if "\x1b" in out + err:
        wrong.append("an escape sequence")
    if any((place / "tmp").iterdir()):
        wrong.append(f"left in the temporary folder: {[p.name for p in (place / 'tmp').iterdir()]}")
    if BOMB.exists() or (place / "case" / CANARY).exists():
        BOMB.unlink(missing_ok=True)
        wrong.append("code that ran")
    return wrong and [*wrong, f"argv {str(argv)[:300]}", f"said {(err or out)[-600:]!r}"]


def run_cases(cases, good, work, jobs=2):
    """(case, faults) as each ends; folders of cases without faults are removed."""
    todo, running = iter(enumerate(cases)), {}
    while True:
        for at, case in itertools.islice(todo, jobs - len(running)):
            place = work / f"{at:05d}"
            running[start(case, good, place)] = case, place
        if not running:
            return
        child, status = os.wait()
        if child in running:
            case, place = running.pop(child)
            wrong = faults(case, status, place)
            shutil.rmtree(place, ignore_errors=True)
            yield case, wrong


def all_cases(seed):
    """Those of files, and those of words: specs, flags, sweeps, run files and users' modules."""
    import malformed_files
    import malformed_words

    of_files = getattr(malformed_files, "cases", lambda seed: ())
    return [*of_files(seed), *malformed_words.cases(seed)]


def sampled(seed, count, only=""):
    cases = [case for case in all_cases(seed) if only in case[0]]
    return cases if count is None else random.Random(seed).sample(cases, min(count, len(cases)))


def command():
    parser = argparse.ArgumentParser()
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--sample", type=int, help="so many of them")
    parser.add_argument("--only", default="", help="those with this in their name")
    parser.add_argument("--jobs", type=int, default=2)
    given = parser.parse_args()
    torch.set_num_threads(1)
    begun, failed, count = time.monotonic(), 0, 0
    with tempfile.TemporaryDirectory() as folder:
        good = make_good(Path(folder) / "good")
        cases = sampled(given.seed, given.sample, given.only)
        for case, wrong in run_cases(cases, good, Path(folder) / "work", given.jobs):
            count += 1
            failed += bool(wrong)
            if wrong:
                print(f"{case[0]}: {'; '.join(wrong)}", flush=True)
    print(f"{count} cases, {failed} failed, {time.monotonic() - begun:.0f} s (seed {given.seed})")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(command())
