"""RecoNN: a network trained on shadow models to return the record of a released one (001, IV).

The paper's dense layers and loss (its network for MNIST). It sees principal components of the
shadows, by Adam with a rate that falls: that did better than the paper's raw weights and RMSProp.
"""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.reconstructor.ridge import Standard, best_standard


@dataclass(frozen=True, kw_only=True)
class RecoNN:
    """The network and its training.

    components: principal components of the shadows that the network sees (0 = every weight).
    width: neurons of each of its two hidden layers. The rate rises to `lr` over the first twentieth
    of the steps and falls to 0 along a cosine.
    """

    components: int = 1000
    width: int = 1000
    epochs: int = 40
    batch_size: int = 128
    lr: float = 1e-3


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkReconstructor:
    """What is seen of k models (k x q) -> k x shape; `losses` is the mean loss of each epoch.

    basis: q x components, or None where the network sees all q.
    """

    standard: Standard
    basis: Tensor | None
    network: nn.Module
    losses: tuple[float, ...]

    def features(self, seen: Tensor) -> Tensor:
        found = self.standard(seen.float())
        return found if self.basis is None else found @ self.basis

    @torch.no_grad()
    def __call__(self, seen: Tensor) -> Tensor:
        outputs: Tensor = self.network(self.features(seen))
        return outputs


def principal(features: Tensor, count: int, *, rows: int = 2000) -> Tensor:
    """q x count: the main directions of the first `rows` models, scaled to entries of order 1."""
    some = features[:rows]
    values, vectors = torch.linalg.eigh(some @ some.T)
    top = values[-count:].clamp(min=1e-6 * float(values[-1]))
    basis = some.T @ (vectors[:, -count:] / top.sqrt())
    scaled: Tensor = basis / (features @ basis).std()
    return scaled


def fit_reconn(
    seen: Tensor,
    inputs: Tensor,
    settings: RecoNN | None = None,
    *,
    generator: torch.Generator,
    labels: Tensor | None = None,
) -> NetworkReconstructor:
    """seen: s x q of the shadow models, inputs: s x shape, their records; labels, where given, help
    to choose how what is seen is standardised."""
    settings = settings or RecoNN()
    if len(seen) != len(inputs) or len(seen) < 2:
        got = f"{len(seen)} and {len(inputs)}"
        raise InputError(expected("reconn: models and records", "two or more of each", got))
    standard, shape = best_standard(seen.float(), inputs, labels), tuple(inputs.shape[1:])
    features, basis = standard(seen.float()), None
    if 0 < settings.components < min(features.shape):
        basis = principal(features, settings.components)
        features = features @ basis
    network = hidden_layers(features.shape[1], settings.width, shape, generator)
    losses = descend(network, features, inputs.float(), settings, generator)
    return NetworkReconstructor(
        standard=standard, basis=basis, network=network.eval(), losses=losses
    )


@torch.no_grad()
def hidden_layers(
    features: int, width: int, shape: tuple[int, ...], generator: torch.Generator
) -> nn.Sequential:
    """Two hidden layers of ReLU, every number uniform in +-1/sqrt(fan in) from the generator."""
    sizes = (features, width, width, math.prod(shape))
    dense = [nn.Linear(before, after) for before, after in itertools.pairwise(sizes)]
    for layer in dense:
        for parameter in layer.parameters():
            bound = layer.in_features**-0.5
            parameter.uniform_(-bound, bound, generator=generator)
    first, second, last = dense
    return nn.Sequential(first, nn.ReLU(), second, nn.ReLU(), last, nn.Unflatten(1, shape))


def descend(
    network: nn.Module,
    features: Tensor,
    wanted: Tensor,
    settings: RecoNN,
    generator: torch.Generator,
) -> tuple[float, ...]:
    """Train the network in place; the mean loss of each epoch."""
    adam = torch.optim.Adam(network.parameters(), lr=settings.lr)
    total = settings.epochs * math.ceil(len(features) / settings.batch_size)
    rates = torch.optim.lr_scheduler.LambdaLR(adam, lambda step: cosine(step, total))
    losses = []
    with task("reconstructor", settings.epochs) as advance, torch.enable_grad():
        for _ in range(settings.epochs):
            lost = 0.0
            order = torch.randperm(len(features), generator=generator)
            for rows in order.split(settings.batch_size):
                guess, truth = network(features[rows]), wanted[rows]
                loss = F.l1_loss(guess, truth) + F.mse_loss(guess, truth)
                adam.zero_grad()
                loss.backward()
                adam.step()
                rates.step()
                lost += loss.item() * len(rows)
            losses.append(lost / len(features))
            advance(note=f"loss {losses[-1]:.3g}")
    return tuple(losses)


def cosine(step: int, total: int) -> float:
    """From 0 to 1 over the first twentieth, then down to 0."""
    return min(1.0, 20 * (step + 1) / total) * (1 + math.cos(math.pi * step / total)) / 2
