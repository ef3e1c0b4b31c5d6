"""Images from what a frozen network makes of them, by descent (Mahendran and Vedaldi 2015).

For backbones that no exact inversion reads (`solvers.convolutions` does plain convolutions): blocks
with shortcuts, batch norm, a mean over places. Where features are fewer than pixels, many images
have them, and the one found is smooth: its small misfit then says nothing about pixels.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.devices import computed_there
from remnant.progress import task
from remnant.solvers.descent.images import Bounds, draw
from remnant.solvers.numerics import minimise


@dataclass(frozen=True, kw_only=True)
class FeatureInversion:
    """Settings of the descent, L-BFGS from near zero, the mean of the model's inputs."""

    evaluations: int = 300
    image_std: float = 0.01  # of the start: at zero itself units without a bias have no slope
    roughness: float = 0.2  # weight of the mean absolute difference of neighbouring pixels
    box: float = 0.01  # weight of the squared excess over the pixel box
    # Share of a record's largest feature below which one is silent: rounding must not pass for a
    # unit that fires, nor a weak unit for rounding.
    silent: float = 1e-4


@computed_there
def invert_by_descent(
    backbone: nn.Module,
    features: Tensor,
    settings: FeatureInversion,
    *,
    shape: tuple[int, ...],
    generator: torch.Generator,
    bounds: Bounds | None = None,
) -> tuple[Tensor, Tensor]:
    """Inputs k x shape (model's scale) whose features come near `features` (k x f), and for each
    the squared misfit over |features|^2. bounds: the pixel box."""
    like = next(backbone.parameters())
    wanted = features.detach().to(like).flatten(1)
    size = wanted.square().sum(1).clamp(min=1e-30)
    start = (settings.image_std * draw(len(features), shape, None, generator)).to(like)
    backbone = copy.deepcopy(backbone)  # it is watched
    misfit = _misfit(backbone, start[:1], settings.silent)
    box = None if bounds is None else [torch.as_tensor(end).to(like) for end in bounds]

    def objective(points: Tensor) -> tuple[Tensor, Tensor]:
        at = points.detach().view(-1, *shape).requires_grad_()
        value = misfit(at, wanted) / size + settings.roughness * _roughness(at)
        if box is not None:
            value = value + settings.box * (at - at.clamp(*box)).square().flatten(1).sum(1)
        return value.detach(), torch.autograd.grad(value.sum(), at)[0].flatten(1)

    with task("images from features", settings.evaluations) as step:
        found = minimise(objective, start.flatten(1), evaluations=settings.evaluations, each=step)
    inputs = found.points.view(-1, *shape)
    if box is not None:
        inputs = inputs.clamp(*box)
    with torch.no_grad():
        left = (backbone(inputs).flatten(1) - wanted).square().sum(1) / size
    return inputs, left


def _misfit(
    backbone: nn.Module, probe: Tensor, silent: float
) -> Callable[[Tensor, Tensor], Tensor]:
    """|features of inputs - wanted|^2, n.

    Where the backbone ends in a ReLU it is taken before it: a unit that ought to fire and does not
    has no slope after it, and one that ought to be silent may be anything below zero.
    """
    last = [module for module in backbone.modules() if isinstance(module, nn.ReLU)][-1:]
    before: list[Tensor] = []
    hooks = [m.register_forward_pre_hook(lambda _, given: before.append(given[0])) for m in last]
    with torch.no_grad():
        out = backbone(probe).flatten(1)
    if not before or not torch.equal(before[-1].relu().flatten(1), out):
        for hook in hooks:  # or what it saw would be kept, pass after pass
            hook.remove()
        return lambda inputs, wanted: (backbone(inputs).flatten(1) - wanted).square().sum(1)

    def misfit(inputs: Tensor, wanted: Tensor) -> Tensor:
        backbone(inputs)
        units = before.pop().flatten(1)
        before.clear()
        fires = wanted > silent * wanted.amax(1, keepdim=True)
        return torch.where(fires, units - wanted, units.clamp(min=0)).square().sum(1)

    return misfit


def _roughness(images: Tensor) -> Tensor:
    """The mean absolute difference between neighbours, n, rounded at zero."""
    if images.ndim < 4:
        return images.new_zeros(len(images))
    parts = (images.diff(dim=-2), images.diff(dim=-1))
    return torch.stack([p.square().add(1e-6).sqrt().flatten(1).mean(1) for p in parts]).sum(0)
