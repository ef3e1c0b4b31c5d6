"""A record of a table as rows: each feature, what was recovered, and the truth if it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

Kind = Literal["number", "integer"]


@dataclass(frozen=True, kw_only=True)
class FeatureRow:
    """One feature. agrees: None where the truth is not known; clear: rounding was no guess."""

    feature: str
    recovered: str
    true: str | None
    clear: bool
    agrees: bool | None


@dataclass(frozen=True, kw_only=True)
class RecordTable:
    """A recovered record, feature by feature, and how many features agree with the truth."""

    rows: tuple[FeatureRow, ...]

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
) -> RecordTable:
    """Rows for a record of d numbers; `spread` is each feature's standard deviation.

    Whole numbers are rounded and agree if they are equal; other numbers agree within a hundredth
    of their size or, where it is known and larger, of their spread.
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
        name = features[i] if features else f"feature {i}"
        told = None if truth is None else spell(truth, kind)[0]
        agrees = None if truth is None else shown == told
        if truth is not None and kind == "number":
            agrees = abs(value - truth) <= 0.01 * max(abs(truth), spread[i] if spread else 0.0)
        rows.append(
            FeatureRow(feature=name, recovered=shown, true=told, clear=clear, agrees=agrees)
        )
    return RecordTable(rows=tuple(rows))


def spell(value: float, kind: Kind) -> tuple[str, bool]:
    """How a value reads, and whether it is near enough to one that its feature can have: a whole
    number that is more than a quarter off was not recovered."""
    if not math.isfinite(value):
        return "unknown", False
    if kind == "number":
        return f"{value:.5g}", True
    return str(round(value)), abs(value - round(value)) <= 0.25
