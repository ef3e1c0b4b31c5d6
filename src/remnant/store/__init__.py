"""A run's directory: opened, resumed, finished; believed only where hashes agree.

Every file is written beside its place and moved there, so a kill leaves the old file or the new
one. `run.json` says what the run is from the start and that it is finished at the very end. It
holds the hash of every file of the run, and one of itself: of a finished run as it was finished, of
an unfinished one before the file is moved to its place. The hashes are no signature: they show what
was torn or edited, not what somebody forged with care.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from remnant.checkpoints import Keeper, keeping
from remnant.errors import RemnantError, StoreError, expected
from remnant.store.files import (
    ELSEWHERE,
    TEMPORARY,
    Lock,
    apart,
    as_json,
    canonical,
    check_writable,
    differences,
    hash_file,
    hash_tensors,
    hash_text,
    make_private,
    pack,
    parse,
    plain_name,
    remove_scraps,
    spec_hash,
    spelt,
    take_lock,
    unpack,
    versions,
    write_whole,
)
from remnant.types import Candidates, Finding

RUN_SCHEMA = "remnant.run/1"
RUN_FILE = "run.json"
CANDIDATES_FILE = "candidates.safetensors"
FINDING_FILE = "finding.json"
STATE = "state-"
WITHIN = "within-"  # states of loops, which `keeping_states` makes and removes
DIGEST = "digest"  # the hash of all else in run.json
WRITTEN = "written"  # in an unfinished run: the hashes that a file may have, by its name
REDRAWN = "report.html"  # `remnant report` may draw it again, and no command reads it
# What an interrupted run goes on from: made again where it is not what the run wrote.
RESUMED = (f"{STATE}*.safetensors", "candidates*.safetensors", "control-*.json", "rows.jsonl")


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's directory and what its `run.json` said when it was opened."""

    path: Path
    spec: Mapping[str, Any]
    spec_hash: str
    finished: bool
    record: Mapping[str, Any]
    lock: Lock | None = field(default=None, compare=False, repr=False)  # held by whoever may write


def open_run(directory: str | Path, spec: Mapping[str, Any]) -> Run:
    """Make, resume or find again the run of `spec` in `directory`, before any work is done.

    A finished run of the same spec comes back with `finished` true, an unfinished one to be gone
    on with. Anything else that is in the way, or cannot be written, is a StoreError; so is a run
    that another process is at.
    """
    path = Path(directory)
    wanted = json.loads(canonical(dict(spec)))
    make_private(path)
    try:
        lock = take_lock(path)
    except StoreError:
        there = _found(path, wanted)
        if there is not None and there.finished:  # to be read, which needs no lock
            return there
        raise
    check_writable(path)
    if lock.handle is not None:
        remove_scraps(path)
    run = _found(path, wanted)
    if run is None:
        if any(not p.name.startswith(TEMPORARY) for p in path.iterdir()):
            got = "other files"
            raise StoreError(expected(f"{path}", "a run or an empty directory", got, ELSEWHERE))
        run = _begun(path, wanted)
    if run.finished:
        lock.release()
        return run
    _drop_strange(run)
    return Run(**{**vars(run), "lock": lock})


def _found(path: Path, wanted: Mapping[str, Any]) -> Run | None:
    """The run that is there, None if there is none; one of another spec is an error."""
    if not (path / RUN_FILE).exists():
        return None
    run = read_run(path)
    if run.spec_hash != spec_hash(wanted):
        places = differences(run.spec, wanted).items()
        differ = "; ".join(f"{at}: {spelt(a)} there, {spelt(b)} here" for at, (a, b) in places)
        got = f"another ({differ})"
        raise StoreError(expected(f"{path}", "a run of this spec", got, ELSEWHERE))
    return run


def _begun(path: Path, spec: dict[str, Any]) -> Run:
    record = {
        "schema": RUN_SCHEMA,
        "finished": False,
        "spec": spec,
        "spec_hash": spec_hash(spec),
        "versions": versions(),
    }
    _write_record(path, record)
    return read_run(path)


def read_run(directory: str | Path, *, verify: bool = True) -> Run:
    """The run in `directory`, to read. Finished only while every file it listed is there.

    A finished run with a file that is not what was written is a StoreError. verify: False skips
    that check, for a run that is listed or removed and not believed.
    """
    path = Path(directory)
    record = _read_record(path)
    files = record.get("files", {})
    there = all((path / name).is_file() for name in files)
    finished = record.get("finished") is True and there
    if finished and verify:
        for name, digest in files.items():
            if name != REDRAWN and hash_file(path / plain_name(name)) != digest:
                raise StoreError(_altered(path / name))
    return Run(
        path=path,
        spec=record["spec"],
        spec_hash=record["spec_hash"],
        finished=finished,
        record=record,
    )


