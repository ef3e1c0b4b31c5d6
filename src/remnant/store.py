"""A run's directory: spec, states, candidates, finding. Private, hashed, never half-written.

Every file is written beside its place and moved there, so a kill leaves the old file or the new
one. `run.json` says what the run is from the start and that it is finished at the very end.
"""

from __future__ import annotations

import hashlib
import json
import os
import platform
import tempfile
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from remnant.checkpoints import Keeper, keeping
from remnant.errors import StoreError, expected
from remnant.types import Candidates, Finding, Status

RUN_SCHEMA = "remnant.run/1"
RUN_FILE = "run.json"
CANDIDATES_FILE = "candidates.safetensors"
FINDING_FILE = "finding.json"
ELSEWHERE = "choose another --out or remove it"
# One metadata key only: safetensors writes several in an order that changes with the process.
KEY = "remnant"
TEMPORARY = ".remnant-"
STATE = "state-"
WITHIN = "within-"  # states of loops, which `keeping_states` makes and removes


@dataclass(frozen=True, kw_only=True)
class Run:
    """A run's directory and what its `run.json` said when it was opened."""

    path: Path
    spec: Mapping[str, Any]
    spec_hash: str
    finished: bool
    record: Mapping[str, Any]


def open_run(directory: str | Path, spec: Mapping[str, Any]) -> Run:
    """Make, resume or find again the run of `spec` in `directory`, before any work is done.

    A finished run of the same spec comes back with `finished` true, an unfinished one to be gone
    on with. Anything else that is in the way, or cannot be written, is a StoreError.
    """
    path = Path(directory)
    wanted = json.loads(canonical(dict(spec)))
    _make_directory(path)
    _check_writable(path)
    _remove_temporaries(path)
    if (path / RUN_FILE).exists():
        run = read_run(path)
        if run.spec_hash != spec_hash(wanted):
            differ = "; ".join(_differences(run.spec, wanted)[:5])
            raise StoreError(
                expected(f"{path}", "a run of this spec", f"another ({differ})", ELSEWHERE)
            )
        return run
    if any(path.iterdir()):
        raise StoreError(
            expected(f"{path}", "a run or an empty directory", "other files", ELSEWHERE)
        )
    record = {
        "schema": RUN_SCHEMA,
        "finished": False,
        "spec": wanted,
        "spec_hash": spec_hash(wanted),
        "versions": versions(),
    }
    _write(path, RUN_FILE, _pretty(RUN_FILE, record))
    return read_run(path)


def read_run(directory: str | Path) -> Run:
    """The run in `directory`, to read. Finished only while every file it listed is there."""
    path = Path(directory)
    record = _parse(path / RUN_FILE)
    if not isinstance(record, dict) or record.get("schema") != RUN_SCHEMA:
        got = record.get("schema") if isinstance(record, dict) else type(record).__name__
        raise StoreError(expected(f"{path / RUN_FILE}: schema", RUN_SCHEMA, got, ELSEWHERE))
    spec, digest = record.get("spec"), record.get("spec_hash")
    if not isinstance(spec, dict) or digest != spec_hash(spec):
        do = f"it was altered; {ELSEWHERE}"
        raise StoreError(expected(f"{path / RUN_FILE}", "a spec and its hash", "others", do))
    whole = all((path / name).is_file() for name in record.get("files", {}))
    finished = record.get("finished") is True and whole
    return Run(path=path, spec=spec, spec_hash=digest, finished=finished, record=record)


def finish(
    run: Run,
    *,
    seeds: Mapping[str, int] | None = None,
    hashes: Mapping[str, str] | None = None,
    timings: Mapping[str, float] | None = None,
) -> Run:
    """Say in `run.json`, last of all, that the run is done, with the hash of every other file."""
    scratch = (RUN_FILE, TEMPORARY, STATE)
    kept = (p for p in sorted(run.path.iterdir()) if p.is_file() and not p.name.startswith(scratch))
    record = {
        "schema": RUN_SCHEMA,
        "finished": True,
        "spec": run.spec,
        "spec_hash": run.spec_hash,
        "seeds": dict(seeds or {}),
        "versions": versions(),
        "hashes": dict(hashes or {}),
        "files": {p.name: _hash_file(p) for p in kept},
        "timings": dict(timings or {}),
    }
    write_json(run, RUN_FILE, record)
    for state in run.path.glob(f"{STATE}*"):
        state.unlink()  # only an unfinished run is resumed
    return read_run(run.path)


