"""The reconstructor networks of paper 001 (Tables VI, VIII and IX)."""

from __future__ import annotations

import itertools
import math

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected


class Reshape(nn.Module):
    """n x anything -> n x shape."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.shape = shape

    def forward(self, x: Tensor) -> Tensor:
        return x.reshape(-1, *self.shape)


def dense(features: int, shape: tuple[int, ...], *, width: int = 1000) -> nn.Sequential:
    """Two hidden layers of ReLU: the paper's for MNIST."""
    return nn.Sequential(
        nn.Linear(features, width), nn.ReLU(),
        nn.Linear(width, width), nn.ReLU(),
        nn.Linear(width, math.prod(shape)), Reshape(*shape),
    )  # fmt: skip


def transposed(features: int, shape: tuple[int, ...], *, channels: int = 64) -> nn.Sequential:
    """A dense layer and two transposed convolutions: the paper's for CIFAR-10."""
    if len(shape) != 3 or shape[1] % 4 or shape[2] % 4:
        raise InputError(expected("transposed: shape", "c x h x w, sides divisible by 4", shape))
    low = (channels, shape[1] // 4, shape[2] // 4)

    def wider(before: int, after: int) -> nn.ConvTranspose2d:
        return nn.ConvTranspose2d(before, after, 5, stride=2, padding=2, output_padding=1)

    return nn.Sequential(
        nn.Linear(features, math.prod(low)), nn.ReLU(), Reshape(*low),
        wider(channels, channels // 2), nn.ReLU(),
        wider(channels // 2, shape[0]),
    )  # fmt: skip


def patch_critic(channels: int, *, width: int = 64) -> nn.Sequential:
    """Scores of overlapping patches, n x 1 x h x w: is this a record or a reconstruction?"""
    layers: list[nn.Module] = []
    sizes = (channels, width, 2 * width, 4 * width, 8 * width, 1)
    for at, (before, after) in enumerate(itertools.pairwise(sizes)):
        layers += [nn.Conv2d(before, after, 4, stride=2 if at < 3 else 1, padding=2)]
        layers += [nn.LeakyReLU(0.2)] if at < 4 else []
    return nn.Sequential(*layers)


@torch.no_grad()
def initialise(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """Uniform in +-1/sqrt(fan in), from the generator."""
    for module in model.modules():
        if isinstance(module, nn.Linear | nn.Conv2d | nn.ConvTranspose2d):
            bound = module.weight[0].numel() ** -0.5
            for parameter in module.parameters(recurse=False):
                parameter.uniform_(-bound, bound, generator=generator)
    return model
