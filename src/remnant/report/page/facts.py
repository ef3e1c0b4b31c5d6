"""What is on the page, as plain values: computed here, drawn elsewhere, tested as data."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from scipy.stats import binomtest
from torch import Tensor

from remnant.bundle import Attacked, Audit, Verdict
from remnant.report.page.files import CARDS, Pictures
from remnant.report.table import RecordTable, kinds_of, record_table
from remnant.types import Finding

CANDIDATES, CONTROL = "candidates", "control"
TABLES = 24  # records of a table, feature by feature
CLASSES = 40  # more different labels than this are no classes to choose from
NULLS = {
    "held_out": ("held-out records", "records of the same kind that were never trained on"),
    "nearest_public": ("nearest public record", "the best that the adversary already had"),
    "public_mean": ("mean of a class", "nearer to most records than any other record is"),
    "span_noise": ("noise in their span", "random combinations of the training records"),
    "blends": (
        "blends of two records",
        "mixtures of training records: a yardstick, high by construction",
    ),
    CONTROL: ("a twin that must leak", "where the attack fails on it, its failure proves nothing"),
}


@dataclass(frozen=True, kw_only=True)
class Card:
    """One record and one adversary. `original` and `candidate` are rows, None where there is none.

    `recovered` and the scores are None where the truth was not at hand.
    """

    attack: int  # its place in the audit
    name: str
    label: str | None
    found_label: str | None  # what the attack takes its label for
    recovered: bool | None
    exposure: float | None  # correlation, or confidence without the truth
    scores: tuple[tuple[str, float], ...]
    original: int | None
    candidate: int | None


@dataclass(frozen=True, kw_only=True)
class Rate:
    """A count of records with the 95% interval of its share, and the excess over it."""

    name: str
    words: str
    count: int
    records: int
    low: float
    high: float
    median: float | None = None  # squared L2
    excess: tuple[float, float, float] | None = None  # records, low, high

    @property
    def share(self) -> float:
        return self.count / self.records if self.records else 0.0


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


def verdict_of(text: str) -> Verdict:
    """A verdict that is not known is inconclusive, never not exposed."""
    return Verdict(text) if text in set(Verdict) else Verdict.INCONCLUSIVE


def number(value: Any) -> float | None:
    """A finite number, or None for anything else."""
    plain = isinstance(value, int | float) and not isinstance(value, bool)
    return float(value) if plain and math.isfinite(value) else None


def headline(audit: Audit) -> list[tuple[str, str]]:
    """The few numbers that stand below the verdict, each with its words."""
    facts = []
    records = number(audit.target.get("records"))
    if records is not None:
        exposed = len({str(row.get("id")) for row in audit.exposed})
        facts.append((f"{exposed} of {records:.0f}", "training records shown to be exposed"))
    scored = [row.finding for row in audit.attacks if row.finding and row.finding.records]
    best = max(scored, key=lambda finding: finding.recovered or 0, default=None)
    if best is not None and "held_out" in best.nulls:
        by_chance = f"{best.nulls['held_out'].get('recovered')} of {best.records}"
        facts.append((by_chance, "recovered by chance, from records never trained on"))
    verdicts = [verdict_of(row.verdict) for row in audit.attacks]
    apply = len(verdicts) - verdicts.count(Verdict.NOT_APPLICABLE)
    works = f"{verdicts.count(Verdict.EXPOSED)} of {apply}"
    return [*facts, (works, "adversaries that apply get records back")]


def cards(audit: Audit, pictures: Pictures, limit: int = CARDS) -> tuple[list[Card], int]:
    """Every record and each adversary with candidates, most exposed first; and how many in all.

    Each adversary has an equal share of the limit, so that none is crowded out.
    """
    row_of = {name: i for i, name in enumerate(pictures.ids)}
    tried = [
        (i, row.finding.per_record, len(pictures.candidates[row.candidates]))
        for i, row in enumerate(audit.attacks)
        if row.finding and row.candidates and row.candidates in pictures.candidates
    ]
    share = limit // max(1, len(tried))
    shown = [
        _card(i, record, row_of, held) for i, records, held in tried for record in records[:share]
    ]
    total = sum(len(records) for _, records, _ in tried)
    return sorted(shown, key=lambda card: -_rank(card)), total


def _rank(card: Card) -> float:
    return -2.0 if card.exposure is None else round(card.exposure, 6)


def _card(attack: int, record: Mapping[str, Any], row_of: Mapping[str, int], held: int) -> Card:
    names = {
        "correlation": "correlation",
        "squared_l2": "squared L2",
        "ssim": "SSIM",
        "psnr": "PSNR",
        "confidence": "confidence",
        "public_squared_l2": "nearest public, squared L2",
    }
    scores = [(words, number(record.get(key))) for key, words in names.items()]
    candidate = record.get("candidate")
    known = isinstance(candidate, int) and 0 <= candidate < held
    truth = record.get("recovered")
    exposure = record.get("correlation" if truth is not None else "confidence")
    return Card(
        attack=attack,
        name=str(record.get("id", f"candidate {candidate}")),
        label=None if record.get("label") is None else str(record["label"]),
        found_label=None if record.get("found_label") is None else str(record["found_label"]),
        recovered=None if truth is None else bool(truth),
        exposure=number(exposure),
        scores=tuple((words, value) for words, value in scores if value is not None),
        original=row_of.get(str(record.get("id"))),
        candidate=candidate if known else None,
    )


def classes(shown: Sequence[Card]) -> list[str]:
    """Labels to filter by, numbers in their order; none where they are too many to be classes."""
    labels = {card.label for card in shown if card.label is not None}
    if not 2 <= len(labels) <= CLASSES:
        return []
    return sorted(labels, key=lambda label: (not label.isdigit(), label.zfill(12), label))


def rates(row: Attacked) -> list[Rate]:
    """The reconstructions, each null, and the control: what they count, with intervals."""
    finding = row.finding
    if finding is None or finding.recovered is None:
        return []
    excess = finding.summary.get("excess") or {}
    out = [_rate(CANDIDATES, "reconstructions", finding.summary, None)]
    order = [*NULLS, *(name for name in finding.nulls if name not in NULLS)]
    for name in order:
        if name in finding.nulls:
            words = NULLS.get(name, (name.replace("_", " "), ""))[0]
            out.append(_rate(name, words, finding.nulls[name], excess.get(name)))
    return [*(rate for rate in out if rate is not None), *_control(row)]


def _control(row: Attacked) -> list[Rate]:
    """The twin that must leak, with the exact (Clopper-Pearson) interval that findings carry."""
    if row.control is None or not row.control.records:
        return []
    count, records = row.control.recovered, row.control.records
    interval = binomtest(count, records).proportion_ci(0.95, method="exact")
    low, high = float(interval.low), float(interval.high)
    words = NULLS[CONTROL][0]
    return [Rate(name=CONTROL, words=words, count=count, records=records, low=low, high=high)]


def _rate(
    name: str, words: str, summary: Mapping[str, Any], excess: Mapping[str, Any] | None
) -> Rate | None:
    count, records = number(summary.get("recovered")), number(summary.get("records"))
    if count is None or not records:
        return None
    beyond = [number(excess.get(key)) for key in ("records", "low", "high")] if excess else [None]
    values = [value for value in beyond if value is not None]
    low, high = number(summary.get("rate_low")), number(summary.get("rate_high"))
    return Rate(
        name=name,
        words=words,
        count=int(count),
        records=int(records),
        low=0.0 if low is None else low,
        high=1.0 if high is None else high,
        median=number(summary.get("median_squared_l2")),
        excess=(values[0], values[1], values[2]) if len(values) == 3 else None,
    )


def exposure_data(finding: Finding) -> Exposure | None:
    """Correlation against margin, else against loss, where the finding has it.

    It is looked for in each record, then in `figures` as one number per candidate.
    """
    for across in ("margin", "loss"):
        points = []
        for record in finding.per_record:
            x = number(record.get(across))
            series, candidate = finding.figures.get(across), record.get("candidate")
            if x is None and isinstance(series, list | tuple) and isinstance(candidate, int):
                x = number(series[candidate]) if 0 <= candidate < len(series) else None
            y = number(record.get("correlation"))
            if x is not None and y is not None:
                points.append((x, y, bool(record.get("recovered"))))
        if len(points) > 1:
            return Exposure(across=across, points=tuple(points), threshold=finding.threshold)
    return None


def bound_data(row: Attacked) -> Bound | None:
    """The bound beside the measurement. `gamma` is one number, or one for each bound by name."""
    measured = next(iter(rates(row)), None)
    if row.bound is None or measured is None:
        return None
    own = row.bound.get("measured")  # where the bound is on another success than the verdict's
    if isinstance(own, Mapping):
        measured = replace(
            measured, count=int(own["count"]), low=float(own["low"]), high=float(own["high"])
        )
    gamma = row.bound.get("gamma")
    named = gamma if isinstance(gamma, Mapping) else {"bound": gamma}
    values = [(str(name), number(value)) for name, value in named.items()]
    keys = ("epsilon", "delta", "correlation", "kappa")
    known = [(key, number(row.bound.get(key))) for key in keys]
    return Bound(
        measured=measured,
        bounds=tuple((name, value) for name, value in values if value is not None),
        words=", ".join(f"{key} = {value:.3g}" for key, value in known if value is not None),
        text=str(row.bound.get("text") or ""),
        broken=row.bound.get("violated") is True,
    )


def feature_table(card: Card, audit: Audit, pictures: Pictures) -> RecordTable:
    """One record of a table, feature by feature: whole numbers are rounded, then compared."""
    file = audit.attacks[card.attack].candidates
    count = math.prod(pictures.shape or (0,))
    true = _features(pictures.originals, card.original)
    found = _features(pictures.candidates.get(file or ""), card.candidate)
    names = [str(name) for name in audit.target.get("features") or ()][:count]
    names += [f"feature {k + 1}" for k in range(len(names), count)]
    known = pictures.originals is not None and len(pictures.originals) > 1
    columns = pictures.originals.flatten(1) if known and pictures.originals is not None else None
    return record_table(
        found or [math.nan] * count,
        true=true or None,
        features=names,
        kinds=() if columns is None else kinds_of(columns.tolist()),
        spread=() if columns is None else columns.std(0).tolist(),
        title=card.name,
    )


def _features(inputs: Tensor | None, row: int | None) -> list[float]:
    return [] if inputs is None or row is None else inputs[row].flatten().tolist()
