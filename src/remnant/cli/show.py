"""A finding as a short table, or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from remnant.bundle import NULLS
from remnant.cli.common import print_line, print_place, print_table
from remnant.store import Run, read_finding
from remnant.types import Finding, Target

FILES = ("sheet.png", "curve.svg", "spectrum.svg", "finding.json", "candidates.safetensors")


def show_finding(run: Run, arguments: argparse.Namespace) -> None:
    """Print what the run found, unless --quiet."""
    finding = read_finding(run)
    if arguments.json:
        print(finding.to_json(), end="")
        return
    if arguments.quiet:
        return
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
    from remnant.report.table import kinds_of, record_table, text_table
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
    print(text_table(table))
    if found.labels is not None:
        print(f"label: {found.labels[0].item():g}")


def headline(finding: Finding) -> str:
    counted = "unknown" if finding.counted is None else f"{finding.counted}"
    if finding.records is None:
        certified = finding.figures.get("certified", 0)
        return (
            f"{finding.attack}: {finding.status}; records counted {counted}, certified {certified}"
        )
    recovered = f"{finding.recovered} of {finding.records} records recovered"
    return f"{finding.attack}: {finding.status}; {recovered}, counted {counted}"


def print_scores(finding: Finding) -> None:
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
