"""The scale of a candidate where the weights do not tell it.

Without biases a ReLU network is homogeneous: c x with dual / c leaves the same gradient. What is
left is the box of the data, and that real inputs fill it: the largest scale that (nearly) fits.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

from remnant.solvers.kkt.tolerances import TOLERANCES, Tolerances


def scaled_to_box(
    inputs: Tensor, low: Tensor, high: Tensor, *, told: bool, tolerances: Tolerances = TOLERANCES
) -> Tensor:
    """Candidates (m x d) at the largest scale at which they fit the box; unchanged if `told` and
    data of this kind do not fill it.

    told: the weights nearly determine the scale by themselves, as a softmax over several outputs
    does.
    """
    low, high = low.flatten(), high.flatten()
    scaled = inputs * largest_in_box(inputs, low, high, tolerances)[:, None]
    near = tolerances.near_side * (high - low)
    at_side = (scaled - low < near) | (high - scaled < near)
    filled = at_side.double().mean(1).median() >= tolerances.filled
    return inputs if told and not filled else scaled


def largest_in_box(inputs: Tensor, low: Tensor, high: Tensor, tolerances: Tolerances) -> Tensor:
    """m: the largest scale at which c x (x: m x d) leaves the box by at most the share allowed."""
    octaves = math.log2(tolerances.reach)
    count = round(80 * octaves) + 1  # neighbours are 1.7% apart
    scales = torch.logspace(-octaves, octaves, count, base=2.0, dtype=torch.float64)
    chosen = torch.full((len(inputs),), float(scales[0]), dtype=torch.float64)
    x, low, high = inputs.double(), low.double().flatten(), high.double().flatten()
    for c in scales.tolist():
        y = c * x
        left = (y - y.clamp(low, high)).square().sum(1)
        chosen[left <= tolerances.outside * y.square().sum(1)] = c
    return chosen
