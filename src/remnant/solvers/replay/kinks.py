"""ReLU with a second derivative, for replaying networks that were trained with it.

The end of a run jumps wherever a unit of some record switches, and the plain derivative does not
see it coming: between the jumps it is right, across them it is wrong. Here value and slope stay
those of ReLU, so the run stays the run; only the derivative of the slope becomes a bump
alpha s (1 - s), s = sigmoid(alpha x), which is what many switching units do on average.
"""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.training.fleet import SharedRun, stacked_forward


class _Step(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, alpha: float) -> Tensor:
        return (x > 0).to(x.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.alpha = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        s = torch.sigmoid(ctx.alpha * ctx.saved_tensors[0])
        return grads[0] * (ctx.alpha * s * (1 - s)), None


class _Kinked(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(x: Tensor, alpha: float) -> Tensor:
        return x.clamp(min=0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Tensor, float], output: Tensor) -> None:
        ctx.save_for_backward(inputs[0])
        ctx.alpha = inputs[1]

    @staticmethod
    def backward(ctx: Any, *grads: Tensor) -> tuple[Tensor, None]:
        return grads[0] * _apply(_Step, ctx.saved_tensors[0], ctx.alpha), None


def _apply(function: Any, x: Tensor, alpha: float) -> Tensor:
    value: Tensor = function.apply(x, alpha)
    return value


class KinkedReLU(nn.Module):
    """ReLU and its slope; the slope's derivative is a bump of width 1 / alpha."""

    elementwise = True

    def __init__(self, alpha: float) -> None:
        super().__init__()
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        return _apply(_Kinked, x, self.alpha)


def with_kinks(run: SharedRun, alpha: float) -> SharedRun:
    """The same run, whose ReLUs can be differentiated twice."""
    model = copy.deepcopy(run.model)
    for name, module in list(model.named_modules()):
        if isinstance(module, nn.ReLU):
            model.set_submodule(name, KinkedReLU(alpha))
    return replace(run, model=model, forward=stacked_forward(model))


def has_kinks(run: SharedRun) -> bool:
    return any(isinstance(module, nn.ReLU) for module in run.model.modules())
