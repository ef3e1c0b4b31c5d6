"""A record of a table as rows: each feature, what was recovered, and the truth if it is known."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

from torch import Tensor


class FeatureRow(NamedTuple):
    """One feature. clear: rounding was no guess; agrees: None where the truth is not known."""

    feature: str
    recovered: str
    true: str | None
    clear: bool
    agrees: bool | None


def record_table(
    recovered: Sequence[float],
    *,
    true: Sequence[float] | None = None,
    features: Sequence[str] = (),
    known: Tensor | None = None,
) -> list[FeatureRow]:
    """Rows for a record of d numbers. known: records, n x d, which tell whole numbers from others,
    and how far a feature spreads.

    Whole numbers are rounded and agree if they are equal; other numbers agree within a hundredth
    of their size or, if that is larger, of their spread.
    """
    d = len(recovered)
    names = [*map(str, features[:d]), *(f"feature {k + 1}" for k in range(len(features[:d]), d))]
    whole = [False] * d if known is None else (known == known.round()).all(0).tolist()
    spread = [0.0] * d if known is None or len(known) < 2 else known.std(0).tolist()
    rows = []
    for i, value in enumerate(recovered):
        shown, clear = spell(value, whole[i])
        told = agrees = None
        if true is not None:
            told = spell(true[i], whole[i])[0]
            near = abs(value - true[i]) <= 0.01 * max(abs(true[i]), spread[i])
            agrees = shown == told if whole[i] else near
        rows.append(FeatureRow(names[i], shown, told, clear, agrees))
    return rows


def spell(value: float, whole: bool) -> tuple[str, bool]:
    """How a value reads, and whether it is near enough to one that its feature can have: a whole
    number that is more than a quarter off was not recovered."""
    if not math.isfinite(value):
        return "unknown", False
    if not whole:
        return f"{value:.5g}", True
    return str(round(value)), abs(value - round(value)) <= 0.25