def finish(
    run: Run,
    *,
    seeds: Mapping[str, int] | None = None,
    hashes: Mapping[str, str] | None = None,
    timings: Mapping[str, float] | None = None,
) -> Run:
    """Say in `run.json`, last of all, that the run is done, with the hash of all that it wrote."""
    before = _read_record(run.path)
    wrote = sorted({**before.get("files", {}), **before.get(WRITTEN, {})})
    lasting = (run.path / name for name in wrote if not name.startswith(STATE))
    record = {
        "schema": RUN_SCHEMA,
        "finished": True,
        "spec": run.spec,
        "spec_hash": run.spec_hash,
        "seeds": dict(seeds or {}),
        "versions": versions(),
        "hashes": dict(hashes or {}),
        "files": {p.name: hash_file(p) for p in lasting if p.is_file()},
        "timings": dict(timings or {}),
    }
    _write_record(run.path, record)
    for state in run.path.glob(f"{STATE}*"):
        state.unlink()  # only an unfinished run is resumed
    if run.lock is not None:
        run.lock.release()
    return read_run(run.path)


def discard(run: Run) -> None:
    """Remove a run that has written nothing but its own `run.json`."""
    if not run.finished and [p.name for p in run.path.iterdir()] == [RUN_FILE]:
        (run.path / RUN_FILE).unlink()
        run.path.rmdir()


def promise(run: Run, name: str, digest: str) -> None:
    """Note in `run.json` the hash that a file is about to have.

    The hash of the file that is there stays beside it: a kill leaves either of the two.
    """
    path = run.path / plain_name(name)
    record = _read_record(run.path)
    there = hash_file(path) if path.is_file() else None
    before = [old for old in _hashes(record, name) if old == there and old != digest]
    written = {**record.get(WRITTEN, {}), name: [*before, digest]}
    _write_record(run.path, {**record, WRITTEN: written})


def check_listed(run: Run, name: str) -> None:
    """Refuse a file that a finished run does not list: somebody put it there."""
    if run.finished and name not in run.record.get("files", {}):
        raise StoreError(_altered(run.path / name))


def _drop_strange(run: Run) -> None:
    """Remove from an unfinished run, before it is resumed, the results that it did not write.

    States say themselves whose they are (`save_state`); all else is in `run.json`.
    """
    for path in sorted(run.path.iterdir()):
        allowed = _hashes(run.record, path.name)
        if not path.is_file() or (allowed and hash_file(path) in allowed):
            continue
        if any(fnmatchcase(path.name, pattern) for pattern in RESUMED):
            if not is_own_state(run, path.name):
                path.unlink()
        elif allowed and path.name != REDRAWN:
            raise StoreError(_altered(path))


def _hashes(record: Mapping[str, Any], name: str) -> list[str]:
    """The hashes that a file of this name may have."""
    finished = record.get("files", {}).get(name)  # of a run that lost another file since
    return [*record.get(WRITTEN, {}).get(name, []), *([finished] if finished else [])]


def _altered(path: Path) -> str:
    do = f"do not rely on it; remove {path.parent} and run it again, or choose another --out"
    return expected(f"{path}", "the file that the run wrote", "another", do)


def _write_record(path: Path, record: Mapping[str, Any]) -> None:
    bare = {name: value for name, value in record.items() if name != DIGEST}
    write_whole(path, RUN_FILE, as_json(RUN_FILE, {**bare, DIGEST: spec_hash(bare)}))


def _read_record(path: Path) -> dict[str, Any]:
    """What `run.json` says, if it is what was written."""
    record = parse(path / RUN_FILE)
    if not isinstance(record, dict) or record.get("schema") != RUN_SCHEMA:
        got = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise StoreError(expected(f"{path / RUN_FILE}: schema", RUN_SCHEMA, got, ELSEWHERE))
    bare = {name: value for name, value in record.items() if name != DIGEST}
    spec = record.get("spec")
    right = isinstance(spec, dict) and record.get("spec_hash") == spec_hash(spec)
    if not right or record.get(DIGEST) != spec_hash(bare):
        do = f"it was altered, or is of an earlier version; {ELSEWHERE}"
        raise StoreError(expected(f"{path / RUN_FILE}", "a run and its hash", "others", do))
    return record


