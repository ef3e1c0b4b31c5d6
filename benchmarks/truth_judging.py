"""Whether an audit's verdict is right, by the truth alone: remnant's own scores are not asked."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from safetensors.numpy import load_file
from truth_targets.making import Ledger
from truth_targets.sets import Array

EXPOSED, GREEN, UNSURE, REFUSED = 3, 0, 4, 2
BACK = 1e-2  # of the spread: a record so near has come back, whatever was done against it
EXACT = 1e-3  # of the spread: a certified candidate without a stated error is a record so nearly
ROUNDING = 1e-5  # of the spread: candidates are kept in single precision


@dataclass(frozen=True, kw_only=True)
class Judged:
    """mark: right, missed or wrong, and why. certified: candidates that the run vouches for;
    false of them are no record that was trained on; beyond: farther off than they state."""

    mark: str
    why: str = ""
    certified: int = 0
    false: int = 0
    beyond: int = 0
    farthest: float = 0.0
    violated: bool = False
    exposed: int = 0
    sentence: str = field(default="")


@dataclass(frozen=True, kw_only=True, eq=False)
class Truth:
    declared: Array
    used: Array
    trained: Array
    unit: Array
    std: Array
    ids: tuple[str, ...]

    @property
    def spread(self) -> float:
        """The root mean square distance of a record from the mean, in units."""
        both = np.concatenate([self.trained, self.declared]) / self.unit
        return float(np.sqrt(((both - both.mean(0)) ** 2).sum(1).mean())) or 1.0


def read_truth(folder: Path) -> Truth:
    with np.load(folder / "truth.npz") as held:
        values = {name: held[name] for name in held.files}
    return Truth(**values | {"ids": tuple(values["ids"].tolist())})


def judge(truth: str, ledger: Ledger, folder: Path, run: Path, code: int, said: str) -> Judged:
    """`run`: the audit's directory; `said`: the last line of its standard error."""
    path = run / "finding.json"
    if code not in (GREEN, EXPOSED, UNSURE):
        mark, why = _without_finding(truth, code, said)
        if ledger == "false":
            mark, why = "wrong", "the false ledger was not noticed"
        return Judged(mark=mark, why=why, sentence=said)
    if not path.exists():
        return Judged(mark="wrong", why="no finding was written", sentence=said)
    finding = json.loads(path.read_text("utf-8"))
    known = read_truth(folder)
    sure = _certified(finding, run, known)
    violated = any((row.get("bound") or {}).get("violated") for row in finding["attacks"])
    mark, why = _mark(truth, code, finding, run, known, sure)
    if mark != "wrong" and ledger == "false" and not (violated and code == EXPOSED):
        mark, why = "wrong", "the false ledger was not noticed"
    if ledger == "true" and violated:
        mark, why = "wrong", "a true ledger is said to be false"
    if sure["false"]:
        mark, why = "wrong", f"{sure['false']} certified candidates are no training record"
    return Judged(
        mark=mark,
        why=why,
        violated=violated,
        exposed=len(finding["exposed"]),
        sentence=_sentence(finding),
        **sure,
    )


def _without_finding(truth: str, code: int, said: str) -> tuple[str, str]:
    if "internal fault" in said or "Traceback" in said:
        return "wrong", "a crash"
    if code != REFUSED:
        return "wrong", "no time left" if code == -9 else f"exit {code}"
    if truth in ("leaks", "defended"):
        return "missed", "refused"
    return "right", ""


def _mark(
    truth: str, code: int, finding: Mapping[str, Any], run: Path, known: Truth, sure: Any
) -> tuple[str, str]:
    strangers = [row["id"] for row in finding["exposed"] if not _was_used(row["id"], known)]
    if code == EXPOSED and strangers:
        return "wrong", f"{len(strangers)} records said to be exposed were never trained on"
    if code == EXPOSED and truth == "cannot":
        return "wrong", "false red"
    if code == EXPOSED and truth == "defended":
        far = _far(finding, run, known)
        return ("wrong", f"{far} of those exposed are not back") if far else ("right", "")
    if code == GREEN and truth == "cannot" and sure["certified"]:
        return "wrong", "false green: records that are not the declared ones were certified"
    if code == GREEN and truth in ("leaks", "misdeclared", "unsettled"):
        return "wrong", "false green"
    if code == UNSURE and truth == "leaks":
        return "missed", "inconclusive"
    return "right", ""


