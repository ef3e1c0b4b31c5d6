"""A spec with lists: every combination of their values is a cell, every cell an audit.

A list where one value is wanted is varied. Fields that are lists by nature (`attacks`, `mean`,
`std`, `bounds`, `targets`) are varied by a list of lists. What is varied is named by its place:
`settings.kkt.starts`.
"""

from __future__ import annotations

import itertools
import math
import shutil
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from remnant.auditing.case import Case
from remnant.auditing.playing import Plan
from remnant.auditing.run import run_audit
from remnant.bundle import Attacked
from remnant.errors import InputError, expected
from remnant.report.lines import draw_lines, multiples
from remnant.store import Run, finish, open_run, spec_hash, write_bytes, write_text
from remnant.sweep.executors import Outcome, map_tasks
from remnant.sweep.search import consensus, residual, run_trial
from remnant.sweep.table import FIGURE_FILE, TABLE_FILE, Row, as_csv, write_rows
from remnant.types import Target

LISTS = ("attacks", "mean", "std", "bounds", "targets")  # lists by nature
SCRATCH = ".remnant-cell-"  # folders of audits under way
# What decides how a case is attacked, and not what it is.
HOW = (
    "attacks", "settings", "threshold", "seed", "budget", "images", "redact", "targets",
)  # fmt: skip


def axes_of(values: Mapping[str, Any]) -> dict[str, list[Any]]:
    """What is varied, by its place in the spec, and over which values."""
    return dict(_lists(values, ()))


def _lists(values: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[tuple[str, list[Any]]]:
    for key, value in values.items():
        place = (*path, str(key))
        if isinstance(value, Mapping):
            yield from _lists(value, place)
        elif isinstance(value, list):
            nested = any(isinstance(item, list) for item in value)
            if nested or place[-1] not in LISTS or path:
                if not value:
                    raise InputError(expected(".".join(place), "values to vary", "an empty list"))
                yield ".".join(place), value


def expand(values: Mapping[str, Any], most: int = 100_000) -> list[tuple[Row, dict[str, Any]]]:
    """Every cell: the varied values by their place, and the spec with those values in place."""
    axes = axes_of(values)
    if not axes:
        do = "such as seed: [0, 1, 2]"
        raise InputError(expected("sweep", "a list of values to vary", "none", do))
    count = math.prod(map(len, axes.values()))
    if count > most:
        raise InputError(expected("sweep", f"at most {most} cells", count))
    cells = []
    for chosen in itertools.product(*axes.values()):
        point = dict(zip(axes, chosen, strict=True))
        cells.append((point, _filled(values, point, ())))
    return cells


def _filled(values: Mapping[str, Any], point: Row, path: tuple[str, ...]) -> dict[str, Any]:
    filled = {}
    for key, value in values.items():
        place = (*path, str(key))
        name = ".".join(place)
        if name in point:
            filled[key] = point[name]
        else:
            filled[key] = _filled(value, point, place) if isinstance(value, Mapping) else value
    return filled


def case_key(spec: Mapping[str, Any]) -> str:
    """A hash that is the same for all specs that differ only in how a case is attacked."""
    return spec_hash({key: value for key, value in spec.items() if key not in HOW})


@dataclass(frozen=True, kw_only=True)
class Shared:
    """What all audits of a grid need. scratch: the sweep's own directory, where they may write."""

    cases: Mapping[str, Case]
    scratch: Path


def audit_cell(spec: Mapping[str, Any], shared: Shared) -> list[Row]:
    """A row for each attack of one audit, with the seconds of all; in a worker, which keeps no
    files. What it writes meanwhile lies in the sweep's directory, so that a kill leaves records
    nowhere else; a worker on another machine has only its own temporary folder."""
    plan = Plan.of(spec["spec"], images=False)
    begun = time.process_time()
    place = shared.scratch if shared.scratch.is_dir() else None
    with tempfile.TemporaryDirectory(dir=place, prefix=SCRATCH) as folder:
        run = open_run(Path(folder) / "audit", {"verb": "audit"})
        result = run_audit(shared.cases[spec["case"]], plan, run)
    seconds = round(time.process_time() - begun, 3)
    return [_row(attacked) | {"cpu_seconds": seconds} for attacked in result.attacks]


def _row(attacked: Attacked) -> Row:
    finding, control = attacked.finding, attacked.control
    row: Row = {"attack": attacked.attack, "verdict": str(attacked.verdict)}
    if finding is not None:
        null = finding.nulls.get("held_out", {}).get("recovered")
        share = (finding.recovered or 0) / finding.records if finding.records else None
        row |= {
            "status": str(finding.status),
            "recovered": finding.recovered,
            "records": finding.records,
            "share": share,
            "null": null,
        }
    if control is not None:
        row["control"] = f"{control.recovered} of {control.records}"
    return row | {"reason": attacked.reason}


def attack_row(outcome: Outcome) -> Row:
    """What can be said of one attack without the truth."""
    row = {"attack": outcome.spec["attack"]}
    if outcome.error is not None:
        return row | {"status": "failed", "reason": outcome.error}
    about, found = outcome.value, [outcome] if len(outcome.tensors["inputs"]) else []
    return row | {
        "status": about["status"],
        "counted": about["figures"].get("counted"),
        "candidates": len(outcome.tensors["inputs"]),
        "agreed": about["figures"].get("agreed"),
        "consensus": consensus(found) if found else None,
        "residual": residual(found) if found else None,
        "cpu_seconds": round(about["cpu_seconds"], 3),
        "reason": about["reason"],
    }


def _remove_scratch(run: Run) -> None:
    for left in run.path.glob(f"{SCRATCH}*"):
        shutil.rmtree(left, ignore_errors=True)


def sweep_audits(
    points: Sequence[Row],
    specs: Sequence[Mapping[str, Any]],
    cases: Mapping[str, Case],
    run: Run,
    *,
    on: str | None = None,
) -> None:
    """Audit every cell. specs: `spec` of an audit, `case`: its key, and hashes of what was read."""
    shared = Shared(cases=cases, scratch=run.path.resolve())
    _remove_scratch(run)  # of workers that were killed
    try:
        outcomes = map_tasks(audit_cell, specs, run=run, on=on, shared=shared, name="audits")
    finally:
        _remove_scratch(run)
    cells = [o.value or [{"verdict": "failed", "reason": o.error}] for o in outcomes]
    _write_cells(run, points, cells, "share", done=not any(o.fault for o in outcomes))


def sweep_attacks(
    points: Sequence[Row],
    specs: Sequence[Mapping[str, Any]],
    target: Target,
    run: Run,
    *,
    on: str | None = None,
) -> None:
    """Run the attack of every cell, without any truth. specs: as `search.run_trial` takes them."""
    outcomes = map_tasks(run_trial, specs, run=run, on=on, shared=target, name="attacks")
    cells = [[attack_row(outcome)] for outcome in outcomes]
    _write_cells(run, points, cells, "consensus", done=not any(o.fault for o in outcomes))


def _write_cells(
    run: Run, points: Sequence[Row], cells: Sequence[Sequence[Row]], up: str, *, done: bool
) -> None:
    """Rows, table and figure. done: False where there is a fault to be tried again."""
    rows = [{**point, **row} for point, mine in zip(points, cells, strict=True) for row in mine]
    write_rows(run, rows)
    write_text(run, TABLE_FILE, as_csv(rows))
    write_bytes(run, FIGURE_FILE, draw_lines(multiples(rows, list(points[0]), up)))
    seconds = sum(mine[0].get("cpu_seconds", 0.0) for mine in cells)
    if done:
        finish(run, timings={"cells": round(seconds, 3)})
