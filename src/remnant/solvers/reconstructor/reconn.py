"""RecoNN: a network trained on shadow models to return the record of a released one (001, IV)."""

from __future__ import annotations

import copy
import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.reconstructor.networks import dense, initialise, patch_critic, transposed
from remnant.solvers.reconstructor.ridge import Standard, best_standard

Perceptual = Callable[[Tensor, Tensor], Tensor]
"""(reconstructions, records), n x shape each -> one number, such as LPIPS."""


@dataclass(frozen=True, kw_only=True)
class RecoNN:
    """The network and its training: the paper's loss and layers, trained as we found best.

    components: principal components of the shadows that the network sees (0 = every weight).
    evened: models may be brought to one length too, where that tells more; else every coordinate
    has zero mean and unit variance and no more, as in the paper. The rate rises over the first
    steps and falls to 0 along a cosine unless it is `constant`. critic: the weight of the patch
    critic's term (0 = none), which learns with `critic_lr` and has `critic_width` channels first.
    perceptual_weight: that of the perceptual term, where one is given.
    """

    network: Literal["dense", "transposed"] = "dense"
    optimiser: Literal["adam", "rmsprop"] = "adam"
    components: int = 1000
    evened: bool = True
    width: int = 1000
    epochs: int = 40
    batch_size: int = 128
    lr: float = 1e-3
    constant: bool = False
    weight_decay: float = 0.0
    critic: float = 0.0
    critic_lr: float = 1e-5
    critic_width: int = 64
    perceptual_weight: float = 1.0

    @classmethod
    def paper(cls) -> RecoNN:
        """The paper's for MNIST."""
        return cls(optimiser="rmsprop", components=0, evened=False, epochs=100, constant=True)

    @classmethod
    def cifar(cls) -> RecoNN:
        """The paper's transposed network: Adam, decay and the patch critic."""
        return cls(
            network="transposed", components=0, evened=False, epochs=1000, lr=1e-4, constant=True,
            weight_decay=1e-4, critic=1.0,
        )  # fmt: skip


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkReconstructor:
    """What is seen of k models (k x q) -> k x shape; `losses` is the mean loss of each epoch.

    basis: q x components or None, of one overall scale.
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


@computed_there
def fit_reconn(
    seen: Tensor,
    inputs: Tensor,
    settings: RecoNN | None = None,
    *,
    generator: torch.Generator,
    labels: Tensor | None = None,
    perceptual: Perceptual | None = None,
    start: NetworkReconstructor | None = None,
) -> NetworkReconstructor:
    """seen: s x q of the shadow models, inputs: s x shape, their records; labels, where given, help
    to choose how what is seen is standardised. start: one that was trained on other shadow models,
    to go on from."""
    settings = settings or RecoNN()
    if len(seen) != len(inputs) or len(seen) < 2:
        got = f"{len(seen)} and {len(inputs)}"
        raise InputError(expected("reconn: models and records", "two or more of each", got))
    if start is not None:
        network = copy.deepcopy(start.network).train()
        features = start.features(seen)
        losses = descend(network, features, inputs.float(), settings, generator, perceptual)
        return replace(start, network=network.eval(), losses=losses)
    shape = tuple(inputs.shape[1:])
    evened = settings.evened
    standard = best_standard(seen.float(), inputs, labels) if evened else Standard.of(seen.float())
    features, basis = standard(seen.float()), None
    if 0 < settings.components < min(features.shape):
        basis = principal(features, settings.components)
        features = features @ basis
    if settings.network == "dense":
        network = dense(features.shape[1], shape, width=settings.width)
    else:
        network = transposed(features.shape[1], shape)
    losses = descend(initialise(network, generator), features, inputs.float(), settings, generator,
                     perceptual)  # fmt: skip
    return NetworkReconstructor(
        standard=standard, basis=basis, network=network.eval(), losses=losses
    )


def descend(
    network: nn.Module,
    features: Tensor,
    wanted: Tensor,
    settings: RecoNN,
    generator: torch.Generator,
    perceptual: Perceptual | None,
) -> tuple[float, ...]:
    """Train the network in place; the mean loss of each epoch."""
    kind = torch.optim.Adam if settings.optimiser == "adam" else torch.optim.RMSprop
    steps = kind(network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay)
    total = settings.epochs * math.ceil(len(features) / settings.batch_size)
    rates = torch.optim.lr_scheduler.LambdaLR(
        steps, lambda k: 1.0 if settings.constant else cosine(k, total)
    )
    critic = Critic(tuple(wanted.shape[1:]), settings, generator) if settings.critic else None
    losses = []
    with task("reconstructor", settings.epochs) as step, torch.enable_grad():
        for _ in range(settings.epochs):
            lost = 0.0
            order = torch.randperm(len(features), generator=generator)
            for rows in order.split(settings.batch_size):
                guess, truth = network(features[rows]), wanted[rows]
                loss = F.l1_loss(guess, truth) + F.mse_loss(guess, truth)
                if perceptual is not None:
                    loss = loss + settings.perceptual_weight * perceptual(guess, truth)
                if critic is not None:
                    loss = loss + settings.critic * critic(guess, truth)
                steps.zero_grad()
                loss.backward()
                steps.step()
                rates.step()
                lost += loss.item() * len(rows)
            losses.append(lost / len(features))
            step(note=f"loss {losses[-1]:.3g}")
    return tuple(losses)


def cosine(step: int, total: int) -> float:
    """From 0 to 1 over the first twentieth, then down to 0."""
    return min(1.0, 20 * (step + 1) / total) * (1 + math.cos(math.pi * step / total)) / 2


class Critic:
    """The patch critic and its optimiser: each call is one step of it, and the other's loss."""

    def __init__(
        self, shape: tuple[int, ...], settings: RecoNN, generator: torch.Generator
    ) -> None:
        if len(shape) != 3:
            raise InputError(expected("critic: shape", "c x h x w", shape))
        self.network = initialise(patch_critic(shape[0], width=settings.critic_width), generator)
        self.steps = torch.optim.Adam(self.network.parameters(), lr=settings.critic_lr)

    def __call__(self, guess: Tensor, truth: Tensor) -> Tensor:
        real, made = self.network(truth), self.network(guess.detach())
        loss = F.mse_loss(real, torch.ones_like(real)) + made.square().mean()
        self.steps.zero_grad()
        loss.backward()
        self.steps.step()
        scores = self.network(guess)
        return F.mse_loss(scores, torch.ones_like(scores))