def write_bytes(run: Run, name: str, value: bytes) -> Path:
    """Write one file of the run, whole or not at all, readable by its owner alone."""
    plain_name(name)
    if run.spec_hash and not run.finished:  # a directory that is no run has no list of files
        promise(run, name, hashlib.sha256(value).hexdigest())
    return write_whole(run.path, name, value)


def write_text(run: Run, name: str, value: str) -> Path:
    return write_bytes(run, name, value.encode())


def write_json(run: Run, name: str, value: Any) -> Path:
    """Two-space JSON. NaN, infinity and what JSON does not know are refused."""
    return write_bytes(run, name, as_json(name, value))


def write_weights(run: Run, name: str, weights: Mapping[str, Tensor]) -> Path:
    """Plain safetensors, as `models.save_weights` writes them."""
    return write_bytes(run, name, safetensors.torch.save(apart(weights)))


def read_json(run: Run, name: str) -> Any:
    check_listed(run, name)
    return parse(run.path / plain_name(name))


def write_candidates(run: Run, candidates: Candidates, name: str = CANDIDATES_FILE) -> Path:
    """`candidates.safetensors`: inputs, confidence, labels if any; the same candidates, same bytes.

    The rest (status, reason, figures, trace) is JSON under the metadata key "remnant".
    """
    tensors, about = candidates.parts()
    try:
        text = json.dumps(about, sort_keys=True)  # NaN may stay: a reader gets back what there was
    except TypeError as error:
        raise StoreError(expected("candidates: figures and trace", "JSON values", error)) from None
    return write_bytes(run, name, pack(tensors, text))


def read_candidates(run: Run, name: str = CANDIDATES_FILE) -> Candidates:
    """What `write_candidates` wrote."""
    path = run.path / plain_name(name)
    if not path.is_file():
        raise StoreError(expected(f"{path}", "candidates", "no file", "run the attack first"))
    check_listed(run, name)
    try:
        tensors, text = unpack(path)
        return Candidates.from_parts(tensors, json.loads(text))
    except (
        safetensors.SafetensorError, LookupError, ValueError, TypeError, OSError, RecursionError,
        RemnantError,
    ) as error:  # fmt: skip
        raise StoreError(expected(f"{path}", "candidates", f"a damaged file ({error})")) from None


def read_finding(run: Run) -> Finding:
    """The finding that the run wrote."""
    path = run.path / FINDING_FILE
    check_listed(run, FINDING_FILE)
    try:
        return Finding.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(expected(f"{path}", "a finding", error, ELSEWHERE)) from None


def write_finding(run: Run, finding: Finding) -> Path:
    return write_text(run, FINDING_FILE, finding.to_json())


def save_state(run: Run, name: str, tensors: Mapping[str, Tensor]) -> Path:
    """Keep tensors to resume from (a generator's state is a tensor too)."""
    return write_whole(run.path, _state_file(name), pack(tensors, _seal(run, name, tensors)))


def load_state(run: Run, name: str) -> dict[str, Tensor] | None:
    """The tensors of `save_state`, or None where there are none that can be trusted.

    A state that was damaged, altered or made by another run is as good as missing: the work
    starts again.
    """
    path = run.path / _state_file(name)
    if not path.is_file():
        return None
    try:
        tensors, seal = unpack(path)
    except (safetensors.SafetensorError, KeyError, OSError):
        return None
    return tensors if seal == _seal(run, name, tensors) else None


def is_own_state(run: Run, file: str) -> bool:
    """Whether a file is a state that this run saved."""
    name = file.removeprefix(STATE).removesuffix(".safetensors")
    return file.startswith(STATE) and load_state(run, name) is not None


def _seal(run: Run, name: str, tensors: Mapping[str, Tensor]) -> str:
    """A hash inside the file and not in `run.json`: states are many and written often."""
    return hash_text(f"{run.spec_hash}/{name}/{hash_tensors(tensors)}")


@contextmanager
def keeping_states(run: Run) -> Iterator[None]:
    """Long loops inside the block leave their states in the run, until the block is done.

    After an interrupt or a kill the same block goes on from them.
    """

    def save(name: str, tensors: Mapping[str, Tensor]) -> Path:
        return save_state(run, WITHIN + name, tensors)

    def load(name: str) -> dict[str, Tensor] | None:
        return load_state(run, WITHIN + name)

    with keeping(Keeper(load=load, save=save)):
        yield
    forget_states(run)


def forget_states(run: Run) -> None:
    """Remove what `keeping_states` kept: the loops are done."""
    for state in run.path.glob(f"{STATE}{WITHIN}*"):
        state.unlink()


def _state_file(name: str) -> str:
    return plain_name(f"{STATE}{name}.safetensors")
