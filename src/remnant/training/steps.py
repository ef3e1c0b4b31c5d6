"""One training step: how gradients move weights under a recipe.

Every step is out of place, so that a run can be differentiated, taken back and replayed: `train`,
fleets, private runs and replays all go through `update`. A run's state is one list of tensors: its
weights, then as many buffers of the weights' shapes as the optimiser keeps (`slots`).
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from remnant.training.recipes import Adam, AdamW, FixedStep


def slots(rule: FixedStep) -> int:
    """How many buffers of the weights' size the optimiser keeps."""
    return 2 if isinstance(rule, Adam) else int(rule.momentum > 0)


def first_state(rule: FixedStep, weights: Sequence[Tensor]) -> list[Tensor]:
    """The state before the first step."""
    return [*weights, *(torch.zeros_like(w) for _ in range(slots(rule)) for w in weights)]


def update(
    rule: FixedStep,
    step: int,
    state: Sequence[Tensor],
    grads: Sequence[Tensor],
    share: float = 1.0,
) -> list[Tensor]:
    """The state after step number `step` (from 0), as torch.optim.SGD, Adam and AdamW have it.

    share: what a schedule multiplies the rate by in this step.
    """
    size, decay, lr = len(grads), rule.weight_decay, rule.lr * share
    weights = state[:size]
    if isinstance(rule, Adam):
        moments = zip(state[size : 2 * size], state[2 * size :], strict=True)
        apart = isinstance(rule, AdamW)
        if not apart:
            grads = [torch.add(g, w, alpha=decay) for w, g in zip(weights, grads, strict=True)]
        found = [
            adam(g, *held, step + 1, rule.betas, rule.eps)
            for g, held in zip(grads, moments, strict=True)
        ]
        directions, first, second = (list(part) for part in zip(*found, strict=True))
        return [*moved(weights, directions, lr, decay if apart else 0.0), *first, *second]
    if not rule.momentum:
        return moved(weights, grads, lr, decay)
    velocity = [rule.momentum * v + g for v, g in zip(state[size:], grads, strict=True)]
    if decay:
        velocity = [v.add(w, alpha=decay) for v, w in zip(velocity, weights, strict=True)]
    return [*moved(weights, velocity, lr), *velocity]


def moved(
    weights: Sequence[Tensor], directions: Sequence[Tensor], lr: float, decay: float = 0.0
) -> list[Tensor]:
    """(1 - lr decay) weights - lr directions."""
    shrink = 1 - lr * decay
    return [
        torch.sub(w if shrink == 1.0 else shrink * w, d, alpha=lr)
        for w, d in zip(weights, directions, strict=True)
    ]


def adam(
    gradient: Tensor,
    first: Tensor,
    second: Tensor,
    count: int,
    betas: tuple[float, float] = (0.9, 0.999),
    eps: float = 1e-8,
) -> tuple[Tensor, Tensor, Tensor]:
    """The direction of Adam's step number `count` (from 1), and both moments after it."""
    b1, b2 = betas
    first = torch.lerp(first, gradient, 1 - b1)
    second = torch.addcmul(b2 * second, gradient, gradient, value=1 - b2)
    # A root has no slope at 0, where a weight has never moved; far below eps nothing changes.
    scale = second.clamp(min=1e-30).sqrt() / math.sqrt(1 - b2**count) + eps
    return first / scale / (1 - b1**count), first, second
