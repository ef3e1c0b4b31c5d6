"""Recovered texts against the truth, and beside nulls: sequences of tokens, compared as they are.

A record is recovered if a candidate is the record itself, token by token. Likenesses are told by
two more figures: the share of tokens that are right at their place (of the longer of the two), and
the longest run of tokens that both have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from difflib import SequenceMatcher
from typing import Any

import torch
from torch import Tensor

from remnant.scoring.matching import greedy
from remnant.scoring.score import FIGURES, beside_nulls, counts

Text = Sequence[int]
PROTOCOL = "texts"


@dataclass(frozen=True, kw_only=True)
class TextScores:
    """Figures per record, each n in the order of the truth. candidate: the match, -1 for none."""

    candidates: int
    candidate: list[int]
    exact: list[bool]
    tokens: list[float]  # share of tokens that are right at their place
    run: list[int]  # tokens of the longest run in common
    length: list[int]  # tokens of the record


def share_right(record: Text, other: Text) -> float:
    """Tokens that stand at the same place in both, as a share of the longer one's."""
    right = sum(a == b for a, b in zip(record, other, strict=False))
    return right / max(1, len(record), len(other))


def longest_run(record: Text, other: Text) -> int:
    """The length of the longest run of tokens that both have, wherever it stands."""
    return SequenceMatcher(None, record, other, autojunk=False).find_longest_match().size


def likeness(records: Sequence[Text], others: Sequence[Text]) -> Tensor:
    """n x m, 0 to 1: half by the tokens right at their place, half by those in common anywhere.

    1 only for equal texts.
    """
    values = torch.zeros(len(records), len(others), dtype=torch.float64)
    bags = [Counter(other) for other in others]
    for i, record in enumerate(records):
        mine = Counter(record)
        for j, (other, bag) in enumerate(zip(others, bags, strict=True)):
            common = (mine & bag).total() / max(1, len(record), len(other))
            values[i, j] = (common + share_right(record, other)) / 2
    return values


def score_texts(records: Sequence[Text], candidates: Sequence[Text]) -> TextScores:
    """Match candidates to records one-to-one, the most alike first, and score the pairs."""
    matched = greedy(1 - likeness(records, candidates)).candidate.tolist()
    return _of_pairs(records, candidates, matched)


def most_frequent(records: Sequence[Text], public: Sequence[Text]) -> list[list[int]]:
    """For each record the token that stands most often at each place of public texts, as many as
    the record has: what a guess without the model gets right."""
    counts: list[Counter[int]] = [Counter() for _ in range(max(map(len, records), default=0))]
    every = Counter(token for text in public for token in text)
    for text in public:
        for count, token in zip(counts, text, strict=False):
            count[token] += 1
    usual = [(count or every).most_common(1) for count in counts]
    return [[usual[k][0][0] if usual[k] else 0 for k in range(len(text))] for text in records]


def score_texts_with_nulls(
    ids: Sequence[str],
    records: Sequence[Text],
    candidates: Sequence[Text],
    *,
    confidence: Sequence[float],
    labels: Sequence[Any],
    holdout: Sequence[Text],
    public: Sequence[Text],
    generator: torch.Generator,
) -> dict[str, Any]:
    """Candidates and every null alike: the fields of a Finding that need the truth.

    Nulls: "held_out", as many held-out texts as there are candidates; "nearest_public", the most
    alike public text, one for several records; "frequent_tokens", see `most_frequent`.
    """
    scores, n = score_texts(records, candidates), len(records)
    drawn = torch.randperm(len(holdout), generator=generator)[: len(candidates)].tolist()
    nulls = {"held_out": score_texts(records, [holdout[i] for i in drawn])}
    if public:
        nearest = likeness(records, public).argmax(1).tolist()
        nulls["nearest_public"] = _of_pairs(records, public, nearest)
        nulls["frequent_tokens"] = _of_pairs(records, most_frequent(records, public), range(n))
    order = sorted(
        range(n),
        key=lambda i: (not scores.exact[i], -scores.tokens[i], -scores.run[i] / scores.length[i]),
    )
    rows = []
    for i in order:
        j = scores.candidate[i]
        rows.append({
            "id": ids[i],
            "label": labels[i],
            "recovered": scores.exact[i],
            "tokens": scores.tokens[i],
            "run": scores.run[i],
            "length": scores.length[i],
            "candidate": j if j >= 0 else None,
            "confidence": float(confidence[j]) if j >= 0 else None,
            # Figures of numbers are there and empty, for whoever reads findings.
            **dict.fromkeys((*FIGURES, "public_squared_l2")),
        })  # fmt: skip
    null_rows = {name: summarise_texts(null) for name, null in nulls.items()}
    return beside_nulls(summarise_texts(scores), rows, null_rows, None)


def summarise_texts(scores: TextScores) -> dict[str, Any]:
    """Counts with their interval, and means over all records."""
    n = len(scores.exact)
    shares = [run / length for run, length in zip(scores.run, scores.length, strict=True)]
    return counts(PROTOCOL, scores.candidates, scores.candidate, sum(scores.exact)) | {
        "mean_tokens": sum(scores.tokens) / n if n else None,
        "mean_run": sum(shares) / n if n else None,
    }


def token_set(
    named: Sequence[int], records: Sequence[Text], public: Sequence[Text]
) -> Mapping[str, int]:
    """Of the tokens that an attack names as trained on: how many are, beside as many of the most
    frequent public ones."""
    truth = {token for text in records for token in text}
    every = Counter(token for text in public for token in text)
    usual = [token for token, _ in every.most_common(len(set(named)))]
    return {
        "named": len(set(named)),
        "right": len(truth & set(named)),
        "in_data": len(truth),
        "frequent_right": len(truth & set(usual)),
    }


def _of_pairs(records: Sequence[Text], others: Sequence[Text], match: Sequence[int]) -> TextScores:
    pairs = [
        (record, others[j] if j >= 0 else ()) for record, j in zip(records, match, strict=True)
    ]
    return TextScores(
        candidates=len(others),
        candidate=list(match),
        exact=[list(a) == list(b) for a, b in pairs],
        tokens=[share_right(a, b) for a, b in pairs],
        run=[longest_run(a, b) for a, b in pairs],
        length=[len(a) for a, _ in pairs],
    )
