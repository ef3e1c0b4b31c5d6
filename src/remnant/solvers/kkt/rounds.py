"""Rounds of independent starts: later ones begin at what the earlier ones agree on.

Every start of a later round begins with the agreed candidates and fresh random ones beside them,
so that what is left of the weights after the agreed records is searched again. At the end one
descent begins at everything that was found (`refined`): of several candidates for the same part of
the weights the better one gets the dual. None of these is independent any longer: how many starts
agree on a candidate is counted among the first round's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from remnant.solvers.consensus import Clusters, cluster, judged_by, most_starts_first, taken
from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.optimisers import Search
from remnant.solvers.kkt.problem import Problem
from remnant.solvers.kkt.search import Found, descend

KEPT = 0.5  # share of the starts that must agree for a candidate to be kept
UNION = 2  # times a start's candidates: as many clusters enter the last descent
BRIEF = 0.3  # of a start's steps, at half its rate and from sharpness MIDWAY: the last descent's
MIDWAY = 5.0
# Correlation at which two of the last descent's candidates are one. Where it is lower, records that
# are like each other are lost (of 40: 35 / 32 instead of 38 / 33).
DISTINCT = 0.95
SETTLED = 3.0  # a start whose misfit is above that many times the least has not come to rest


@dataclass(frozen=True, kw_only=True, eq=False)
class Agreed:
    """found: the last descent's. clusters: of it, best first. labels: of its candidates.

    starts: how many independent ones came to rest; the clusters are counted among those.
    """

    found: Found
    clusters: Clusters
    labels: Tensor
    starts: int


def search_in_rounds(
    problem: Problem,
    duals: Duals,
    search: Search,
    *,
    starts: int,
    rounds: int,
    refine: bool,
    generator: torch.Generator,
) -> Agreed | None:
    """What independent starts agree on; None where all of them left the range of numbers.

    Starts that have not come to rest are left out: they agree with nothing.
    """
    found = first = settled(descend(problem, duals, search, starts=starts, generator=generator))
    k, m = len(first.inputs), len(duals.labels)
    if not k:
        return None
    for _ in range(rounds - 1):
        again = _again(problem, duals, search, found, generator)
        found = descend(problem, duals, search, starts=k, generator=generator, begin=again)
    groups = cluster(found.inputs)
    if found is not first:
        groups = judged_by(groups, first.inputs)
    groups = most_starts_first(groups, k)
    if k == 1 or not refine:
        return Agreed(found=found, clusters=groups, labels=duals.labels.repeat(k), starts=k)
    joint = replace(duals, labels=duals.labels[groups.seed[: UNION * m] % m])
    found = refined(problem, joint, search, groups, generator)
    return Agreed(found=found, clusters=_distinct(found, first, m), labels=joint.labels, starts=k)


def refined(
    problem: Problem, joint: Duals, search: Search, groups: Clusters, generator: torch.Generator
) -> Found:
    """One short descent of as many clusters' centres as there are labels, all at once."""
    brief = replace(
        search,
        steps=max(1, round(BRIEF * search.steps)),
        lr=search.lr / 2,
        sharpness=(max(MIDWAY, search.sharpness[0]), search.sharpness[1]),
    )
    begin = problem.coordinates_of(groups.centres[None, : len(joint.labels)])
    return descend(problem, joint, brief, starts=1, generator=generator, begin=begin, solved=True)


def _distinct(found: Found, first: Found, most: int) -> Clusters:
    """At most that many different candidates of one descent, as the first starts agree on them.

    Those are taken that add most to the weights and are agreed on most: agreement alone loses
    records that one start has, and weight alone takes what is no record.
    """
    weight = found.weight[0]
    heavy = weight.argsort(descending=True, stable=True)
    groups = cluster(found.inputs[:, heavy], DISTINCT)  # of those alike, the heaviest
    groups = replace(groups, member=groups.member[:, heavy.argsort()], seed=heavy[groups.seed])
    groups = most_starts_first(judged_by(groups, first.inputs), len(first.inputs))
    value = groups.agreement * weight[groups.seed]
    rows = value.argsort(descending=True, stable=True)[:most]
    return taken(groups, rows.sort().values)


def settled(found: Found) -> Found:
    """The starts that have come to rest; never fewer than two, or the better half."""
    total = found.misfit.sum(1)
    better = total.sort().values[: max(2, len(total) // 2)]
    rest = total <= torch.maximum(SETTLED * better[0], better[-1])
    kept: dict[str, Any] = {
        name: value[rest] for name, value in vars(found).items() if isinstance(value, Tensor)
    }
    return replace(found, **kept)


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
