"""When a single record counts as reconstructed (001, V-B): against what was had before, by what a
classifier sees in it, and by what it tells of membership.

Errors are mean squares over the entries of an input, k for k pairs.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.scoring.nulls import nearest_public


def mse_each(guess: Tensor, truth: Tensor) -> Tensor:
    """k: the mean squared error of each of k x shape."""
    return (guess - truth).flatten(1).square().mean(1)


def oracle(truth: Tensor, pool: Tensor) -> Tensor:
    """k: the error of the nearest of the adversary's own records (pool x shape)."""
    return nearest_public(truth, pool)[1] / math.prod(truth.shape[1:])


def order_statistics(
    truth: Tensor, pool: Tensor, shares: Sequence[float] = (0.01, 0.1, 0.5)
) -> dict[str, float]:
    """Figure 3: means over targets of the nearest error to the pool and of its quantiles."""
    errors = torch.cdist(truth.flatten(1), pool.flatten(1)).square() / math.prod(truth.shape[1:])
    quantiles = torch.quantile(errors, torch.tensor(shares, dtype=errors.dtype), dim=1).mean(1)
    return {"nearest": float(oracle(truth, pool).mean())} | {
        f"q{share:g}": float(value) for share, value in zip(shares, quantiles, strict=True)
    }


def kl_each(classifier: nn.Module, guess: Tensor, truth: Tensor) -> Tensor:
    """k: KL divergence of the classifier's outputs at the guess from those at the truth."""
    with torch.no_grad():
        at_truth, at_guess = (classifier(x).log_softmax(1) for x in (truth, guess))
    divergence = F.kl_div(at_guess, at_truth, reduction="none", log_target=True).sum(1)
    return divergence.clamp(min=0.0)  # rounding may leave less


def membership_game(guess: Tensor, truth: Tensor, other: Tensor) -> float:
    """Algorithm 2 played with a reconstruction: how often it is nearer to the member (k x shape
    each) than to the other record that might have been."""
    return float((mse_each(guess, truth) < mse_each(guess, other)).double().mean())


def membership_auc(members: Tensor, others: Tensor) -> float:
    """The area under the ROC curve of telling members by a lower loss; ties count half."""
    below = (members[:, None] < others[None]).double().mean()
    ties = (members[:, None] == others[None]).double().mean()
    return float(below + ties / 2)
