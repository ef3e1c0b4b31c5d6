"""A run's directory: spec, states, candidates, finding. Private, hashed, never half-written.

`files` writes one file whole and lets one process write at a time, `runs` opens and finishes runs
and checks what they hold, `contents` reads and writes that.
"""

from remnant.store.contents import (
    CANDIDATES_FILE,
    FINDING_FILE,
    KEY,
    forget_states,
    keeping_states,
    load_state,
    read_candidates,
    read_finding,
    read_json,
    save_state,
    write_bytes,
    write_candidates,
    write_finding,
    write_json,
    write_text,
)
from remnant.store.files import Lock, make_private, take_lock
from remnant.store.hashing import canonical, hash_tensors, spec_hash, versions
from remnant.store.runs import (
    ELSEWHERE,
    RUN_FILE,
    STATE,
    Run,
    discard,
    finish,
    open_run,
    read_run,
)

__all__ = [
    "CANDIDATES_FILE",
    "ELSEWHERE",
    "FINDING_FILE",
    "KEY",
    "RUN_FILE",
    "STATE",
    "Lock",
    "Run",
    "canonical",
    "discard",
    "finish",
    "forget_states",
    "hash_tensors",
    "keeping_states",
    "load_state",
    "make_private",
    "open_run",
    "read_candidates",
    "read_finding",
    "read_json",
    "read_run",
    "save_state",
    "spec_hash",
    "take_lock",
    "versions",
    "write_bytes",
    "write_candidates",
    "write_finding",
    "write_json",
    "write_text",
]
