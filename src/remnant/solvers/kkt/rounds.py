"""Rounds of independent starts: later ones begin at what the earlier ones agree on.

Every start of a later round begins with the agreed candidates and fresh random ones beside them,
so that what is left of the weights after the agreed records is searched again. Those starts are
no longer independent: how many agree on a candidate is counted among the first round's.
"""

from __future__ import annotations

import math

import torch

from remnant.solvers.consensus import Clusters, cluster, judged_by
from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.optimisers import Search
from remnant.solvers.kkt.problem import Problem
from remnant.solvers.kkt.search import Found, descend

KEPT = 0.5  # share of the starts that must agree for a candidate to be kept


def search_in_rounds(
    problem: Problem,
    duals: Duals,
    search: Search,
    *,
    starts: int,
    rounds: int,
    generator: torch.Generator,
) -> tuple[Found, Clusters]:
    """The last round's candidates, and their clusters as independent starts agree on them."""
    found = first = descend(problem, duals, search, starts=starts, generator=generator)
    for _ in range(rounds - 1):
        found = descend(
            problem,
            duals,
            search,
            starts=starts,
            generator=generator,
            begin=_again(problem, duals, search, found, generator),
        )
    groups = cluster(found.inputs)
    return found, groups if found is first else judged_by(groups, first.inputs)


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
