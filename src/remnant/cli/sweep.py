"""`remnant sweep grid.yaml`: a spec with lists, every combination; or a search over an attack."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Mapping, Sequence
from dataclasses import fields, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.common import (
    Answer,
    add_place,
    add_verb,
    place,
    print_line,
    print_place,
    print_table,
    run_of,
)
from remnant.cli.spec import check_spec, read_fields
from remnant.errors import InputError, brief, did_you_mean, expected

if TYPE_CHECKING:
    from remnant.cli.spec import AuditSpec
    from remnant.store import Run
    from remnant.sweep.search import Search
    from remnant.types import Target

Planned = tuple[list[dict[str, Any]], list[dict[str, Any]], Callable[["Run"], None]]
"""What is varied in each cell, the spec of each cell's task, and what runs them all."""

FILES = ("table.csv", "rows.jsonl", "figure.png", "run.json")
COUNTS = ("complete", "failed", "pruned", "unfinished", "elsewhere")  # of a search's trials
HIDDEN = ("reason", "cpu_seconds", "records")  # of a row, where it is shown


def add(verbs: Any) -> None:
    parser = add_verb(verbs, "sweep", "remnant sweep grid.yaml --jobs 2 --out found", run=run)
    parser.set_defaults(seed=None)
    parser.add_argument("spec", type=Path, help="an audit's fields with lists, or with search:")
    add_place(parser, "its cores")
    parser.add_argument(
        "--storage", help="a search's trials: a database's URL (default: a file in --out)"
    )


def run(arguments: argparse.Namespace) -> Answer:
    values = read_fields(arguments.spec)
    if arguments.seed is not None:
        values["seed"] = arguments.seed
    searched = values.pop("search", None)
    from remnant.sweep.table import read_rows

    on = place(arguments)
    if searched is not None:
        return run_search(values, searched, values.get("seed", 0), on, arguments)
    if arguments.storage is not None:
        raise InputError(expected("--storage", "a spec with search:", "a grid"))
    plan = audits if "data" in values else attacks_alone
    points, specs, work = plan(values, str(arguments.spec), on)
    stored = run_of(arguments, {"verb": "sweep", "points": points, "specs": specs}, work)
    rows = read_rows(stored)
    return Answer(figures=rows, show=lambda: show_rows(rows, stored))


def audits(values: Mapping[str, Any], where: str, on: str | None) -> Planned:
    """An audit of every cell; a case that several cells attack is read once."""
    from remnant.cli.cases import read_case
    from remnant.sweep.grid import case_key, expand, sweep_audits

    points, specs, cases, hashes = [], [], {}, {}
    for point, cell in expand(values):
        spec = check_spec(cell, where)
        written = spec.model_dump(mode="json")
        key = case_key(written)
        if key not in cases:
            cases[key], hashes[key] = read_case(spec)
        points.append(point)
        specs.append({"spec": written, "case": key, "hashes": hashes[key]})
    return points, specs, partial(sweep_audits, points, specs, cases, on=on)


def attacks_alone(values: Mapping[str, Any], where: str, on: str | None) -> Planned:
    """Without data there is no truth: what an adversary can see of each cell."""
    from remnant.sweep.grid import case_key, expand, sweep_attacks

    cells = expand(values)
    checked = [without_truth(cell, where) for _, cell in cells]
    if len({case_key(one.model_dump(mode="json")) for one in checked}) > 1:
        do = "vary seed and settings, or give data"
        raise InputError(expected("sweep without data", "one target", "several", do))
    for one in checked:
        if one.attacks is None or len(one.attacks) != 1:
            do = "such as attacks: [kkt]; without data nothing says which apply"
            raise InputError(expected("sweep without data", "one attack", one.attacks, do))
    target, hashes = read_blind(checked[0])
    names = [one.attacks[0] for one in checked if one.attacks]
    specs = [
        {"attack": name, "settings": one.settings.get(name, {}), "seed": one.seed, "run": "sweep"}
        | hashes
        for name, one in zip(names, checked, strict=True)
    ]
    points = [point for point, _ in cells]
    return points, specs, partial(sweep_attacks, points, specs, target, on=on)


