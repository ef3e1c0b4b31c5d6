"""What is on the page, as plain values: computed here, laid out by the templates."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

from torch import Tensor

from remnant.bundle import Audit, Verdict
from remnant.report.figures import number
from remnant.report.page.files import ORIGINALS, Pictures
from remnant.report.sheet import short_number
from remnant.report.table import FeatureRow, record_table

SCORES = {
    "tokens": "tokens right",
    "run": "longest run of tokens",
    "correlation": "correlation",
    "squared_l2": "squared L2",
    "ssim": "SSIM",
    "psnr": "PSNR",
    "confidence": "confidence",
    "public_squared_l2": "nearest public, squared L2",
}

Pairs = list[tuple[str, str]]
Marked = list[tuple[str, bool]] | None


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
    exposure: float | None  # correlation, of texts the tokens right; confidence without the truth
    measure: str  # what that is, in a word or two
    scores: tuple[tuple[str, str], ...]
    original: int | None
    candidate: int | None


def verdict_of(text: str) -> Verdict:
    """A verdict that is not known is inconclusive, never not exposed."""
    return Verdict(text) if text in set(Verdict) else Verdict.INCONCLUSIVE


def headline(audit: Audit) -> list[tuple[str, str]]:
    """The few numbers that stand below the verdict, each with its words."""
    facts = []
    records = number(audit.target.get("records"))
    if records is not None:
        exposed = f"{len(exposed_ids(audit))} of {records:.0f}"
        facts.append((exposed, "training records shown to be exposed"))
    scored = [row.finding for row in audit.attacks if row.finding and row.finding.records]
    best = max(scored, key=lambda finding: finding.recovered or 0, default=None)
    if best is not None and "held_out" in best.nulls:
        by_chance = f"{best.nulls['held_out'].get('recovered')} of {best.records}"
        facts.append((by_chance, "recovered by chance, from records never trained on"))
    verdicts = [verdict_of(row.verdict) for row in audit.attacks]
    apply = len(verdicts) - verdicts.count(Verdict.NOT_APPLICABLE)
    works = f"{verdicts.count(Verdict.EXPOSED)} of {apply}"
    return [*facts, (works, "adversaries that apply get records back")]


def exposed_ids(audit: Audit) -> list[str]:
    """The ids of exposed records, worst first, each once."""
    return list(dict.fromkeys(str(row.get("id")) for row in audit.exposed))


def cards(audit: Audit, pictures: Pictures, limit: int = Pictures.most) -> tuple[list[Card], int]:
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

    def rank(card: Card) -> float:
        return 2.0 if card.exposure is None else -round(card.exposure, 6)

    return sorted(shown, key=rank), total


def _card(attack: int, record: Mapping[str, Any], row_of: Mapping[str, int], held: int) -> Card:
    candidate, truth = record.get("candidate"), record.get("recovered")
    known = isinstance(candidate, int) and 0 <= candidate < held
    label, found_label = record.get("label"), record.get("found_label")
    scores = []
    for key, name in SCORES.items():
        value = number(record.get(key))
        if value is not None:
            digits = key in ("tokens", "correlation", "ssim", "confidence")
            scores.append((name, f"{value:.4f}" if digits else short_number(value)))
    measure = "confidence"
    if truth is not None:
        measure = "tokens" if record.get("tokens") is not None else "correlation"
    return Card(
        attack=attack,
        name=str(record.get("id", f"candidate {candidate}")),
        label=None if label is None else str(label),
        found_label=None if found_label is None else str(found_label),
        recovered=None if truth is None else bool(truth),
        exposure=number(record.get(measure)),
        measure=SCORES[measure],
        scores=tuple(scores),
        original=row_of.get(str(record.get("id"))),
        candidate=candidate if known else None,
    )


def choices(audit: Audit, shown: Sequence[Card]) -> list[tuple[str, str, str, Pairs]]:
    """The filters above the cards, each as field, title, words for all, and values with their
    words.

    Labels are sorted as numbers, and left out where they are too many to be classes.
    """
    labels = {card.label for card in shown if card.label is not None}
    in_order = sorted(labels, key=lambda label: (not label.isdigit(), label.zfill(12), label))
    by_class = [(label, label) for label in in_order] if len(labels) <= 40 else []
    by_attack = [(f"{i}", audit.attacks[i].title) for i in sorted({c.attack for c in shown})]
    both = {card.recovered for card in shown} >= {True, False}
    by_outcome = [("yes", "recovered"), ("no", "not recovered")] if both else []
    made = [
        ("attack", "Adversary", "every adversary", by_attack),
        ("label", "Class", "every class", by_class),
        ("recovered", "Outcome", "every outcome", by_outcome),
    ]
    return [choice for choice in made if len(choice[3]) > 1]


def text_pair(card: Card, audit: Audit, pictures: Pictures) -> tuple[Marked, Marked]:
    """The text trained on and what came back, in stretches that agree or differ; None = no text."""
    found = pictures.texts.get(audit.attacks[card.attack].candidates or "")
    theirs = None if found is None or card.candidate is None else found[card.candidate]
    held = pictures.texts.get(ORIGINALS)
    mine = None if held is None or card.original is None else held[card.original]
    if mine is None or theirs is None:
        whole = [None if text is None else [("".join(text), True)] for text in (mine, theirs)]
        return whole[0], whole[1]
    blocks = SequenceMatcher(None, mine, theirs, autojunk=False).get_matching_blocks()
    return (
        _stretches(mine, [(block.a, block.size) for block in blocks]),
        _stretches(theirs, [(block.b, block.size) for block in blocks]),
    )


def _stretches(pieces: Sequence[str], same: Sequence[tuple[int, int]]) -> Marked:
    """Pieces joined into what is in both texts and what is not; `same`: where and how many."""
    marked, at = list[tuple[str, bool]](), 0
    for start, size in same:
        if start > at:
            marked.append(("".join(pieces[at:start]), False))
        if size:
            marked.append(("".join(pieces[start : start + size]), True))
        at = start + size
    return marked


def feature_table(card: Card, audit: Audit, pictures: Pictures) -> list[FeatureRow]:
    """One record of a table, feature by feature: whole numbers are rounded, then compared."""
    found = pictures.candidates.get(audit.attacks[card.attack].candidates or "")
    truth, count = pictures.originals, math.prod(pictures.shape or (0,))
    return record_table(
        _features(found, card.candidate) or [math.nan] * count,
        true=_features(truth, card.original),
        features=audit.target.get("features") or (),
        known=truth.flatten(1) if truth is not None and len(truth) > 1 else None,
    )


def _features(inputs: Tensor | None, row: int | None) -> list[float] | None:
    return None if inputs is None or row is None else inputs[row].flatten().tolist()


def own_code(audit: Audit) -> str | None:
    """The file of the user's own code that was imported for the model, if one was."""
    described = audit.spec.get("spec")
    model = described.get("model") if isinstance(described, Mapping) else None
    own = isinstance(model, str) and model.rpartition(":")[0].endswith(".py")
    return model if own else None


def beyond(excess: tuple[float, float, float]) -> str:
    """Records found beyond a null, with the interval: +50 (45 to 50)."""
    records, low, high = excess
    return f"{records:+.0f} ({low:.0f} to {high:.0f})".replace("-", "−")


def keys(rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """All keys of the rows, in the order in which they first come up."""
    return list(dict.fromkeys(key for row in rows for key in row))


def exact(value: Any) -> str:
    """A value to type in again: a text as it is, all else as JSON."""
    return value if isinstance(value, str) else json.dumps(value)


def indented(value: Any) -> str:
    return json.dumps(value, indent=2, ensure_ascii=False)


def words(value: Any) -> str:
    """A JSON value in a table: numbers short, lists joined, nothing as a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, float):
        return "–" if number(value) is None else f"{value:.4g}"
    if isinstance(value, list | tuple):
        plain = all(isinstance(item, int) for item in value)
        return (" × " if plain else ", ").join(words(item) for item in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else str(value)
