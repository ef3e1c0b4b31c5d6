"""Rounds of independent starts: later ones begin at what the earlier ones agree on.

Every start of a later round begins with the agreed candidates and fresh random ones beside them,
so that what is left of the weights after the agreed records is searched again. Those starts are
no longer independent: how many agree on a candidate is counted among the first round's.
"""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remnant.solvers.consensus import Clusters, cluster, judged_by
from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.optimisers import Search
from remnant.solvers.kkt.problem import Problem
from remnant.solvers.kkt.search import Found, descend

KEPT = 0.5  # share of the starts that must agree for a candidate to be kept
SETTLED = 3.0  # a start whose misfit is above that many times the least has not come to rest


def search_in_rounds(
    problem: Problem,
    duals: Duals,
    search: Search,
    *,
    starts: int,
    rounds: int,
    generator: torch.Generator,
) -> tuple[Found, Clusters]:
    """The last round's candidates, and their clusters as independent starts agree on them.

    Starts that have not come to rest are left out: they agree with nothing.
    """
    found = first = settled(descend(problem, duals, search, starts=starts, generator=generator))
    for _ in range(rounds - 1):
        found = descend(
            problem,
            duals,
            search,
            starts=len(found.inputs),
            generator=generator,
            begin=_again(problem, duals, search, found, generator),
        )
    groups = cluster(found.inputs)
    if found is not first:
        groups = judged_by(groups, first.inputs)
    return found, most_starts_first(groups, len(first.inputs))


def settled(found: Found) -> Found:
    """The starts that have come to rest; never fewer than two, or the better half."""
    total = found.misfit.sum(1)
    better = total.sort().values[: max(2, len(total) // 2)]
    rest = total <= torch.maximum(SETTLED * better[0], better[-1])
    kept: dict[str, Any] = {
        name: value[rest] for name, value in vars(found).items() if isinstance(value, Tensor)
    }
    return replace(found, **kept)


def most_starts_first(groups: Clusters, starts: int) -> Clusters:
    """Agreement times the share of starts that have a member, and in that order.

    The mean alone puts what one start has, and others nearly, before what all but one have.
    """
    agreement = groups.agreement * groups.starts / starts
    order = agreement.argsort(descending=True, stable=True)
    return replace(
        groups,
        centres=groups.centres[order],
        agreement=agreement[order],
        starts=groups.starts[order],
        member=order.argsort()[groups.member],
        seed=groups.seed[order],
    )


def _again(
    problem: Problem, duals: Duals, search: Search, found: Found, generator: torch.Generator
) -> torch.Tensor:
    """k x m x r: agreed centres in slots of their own label, random coordinates elsewhere."""
    k, m, r = found.coordinates.shape
    groups = cluster(found.inputs)
    fresh = search.spread * torch.randn((k, m, r), generator=generator, dtype=torch.float64)
    used = torch.zeros(m, dtype=torch.bool)
    for row in (groups.starts >= max(2, math.ceil(KEPT * k))).nonzero().flatten().tolist():
        label = duals.labels[groups.seed[row] % m]
        free = ((duals.labels == label) & ~used).nonzero().flatten()
        if not len(free):
            continue
        used[free[0]] = True
        members = (groups.member == row).flatten()
        fresh[:, free[0]] = found.coordinates.flatten(0, 1)[members].double().mean(0)
    return fresh
