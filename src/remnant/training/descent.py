"""The loops of `train`: one gradient at a time, each step out of place."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.training.losses import Loss
from remnant.training.recipes import (
    SGD,
    Adam,
    DecayTime,
    FixedStep,
    GradientDescent,
    LossProportional,
    rate_share,
)
from remnant.training.steps import first_state, moved, update

Ending = tuple[str, dict[str, Any]]
"""What ended a loop ("diverged", "stalled" or the field that did) and figures for the ledger."""


@dataclass(frozen=True, kw_only=True, eq=False)
class TrainingLoss:
    """The mean loss as a function of weights, which take the place of the model's `parameters`.

    In the records' basis one weight more, the last, is the factor of the first layer's part
    outside it, whose square is `outside`: the loss does not depend on it, and the penalty does.
    """

    model: nn.Module
    parameters: Sequence[nn.Parameter]
    inputs: Tensor
    labels: Tensor
    loss: Loss
    outside: float | None = None

    def outputs(self, weights: Sequence[Tensor], rows: Tensor | None = None) -> Tensor:
        for parameter, weight in zip(self.parameters, weights, strict=False):
            parameter.data = weight  # no copy; ties between layers hold
        outputs: Tensor = self.model(self.inputs if rows is None else self.inputs[rows])
        return outputs

    def value(self, weights: Sequence[Tensor], rows: Tensor | None = None) -> Tensor:
        labels = self.labels if rows is None else self.labels[rows]
        return self.loss(self.outputs(weights, rows), labels)

    @torch.enable_grad()
    def gradient(
        self, weights: Sequence[Tensor], rows: Tensor | None = None
    ) -> tuple[float, Sequence[Tensor]]:
        """The loss on those rows (None = all) and its gradient, without the penalty."""
        loss = self.value(weights, rows)
        grads = torch.autograd.grad(
            loss, self.parameters, allow_unused=True, materialize_grads=True
        )
        rest = [torch.zeros_like(w) for w in weights[len(grads) :]]
        return loss.item(), [*grads, *rest]

    def square(self, weights: Sequence[Tensor]) -> float:
        """|theta|^2 over all that is trained."""
        parts = [w.square().sum().item() for w in weights]
        return sum(parts) if self.outside is None else sum(parts[:-1]) + self.outside * parts[-1]


class Walk:
    """Weights on their way down, and those of one step before, so that a step can be taken back."""

    def __init__(self, start: Sequence[Tensor]) -> None:
        self.weights = self.before = [w.detach() for w in start]
        self.steps = 0

    def move(self, weights: Sequence[Tensor]) -> None:
        self.before, self.weights = self.weights, list(weights)
        self.steps += 1

    def retreat(self) -> None:
        """Take the last step back (once)."""
        self.weights, self.before = self.before, self.weights
        self.steps -= 1


class Trace:
    """(step, loss) pairs, thinned by halves so that at most 500 are kept."""

    def __init__(self) -> None:
        self.points: list[tuple[int, float]] = []
        self._every, self._seen = 1, 0

    def state(self) -> list[Any]:
        return [self.points, self._every, self._seen]

    def restore(self, state: list[Any]) -> None:
        points, self._every, self._seen = state
        self.points = [(step, loss) for step, loss in points]

    def add(self, step: int, loss: float) -> None:
        if self._seen % self._every == 0:
            self.points.append((step, loss))
            if len(self.points) > 500:
                self.points = self.points[::2]
                self._every *= 2
        self._seen += 1


def step_count(recipe: FixedStep, n: int) -> int:
    """Steps of a run on n records that nothing stops."""
    if isinstance(recipe, SGD) or (isinstance(recipe, Adam) and recipe.epochs is not None):
        return (recipe.epochs or 0) * math.ceil(n / (recipe.batch_size or n))
    return recipe.steps or 0


def batches(recipe: FixedStep, n: int, generator: torch.Generator) -> Iterator[Tensor | None]:
    """The rows of every step, out of n, shuffled anew each epoch; None = all rows."""
    size = getattr(recipe, "batch_size", None)
    left = step_count(recipe, n)
    while left > 0:
        epoch = [None] if size is None else torch.randperm(n, generator=generator).split(size)
        yield from epoch[:left]
        left -= len(epoch)


def descend(
    problem: TrainingLoss,
    walk: Walk,
    recipe: GradientDescent | SGD | Adam,
    generator: torch.Generator,
    trace: Trace,
) -> Ending:
    """A fixed step along velocities or Adam's directions, over full or mini-batches."""
    n, stop = len(problem.inputs), recipe.stop_loss or -math.inf
    state = first_state(recipe, walk.weights)
    total, seen = 0.0, 0
    with task("training", step_count(recipe, n)) as tick:
        for rows in batches(recipe, n, generator):
            loss, grads = problem.gradient(walk.weights, rows)
            if not math.isfinite(loss):
                return "diverged", {}
            if rows is None:
                trace.add(walk.steps, loss)
                if loss <= stop:
                    return "stop_loss", {}
            share = rate_share(recipe, walk.steps, step_count(recipe, n))
            state = update(recipe, walk.steps, state, grads, share)
            walk.move(state[: len(grads)])
            tick(note=f"loss {loss:.3g}")
            if rows is not None:
                total, seen = total + loss * len(rows), seen + len(rows)
                if seen == n:
                    trace.add(walk.steps, total / n)
                    if total / n <= stop:
                        return "stop_loss", {}
                    total, seen = 0.0, 0
    return "epochs" if isinstance(recipe, SGD) else "steps", {}


