"""A record of a table as rows: each feature, what was recovered, and the truth where it is known.

`record_table` computes what the rows say, `text_table` writes them down.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from remnant.errors import printable

Kind = Literal["number", "integer"] | tuple[str, ...]
"""A feature's values: any number, whole ones, or categories by their position."""

ROUND_ROOM = 0.25  # a whole number that is further off than this was not recovered
CLOSE = 1e-2  # of the larger of the value and its feature's spread
DIGITS = 5


@dataclass(frozen=True, kw_only=True)
class Row:
    """One feature. agrees: None where the truth is not known; clear: rounding was no guess."""

    feature: str
    recovered: str
    true: str | None
    clear: bool
    agrees: bool | None


@dataclass(frozen=True, kw_only=True)
class RecordTable:
    """A recovered record, feature by feature, and how many features agree with the truth."""

    title: str
    rows: tuple[Row, ...]

    @property
    def agreeing(self) -> int | None:
        told = [row.agrees for row in self.rows if row.agrees is not None]
        return sum(told) if told else None


def kinds_of(known: Sequence[Sequence[float]]) -> tuple[Kind, ...]:
    """Which features hold whole numbers in all of the known records n x d."""
    columns = zip(*known, strict=True)
    return tuple("integer" if all(v == round(v) for v in c) else "number" for c in columns)


def record_table(
    recovered: Sequence[float],
    *,
    true: Sequence[float] | None = None,
    features: Sequence[str] = (),
    kinds: Sequence[Kind] = (),
    spread: Sequence[float] = (),
    title: str = "recovered record",
) -> RecordTable:
    """Rows for a record of d numbers; `spread` is each feature's standard deviation.

    Whole numbers and categories are rounded and agree if they are equal; other numbers agree
    within a hundredth of their size or, where it is known and larger, of their spread.
    """
    count = len(recovered)
    given = {"true": true, "features": features, "kinds": kinds, "spread": spread}
    for name, values in given.items():
        if values and len(values) != count:
            raise ValueError(f"{name}: expected {count}, one a feature, got {len(values)}")
    rows = []
    for i, value in enumerate(recovered):
        kind = kinds[i] if kinds else "number"
        truth = None if true is None else true[i]
        shown, clear = spell(value, kind)
        agrees = None
        if truth is not None and kind == "number":
            room = CLOSE * max(abs(truth), spread[i] if spread else 0.0)
            agrees = abs(value - truth) <= room
        elif truth is not None:
            agrees = shown == spell(truth, kind)[0]
        rows.append(
            Row(
                feature=features[i] if features else f"feature {i}",
                recovered=shown,
                true=None if truth is None else spell(truth, kind)[0],
                clear=clear,
                agrees=agrees,
            )
        )
    return RecordTable(title=title, rows=tuple(rows))


def spell(value: float, kind: Kind) -> tuple[str, bool]:
    """How a value reads, and whether it is near enough to one that its feature can have."""
    if not math.isfinite(value):
        return "unknown", False
    if kind == "number":
        return f"{value:.{DIGITS}g}", True
    whole = round(value)
    clear = abs(value - whole) <= ROUND_ROOM
    if kind == "integer":
        return str(whole), clear
    if not 0 <= whole < len(kind):
        return f"no category ({value:.{DIGITS}g})", False
    return kind[whole], clear


def cells(table: RecordTable) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """Heads and rows of plain text; the truth's columns only where it is known."""
    told = any(row.agrees is not None for row in table.rows)
    heads = ("feature", "recovered", *(("true", "agrees") if told else ()))
    lines = []
    for row in table.rows:
        value = row.recovered if row.clear else f"{row.recovered} (unclear)"
        truth = (row.true or "", "yes" if row.agrees else "no") if told else ()
        lines.append((row.feature, value, *truth))
    return heads, lines


def text_table(table: RecordTable) -> str:
    """Aligned columns, for a terminal or a log. Control characters in names are made visible."""
    heads, lines = cells(table)
    shown = [[printable(c) for c in line] for line in (heads, *lines)]
    wide = [max(map(len, column)) for column in zip(*shown, strict=True)]
    body = [
        "  ".join(c.ljust(w) for c, w in zip(line, wide, strict=True)).rstrip() for line in shown
    ]
    rule = "  ".join("-" * w for w in wide)
    return "\n".join([table.title, body[0], rule, *body[1:]]) + "\n"
