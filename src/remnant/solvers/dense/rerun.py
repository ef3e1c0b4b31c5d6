"""The training between two checkpoints, run again from recovered records.

Full-batch descent with momentum has three numbers: step size, momentum and number of steps. If a
run with some choice of them on the recovered records ends at the released weights, the model was
trained so, and the distance at which it ends says how far the records are off. Where steps are
small the three hardly matter one by one: many choices take nearly the same path, and any that fits
will do.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remnant.solvers.numerics import best_fit
from remnant.training.losses import loss_named
from remnant.training.recipes import GradientDescent


@dataclass(frozen=True, kw_only=True, eq=False)
class Training:
    """Both ends of a training, and what follows its first dense layer.

    Weights are a list: the first layer's in the records' span (w x n), then those of `tail`.
    """

    tail: nn.Module
    names: tuple[str, ...]  # of the tail's parameters
    start: list[Tensor]
    end: list[Tensor]
    labels: Tensor  # n

    def outputs(self, weights: Sequence[Tensor], y: Tensor) -> Tensor:
        named = dict(zip(self.names, weights[1:], strict=True))
        outputs: Tensor = functional_call(self.tail, named, (y @ weights[0].T,))
        return outputs

    @property
    def moved(self) -> Tensor:
        return torch.sqrt(distance(self.end, self.start))


@dataclass(kw_only=True)
class Budget:
    """Steps of gradient descent that are left to take, over all runs."""

    steps: int = 8_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """A recipe, and how far from the released weights it ends, relative to their whole way."""

    recipe: GradientDescent
    gap: float


def distance(one: Sequence[Tensor], other: Sequence[Tensor]) -> Tensor:
    """The squared distance of two lists of weights."""
    return torch.stack([(a - b).square().sum() for a, b in zip(one, other, strict=True)]).sum()


def run_again(
    training: Training,
    y: Tensor,
    recipe: GradientDescent,
    budget: Budget,
    see: Callable[[Tensor], None] | None = None,
) -> list[Tensor]:
    """The weights that the recipe ends at with records y (n x n); `see` gets the first layer's
    after each step."""
    loss = loss_named(recipe.loss)
    weights, y = training.start, y.to(training.start[0])
    velocity = [torch.zeros_like(w) for w in weights]
    budget.steps -= recipe.steps
    for _ in range(recipe.steps):
        leaves = [w.detach().requires_grad_() for w in weights]
        with torch.enable_grad():
            value = loss(training.outputs(leaves, y), training.labels)
            gradients = torch.autograd.grad(value, leaves)
        moved = []
        for w, v, g in zip(leaves, velocity, gradients, strict=True):
            v.mul_(recipe.momentum).add_(g)
            if recipe.weight_decay:
                v.add_(w.detach(), alpha=recipe.weight_decay)
            moved.append(w.detach().sub(v, alpha=recipe.lr))
        weights = moved
        if see is not None:
            see(weights[0])
    return weights


def travelled(momentum: float, steps: int) -> float:
    """How far a weight moves whose gradient is 1 in every step, in units of the step size."""
    return math.fsum((1 - momentum**k) / (1 - momentum) for k in range(1, steps + 1))


def guesses(
    loss: str, told: GradientDescent | None = None, *, steps: int = 16, time: float = 10.0
) -> list[GradientDescent]:
    """Recipes to begin a fit with where the number of steps is not told: `steps` that move a weight
    whose gradient is 1 by `time`."""
    return [
        GradientDescent(
            lr=time / travelled(momentum, steps),
            momentum=momentum,
            steps=steps,
            loss=loss,
            weight_decay=0.0 if told is None else told.weight_decay,
        )
        for momentum in ((0.0, 0.5, 0.9) if told is None else (told.momentum,))
    ]


def fit_recipe(
    training: Training,
    y: Tensor,
    first: GradientDescent,
    budget: Budget,
    *,
    rounds: int = 5,
    nudge: float = 1e-3,
    settled: float = 1e-2,
    largest: float = 0.999,
) -> Fit:
    """Step size and momentum by Gauss-Newton steps from `first`, whose number of steps stays.

    Its unknowns are the logarithm of the time travelled, and the momentum; slopes are differences
    by `nudge`. It ends where a step lowers the gap by less than the share `settled`.
    """
    steps, unit = first.steps, training.moved

    def recipe_at(x: Tensor) -> GradientDescent:
        momentum = min(max(float(x[1]), 0.0), largest)
        return replace(
            first, lr=math.exp(float(x[0])) / travelled(momentum, steps), momentum=momentum
        )

    def residual(x: Tensor) -> Tensor:
        end = run_again(training, y, recipe_at(x), budget)
        return torch.cat(
            [((a - b) / unit).flatten() for a, b in zip(end, training.end, strict=True)]
        )

    time = first.lr * travelled(first.momentum, steps)
    x = torch.tensor([math.log(time), first.momentum], dtype=torch.float64)
    here = residual(x)
    for _ in range(rounds):
        nudges = torch.diag(torch.tensor([nudge, -nudge if x[1] > 0.5 else nudge])).double()
        slopes = torch.stack([(residual(x + n) - here) / n.sum() for n in nudges], 1)
        if not bool(here.isfinite().all() & slopes.isfinite().all()):  # it diverged
            break
        solved = best_fit(slopes, here[:, None])
        move = -solved[:, 0].double().clamp(-0.7, 0.7)
        gap = float(here.norm())
        for share in (1.0, 0.3, 0.1, 0.03):
            trial = x + share * move
            trial[1] = trial[1].clamp(0.0, largest)
            there = residual(trial)
            if float(there.norm()) < gap:
                x, here = trial, there
                break
        if not float(here.norm()) < (1 - settled) * gap or budget.steps < 0:
            break
    gap = float(here.norm())
    return Fit(recipe=recipe_at(x), gap=gap if math.isfinite(gap) else math.inf)


def with_steps(recipe: GradientDescent, steps: int) -> GradientDescent:
    """A recipe that takes nearly the same path in another number of steps: the same momentum in
    time, the same way in all."""
    momentum = max(0.0, 1 - (1 - recipe.momentum) * recipe.steps / steps)
    time = recipe.lr * travelled(recipe.momentum, recipe.steps)
    return replace(recipe, steps=steps, momentum=momentum, lr=time / travelled(momentum, steps))


def fit_steps(
    training: Training,
    y: Tensor,
    best: Fit,
    budget: Budget,
    strides: Sequence[int],
    *,
    clearer: float = 0.05,
) -> Fit:
    """The recipe with the best number of steps: changed up or down by each stride in turn, as
    long as the distance from the released weights falls by at least the share `clearer`."""
    for stride in strides:
        better: Fit | None = best
        while better is not None and budget.steps > 0:
            best, count = better, better.recipe.steps
            fits = (
                fit_recipe(training, y, with_steps(best.recipe, steps), budget, rounds=1)
                for steps in (count - stride, count + stride)
                if steps > 0
            )
            better = next((fit for fit in fits if fit.gap < (1 - clearer) * best.gap), None)
    return best