def descend_for_decay_time(
    problem: TrainingLoss, walk: Walk, recipe: DecayTime, trace: Trace
) -> Ending:
    """Plain descent until sum(lr * weight_decay) is the decay time."""
    lr, decay, time, objective, cuts = recipe.lr, recipe.weight_decay, 0.0, math.inf, 0
    stopped = "decay_time"
    kept = checkpoint("decay", recipe, problem.inputs, problem.labels, walk.weights)
    if kept.state is not None:
        weights, walk.steps, lr, time, objective, cuts, traced = kept.state
        walk.weights = list(weights)
        trace.restore(traced)
    with task("training", recipe.decay_time) as tick:
        tick(time)
        while time < recipe.decay_time:
            if walk.steps == recipe.steps:
                stopped = "steps"
                break
            loss, grads = problem.gradient(walk.weights)
            if not math.isfinite(loss):
                stopped = "diverged"
                break
            trace.add(walk.steps, loss)
            if walk.steps and walk.steps % recipe.check_every == 0:
                last, objective = objective, loss + decay / 2 * problem.square(walk.weights)
                # Half a permille is left to the ripple of a step at the edge of stability.
                if walk.steps > recipe.warmup and objective > last * 1.0005:
                    lr, cuts = lr * 0.7, cuts + 1
            step = lr * min(1.0, (walk.steps + 1) / max(recipe.warmup, 1))
            walk.move(moved(walk.weights, grads, step, decay))
            time += step * decay
            if kept.due():
                state = [walk.weights, walk.steps, lr, time, objective, cuts, trace.state()]
                kept.save(state)
            tick(step * decay, note=f"loss {loss:.3g}")
    return stopped, {"decay_time_reached": time, "last_lr": lr, "lr_cuts": cuts}


def descend_in_proportion(
    problem: TrainingLoss, walk: Walk, recipe: LossProportional, trace: Trace
) -> Ending:
    """Plain descent, the longer the step the smaller the loss; a step that raises it is halved."""
    factor, rejected, time = 1.0, 0, 0.0
    loss, grads = problem.gradient(walk.weights)
    if not math.isfinite(loss):
        return "diverged", {}
    floor = recipe.stop_loss
    lowest = max(loss, floor)
    with task("training", math.log(lowest / floor)) as tick:  # progress is the fall of log loss
        while loss > floor and walk.steps < recipe.steps:
            trace.add(walk.steps, loss)
            step = recipe.lr * factor / (loss if loss < recipe.threshold else 1.0)
            walk.move(moved(walk.weights, grads, step))
            tried, its_grads = problem.gradient(walk.weights)
            while not tried <= 1.02 * loss:  # NaN is a rise too
                factor, step, rejected = factor / 2, step / 2, rejected + 1
                walk.retreat()
                if factor < 1e-12:
                    return "stalled", {"rejected": rejected, "gradient_time": time}
                walk.move(moved(walk.weights, grads, step))
                tried, its_grads = problem.gradient(walk.weights)
            loss, grads, time = tried, its_grads, time + step
            factor = min(factor * 1.01, 1.0)
            tick(math.log(lowest / min(lowest, max(loss, floor))), note=f"loss {loss:.3g}")
            lowest = min(lowest, max(loss, floor))
    stopped = "stop_loss" if loss <= floor else "steps"
    return stopped, {"rejected": rejected, "gradient_time": time}
