"""Which candidate stands for which record.

`greedy` reads a matrix of distances and pairs one-to-one; `average_of_nearest` is the protocol of
paper 004, which averages the candidates that lie about as near to a record as the nearest does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from remnant.scoring.distances import standardised_l2


class Matches(NamedTuple):
    """Which candidate stands for which record."""

    candidate: Tensor  # n, -1 = none
    distance: Tensor  # n


def greedy(distance: Tensor) -> Matches:
    """One-to-one, the closest pair first (000's reconstruction curve); squared L2, n x m.

    A pair that is not finite cannot be matched; a record without a candidate has index -1 and
    distance infinity. Taking every pair that is each other's nearest, again and again, chooses the
    same pairs as one at a time, since none of them can be spoilt by a pair that is further apart.
    """
    values = distance.detach().cpu().double().numpy()
    left = np.where(np.isfinite(values), values, np.inf)
    candidate, chosen = np.full(len(left), -1), np.full(len(left), np.inf)
    rows, columns = np.arange(left.shape[0]), np.arange(left.shape[1])
    while left.size:
        column = left.argmin(1)
        row = left.argmin(0)
        mutual = (row[column] == np.arange(len(column))) & np.isfinite(left.min(1))
        if not mutual.any():
            break
        candidate[rows[mutual]] = columns[column[mutual]]
        chosen[rows[mutual]] = left.min(1)[mutual]
        spent = np.zeros(len(columns), dtype=bool)
        spent[column[mutual]] = True
        left, rows, columns = left[~mutual][:, ~spent], rows[~mutual], columns[~spent]
    return Matches(torch.from_numpy(candidate), torch.from_numpy(chosen))


def average_of_nearest(
    records: Tensor, candidates: Tensor, *, factor: float = 1.1, mean: Tensor | None = None
) -> Tensor:
    """004's protocol: for each record the mean of all candidates within `factor` of the nearest.

    Distances are Eq. 16, taken without the image `mean` that the training subtracted, if any.
    Returns n x shape in the data's own scale, NaN where a record has none. `factor` is 1.1 for
    dense and 1.5 for convolutional networks.
    """
    shift = torch.zeros(()) if mean is None else mean
    distance = standardised_l2(records - shift.to(records), candidates - shift.to(candidates))
    distance = distance.nan_to_num(torch.inf, torch.inf)
    nearest = distance.min(1, keepdim=True).values if len(candidates) else distance
    within = (distance.isfinite() & (distance <= factor * nearest)).double()
    usable = candidates.detach().cpu().double().flatten(1).nan_to_num(0.0, 0.0, 0.0)
    averages = (within @ usable) / within.sum(1, keepdim=True)  # 0 / 0 = NaN: nothing found
    return averages.reshape(records.shape)


def stretch(images: Tensor) -> Tensor:
    """Each image moved and scaled so that it fills 0..1, as 004 does before SSIM; n x shape."""
    flat = images.flatten(1)
    low, high = flat.min(1, keepdim=True).values, flat.max(1, keepdim=True).values
    spread = torch.where(high > low, high - low, torch.ones_like(high))
    return ((flat - low) / spread).reshape(images.shape)