def without_truth(values: Mapping[str, Any], where: str) -> AuditSpec:
    """A valid spec but for its data, which a search or an attack alone does not need."""
    return check_spec({"data": "none", **values}, where)


def read_blind(spec: AuditSpec) -> tuple[Target, dict[str, str]]:
    """The target, and all that decides what an attack on it finds: hashes, and what it is told."""
    from remnant.cli.target import read_target

    target, hashes = read_target(spec)
    told = target.knowledge
    hashes["told"] = (
        f"records {told.records}, loss {told.loss}, bounds {target.bounds}, "
        f"shape {target.input_shape}, model {spec.model}"
    )
    return target, hashes


def run_search(
    values: Mapping[str, Any],
    given: Any,
    seed: Any,
    on: str | None,
    arguments: argparse.Namespace,
) -> Answer:
    from remnant.auditing.assess import without_truth as as_finding
    from remnant.cli.reconstruct import found_by, write_sheet
    from remnant.store import finish, read_finding, write_candidates, write_finding
    from remnant.sweep.search import search, search_spec
    from remnant.sweep.trials import storage_in

    how, storage = read_search(given, seed)
    storage = storage_in(Path.cwd() if arguments.storage else arguments.spec.parent,
                         arguments.storage or storage)  # fmt: skip
    target, hashes = read_blind(without_truth(values, str(arguments.spec)))

    def work(stored: Run) -> None:
        found = search(target, how, hashes, run=stored, on=on, storage=storage)
        finding = as_finding(found.best, attack=how.attack)
        finding = replace(finding, figures={**finding.figures, "search": found.disclosed})
        write_candidates(stored, found.best)
        write_sheet(stored, found.best, how.attack)
        write_finding(stored, finding)
        timings = {"trials": round(found.seconds, 3)}
        finish(stored, seeds={"seed": how.seed}, hashes=hashes, timings=timings)

    stored = run_of(arguments, search_spec(how, hashes), work)
    return found_by(stored, before=search_words(read_finding(stored).figures["search"]))


def read_search(given: Any, seed: Any) -> tuple[Search, str | None]:
    """The search that the file describes, and where its trials are kept."""
    from remnant.sweep.search import Search

    known = [field.name for field in fields(Search) if field.name != "seed"] + ["storage"]
    if not isinstance(given, Mapping) or "attack" not in given:
        raise InputError(expected("search", "fields such as attack: and trials:", brief(given)))
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        hint = did_you_mean(unknown[0], known)
        raise InputError(expected("search", f"some of {', '.join(known)}", brief(unknown), hint))
    values = dict(given)
    storage = values.pop("storage", None)
    if storage is not None and not isinstance(storage, str):
        wanted = "a database, such as sqlite:///search.db"
        raise InputError(expected("search: storage", wanted, brief(storage)))
    return Search(**values, seed=seed), storage


def search_words(d: Mapping[str, Any]) -> list[str]:
    """What a search discloses of its trials, in a few lines."""
    counts = ", ".join(f"{d[name]} {name}" for name in COUNTS)
    own = "none" if d["own_value"] is None else f"{d['own_value']:.4g}"
    chosen = "the attack's own settings" if d["chosen"] == "own" else f"trial {d['chosen']}"
    lines = [
        f"{d['trials']} trials by {d['objective']}: {counts}",
        f"chosen: {chosen}, {d['chosen_value']:.4g} (the attack's own settings: {own})",
        "  " + ", ".join(f"{name} {value}" for name, value in d["settings"].items()),
    ]
    if len(d["pooled"]) > 1:
        lines.append(f"candidates: what {len(d['pooled'])} trials agree on, those of most first")
    return lines


def show_rows(rows: Sequence[Mapping[str, Any]], stored: Run) -> None:
    """A table of the rows."""
    shown = [n for n in dict.fromkeys(key for row in rows for key in row) if n not in HIDDEN]
    columns = [name.rsplit(".", 1)[-1].replace("_", " ") for name in shown]
    print_table(columns, [[row.get(name) for name in shown] for row in rows])
    failed = [row["reason"] for row in rows if "failed" in (row.get("verdict"), row.get("status"))]
    for reason in dict.fromkeys(failed):
        print_line(f"failed: {reason}")
    print_place(stored, FILES)
