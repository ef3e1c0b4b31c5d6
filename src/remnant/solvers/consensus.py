"""What independent starts agree on. Agreement needs no truth; it is evidence, not proof.

A small misfit is no evidence: fits go below that of the true records. A wrong candidate, though,
is wrong in another way each time, so what several starts return alike is likely a record.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

ALIKE = 0.8  # correlation at which two candidates count as one


@dataclass(frozen=True, kw_only=True, eq=False)
class Clusters:
    """Best first. centres: c x d. agreement: c, 0..1, the mean over other starts of the best
    correlation with the cluster's seed. starts: c, how many starts have a member. member: k x m,
    the cluster of each candidate. seed: c, its row among the k * m.
    """

    centres: Tensor
    agreement: Tensor
    starts: Tensor
    member: Tensor
    seed: Tensor

    def __len__(self) -> int:
        return len(self.centres)


def unit_rows(rows: Tensor) -> Tensor:
    """Each row less its mean, at length one; a constant row becomes zero."""
    centred = rows - rows.mean(1, keepdim=True)
    length: Tensor = centred.norm(dim=1, keepdim=True).clamp(min=1e-12)
    return centred / length


def cluster(candidates: Tensor, alike: float = ALIKE) -> Clusters:
    """Group k x m x d candidates of k starts by correlation of at least `alike`.

    Seeds are taken by falling agreement; a seed gathers all that are alike and not gathered yet.
    A centre is the mean of each start's member that is closest to the seed.
    """
    k, m, _ = candidates.shape
    rows = candidates.detach().double().flatten(0, 1)
    rows = torch.where(torch.isfinite(rows).all(1, keepdim=True), rows, torch.zeros_like(rows))
    unit = unit_rows(rows)
    similar = unit @ unit.T
    best = similar.view(k * m, k, m).max(2).values  # with each start
    run = torch.arange(k).repeat_interleave(m)
    others = best.scatter(1, run[:, None], 0.0)
    agreement = (others.sum(1) / max(k - 1, 1)).clamp(0, 1)
    free = torch.ones(k * m, dtype=torch.bool)
    member = torch.full((k * m,), -1)
    centres: list[Tensor] = []
    seeds: list[int] = []
    starts: list[int] = []
    for seed in agreement.argsort(descending=True, stable=True).tolist():
        if not free[seed]:
            continue
        mine = (similar[seed] >= alike) & free
        mine[seed] = True
        free &= ~mine
        member[mine] = len(seeds)
        closest = similar[seed].masked_fill(~mine, -2.0).view(k, m).max(1)
        has = closest.values > -2
        picked = (torch.arange(k) * m + closest.indices)[has]
        centres.append(rows[picked].mean(0))
        seeds.append(seed)
        starts.append(int(has.sum()))
    seed_rows = torch.tensor(seeds, dtype=torch.long)
    return Clusters(
        centres=torch.stack(centres),
        agreement=agreement[seed_rows],
        starts=torch.tensor(starts),
        member=member.view(k, m),
        seed=seed_rows,
    )


def judged_by(groups: Clusters, independent: Tensor, alike: float = ALIKE) -> Clusters:
    """The same clusters, counted and ordered by how starts k x m x d, not their own, agree."""
    k, m, _ = independent.shape
    rows = unit_rows(independent.detach().double().flatten(0, 1))
    best = (unit_rows(groups.centres) @ rows.T).view(-1, k, m).max(2).values
    agreement = best.mean(1).clamp(0, 1)
    order = agreement.argsort(descending=True, stable=True)
    rank = order.argsort()
    return replace(
        groups,
        centres=groups.centres[order],
        agreement=agreement[order],
        starts=(best >= alike).sum(1)[order],
        member=rank[groups.member],
        seed=groups.seed[order],
    )
