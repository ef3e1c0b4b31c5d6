"""ReLU and its like with a second derivative, for replaying networks that were trained with them.

The end of a run jumps wherever a unit of some record switches, and the plain derivative does not
see it coming: between the jumps it is right, across them it is wrong. Here value and slope stay
those of ReLU, so the run stays the run; only the derivative of the slope becomes a bump
alpha s (1 - s), s = sigmoid(alpha x), which is what many switching units do on average.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.training.fleet import SharedRun
from remnant.training.stacked import stacked_forward


class Kinked(nn.Module):
    """ReLU, or one with a slope of `low` below its kink `at`, and its slope; the derivative of the
    slope is a bump of width 1 / alpha."""

    elementwise = True

    def __init__(self, alpha: float, *, at: float = 0.0, low: float = 0.0) -> None:
        super().__init__()
        self.alpha, self.at, self.low = alpha, at, low

    def forward(self, x: Tensor) -> Tensor:
        t = x - self.at
        # The softplus has the bump; what its slope and value lack to ReLU's is added as constants.
        slope = (t > 0).to(t.dtype) - torch.sigmoid(self.alpha * t)
        curved = F.softplus(t, beta=self.alpha, threshold=50.0) + slope.detach() * t
        bent = curved + (t.relu() - curved).detach() + self.at
        return bent if not self.low else self.low * x + (1 - self.low) * bent


def kinked(module: nn.Module, alpha: float) -> nn.Module | None:
    """The module with a second derivative; None if it has no kink that is known of."""
    if isinstance(module, nn.ReLU):
        return Kinked(alpha)
    if isinstance(module, nn.LeakyReLU):
        return Kinked(alpha, low=module.negative_slope)
    at = getattr(module, "kink", None)  # max(at, x)
    return None if at is None else Kinked(alpha, at=float(at))


def with_kinks(run: SharedRun, alpha: float) -> SharedRun:
    """The same run, whose kinks can be differentiated twice."""
    model = copy.deepcopy(run.model)
    for name, module in list(model.named_modules()):
        bent = kinked(module, alpha)
        if bent is not None:
            model.set_submodule(name, bent)
    return replace(run, model=model, forward=stacked_forward(model))


def has_kinks(run: SharedRun) -> bool:
    """Whether the end of the run jumps. (SELU's kink is slight: its plain derivative does.)"""
    modules = list(run.model.modules())
    return any(isinstance(m, nn.SELU) or kinked(m, 1.0) is not None for m in modules)
