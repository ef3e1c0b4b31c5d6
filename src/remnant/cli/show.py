"""A finding as a short table, or as JSON."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import Any

from rich.table import Table

from remnant.bundle import NULLS
from remnant.cli.common import console, plain
from remnant.store import Run
from remnant.types import Finding, Target

FILES = ("sheet.png", "curve.svg", "spectrum.svg", "finding.json", "candidates.safetensors")


def show_finding(finding: Finding, run: Run, arguments: argparse.Namespace) -> None:
    """Print it, unless --quiet."""
    if arguments.json:
        print(finding.to_json(), end="")
        return
    if arguments.quiet:
        return
    out = console()
    out.print(plain(headline(finding), style="bold"))
    out.print(plain(finding.reason))
    if finding.records is not None:
        out.print(scores_table(finding))
    seconds = read_seconds(run)
    if seconds:
        out.print(plain(seconds, style="dim"))
    written = [name for name in FILES if (run.path / name).exists()]
    again = " (done before; remove the directory to run it again)" if run.finished else ""
    out.print(plain(f"in {run.path}{again}: {', '.join(written)}"), soft_wrap=True)
    page = run.path / "audit" / "report.html"
    if page.exists():
        out.print(plain(f"the page: {page}", style="bold"), soft_wrap=True)


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


def scores_table(finding: Finding) -> Table:
    table = Table(box=None, pad_edge=False, header_style="dim")
    columns = (
        "",
        f"corr > {finding.threshold:g}",
        "median sq. L2",
        "max sq. L2",
        "SSIM > 0.4",
    )
    for i, name in enumerate(columns):
        table.add_column(name, justify="right" if i else "left", no_wrap=True)
    table.add_row("reconstructions", *_cells(finding.summary, finding.records), style="bold")
    for name, (words, _) in NULLS.items():
        if name in finding.nulls:
            table.add_row(f"null: {words}", *_cells(finding.nulls[name], finding.records))
    return table


def _cells(summary: Mapping[str, Any], records: int | None) -> list[str]:
    return [
        f"{summary['recovered']}/{records}",
        _number(summary["median_squared_l2"]),
        _number(summary["max_squared_l2"]),
        "-" if summary["good_ssim"] is None else f"{summary['good_ssim']}/{records}",
    ]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.2g}"


def read_seconds(run: Run) -> str:
    """CPU seconds of each stage, from run.json as it is now."""
    from remnant.store import read_run

    timings = read_run(run.path).record.get("timings", {})
    parts = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in timings.items())
    return f"CPU time: {parts}" if parts else ""
