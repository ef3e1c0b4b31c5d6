"""Whether a network would have told a record from a blend of several.

Records that fire the same neurons and are taught the same are added up by every layer: their blend
explains the weights as well as they do, and counts as one. Inputs that are large against the biases
(tables that were not scaled) often fire the same neurons at any size. So where the number of
records is not told, a candidate stands for a record only if another size of it fires others, and
if nothing beside noise is left of the layer's change.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.spans import Spectrum, rounding_level

LONGER, SHORTER = 1.5, 0.5  # sizes at which neurons have to change
# Neurons. Of 953 scaled records in networks of 60 to 200 neurons, nine in ten changed 4 and more,
# of 95 of unscaled tables with large values half changed none.
FEWEST = 2
FALL = 3.0  # of neighbouring singular values
ABOVE = 30.0  # times the rounding of the weights: that of many steps adds up to about 4 of it
BLENDS = "may be blends of several, which the layer would not have told apart; give --records"


def told_apart(first: Tensor, inputs: Tensor) -> Tensor:
    """k, bool: inputs (k x d) that fire other neurons of `first` (w x (d+1)) at other sizes."""
    along = inputs @ first[:, :-1].T
    fired = along + first[:, -1] > 0
    changed = [((size * along + first[:, -1] > 0) != fired) for size in (LONGER, SHORTER)]
    return torch.stack(changed).any(0).sum(1) >= FEWEST


def hides_more(spectrum: Spectrum, weights: Tensor, precision: float) -> bool:
    """Whether singular values beyond the count look like weaker records rather than noise: they
    fall steeply once more, above rounding. Seen of 8 of 24 wrong counts, and of none of 270 right.
    """
    level = rounding_level(weights, precision)
    tail = spectrum.values[spectrum.count :]
    first = tail[: 1 + len(tail) // 2]  # the end of any spectrum falls steeply
    falls = first[:-1] > FALL * first[1:]
    return bool((falls & (first[:-1] > ABOVE * level)).any())
