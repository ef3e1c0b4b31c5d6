"""Which records a certified candidate may be claimed for, and how likely chance explains it.

An attack that certifies states an error for each candidate. A record is claimed if a certified
candidate lies within twice that error of it: then it is the record itself, not its likeness.
Strangers (records that were never trained on) tell how often a record would be met by chance.

Rows are records or candidates in the model's scale, k x d; distances are root mean squares.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from scipy.stats import hypergeom, poisson
from torch import Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Claims:
    """candidate: n, which certified candidate claims each record, -1 for none. foreign: m, whether
    a candidate is certified but claims no record. chance: how likely strangers would be claimed as
    often as the records are."""

    candidate: Tensor
    distance: Tensor  # n, to the nearest certified candidate, in the model's scale
    foreign: Tensor
    chance: float
    by_chance: float  # how many records strangers are expected to be claimed as

    @property
    def count(self) -> int:
        return int((self.candidate >= 0).sum())


def claim(
    records: Tensor,
    candidates: Tensor,
    *,
    passed: Tensor,
    error: Tensor,
    strangers: Tensor,
    own: bool = False,
) -> Claims:
    """Which records the certified candidates claim, and how likely that is by chance.

    passed (m, bool) and error (m, NaN = unstated) are what the attack said. own: candidate i was
    sought for record i and may claim no other; records past the last candidate have none.
    """
    n, m = len(records), len(candidates)
    reach = _reach(error, strangers)
    distance = rms_distance(records, candidates)
    distance[:, ~passed] = math.inf
    if own:
        others = torch.ones(n, m, dtype=torch.bool)
        others.fill_diagonal_(False)
        distance[others] = math.inf
    within = distance <= reach
    met = torch.zeros(n, dtype=torch.bool) if m == 0 else within.any(1)
    nearest = distance.min(1) if m else None
    apart = torch.full((n,), math.inf) if nearest is None else nearest.values
    best = torch.where(within, distance, math.inf).argmin(1) if m else torch.zeros(n).long()
    each = torch.where(passed, chance_of_meeting(candidates, reach, strangers), 0.0)
    expected = float(each.sum()) if own else min(n * float(each.sum()), float(n))
    count = int(met.sum())
    chance = float(poisson.sf(count - 1, expected)) if count else 1.0
    if count and not own and ways_of(strangers) == 0:  # as often as strangers coincide, no less
        near = (rms_distance(strangers, candidates[passed]) <= reach[passed]).any(1)
        chance = float(hypergeom.sf(count - 1, n + len(near), count + int(near.sum()), n))
    return Claims(
        candidate=torch.where(met, best, -1),
        distance=apart,
        foreign=passed & ~within.any(0) if n else passed,
        chance=chance,
        by_chance=expected,
    )


def chance_of_meeting(candidates: Tensor, reach: Tensor, strangers: Tensor) -> Tensor:
    """m: how likely a random stranger lies within `reach` of each candidate.

    The share of strangers that do, where some do. Where none does and records hardly ever coincide,
    the chance shrinks further with the ratio of `reach` to the distance of the nearest stranger, to
    the power `ways_of`.
    """
    count = len(strangers)
    if not count:
        return torch.ones(len(candidates), dtype=torch.float64)
    distance = rms_distance(candidates, strangers)
    within = (distance <= reach[:, None]).sum(1).double()
    by_count = (within + 1) / (count + 1)
    ways = ways_of(strangers)
    if ways == 0:
        return by_count
    nearest = distance.min(1).values.clamp_min(torch.finfo(torch.float64).tiny)
    fall = (reach / nearest).clamp(max=1.0) ** ways
    return torch.where(within > 0, by_count, fall / (count + 1))


def ways_of(rows: Tensor, *, most: int = 4, bits: float = 40.0) -> int:
    """The power with which the chance of a coincidence shrinks with distance: in how many numbers
    records hardly ever agree, at most `most`; 0 where whole records repeat.

    most: a higher power would claim more than strangers can show. bits: of information in a record,
    past which even whole numbers do not coincide.
    """
    if repeats(rows):
        return 0
    distinct = [len(column.unique()) for column in rows.T]
    if sum(math.log2(count) for count in distinct) > bits:
        return most
    return min(most, sum(2 * count > len(rows) for count in distinct))


def repeats(rows: Tensor, *, share: float = 0.02) -> bool:
    """Whether at least a `share` of the records are copies of others, as in tables of whole numbers
    and categories."""
    return len(torch.unique(rows, dim=0)) < (1 - share) * len(rows)


def rms_distance(a: Tensor, b: Tensor) -> Tensor:
    """Root mean square differences, k x l in float64, from the differences themselves."""
    d = max(1, a.shape[1])
    exact = "donot_use_mm_for_euclid_dist"
    return torch.cdist(a.double(), b.double(), compute_mode=exact) / math.sqrt(d)


def spread(rows: Tensor) -> float:
    """Root mean square distance from the mean."""
    return float((rows.double() - rows.double().mean(0)).square().mean().sqrt())


def unstated_error(strangers: Tensor, *, share: float = 1e-3) -> float:
    """How far from a certified candidate that states no error its record may lie: a share of what
    strangers differ by."""
    return share * spread(strangers) if len(strangers) > 1 else 0.0


def _reach(error: Tensor, strangers: Tensor, *, slack: float = 2.0) -> Tensor:
    """m: how far from a certified candidate its record may lie. slack: times the stated error; more
    claims rough records, less misses those just outside."""
    return torch.where(error.isnan(), unstated_error(strangers), slack * error.double())
