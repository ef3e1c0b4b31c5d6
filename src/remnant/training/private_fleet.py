"""Many private runs at once, for dense networks: the same known records, one more record each.

A record's gradient in a dense layer is d a^T, signal times input, so that its norm is |d| |a| and
its clipped sum one matrix product: no gradient of a single record is ever written down. A run
without noise is a differentiable function of the record, so that it can be replayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.training.recipes import PrivateDescent
from remnant.training.run import named, prepare
from remnant.training.stacked import product, stacked_loss
from remnant.training.steps import first_state, update
from remnant.types import Examples, Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class PrivateRun:
    """A run on `inputs` (n x d, in the model's scale) and one record more, by full batches."""

    layers: tuple[nn.Module, ...]
    names: tuple[str, ...]
    start: tuple[Tensor, ...]
    inputs: Tensor
    labels: Tensor
    recipe: PrivateDescent


def share_private(
    model: nn.Module,
    known: Examples,
    recipe: PrivateDescent,
    *,
    scaling: Scaling,
    dtype: torch.dtype | None = None,
) -> PrivateRun:
    """What the runs have in common. Layers are dense with elementwise activations between."""
    check_private(model, recipe)
    mine, inputs, labels = prepare(model, known, recipe.loss, scaling, dtype)
    weights = named(mine)
    return PrivateRun(
        layers=_layers(mine),
        names=tuple(weights),
        start=tuple(weights.values()),
        inputs=inputs.flatten(1),
        labels=labels,
        recipe=recipe,
    )


def check_private(model: nn.Module, recipe: PrivateDescent) -> None:
    """An error if many runs of the recipe on this model cannot be done at once."""
    if recipe.sampling < 1:
        raise InputError(expected("private fleet: sampling", "1, full batches", recipe.sampling))
    parameters = list(model.parameters())
    linear = [m for m in _layers(model) if isinstance(m, nn.Linear)]
    dense = sum(1 if m.bias is None else 2 for m in linear)
    if dense != len(parameters) or any(not p.requires_grad for p in parameters):
        wanted = "dense layers and activations, all trained"
        raise InputError(expected("private fleet: model", wanted, type(model).__name__))


def _layers(model: nn.Module) -> tuple[nn.Module, ...]:
    return tuple(m for m in model.modules() if not isinstance(m, nn.Sequential | nn.Flatten))


def clipped_sum(
    run: PrivateRun, weights: Sequence[Tensor], inputs: Tensor, labels: Tensor, *, graph: bool
) -> list[Tensor]:
    """For each of K models (K x shape each) the sum of its records' clipped gradients.

    inputs: n x d for all models, or K x n x d; labels alike. graph: keep it for differentiation.
    """
    features = inputs.T if inputs.ndim == 2 else inputs.transpose(1, 2)
    left, seen, before, biased = list(weights), [], [], []
    for layer in run.layers:
        if not isinstance(layer, nn.Linear):
            features = layer(features)
            continue
        seen.append(features)
        features = product(left.pop(0), features)
        if layer.bias is not None:
            features = features + left.pop(0)[:, :, None]
        if not features.requires_grad:
            features.requires_grad_()
        before.append(features)
        biased.append(layer.bias is not None)
    wanted = labels.expand(len(weights[0]), -1)
    summed = stacked_loss(run.recipe.loss, features, wanted) * wanted.shape[1]
    signals = torch.autograd.grad(summed, before, create_graph=graph)
    if not graph:
        seen = [a.detach() for a in seen]
    squares = [
        d.square().sum(1) * (a.square().sum(-2) + float(bias))
        for d, a, bias in zip(signals, seen, biased, strict=True)
    ]
    factors = _factors(run.recipe, torch.stack(squares).sum(0))[:, None]
    sums = []
    for d, a, bias in zip(signals, seen, biased, strict=True):
        # What is not finite belongs to a record whose factor is 0, and 0 times infinity is not.
        cut = torch.where(factors > 0, factors * d, 0.0)
        sums.append(product(cut, a.nan_to_num(0.0, 0.0, 0.0).transpose(-2, -1)))
        if bias:
            sums.append(cut.sum(2))
    return sums


def _factors(recipe: PrivateDescent, squares: Tensor) -> Tensor:
    if not recipe.clipping:
        return torch.ones_like(squares)
    norms = squares.clamp(min=1e-30).sqrt()  # a root has no slope at 0
    return (recipe.clip / norms).clamp(max=1.0).masked_fill(~norms.isfinite(), 0.0)


def private_end(
    run: PrivateRun, records: Tensor, labels: Tensor, generator: torch.Generator | None = None
) -> list[Tensor]:
    """The trained weights (K x shape each) of K runs, the k-th with records[k] (K x d) besides.

    generator: of the noise; None = none, and then differentiable in the records if they ask so.
    """
    recipe, graph, size = run.recipe, records.requires_grad, len(run.inputs) + 1
    weights = [w.expand(len(records), *w.shape).clone() for w in run.start]
    state, count = first_state(recipe, weights), len(weights)
    with torch.enable_grad():
        for step in range(recipe.steps):
            weights = state[:count]
            known = clipped_sum(run, weights, run.inputs, run.labels, graph=graph)
            own = clipped_sum(run, weights, records[:, None], labels[:, None], graph=graph)
            moves = [a + b for a, b in zip(known, own, strict=True)]
            if generator is not None and recipe.noise:
                noise = [torch.randn(m.shape, generator=generator, dtype=m.dtype) for m in moves]
                scale = recipe.noise * recipe.clip
                moves = [m + scale * n for m, n in zip(moves, noise, strict=True)]
            state = update(recipe, step, state, [m / size for m in moves])
            if not graph:
                state = [s.detach() for s in state]
    return state[:count]


def train_private_fleet(
    run: PrivateRun,
    inputs: Tensor,
    labels: Tensor,
    *,
    scaling: Scaling,
    generator: torch.Generator,
    memory: int = 1 << 29,
) -> dict[str, Tensor]:
    """K models (K x shape each), the k-th trained on the known records and inputs[k] (K x shape, in
    the data's own scale). Each run has noise of its own. memory: bytes that the signals of one
    chunk of runs may fill, roughly."""
    records = scaling.to_model(inputs.to(run.inputs)).flatten(1)
    wide = sum(w.shape[0] for w in run.start if w.ndim == 2)
    chunk = max(1, memory // (24 * wide * len(run.inputs)))
    ends = []
    with task("private fleet", len(records)) as tick:
        for at in range(0, len(records), chunk):
            part = slice(at, at + chunk)
            ends.append(private_end(run, records[part], labels[part], generator))
            tick(len(records[part]))
    return dict(zip(run.names, (torch.cat(w) for w in zip(*ends, strict=True)), strict=True))
