"""RecoNN: a network trained on shadow models to return the record of a released one (001, IV)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.reconstructor.networks import dense, initialise, patch_critic, transposed
from remnant.solvers.reconstructor.ridge import Standard

Perceptual = Callable[[Tensor, Tensor], Tensor]
"""(reconstructions, records), n x shape each -> one number, such as LPIPS."""


@dataclass(frozen=True, kw_only=True)
class RecoNN:
    """The network and its training. The defaults are the paper's for MNIST.

    critic: the weight of the patch critic's term (0 = none), which learns with `critic_lr`.
    perceptual_weight: that of the perceptual term, where one is given.
    """

    network: Literal["dense", "transposed"] = "dense"
    width: int = 1000
    epochs: int = 100
    batch_size: int = 128
    lr: float = 1e-3
    weight_decay: float = 0.0
    critic: float = 0.0
    critic_lr: float = 1e-5
    perceptual_weight: float = 1.0

    @classmethod
    def cifar(cls) -> RecoNN:
        """The paper's transposed network: Adam, decay and the patch critic."""
        return cls(network="transposed", epochs=1000, lr=1e-4, weight_decay=1e-4, critic=1.0)


@dataclass(frozen=True, kw_only=True, eq=False)
class NetworkReconstructor:
    """What is seen of k models (k x q) -> k x shape; `losses` is the mean loss of each epoch."""

    standard: Standard
    network: nn.Module
    losses: tuple[float, ...]

    @torch.no_grad()
    def __call__(self, seen: Tensor) -> Tensor:
        outputs: Tensor = self.network(self.standard(seen.float()))
        return outputs


def fit_reconn(
    seen: Tensor,
    inputs: Tensor,
    settings: RecoNN | None = None,
    *,
    generator: torch.Generator,
    perceptual: Perceptual | None = None,
) -> NetworkReconstructor:
    """seen: s x q of the shadow models, inputs: s x shape, their records."""
    settings = settings or RecoNN()
    if len(seen) != len(inputs) or len(seen) < 2:
        got = f"{len(seen)} and {len(inputs)}"
        raise InputError(expected("reconn: models and records", "two or more of each", got))
    standard, wanted = Standard.of(seen.float()), inputs.float()
    features, shape = standard(seen.float()), tuple(inputs.shape[1:])
    if settings.network == "dense":
        network: nn.Module = dense(features.shape[1], shape, width=settings.width)
        initialise(network, generator)
        steps: torch.optim.Optimizer = torch.optim.RMSprop(
            network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
    else:
        network = initialise(transposed(features.shape[1], shape), generator)
        steps = torch.optim.Adam(
            network.parameters(), lr=settings.lr, weight_decay=settings.weight_decay
        )
    critic = Critic(shape, settings, generator) if settings.critic else None
    losses = []
    with task("reconstructor", settings.epochs) as step, torch.enable_grad():
        for _ in range(settings.epochs):
            total = 0.0
            for rows in torch.randperm(len(seen), generator=generator).split(settings.batch_size):
                guess, truth = network(features[rows]), wanted[rows]
                loss = F.l1_loss(guess, truth) + F.mse_loss(guess, truth)
                if perceptual is not None:
                    loss = loss + settings.perceptual_weight * perceptual(guess, truth)
                if critic is not None:
                    loss = loss + settings.critic * critic(guess, truth)
                steps.zero_grad()
                loss.backward()
                steps.step()
                total += loss.item() * len(rows)
            losses.append(total / len(seen))
            step(note=f"loss {losses[-1]:.3g}")
    return NetworkReconstructor(standard=standard, network=network.eval(), losses=tuple(losses))


class Critic:
    """The patch critic and its optimiser: each call is one step of it, and the other's loss."""

    def __init__(
        self, shape: tuple[int, ...], settings: RecoNN, generator: torch.Generator
    ) -> None:
        if len(shape) != 3:
            raise InputError(expected("critic: shape", "c x h x w", shape))
        self.network = initialise(patch_critic(shape[0]), generator)
        self.steps = torch.optim.Adam(self.network.parameters(), lr=settings.critic_lr)

    def __call__(self, guess: Tensor, truth: Tensor) -> Tensor:
        real, made = self.network(truth), self.network(guess.detach())
        loss = F.mse_loss(real, torch.ones_like(real)) + made.square().mean()
        self.steps.zero_grad()
        loss.backward()
        self.steps.step()
        scores = self.network(guess)
        return F.mse_loss(scores, torch.ones_like(scores))
