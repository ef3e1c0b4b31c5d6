"""The scale of a candidate where the weights do not tell it.

Without biases a ReLU network is homogeneous: c x with dual / c leaves the same gradient. What is
left is the box of the data, and that real inputs fill it: the largest scale that (nearly) fits.
"""

from __future__ import annotations

import torch
from torch import Tensor

OUTSIDE = 0.01  # share of a candidate's squared length that may leave the box
SCALES = torch.logspace(-2, 2, 161, base=2.0, dtype=torch.float64)  # from 1/4 to 4
# Data fill the box where the median candidate has FILLED of its pixels within END of a side: .65 to
# .85 for digits, .03 to .13 for faces.
END, FILLED = 0.05, 0.4


def scaled_to_box(inputs: Tensor, low: Tensor, high: Tensor, *, told: bool) -> Tensor:
    """m x d at the largest scale in the box; as they are if `told` and data do not fill the box.

    told: the weights tell the scale, nearly, as a softmax over several outputs does.
    """
    low, high = low.flatten(), high.flatten()
    scaled = inputs * largest_in_box(inputs, low, high, OUTSIDE)[:, None]
    near = END * (high - low)
    at_end = (scaled - low < near) | (high - scaled < near)
    filled = at_end.double().mean(1).median() >= FILLED
    return inputs if told and not filled else scaled


def largest_in_box(inputs: Tensor, low: Tensor, high: Tensor, outside: float) -> Tensor:
    """m: the largest of SCALES at which c x (x: m x d) leaves the box by at most that share."""
    chosen = torch.full((len(inputs),), float(SCALES[0]), dtype=torch.float64)
    x, low, high = inputs.double(), low.double().flatten(), high.double().flatten()
    for c in SCALES.tolist():
        y = c * x
        left = (y - y.clamp(low, high)).square().sum(1)
        chosen[left <= outside * y.square().sum(1)] = c
    return chosen
