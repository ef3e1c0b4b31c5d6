"""What lies in a run's directory: JSON, texts, pictures, candidates, findings, states."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
from torch import Tensor

from remnant.checkpoints import Keeper, keeping
from remnant.errors import RemnantError, StoreError, expected
from remnant.store.files import plain_name, write_whole
from remnant.store.hashing import hash_tensors, hash_text
from remnant.store.runs import ELSEWHERE, STATE, Run, as_json, check_listed, parse, promise
from remnant.types import Candidates, Finding

CANDIDATES_FILE = "candidates.safetensors"
FINDING_FILE = "finding.json"
# One metadata key only: safetensors writes several in an order that changes with the process.
KEY = "remnant"
WITHIN = "within-"  # states of loops, which `keeping_states` makes and removes


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
    return write_bytes(run, name, _pack(tensors, text))


def read_candidates(run: Run, name: str = CANDIDATES_FILE) -> Candidates:
    """What `write_candidates` wrote."""
    path = run.path / plain_name(name)
    if not path.is_file():
        raise StoreError(expected(f"{path}", "candidates", "no file", "run the attack first"))
    check_listed(run, name)
    try:
        tensors, text = _unpack(path)
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
    return write_whole(run.path, _state_file(name), _pack(tensors, _seal(run, name, tensors)))


def load_state(run: Run, name: str) -> dict[str, Tensor] | None:
    """The tensors of `save_state`, or None where there are none that can be trusted.

    A state that was damaged, altered or made by another run is as good as missing: the work
    starts again.
    """
    path = run.path / _state_file(name)
    if not path.is_file():
        return None
    try:
        tensors, seal = _unpack(path)
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


def _pack(tensors: Mapping[str, Tensor], text: str) -> bytes:
    # Cloned, since safetensors refuses tensors that share memory.
    whole = {
        name: value.detach().cpu().contiguous().clone() for name, value in sorted(tensors.items())
    }
    return safetensors.torch.save(whole, {KEY: text})


def _unpack(path: Path) -> tuple[dict[str, Tensor], str]:
    """Cloned: memory that torch aligns, since sums over a file's own bytes round otherwise."""
    with safetensors.safe_open(path, framework="pt") as file:
        text = (file.metadata() or {})[KEY]
        return {name: file.get_tensor(name).clone() for name in file.keys()}, text  # noqa: SIM118
