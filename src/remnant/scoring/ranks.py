"""Do candidates lie nearer to the records than to records that were never trained on?

An attack without a certificate returns likenesses. Strangers of the same kind are met by the same
candidates; if the records were not trained on, nothing tells them from strangers, and every way of
sharing out the names "record" and "stranger" within a class is as likely as the one that is.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from scipy.stats import rankdata
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True, kw_only=True, eq=False)
class Ranks:
    """p: how likely records would rank as high as they do by chance; low: as low as they do. above:
    n, whether a record is nearer to a candidate than any stranger of any class."""

    p: float | None  # None: nothing could be compared
    low: float | None  # the same of standing so low
    above: Tensor


def compare(
    candidates: Tensor,
    records: Tensor,
    strangers: Tensor,
    *,
    labels: tuple[Tensor, Tensor] | None = None,
    generator: torch.Generator,
    shuffles: int = 9999,
) -> Ranks:
    """A permutation test: do records resemble the candidates more than strangers do, class by
    class? Rows are k x d in the model's scale.

    shuffles: how often the names record and stranger are dealt anew; p is never below 1 / (shuffles
    + 1). Likeness is the cosine about the mean of records and strangers together, since some
    attacks cannot know the scale, and the mean of strangers alone would favour the records.
    """
    if not len(candidates) or not len(strangers):
        return Ranks(
            p=None,
            low=None,
            above=torch.zeros(len(records), dtype=torch.bool),
        )
    centre = torch.cat([records, strangers]).double().mean(0)
    alike, null = (
        best_likeness(rows.double() - centre, candidates.double() - centre)
        for rows in (records, strangers)
    )
    groups = _groups(labels, len(records), len(strangers))
    p, low = _permuted(torch.cat([alike, null]), len(records), groups, shuffles, generator)
    return Ranks(
        p=p,
        low=low,
        above=alike > null.max(),
    )


def best_likeness(rows: Tensor, candidates: Tensor) -> Tensor:
    """k: the largest cosine of each row with a candidate."""
    return (normalize(rows, dim=1) @ normalize(candidates, dim=1).T).max(1).values


def _groups(labels: tuple[Tensor, Tensor] | None, n: int, count: int) -> list[Tensor]:
    """The sets of rows (records first) within which names may be exchanged: classes that have both
    records and strangers."""
    if labels is None or any(part.is_floating_point() for part in labels):
        return [torch.arange(n + count)]
    both = torch.cat([part.flatten() for part in labels])
    shared = set(both[:n].tolist()) & set(both[n:].tolist())
    return [(both == label).nonzero().flatten() for label in sorted(shared)]


def _permuted(
    scores: Tensor,
    n: int,
    groups: list[Tensor],
    shuffles: int,
    generator: torch.Generator,
    *,
    block: int = 2**24,
) -> tuple[float | None, float | None]:
    """The shares of shuffles in which records rank as high, and as low, as they do.

    block: numbers of the shuffles that are held at a time.
    """
    seen, total = 0.0, torch.zeros(shuffles, dtype=torch.float64)
    for rows in groups:
        ranks = torch.from_numpy(rankdata(scores[rows])) / len(rows)
        mine = int((rows < n).sum())
        seen += float(ranks[rows < n].sum())
        step = max(1, block // len(rows))
        for i in range(0, shuffles, step):
            part = total[i : i + step]
            order = torch.rand(len(part), len(rows), generator=generator).argsort(1)[:, :mine]
            part += ranks[order].sum(1)
    if not groups:
        return None, None
    # Sums of the same ranks in another order differ by rounding.
    high, low = (total >= seen - 1e-9).sum(), (total <= seen + 1e-9).sum()
    return (1 + int(high)) / (1 + shuffles), (1 + int(low)) / (1 + shuffles)
