"""Which candidate stands for which record: the named protocols of the papers.

`greedy`, `nearest` and `optimal` read a matrix of distances (n x m, smaller is better; a pair that
is not finite cannot be matched). `nearest_averaged` needs the inputs themselves. `match` runs any
of them on inputs. A record without a candidate has index -1 and distance infinity.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial

import numpy as np
import torch
from scipy.optimize import linear_sum_assignment
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.scoring.distances import squared_l2, standardised_l2
from remnant.types import Matches


def greedy(distance: Tensor, *, measure: str = "squared_l2") -> Matches:
    """One-to-one, the closest pair first (000's reconstruction curve).

    Taking every pair that is each other's nearest, again and again, chooses the same pairs as one
    at a time, since none of them can be spoilt by a pair that is further apart.
    """
    left = _finite(distance)
    found = np.full(len(left), -1)
    rows, columns = np.arange(left.shape[0]), np.arange(left.shape[1])
    while left.size:
        column = left.argmin(1)
        row = left.argmin(0)
        mutual = (row[column] == np.arange(len(column))) & np.isfinite(left.min(1))
        if not mutual.any():
            break
        found[rows[mutual]] = columns[column[mutual]]
        spent = np.zeros(len(columns), dtype=bool)
        spent[column[mutual]] = True
        left, rows, columns = left[~mutual][:, ~spent], rows[~mutual], columns[~spent]
    return _matches("greedy", measure, distance, found)


def nearest(distance: Tensor, *, measure: str = "squared_l2") -> Matches:
    """Each record's nearest candidate; one candidate may stand for several records."""
    usable = _finite(distance)
    found = np.full(len(usable), -1)
    if usable.size:
        found = np.where(np.isfinite(usable.min(1)), usable.argmin(1), -1)
    return _matches("nearest", measure, distance, found)


def optimal(distance: Tensor, *, measure: str = "squared_l2") -> Matches:
    """One-to-one with the smallest sum of distances.

    The sum may prefer two middling pairs to one exact pair and one hopeless one, so an exact
    recovery can go to another record; `greedy` always keeps it.
    """
    usable = _finite(distance)
    found = np.full(len(usable), -1)
    # Whole rows and columns go first, so that the filler below, which costs digits, is rare.
    rows = np.flatnonzero(np.isfinite(usable).any(1))
    columns = np.flatnonzero(np.isfinite(usable).any(0))
    cost = usable[np.ix_(rows, columns)]
    if cost.size:
        forbidden = ~np.isfinite(cost)
        dear = (np.where(forbidden, 0.0, cost).max() + 1.0) * (min(cost.shape) + 1)
        i, j = linear_sum_assignment(np.where(forbidden, dear, cost))
        allowed = ~forbidden[i, j]
        found[rows[i[allowed]]] = columns[j[allowed]]
    return _matches("optimal", measure, distance, found)


def nearest_averaged(
    records: Tensor, candidates: Tensor, *, factor: float = 1.1, mean: Tensor | None = None
) -> tuple[Matches, Tensor]:
    """004's protocol: the average of all candidates within `factor` of the best distance.

    Distances are Eq. 16, taken without the image `mean` that the training subtracted, if any.
    Returns the matches (nearest candidate, its distance) and the averages, n x shape in the data's
    own scale, NaN where a record has none. `factor` is 1.1 for dense and 1.5 for conv networks.
    """
    shift = torch.zeros(()) if mean is None else mean
    distance = standardised_l2(records - shift.to(records), candidates - shift.to(candidates))
    nearest_one = nearest(distance, measure="standardised_l2")
    matches = Matches(
        protocol="nearest_averaged",
        measure="standardised_l2",
        candidate=nearest_one.candidate,
        distance=nearest_one.distance,
    )
    finite = torch.isfinite(distance)
    within = (finite & (distance <= factor * matches.distance[:, None])).double()
    usable = candidates.detach().cpu().double().flatten(1).nan_to_num(0.0, 0.0, 0.0)
    averages = (within @ usable) / within.sum(1, keepdim=True)  # 0 / 0 = NaN: nothing found
    return matches, averages.reshape(len(records), *records.shape[1:])


def stretch(images: Tensor) -> Tensor:
    """Each image moved and scaled so that it fills 0..1, as 004 does before SSIM; n x shape."""
    flat = images.flatten(1)
    low, high = flat.min(1, keepdim=True).values, flat.max(1, keepdim=True).values
    spread = torch.where(high > low, high - low, torch.ones_like(high))
    return ((flat - low) / spread).reshape(images.shape)


def take(candidates: Tensor, index: Tensor) -> Tensor:
    """The candidates at `index` as float64, n x shape; NaN where the index is -1."""
    out = torch.full((len(index), *candidates.shape[1:]), torch.nan, dtype=torch.float64)
    found = index >= 0
    out[found] = candidates.detach().cpu().double()[index[found]]
    return out


def match(
    records: Tensor, candidates: Tensor, *, protocol: str, distance: Tensor | None = None
) -> tuple[Matches, Tensor]:
    """Match by a named protocol: the matches, and the image that stands for each record.

    `distance` is their n x m matrix of squared L2, if it is at hand.
    """
    if protocol not in PROTOCOLS:
        raise InputError(expected("protocol", f"one of {', '.join(PROTOCOLS)}", protocol))
    if distance is None:
        distance = squared_l2(records, candidates)
    return PROTOCOLS[protocol](records, candidates, distance)


def _by_distance(
    assign: Callable[[Tensor], Matches], records: Tensor, candidates: Tensor, distance: Tensor
) -> tuple[Matches, Tensor]:
    matches = assign(distance)
    return matches, take(candidates, matches.candidate)


def _averaged(records: Tensor, candidates: Tensor, distance: Tensor) -> tuple[Matches, Tensor]:
    return nearest_averaged(records, candidates)  # it has a distance of its own


def _finite(distance: Tensor) -> np.ndarray:
    values = distance.detach().cpu().double().numpy()
    return np.where(np.isfinite(values), values, np.inf)


def _matches(protocol: str, measure: str, distance: Tensor, found: np.ndarray) -> Matches:
    candidate = torch.as_tensor(found, dtype=torch.long)
    chosen = torch.full((len(candidate),), torch.inf, dtype=torch.float64)
    rows = (candidate >= 0).nonzero().flatten()
    chosen[rows] = distance.detach().cpu().double()[rows, candidate[rows]]
    return Matches(protocol=protocol, measure=measure, candidate=candidate, distance=chosen)


PROTOCOLS: Mapping[str, Callable[[Tensor, Tensor, Tensor], tuple[Matches, Tensor]]] = {
    "optimal": partial(_by_distance, optimal),
    "greedy": partial(_by_distance, greedy),
    "nearest": partial(_by_distance, nearest),
    "nearest_averaged": _averaged,
}
"""Name -> (records, candidates, squared L2) -> (matches, the image that stands for each record)."""
