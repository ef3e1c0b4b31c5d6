"""The scale of a candidate where the weights do not tell it.

Without biases a ReLU network is homogeneous: c x with dual / c leaves the same gradient. What is
left is the box of the data, and that real inputs fill it: the largest scale that (nearly) fits.
"""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from remnant.solvers.kkt.duals import Objective

# Share of a candidate's squared length that may leave the box. A softmax tells the scale, nearly.
OUTSIDE: Mapping[Objective, float] = {"margin": 0.01, "soft": 0.001, "free": 0.01}
SCALES = torch.logspace(-2, 2, 161, base=2.0, dtype=torch.float64)  # from 1/4 to 4


def largest_in_box(inputs: Tensor, low: Tensor, high: Tensor, outside: float) -> Tensor:
    """m: the largest of SCALES at which c x (x: m x d) leaves the box by at most that share."""
    chosen = torch.full((len(inputs),), float(SCALES[0]), dtype=torch.float64)
    x, low, high = inputs.double(), low.double().flatten(), high.double().flatten()
    for c in SCALES.tolist():
        y = c * x
        left = (y - y.clamp(low, high)).square().sum(1)
        chosen[left <= outside * y.square().sum(1)] = c
    return chosen
