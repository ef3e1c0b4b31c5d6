"""Recovered texts against the truth, and beside nulls: sequences of tokens, compared as they are.

A record is recovered if a candidate is the record itself, token by token. Likenesses are told by
two more figures: the share of tokens that are right at their place (of the longer of the two), and
the longest run of tokens that both have.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remnant.scoring.matching import greedy
from remnant.scoring.score import FIGURES, beside_nulls, rate_interval

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
    """The length of the longest run of tokens that both have, wherever it stands.

    Row i of the table holds, for each end in `other`, how long a run ends there and at record[i].
    """
    theirs, ends = np.asarray(other), np.zeros(len(other) + 1, dtype=np.int64)
    longest = 0
    for token in record:
        ends[1:] = np.where(theirs == token, ends[:-1] + 1, 0)
        longest = max(longest, int(ends.max()))
    return longest


def likeness(records: Sequence[Text], others: Sequence[Text]) -> Tensor:
    """n x m, 0 to 1: half by the tokens right at their place, half by those in common anywhere.

    1 only for equal texts.
    """
    known = {token: k for k, token in enumerate(sorted({t for row in records for t in row}))}
    table = np.zeros((len(others), len(known)))
    for row, other in zip(table, others, strict=True):
        for token in other:
            if token in known:
                row[known[token]] += 1
    sizes = np.array([len(other) for other in others])
    values = np.zeros((len(records), len(others)))
    for i, record in enumerate(records):
        mine = np.zeros(len(known))
        for token in record:
            mine[known[token]] += 1
        common = np.minimum(table, mine).sum(1) / np.maximum(sizes, len(record)).clip(1)
        values[i] = (common + [share_right(record, other) for other in others]) / 2
    return torch.from_numpy(values)


def score_texts(records: Sequence[Text], candidates: Sequence[Text]) -> TextScores:
    """Match candidates to records one-to-one, the most alike first, and score the pairs."""
    matched = greedy(1 - likeness(records, candidates)).candidate.tolist()
    return _of_pairs(records, candidates, matched)


def score_best(records: Sequence[Text], pool: Sequence[Text]) -> TextScores:
    """The most alike of the pool for each record; one may serve several."""
    return _of_pairs(records, pool, likeness(records, pool).argmax(1).tolist())


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
    alike public text; "frequent_tokens", see `most_frequent`.
    """
    scores = score_texts(records, candidates)
    drawn = torch.randperm(len(holdout), generator=generator)[: len(candidates)].tolist()
    nulls = {"held_out": score_texts(records, [holdout[i] for i in drawn])}
    if public:
        nulls["nearest_public"] = score_best(records, public)
        places = list(range(len(records)))
        nulls["frequent_tokens"] = _of_pairs(records, most_frequent(records, public), places)
    order = sorted(
        range(len(records)),
        key=lambda i: (not scores.exact[i], -scores.tokens[i], -scores.run[i] / scores.length[i]),
    )
    rows = [_row(i, ids, labels, scores, confidence) for i in order]
    null_rows = {name: summarise_texts(null) for name, null in nulls.items()}
    return beside_nulls(summarise_texts(scores), rows, null_rows, None)


def summarise_texts(scores: TextScores) -> dict[str, Any]:
    """Counts with their interval, and means over all records."""
    n, recovered = len(scores.exact), sum(scores.exact)
    low, high = rate_interval(recovered, n)
    shares = [run / length for run, length in zip(scores.run, scores.length, strict=True)]
    return {
        "protocol": PROTOCOL,
        "records": n,
        "candidates": scores.candidates,
        "matched": sum(j >= 0 for j in scores.candidate),
        "recovered": recovered,
        "rate": recovered / n if n else 0.0,
        "rate_low": low,
        "rate_high": high,
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


def _row(
    i: int,
    ids: Sequence[str],
    labels: Sequence[Any],
    scores: TextScores,
    confidence: Sequence[float],
) -> dict[str, Any]:
    """One record; figures of numbers are there and empty, as those of whoever reads findings."""
    j = scores.candidate[i]
    empty = dict.fromkeys((*FIGURES, "public_squared_l2"))
    return {
        "id": ids[i],
        "label": labels[i],
        "recovered": scores.exact[i],
        "tokens": scores.tokens[i],
        "run": scores.run[i],
        "length": scores.length[i],
        "candidate": j if j >= 0 else None,
        "confidence": float(confidence[j]) if j >= 0 else None,
        **empty,
    }
