"""What an owner may do to weights or a gradient before letting them out, or to a recipe before
training, in the hope that records stay in. `docs/defences.md` says which of it helps.

Weights and gradients are one tensor per parameter; what comes back is new.
"""

from __future__ import annotations

import math
from dataclasses import replace

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.training.recipes import SGD, Adam, GradientDescent, PrivateDescent
from remnant.types import Weights

FORMATS = ("float32", "float16", "bfloat16", "sign")


def noisy(
    weights: Weights, share: float, *, generator: torch.Generator, since: Weights | None = None
) -> dict[str, Tensor]:
    """Output perturbation: Gaussian noise, as a share of each tensor's standard deviation.

    since: weights from before training; the share is then of what training changed.
    """
    _check("noise", share, share >= 0, "0 or more")
    found = {}
    for name, value in weights.items():
        moved = value if since is None else value - since[name]
        draw = torch.randn(value.shape, generator=generator, dtype=torch.float64)
        # A single number has no deviation: its size stands for it.
        scale = moved.double().std(correction=0) if moved.numel() > 1 else moved.double().abs()
        found[name] = (value + share * scale * draw.reshape(value.shape)).to(value.dtype)
    return found


def rounded(weights: Weights, form: str) -> dict[str, Tensor]:
    """Every number in fewer bits, in its own dtype again; "sign" keeps one."""
    if form not in FORMATS:
        raise InputError(expected("format", " or ".join(FORMATS), repr(form)))
    if form == "sign":
        return {name: torch.sign(value) for name, value in weights.items()}
    dtype: torch.dtype = getattr(torch, form)
    return {name: value.to(dtype).to(value.dtype) for name, value in weights.items()}


def pruned(weights: Weights, keep: float) -> dict[str, Tensor]:
    """Only the share `keep` of all numbers that are largest; the others are 0."""
    _check("share kept", keep, 0 < keep <= 1, "above 0 and at most 1")
    sizes = torch.cat([value.abs().flatten() for value in weights.values()])
    least = sizes.kthvalue(len(sizes) - max(1, round(keep * len(sizes))) + 1).values
    return {name: torch.where(v.abs() >= least, v, 0.0) for name, v in weights.items()}


def clipped(weights: Weights, most: float) -> dict[str, Tensor]:
    """Scaled down to the global L2 norm `most`, if it is longer."""
    _check("largest norm", most, most > 0, "more than 0")
    norm = math.sqrt(sum(float(value.double().square().sum()) for value in weights.values()))
    factor = most / norm if norm > most else 1.0
    return {name: value * factor for name, value in weights.items()}


def by_adam(recipe: GradientDescent, lr: float) -> Adam:
    """The same number of full-batch steps, stop and decay, by Adam at its own rate."""
    return Adam(
        lr=lr,
        steps=recipe.steps,
        weight_decay=recipe.weight_decay,
        loss=recipe.loss,
        stop_loss=recipe.stop_loss,
    )


def in_batches(recipe: GradientDescent, size: int, *, epochs: int | None = None) -> SGD:
    """Shuffled mini-batches; without `epochs`, as many as there were steps."""
    return SGD(
        lr=recipe.lr,
        epochs=epochs or recipe.steps,
        batch_size=size,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        loss=recipe.loss,
        stop_loss=recipe.stop_loss,
    )


def stopped_early(recipe: GradientDescent, share: float) -> GradientDescent:
    """Only that share of the steps."""
    _check("share of the steps", share, 0 < share <= 1, "above 0 and at most 1")
    return replace(recipe, steps=max(1, round(share * recipe.steps)))


def made_private(
    recipe: GradientDescent, *, noise: float, clip: float = 1.0, steps: int | None = None
) -> PrivateDescent:
    """Clipped and noisy full batches in their place; noise 0 clips only. A private run does not
    look at its loss, so it has no `stop_loss`."""
    return PrivateDescent(
        lr=recipe.lr,
        steps=steps or recipe.steps,
        momentum=recipe.momentum,
        weight_decay=recipe.weight_decay,
        loss=recipe.loss,
        noise=noise,
        clip=clip,
    )


def _check(what: str, value: float, fits: bool, wanted: str) -> None:
    if not (fits and math.isfinite(value)):
        raise InputError(expected(what, wanted, value))
