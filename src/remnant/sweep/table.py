"""Rows of a sweep or a study: JSON lines to go on from, and the same as a table."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from typing import Any

from remnant.store import Run, write_text

Row = dict[str, Any]
FORMULAS = ("=", "+", "-", "@", "\t", "\r")  # what a spreadsheet runs a cell for
ROWS_FILE, TABLE_FILE, FIGURE_FILE = "rows.jsonl", "table.csv", "figure.png"


def read_rows(run: Run) -> list[Row]:
    """The rows that the run holds. A line that is damaged is as good as missing."""
    path = run.path / ROWS_FILE
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def write_rows(run: Run, rows: Sequence[Row]) -> None:
    write_text(run, ROWS_FILE, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def as_csv(rows: Sequence[Row]) -> str:
    """One line a row, all its fields; empty where there is nothing."""
    stream = io.StringIO()
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(stream, [as_cell(name) for name in names], lineterminator="\n")
    writer.writeheader()
    writer.writerows({as_cell(name): as_cell(value) for name, value in row.items()} for row in rows)
    return stream.getvalue()


def as_cell(value: Any) -> Any:
    """A text that a spreadsheet would take for a formula begins with an apostrophe instead."""
    return f"'{value}" if isinstance(value, str) and value.startswith(FORMULAS) else value
