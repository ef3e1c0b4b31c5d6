"""A small residual network with batch norm, to pretrain and fine-tune (He et al. 2016)."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn


class Block(nn.Module):
    """Two 3 x 3 convolutions with batch norm, added to the input, or to a 1 x 1 convolution of it
    where the shape changes."""

    def __init__(self, before: int, width: int, stride: int) -> None:
        super().__init__()
        self.body = nn.Sequential(
            nn.Conv2d(before, width, 3, stride, 1, bias=False),
            nn.BatchNorm2d(width),
            nn.ReLU(),
            nn.Conv2d(width, width, 3, 1, 1, bias=False),
            nn.BatchNorm2d(width),
        )
        self.shortcut: nn.Module = nn.Identity()
        if stride > 1 or before != width:
            self.shortcut = nn.Sequential(
                nn.Conv2d(before, width, 1, stride, bias=False), nn.BatchNorm2d(width)
            )
        self.activation = nn.ReLU()

    def forward(self, inputs: Tensor) -> Tensor:
        outputs: Tensor = self.activation(self.body(inputs) + self.shortcut(inputs))
        return outputs


def residual(
    shape: Sequence[int],
    widths: Sequence[int],
    dense: Sequence[int],
    *,
    generator: torch.Generator,
    pool: bool = True,
) -> nn.Sequential:
    """Stem, one block a width (each after the first halves the sides), dense layers.

    shape: channels x height x width of an input. dense: widths after the blocks, the outputs last
    (none: the features themselves come out). pool: only the mean over places enters the dense
    layers. Weights: N(0, 2 / fan_in) in convolutions, PyTorch's law in dense layers, all drawn from
    `generator` in float64.
    """
    before, *sides = shape
    layers: list[nn.Module] = [
        nn.Conv2d(before, widths[0], 3, 1, 1, bias=False),
        nn.BatchNorm2d(widths[0]),
        nn.ReLU(),
    ]
    for index, (before, width) in enumerate(zip([widths[0], *widths], widths, strict=False)):
        stride = 1 if index == 0 else 2
        layers.append(Block(before, width, stride))
        sides = [-(-side // stride) for side in sides]
    layers += [nn.AdaptiveAvgPool2d(1), nn.Flatten()] if pool else [nn.Flatten()]
    entering = widths[-1] if pool else widths[-1] * math.prod(sides)
    for before, width in zip([entering, *dense], dense, strict=False):
        layers += [nn.Linear(before, width), nn.ReLU()]
    model = nn.Sequential(*layers[: -1 if dense else None])
    for module in model.modules():
        for parameter in module.parameters(recurse=False):
            draw = torch.empty(parameter.shape, dtype=torch.float64)
            if isinstance(module, nn.Conv2d):
                draw.normal_(0, math.sqrt(2 / parameter[0].numel()), generator=generator)
            elif isinstance(module, nn.Linear):
                bound = module.in_features**-0.5
                draw.uniform_(-bound, bound, generator=generator)
            else:
                continue
            parameter.data.copy_(draw)
    return model


def freeze_norms(model: nn.Module) -> nn.Module:
    """Evaluation mode, and no batch norm's scale and shift is trained. The model itself."""
    for module in model.eval().modules():
        if isinstance(module, nn.BatchNorm2d):
            module.requires_grad_(False)
    return model
