"""What descents on images share: where they start, how smooth an image is, steps by sign."""

from __future__ import annotations

import torch
from torch import Tensor

Bounds = tuple[Tensor | float, Tensor | float]
"""The pixel box, in the model's scale."""


def draw(
    count: int, shape: tuple[int, ...], bounds: Bounds | None, generator: torch.Generator
) -> Tensor:
    """Random inputs, count x shape: uniform in the box, or standard normal. In float64, so that
    every dtype starts at the same."""
    if bounds is None:
        return torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in bounds)
    return low + (high - low) * torch.rand(count, *shape, generator=generator, dtype=torch.float64)


def total_variation(inputs: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across; flat inputs have none."""
    if inputs.ndim < 4:
        return inputs.new_zeros(())
    return inputs.diff(dim=-2).abs().mean() + inputs.diff(dim=-1).abs().mean()


def sign_descent(
    inputs: Tensor, rate: float, steps: int
) -> tuple[torch.optim.Adam, torch.optim.lr_scheduler.LRScheduler]:
    """Adam for `inputs`, which is to be given signs of slopes, and its rate: a tenth after 3/8, 5/8
    and 7/8 of the steps."""
    adam = torch.optim.Adam([inputs], lr=rate)
    cuts = [steps * eighths // 8 for eighths in (3, 5, 7)]
    return adam, torch.optim.lr_scheduler.MultiStepLR(adam, cuts, gamma=0.1)
