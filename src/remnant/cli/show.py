"""A finding as a short table, or as JSON."""

from __future__ import annotations

import argparse
import json
from collections.abc import Mapping
from typing import Any

from remnant.bundle import NULLS
from remnant.cli.common import print_line, print_place, print_result, print_table
from remnant.store import Run, read_finding
from remnant.types import Finding, Target

TEXTS_FILE = "texts.jsonl"
FILES = (
    TEXTS_FILE,
    "sheet.png",
    "curve.svg",
    "spectrum.svg",
    "finding.json",
    "candidates.safetensors",
)


def show_finding(run: Run, arguments: argparse.Namespace) -> None:
    """What the run found, as JSON or in words."""
    finding = read_finding(run)
    print_result(arguments, finding.to_json(), lambda: print_finding(run, finding))


def print_finding(run: Run, finding: Finding) -> None:
    print_line(headline(finding), style="bold")
    print_line(finding.reason)
    if finding.records is not None:
        print_scores(finding)
    seconds = read_seconds(run)
    if seconds:
        print_line(seconds, style="dim")
    print_place(run, [name for name in FILES if (run.path / name).exists()])
    page = run.path / "audit" / "report.html"
    if page.exists():
        print_line(f"the page: {page}", style="bold")


def show_record(target: Target, run: Run, arguments: argparse.Namespace) -> None:
    """The best candidate of a table, feature by feature, unless only JSON or nothing is wanted."""
    from remnant.report.table import kinds_of, record_table
    from remnant.store import read_candidates

    found = read_candidates(run)
    known = target.knowledge.known
    if arguments.json or arguments.quiet or not len(found) or known is None:
        return
    table = record_table(
        found.inputs[0].flatten().tolist(),
        features=getattr(target.model, "features", ()),
        kinds=kinds_of(known.inputs.tolist()),
    )
    lines = [
        (row.feature, row.recovered if row.clear else f"{row.recovered} (unclear)")
        for row in table.rows
    ]
    print_line("recovered record", style="bold")
    print_table(("feature", "recovered"), lines)
    if found.labels is not None:
        print_line(f"label: {found.labels[0].item():g}")


def show_texts(run: Run, arguments: argparse.Namespace, most: int = 20) -> None:
    """The first recovered texts, unless only JSON or nothing is wanted."""
    path = run.path / TEXTS_FILE
    if arguments.json or arguments.quiet or not path.exists():
        return
    lines = path.read_text("utf-8").splitlines()
    for line in lines[:most]:
        held = json.loads(line)
        print_line(f"{'certified' if held['certified'] else 'not certified'}: {held['text']}")
    if len(lines) > most:
        print_line(f"and {len(lines) - most} more in {path}")


def headline(finding: Finding) -> str:
    counted = "unknown" if finding.counted is None else f"{finding.counted}"
    if finding.records is None:
        certified = finding.stated.certified or 0
        return (
            f"{finding.attack}: {finding.status}; records counted {counted}, certified {certified}"
        )
    recovered = f"{finding.recovered} of {finding.records} records recovered"
    return f"{finding.attack}: {finding.status}; {recovered}, counted {counted}"


def print_text_scores(finding: Finding) -> None:
    """Whole texts, and how alike the others are, beside the nulls."""
    named = [(f"null: {words}", finding.nulls.get(name)) for name, (words, _) in NULLS.items()]
    rows = [
        (words, f"{held['recovered']}/{finding.records}", held["mean_tokens"], held["mean_run"])
        for words, held in [("reconstructions", finding.summary), *named]
        if held is not None
    ]
    print_table(("", "word for word", "tokens right", "longest run"), rows, numbers=True)


def print_scores(finding: Finding) -> None:
    if finding.summary.get("protocol") == "texts":
        print_text_scores(finding)
        return
    columns = ("", f"corr > {finding.threshold:g}", "median sq. L2", "max sq. L2", "SSIM > 0.4")
    nulls = [
        (f"null: {words}", *_cells(finding.nulls[name], finding.records))
        for name, (words, _) in NULLS.items()
        if name in finding.nulls
    ]
    ours = ("reconstructions", *_cells(finding.summary, finding.records))
    print_table(columns, [ours, *nulls], numbers=True)


def _cells(summary: Mapping[str, Any], records: int | None) -> list[Any]:
    good = summary["good_ssim"]
    return [
        f"{summary['recovered']}/{records}",
        summary["median_squared_l2"],
        summary["max_squared_l2"],
        None if good is None else f"{good}/{records}",
    ]


def read_seconds(run: Run) -> str:
    """CPU seconds of each stage, from run.json as it is now."""
    from remnant.store import read_run

    timings = read_run(run.path).record.get("timings", {})
    parts = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in timings.items())
    return f"CPU time: {parts}" if parts else ""