def discard(run: Run) -> None:
    """Take back a run that has written nothing but its own `run.json`."""
    if not run.finished and [p.name for p in run.path.iterdir()] == [RUN_FILE]:
        (run.path / RUN_FILE).unlink()
        run.path.rmdir()


def write_bytes(run: Run, name: str, value: bytes) -> Path:
    """Write one file of the run, whole or not at all, readable by its owner alone."""
    return _write(run.path, name, value)


def write_text(run: Run, name: str, value: str) -> Path:
    return _write(run.path, name, value.encode())


def write_json(run: Run, name: str, value: Any) -> Path:
    """Two-space JSON. NaN, infinity and what JSON does not know are refused."""
    return _write(run.path, name, _pretty(name, value))


def read_json(run: Run, name: str) -> Any:
    return _parse(run.path / _plain_name(name))


def write_candidates(run: Run, candidates: Candidates, name: str = CANDIDATES_FILE) -> Path:
    """`candidates.safetensors`: inputs, confidence, labels if any; the same candidates, same bytes.

    The rest (status, reason, figures, trace) is JSON under the metadata key "remnant".
    """
    tensors = {"inputs": candidates.inputs, "confidence": candidates.confidence}
    if candidates.labels is not None:
        tensors["labels"] = candidates.labels
    about = {
        "status": str(candidates.status),
        "reason": candidates.reason,
        "figures": dict(candidates.figures),
        "trace": {name: list(series) for name, series in candidates.trace.items()},
    }
    try:
        text = json.dumps(about, sort_keys=True)  # NaN may stay: a reader gets back what there was
    except TypeError as error:
        raise StoreError(expected("candidates: figures and trace", "JSON values", error)) from None
    return _write(run.path, name, _pack(tensors, text))


def read_candidates(run: Run, name: str = CANDIDATES_FILE) -> Candidates:
    """What `write_candidates` wrote."""
    path = run.path / _plain_name(name)
    if not path.is_file():
        raise StoreError(expected(f"{path}", "candidates", "no file", "run the attack first"))
    try:
        tensors, text = _unpack(path)
        about = json.loads(text)
        return Candidates(
            inputs=tensors["inputs"],
            confidence=tensors["confidence"],
            labels=tensors.get("labels"),
            status=Status(about["status"]),
            reason=about["reason"],
            figures=about["figures"],
            trace=about["trace"],
        )
    except (safetensors.SafetensorError, KeyError, ValueError, OSError) as error:
        raise StoreError(expected(f"{path}", "candidates", f"a damaged file ({error})")) from None


def read_finding(run: Run) -> Finding:
    """The finding that the run wrote."""
    path = run.path / FINDING_FILE
    try:
        return Finding.from_json(path.read_text())
    except (OSError, UnicodeDecodeError) as error:
        raise StoreError(expected(f"{path}", "a finding", error, ELSEWHERE)) from None


def write_finding(run: Run, finding: Finding) -> Path:
    return write_text(run, FINDING_FILE, finding.to_json())


def save_state(run: Run, name: str, tensors: Mapping[str, Tensor]) -> Path:
    """Keep tensors to resume from (a generator's state is a tensor too)."""
    return _write(run.path, _state_file(name), _pack(tensors, hash_tensors(tensors)))


def load_state(run: Run, name: str) -> dict[str, Tensor] | None:
    """The tensors of `save_state`, or None where there are none that can be trusted.

    A state that was damaged or altered is as good as missing: the work starts again.
    """
    path = run.path / _state_file(name)
    if not path.is_file():
        return None
    try:
        tensors, digest = _unpack(path)
    except (safetensors.SafetensorError, KeyError, OSError):
        return None
    return tensors if hash_tensors(tensors) == digest else None


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


def spec_hash(spec: Mapping[str, Any]) -> str:
    """SHA-256 of the canonical JSON of a spec."""
    return hashlib.sha256(canonical(spec).encode()).hexdigest()


def canonical(value: Any) -> str:
    """JSON with sorted keys and no spaces: one text for one value."""
    try:
        return json.dumps(value, sort_keys=True, separators=(",", ":"), allow_nan=False)
    except (TypeError, ValueError) as error:
        raise StoreError(expected("spec", "JSON values, finite numbers", error)) from None


def hash_tensors(tensors: Mapping[str, Tensor]) -> str:
    """SHA-256 over names, types, shapes and bytes; the order of the mapping does not matter."""
    digest = hashlib.sha256()
    for name in sorted(tensors):
        value = tensors[name].detach().cpu().contiguous()
        head = [name, str(value.dtype), list(value.shape)]  # fixes how many bytes follow
        digest.update(json.dumps(head).encode() + b"\n")
        digest.update(value.reshape(-1).view(torch.uint8).numpy().data)
    return digest.hexdigest()


