"""Whether a network would have told a record from a blend of several.

Records that fire the same neurons and are taught the same are added up by every layer: their blend
explains the weights as well as they do, and counts as one. Inputs that are large against the biases
(tables that were not scaled) often fire the same neurons at any size. So where the number of
records is not told, a candidate stands for a record only if another size of it fires others.
"""

from __future__ import annotations

import torch
from torch import Tensor

LONGER, SHORTER = 1.5, 0.5  # sizes at which neurons have to change
FEWEST = 2  # neurons; one may change by chance
BLENDS = "fire the same neurons at any size, so each may be a blend of several; give --records"


def told_apart(first: Tensor, inputs: Tensor) -> Tensor:
    """k, bool: inputs (k x d) that fire other neurons of `first` (w x (d+1)) at other sizes."""
    along = inputs @ first[:, :-1].T
    fired = along + first[:, -1] > 0
    changed = [((size * along + first[:, -1] > 0) != fired) for size in (LONGER, SHORTER)]
    return torch.stack(changed).any(0).sum(1) >= FEWEST
