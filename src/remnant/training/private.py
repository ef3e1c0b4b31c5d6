"""Differentially private descent: clipped per-record gradients, Poisson sampling, Gaussian noise.

The guarantee is that of the released weights, all of them if need be. Loss, accuracy and trace are
the owner's books: they are computed from the records and are not private. Noise comes from floating
point numbers and an ordinary generator, which is right for a measurement and not for a release.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn
from torch.func import functional_call, grad_and_value, vmap

from remnant.progress import task
from remnant.training.descent import Ending, Trace, TrainingLoss, Walk
from remnant.training.losses import loss_named
from remnant.training.recipes import PrivateDescent
from remnant.training.steps import first_state, update

Watch = Callable[[Sequence[Tensor], Sequence[Tensor], Tensor], None]
"""Is told, at each step, the weights before it, the noisy sum of gradients at them, and the rows
that were drawn. The adversary of the accounting knows the draws of all records but its own."""


def privacy(recipe: PrivateDescent) -> dict[str, Any] | None:
    """The fields of a `bounds.Ledger` for a run by that recipe, or None where nothing is promised.

    Zero-out: the sum is divided by a number that is the same with and without the record. All the
    recipe's steps count, also those that a divergence left out.
    """
    if recipe.noise == 0 or not recipe.clipping:
        return None
    return {
        "noise_multiplier": recipe.noise,
        "steps": recipe.steps,
        "sampling_rate": recipe.sampling,
        "clip": recipe.clip,
        "adjacency": "zero-out",
    }


@dataclass(frozen=True, kw_only=True, eq=False)
class PerRecord:
    """Gradients of each record's own loss, for the parameters of `model` that are trained."""

    model: nn.Module
    inputs: Tensor
    labels: Tensor
    recipe: PrivateDescent
    at_once: int = 2**24  # numbers of per-record gradients: 64 MB in float32

    def clipped(self, weights: Sequence[Tensor], rows: Tensor) -> tuple[list[Tensor], Tensor]:
        """For those n records, one tensor n x shape per parameter, and n losses."""
        names = [name for name, p in self.model.named_parameters() if p.requires_grad]
        loss = loss_named(self.recipe.loss)

        def one(values: dict[str, Tensor], x: Tensor, y: Tensor) -> Tensor:
            return loss(functional_call(self.model, values, (x[None],)), y[None])

        mapped = vmap(grad_and_value(one), in_dims=(None, 0, 0))
        values = dict(zip(names, weights, strict=True))
        grads, losses = mapped(values, self.inputs[rows], self.labels[rows])
        found = [grads[name] for name in names]
        return (clip_each(found, self.recipe.clip) if self.recipe.clipping else found), losses

    def total(self, weights: Sequence[Tensor], rows: Tensor) -> tuple[list[Tensor], float]:
        """The sum of those records' clipped gradients and the sum of their losses."""
        sums, losses = [torch.zeros_like(w) for w in weights], 0.0
        chunk = max(1, self.at_once // sum(w.numel() for w in weights))
        for part in torch.split(rows, chunk):
            if len(part):  # Poisson sampling may draw nobody
                grads, values = self.clipped(weights, part)
                for sum_, grad in zip(sums, grads, strict=True):
                    sum_ += grad.sum(0)
                losses += values.sum().item()
        return sums, losses


def clip_each(grads: Sequence[Tensor], clip: float) -> list[Tensor]:
    """Each record's gradient (n x shape per parameter) scaled down to a norm of `clip` at most."""
    norms = torch.stack([g.flatten(1).norm(dim=1) for g in grads]).norm(dim=0)
    factors = clip_factors(norms, clip)
    wide = [factors.view(-1, *[1] * (g.ndim - 1)) for g in grads]
    return [torch.where(f > 0, f * g, 0.0) for f, g in zip(wide, grads, strict=True)]


def clip_factors(norms: Tensor, clip: float) -> Tensor:
    """By what gradients of these norms are multiplied. One that is not finite has no length to be
    cut to; it becomes 0, or it would tell."""
    return (clip / norms).clamp(max=1.0).masked_fill(~norms.isfinite(), 0.0)


def descend_privately(
    problem: TrainingLoss,
    walk: Walk,
    recipe: PrivateDescent,
    generator: torch.Generator,
    trace: Trace,
    watch: Watch | None,
) -> Ending:
    """A step draws records, adds up their clipped gradients and adds noise."""
    gradients = PerRecord(
        model=problem.model, inputs=problem.inputs, labels=problem.labels, recipe=recipe
    )
    n, everyone, books = len(problem.inputs), torch.arange(len(problem.inputs)), privacy(recipe)
    state = first_state(recipe, walk.weights)
    with task("private training", recipe.steps) as tick:
        for _ in range(recipe.steps):
            rows = everyone
            if recipe.sampling < 1:
                rows = everyone[torch.rand(n, generator=generator) < recipe.sampling]
            sums, losses = gradients.total(walk.weights, rows)
            for sum_ in sums:
                noise = torch.randn(sum_.shape, generator=generator, dtype=sum_.dtype)
                sum_.add_(noise.to(sum_), alpha=recipe.noise * recipe.clip)
            if watch is not None:
                watch(walk.weights, sums, rows)
            if len(rows):
                trace.add(walk.steps, losses / len(rows))
            state = update(recipe, walk.steps, state, [s / (recipe.sampling * n) for s in sums])
            walk.move(state[: len(sums)])
            # The weights are public, and so is what is decided by them alone.
            if not all(bool(w.isfinite().all()) for w in walk.weights):
                return "diverged", {"privacy": books}
            tick(note=f"loss {losses / max(len(rows), 1):.3g}")
    return "steps", {"privacy": books}
