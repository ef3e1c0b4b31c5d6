"""`remnant audit` and `preflight`: one's own model, every adversary that applies."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.common import (
    HEAVY,
    Answer,
    Exit,
    add_verb,
    print_line,
    print_place,
    print_table,
    run_of,
)
from remnant.cli.flags import add_fields, given
from remnant.cli.spec import AuditSpec, check_spec, read_spec

if TYPE_CHECKING:
    from remnant.bundle import Audit
    from remnant.store import Run

ONLY_AUDIT = ("threshold", "budget", "images", "redact")  # preflight has no use for them


def add(verbs: Any) -> None:
    audit = add_verb(verbs, "audit", "remnant audit audit.yaml --out found", shared=HEAVY, run=run)
    audit.set_defaults(seed=None)
    audit.add_argument("--gate", action="store_true", help="exit 3 if exposed, 4 if inconclusive")
    shared, example = ("quiet", "json", "threads"), "remnant preflight audit.yaml"
    before = add_verb(verbs, "preflight", example, shared=shared, run=run_preflight)
    for parser in (audit, before):
        parser.add_argument("spec", nargs="?", type=Path, help="audit.yaml")
        add_fields(parser, AuditSpec, but=() if parser is audit else ONLY_AUDIT)


def run(arguments: argparse.Namespace) -> Answer:
    spec = read(arguments)
    from remnant.auditing.playing import Plan
    from remnant.auditing.run import run_audit
    from remnant.cli.cases import read_case
    from remnant.report.page.files import read_bundle

    case, hashes = read_case(spec)
    record = {"verb": "audit", "spec": spec.model_dump(mode="json"), **hashes}
    plan = Plan.of(dict(spec), command=arguments.command)
    stored = run_of(arguments, record, lambda run: run_audit(case, plan, run))
    result, _ = read_bundle(stored.path, images=False)
    codes = {"exposed": Exit.EXPOSED, "inconclusive": Exit.INCONCLUSIVE}
    code = codes.get(result.verdict, Exit.DONE) if arguments.gate else Exit.DONE
    return Answer(figures=result.to_json(), show=lambda: show(result, stored), code=code)


def run_preflight(arguments: argparse.Namespace) -> Answer:
    spec = read(arguments)
    from remnant.auditing.preflight import preflight
    from remnant.cli.cases import read_case

    case, _ = read_case(spec)
    rows = preflight(case, attacks=spec.attacks, settings=spec.settings, targets=spec.targets)
    return Answer(figures=rows, show=lambda: print_table((), preflight_lines(rows)))


def preflight_lines(rows: Iterable[Mapping[str, Any]]) -> Iterator[tuple[str, str]]:
    """Two columns: an attack, and what is to be said of it, a line each."""
    for row in rows:
        yield row["attack"], row["title"]
        most = "" if row["at_most"] is None else " (at most {at_most:g})"
        cost = f"about {{seconds:g}} s{most}, its control {{control:g}} s, {{megabytes:g}} MB"
        limit = "" if row["why"] == "applies" else ", but {why}"
        words = f"applies{limit}; {cost}" if row["applies"] else "does not apply: {why}"
        yield "", words.format(**row)
        if row["stronger"]:
            yield "", f"stronger: {row['stronger']}"


def read(arguments: argparse.Namespace) -> AuditSpec:
    """The spec of the file, changed by flags; or of flags alone."""
    values: dict[str, Any] = {}
    if arguments.spec is not None:
        values = read_spec(arguments.spec).model_dump(exclude_unset=True)
    flags = given(arguments, AuditSpec.model_fields)
    return check_spec(values | flags, str(arguments.spec or "audit"), flags)


def show(result: Audit, stored: Run) -> None:
    print_line(f"{result.verdict}: {result.sentence}", style="bold")
    for row in result.attacks:
        print_line(f"  {row.title}: {row.verdict}; {row.reason}")
        if row.bound is not None and not row.bound["violated"]:  # else the reason begins with it
            print_line(f"    by the ledger: {row.bound['text']}")
    if result.membership is not None:
        print_line(f"  Membership (not reconstruction): {result.membership['sentence']}")
    if result.privacy is not None:
        print_line(f"  By the ledger: {result.privacy['text']}")
    print_place(stored, ("report.html", "finding.json"))
