"""What the figures of a finding show, as plain values; `charts` draws them."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from scipy.stats import binomtest

from remnant.bundle import NULLS, Attacked, null_words
from remnant.types import Finding

CANDIDATES, CONTROL = "candidates", "control"  # what is no null


@dataclass(frozen=True, kw_only=True)
class Series:
    """Squared distances in ascending order, and how many records had none."""

    name: str
    distances: tuple[float, ...]
    unmatched: int


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Singular values in falling order, the number counted, and the gap s_n / s_n+1 after it."""

    values: tuple[float, ...]
    counted: int | None
    gap: float | None
    least_gap: ClassVar[float] = 2.0  # a smaller one does not tell the number of records

    @property
    def tells(self) -> bool:
        """Whether the gap gives the number of records away; it does not where the attack was told
        the number."""
        return self.counted is not None and self.gap is not None and self.gap >= self.least_gap


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A count of records with the 95% interval of its share, and the excess over it.

    `words` say what was counted and `meaning` what that is.
    """

    name: str
    words: str
    meaning: str = ""
    count: int
    records: int
    low: float
    high: float
    median: float | None = None  # squared L2
    tokens: float | None = None  # of texts: the mean share of tokens right
    excess: tuple[float, float, float] | None = None  # records, low, high

    @property
    def share(self) -> float:
        return self.count / self.records if self.records else 0.0

    @property
    def kind(self) -> str:
        return self.name if self.name in (CANDIDATES, CONTROL) else "null"


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Correlation of each record against its margin or loss: (across, correlation, recovered)."""

    across: str
    points: tuple[tuple[float, float, bool], ...]
    threshold: float | None


@dataclass(frozen=True, kw_only=True)
class Bound:
    """The measured share beside what differential privacy allows at most, by each bound."""

    measured: Rate
    bounds: tuple[tuple[str, float], ...]
    words: str
    text: str
    broken: bool


def curve_data(finding: Finding) -> tuple[Series, ...]:
    """The reconstruction curve of the candidates, then of each null."""
    series = [_series(CANDIDATES, [record.get("squared_l2") for record in finding.per_record])]
    for name, null in finding.nulls.items():
        series.append(_series(name, null.get("squared_l2") or []))
    return tuple(series)


def spectrum_data(finding: Finding) -> Spectrum | None:
    """The singular values of the evidence, or None where the attack did not look at them."""
    values = [value for value in finding.trace.get("singular_values", ()) if value is not None]
    if not values:
        return None
    falling = tuple(sorted((float(value) for value in values), reverse=True))
    n = finding.counted
    gap = None
    if n is not None and 0 < n < len(falling) and falling[n] > 0.0:
        gap = falling[n - 1] / falling[n]
    return Spectrum(values=falling, counted=n, gap=gap)


def rates(row: Attacked) -> list[Rate]:
    """The reconstructions, each null, and the control: what they count, with intervals."""
    finding = row.finding
    if finding is None or finding.recovered is None:
        return []
    excess = finding.summary.get("excess") or {}
    out = [_rate(CANDIDATES, ("reconstructions", ""), finding.summary)]
    for name in sorted(finding.nulls, key=lambda name: [*NULLS, name].index(name)):
        out.append(_rate(name, null_words(name), finding.nulls[name], excess.get(name)))
    if row.control is not None and row.control.records:
        count, records = row.control.recovered, row.control.records
        interval = binomtest(count, records).proportion_ci(0.95, method="exact")
        summary: dict[str, float] = {"recovered": count, "records": records}
        summary |= {"rate_low": interval.low, "rate_high": interval.high}
        words = "a twin that must leak", "where the attack fails on it, its failure proves nothing"
        out.append(_rate(CONTROL, words, summary))
    return [rate for rate in out if rate is not None]


def _rate(
    name: str,
    words: tuple[str, str],
    summary: Mapping[str, Any],
    excess: Mapping[str, Any] | None = None,
) -> Rate | None:
    keys = ("recovered", "records", "rate_low", "rate_high", "median_squared_l2", "mean_tokens")
    count, records, low, high, median, tokens = (number(summary.get(key)) for key in keys)
    if count is None or not records:
        return None
    beyond = [number((excess or {}).get(key)) for key in ("records", "low", "high")]
    values = tuple(value for value in beyond if value is not None)
    return Rate(
        name=name,
        words=words[0],
        meaning=words[1],
        count=int(count),
        records=int(records),
        low=0.0 if low is None else low,
        high=1.0 if high is None else high,
        median=median,
        tokens=tokens,
        excess=values if len(values) == 3 else None,
    )


def exposure_data(finding: Finding) -> Exposure | None:
    """Correlation against each record's margin, else against its loss, where the finding has it."""
    for across in ("margin", "loss"):
        points = [
            (
                number(record.get(across)),
                number(record.get("correlation")),
                bool(record.get("recovered")),
            )
            for record in finding.per_record
        ]
        known = tuple((x, y, found) for x, y, found in points if x is not None and y is not None)
        if len(known) > 1:
            return Exposure(across=across, points=known, threshold=finding.threshold)
    return None


def bound_data(row: Attacked) -> Bound | None:
    """The bound, by its name where there are several, beside what was measured: its own success,
    which may be another than the verdict's."""
    held, measured = row.bound or {}, next(iter(rates(row)), None)
    own, named = held.get("measured"), held.get("gamma")
    if measured is None or not isinstance(own, Mapping) or not isinstance(named, Mapping):
        return None  # none was said, or by a file that lacks it
    count, low, high = (number(own.get(key)) or 0.0 for key in ("count", "low", "high"))
    values = [(str(name), number(value)) for name, value in named.items()]
    keys = ("epsilon", "delta", "correlation", "kappa")
    known = [(key, number(held.get(key))) for key in keys]
    return Bound(
        measured=replace(measured, count=int(count), low=low, high=high),
        bounds=tuple((name, value) for name, value in values if value is not None),
        words=", ".join(f"{key} = {value:.3g}" for key, value in known if value is not None),
        text=str(held.get("text") or ""),
        broken=held.get("violated") is True,
    )


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) else None


def _series(name: str, values: Sequence[Any]) -> Series:
    found = sorted(float(v) for v in values if v is not None and math.isfinite(v))
    return Series(name=name, distances=tuple(found), unmatched=len(values) - len(found))