def _row_of(name: str, known: Truth) -> int | None:
    """The row of the declared record of that id; without ids they are numbered: train-00007."""
    if any(known.ids):
        return known.ids.index(name) if name in known.ids else None
    tail = name.rpartition("-")[2]
    return int(tail) if tail.isdecimal() and int(tail) < len(known.used) else None


def _was_used(name: str, known: Truth) -> bool:
    row = _row_of(name, known)
    return row is not None and bool(known.used[row])


def _candidates(row: Mapping[str, Any], run: Path) -> Array | None:
    name = row.get("candidates")
    if not name or not (run / name).exists():
        return None
    inputs: Array = load_file(run / name)["inputs"]
    if not len(inputs):
        return None
    # In the scaling that the audit found; the truth is in the one that was declared.
    given = (row.get("finding") or {}).get("figures", {}).get("as_given")
    flat: Array = inputs.reshape(len(inputs), -1).astype(float)
    return flat if given is None else flat * np.array(given["scale"]) + np.array(given["shift"])


def _far(finding: Mapping[str, Any], run: Path, known: Truth) -> int:
    """How many exposed records no candidate lies near."""
    held = [c for row in finding["attacks"] if (c := _candidates(row, run)) is not None]
    count = 0
    for row in finding["exposed"]:
        place = _row_of(row["id"], known)
        record = known.declared[place]
        near = min((_apart(c, record[None], known.unit).min() for c in held), default=np.inf)
        count += near > BACK * known.spread
    return count


def _apart(candidates: Array, records: Array, unit: Array) -> Array:
    gaps = (candidates[:, None] - records[None]) / unit
    distances: Array = np.sqrt((gaps**2).sum(2))
    return distances


def _certified(finding: Mapping[str, Any], run: Path, known: Truth) -> dict[str, Any]:
    """Certified candidates against what was really trained on."""
    total = {"certified": 0, "false": 0, "beyond": 0, "farthest": 0.0}
    for row in finding["attacks"]:
        figures = (row.get("finding") or {}).get("figures", {})
        candidates, passed = _candidates(row, run), figures.get("passed")
        if candidates is None or not passed or not any(passed):
            continue
        which = np.flatnonzero(passed)
        share = _apart(candidates[which], known.trained, known.unit).min(1) / known.spread
        error = _apart(candidates[which], known.trained, known.std).min(1)
        beyond = (error > _stated(figures, candidates)[which]) & (share > ROUNDING)
        unstated = np.isnan(_stated(figures, candidates)[which])
        total["certified"] += len(which)
        total["false"] += int(((share > EXACT) & (beyond | unstated)).sum())
        total["beyond"] += int(beyond.sum())
        total["farthest"] = max(total["farthest"], float(share.max()))
    return total


def _stated(figures: Mapping[str, Any], candidates: Array) -> Array:
    """The distance that each candidate admits to, in the model's scale; NaN where it states none.

    `error` is a root mean square over a record's numbers, `expected_error` a squared distance.
    """
    for key, scale in (("error", candidates.shape[1] ** 0.5), ("expected_error", 1.0)):
        stated = figures.get(key)
        if isinstance(stated, list) and len(stated) == len(candidates):
            values = np.array([np.nan if v is None else v for v in stated], float)
            return scale * (values if key == "error" else np.sqrt(values))
    return np.full(len(candidates), np.nan)


def _sentence(finding: Mapping[str, Any]) -> str:
    """What was said of the attacks that ran; of a refusal to judge, the whole audit's sentence."""
    ran = [row for row in finding["attacks"] if row["verdict"] != "not applicable"]
    if not ran:
        return str(finding["sentence"])
    return " | ".join(f"{row['attack']}: {row['verdict']}; {row['reason']}" for row in ran)
