"""A small network and records to train it on, in float64."""

import torch
from torch import nn

from remnant.training import train
from remnant.types import Examples, Scaling
from seeding import seeded

SCALING = Scaling(mean=torch.full((4, 6), 0.4), std=torch.tensor(0.5))


def records(n: int = 10, classes: int = 3, seed: int = 1) -> Examples:
    g = seeded(seed)
    inputs = torch.rand(n, 4, 6, generator=g, dtype=torch.float64)
    ids = tuple(f"r{i}" for i in range(n))
    return Examples(inputs=inputs, labels=torch.arange(n) % classes, ids=ids)


@torch.no_grad()
def drawn(model: nn.Module, seed: int = 2) -> nn.Module:
    """The model in float64 with weights from a seed."""
    g = seeded(seed)
    for p in model.double().parameters():
        p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype) / p.shape[-1] ** 0.5)
    return model


@torch.no_grad()
def network(c: int = 3, width: int = 16, scale: float = 1.0, activation=nn.ReLU) -> nn.Module:
    hidden = [nn.Linear(24, width), activation(), nn.Linear(width, width), activation()]
    model = drawn(nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, c)))
    model[1].weight.mul_(scale)
    model[1].bias.mul_(scale)
    return model


def run(model, examples, recipe, seed=0, **options):
    return train(model, examples, recipe, scaling=SCALING, generator=seeded(seed), **options)