def versions() -> dict[str, str]:
    """What the figures of a run depend on."""
    packages = ("torch", "numpy", "scipy", "remnant")
    return {"python": platform.python_version()} | {name: version(name) for name in packages}


def _make_directory(path: Path) -> None:
    try:
        if path.exists() and not path.is_dir():
            raise StoreError(expected(f"{path}", "a directory", "a file", "choose another --out"))
        path.mkdir(mode=0o700, parents=True, exist_ok=True)
    except (OSError, ValueError) as error:
        raise StoreError(_unwritable(path, error)) from None


def _check_writable(path: Path) -> None:
    """By writing: permission bits say nothing to root, nor about a read-only or full disk."""
    try:
        with tempfile.NamedTemporaryFile(dir=path, prefix=TEMPORARY):
            pass
    except OSError as error:
        raise StoreError(_unwritable(path, error)) from None


def _unwritable(path: Path, error: OSError | ValueError) -> str:
    got = getattr(error, "strerror", None) or str(error)
    return expected(f"{path}", "a place to write", got.lower(), "choose another --out")


def _remove_temporaries(path: Path) -> None:
    for stale in path.glob(f"{TEMPORARY}*"):
        with suppress(OSError):
            stale.unlink()


def _write(path: Path, name: str, value: bytes) -> Path:
    target = path / _plain_name(name)
    try:
        handle, temporary = tempfile.mkstemp(dir=path, prefix=TEMPORARY)  # mode 0600
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(value)
                file.flush()
                os.fsync(file.fileno())
            os.replace(temporary, target)
        except BaseException:  # an interrupt too must not leave its half behind
            with suppress(OSError):
                os.unlink(temporary)
            raise
    except OSError as error:
        raise StoreError(_unwritable(target, error)) from None
    return target


def _plain_name(name: str) -> str:
    if not name or name != Path(name).name or name.startswith("."):
        raise StoreError(expected("a run's file", "a plain name", repr(name)))
    return name


def _state_file(name: str) -> str:
    return _plain_name(f"{STATE}{name}.safetensors")


def _pretty(name: str, value: Any) -> bytes:
    try:
        return (json.dumps(value, indent=2, allow_nan=False) + "\n").encode()
    except (TypeError, ValueError) as error:
        raise StoreError(expected(name, "JSON values, finite numbers", error)) from None


def _parse(path: Path) -> Any:
    try:
        return json.loads(path.read_bytes())
    except FileNotFoundError:
        raise StoreError(expected(f"{path.parent}", f"a run with {path.name}", "none")) from None
    except (OSError, ValueError) as error:
        raise StoreError(expected(f"{path}", "JSON", f"a fault ({error})", ELSEWHERE)) from None


def _pack(tensors: Mapping[str, Tensor], text: str) -> bytes:
    # Cloned, since safetensors refuses tensors that share memory.
    whole = {
        name: value.detach().cpu().contiguous().clone() for name, value in sorted(tensors.items())
    }
    return safetensors.torch.save(whole, {KEY: text})


def _unpack(path: Path) -> tuple[dict[str, Tensor], str]:
    with safetensors.safe_open(path, framework="pt") as file:
        text = (file.metadata() or {})[KEY]
        return {name: file.get_tensor(name) for name in file.keys()}, text  # noqa: SIM118


def _hash_file(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _differences(there: Any, here: Any, at: str = "") -> list[str]:
    """Where two JSON values differ, as `a.b: 1 there, 2 here`."""
    if isinstance(there, dict) and isinstance(here, dict):
        return [line for key in sorted({*there, *here}) for line in _at_key(there, here, key, at)]
    return (
        []
        if canonical(there) == canonical(here)
        else [f"{at}: {_short(there)} there, {_short(here)} here"]
    )


def _at_key(there: dict[str, Any], here: dict[str, Any], key: str, at: str) -> Iterator[str]:
    name = f"{at}.{key}" if at else key
    if key not in there:
        yield f"{name}: nothing there, {_short(here[key])} here"
    elif key not in here:
        yield f"{name}: {_short(there[key])} there, nothing here"
    else:
        yield from _differences(there[key], here[key], name)


def _short(value: Any) -> str:
    text = json.dumps(value)
    return text if len(text) <= 60 else text[:57] + "..."
