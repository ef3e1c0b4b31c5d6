"""The proof: the gradient computed again from what was found is the gradient that is held."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from remnant.models.tokens import logits_of
from remnant.progress import task
from remnant.solvers.sequence.labels import Flows
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True)
class Returned:
    """How well a gradient that was computed again explains the one that is held. scale: the factor
    by which it fits best, since a clipped gradient is the same but for its scale. error: the norm
    of what it leaves then, relative."""

    error: float
    scale: float


def gradient_of(
    model: nn.Module, flows: Flows, smoothing: float, *, batch: int = 8
) -> dict[str, Tensor]:
    """The gradient of the losses of all prefixes with their labels, each by its weight."""
    inner = {prefix[:-1] for prefix in flows}
    # Longest first, so that the rows of a batch are of like lengths.
    rows = sorted((prefix for prefix in flows if prefix not in inner), key=len, reverse=True)
    row_of = {row[:k]: i for i, row in reversed([*enumerate(rows)]) for k in range(1, len(row) + 1)}
    losses: list[list[tuple[int, int, int, float]]] = [[] for _ in range(0, len(rows), batch)]
    for prefix, after in flows.items():
        i = row_of[prefix]
        at = i % batch, len(prefix) - 1
        losses[i // batch] += [(*at, label, weight) for label, weight in after.items()]
    named = {name: p for name, p in model.named_parameters() if p.requires_grad}
    total = {name: torch.zeros_like(p) for name, p in named.items()}
    with task("gradient computed again", len(losses)) as advance:
        for start, part in enumerate(losses):
            advance()
            if not part:
                continue
            texts = map(torch.tensor, rows[start * batch : (start + 1) * batch])
            row, place, labels, weights = map(torch.tensor, zip(*part, strict=True))
            with torch.enable_grad():
                logits = logits_of(model(pad_sequence([*texts], batch_first=True)))
                assert isinstance(logits, Tensor)
                each = nn.functional.cross_entropy(
                    logits[row, place], labels, reduction="none", label_smoothing=smoothing
                )
                loss = (each * weights.to(each)).sum()
            found = torch.autograd.grad(loss, list(named.values()), allow_unused=True)
            for mine, value in zip(total.values(), found, strict=True):
                if value is not None:
                    mine += value
    return total


def compare(held: Weights, again: Mapping[str, Tensor]) -> Returned:
    """The relative error over all tensors that are held; one of zeros alone was not trained."""
    cross = square = whole = 0.0
    for name, value in again.items():
        mine = held.get(name)
        if mine is None or not bool(mine.any()):
            continue
        ours, theirs = value.double().flatten(), mine.double().flatten()
        cross += float(ours @ theirs)
        square += float(ours @ ours)
        whole += float(theirs @ theirs)
    if not square or not whole:
        return Returned(error=1.0, scale=0.0)
    left = max(0.0, whole - cross * cross / square)
    return Returned(error=(left / whole) ** 0.5, scale=cross / square)


def replayed(
    model: nn.Module, flows: Flows, smoothing: float, change: Weights, *, most: int = 6
) -> tuple[Returned, int]:
    """The change of weights by several equal steps of gradient descent on the same batch, computed
    again: for 1 to `most` steps, each at the step size that fits best; the best of them."""
    best, steps = compare(change, gradient_of(model, flows, smoothing)), 1
    size = best.scale
    for count in range(2, most + 1):
        size *= (count - 1) / count
        found, size = _fitted(model, flows, smoothing, change, size, count)
        if found.error >= best.error:
            break
        best, steps = found, count
    return best, steps


def _fitted(
    model: nn.Module,
    flows: Flows,
    smoothing: float,
    change: Weights,
    size: float,
    count: int,
    tries: int = 6,
) -> tuple[Returned, float]:
    """The best of `tries` step sizes: where the change computed again has scale 1, by secants on
    logarithms."""
    best, at = Returned(error=float("inf"), scale=0.0), size
    known = list[tuple[float, float]]()
    for _ in range(tries):
        found = compare(change, _descend(model, flows, smoothing, size, count))
        if found.error < best.error:
            best, at = found, size
        if not found.scale > 0:
            break
        known.append((math.log(size), math.log(found.scale)))
        (x, y), (before, other) = known[-1], known[-2 if len(known) > 1 else -1]
        if y == 0 or (x != before and y == other):
            break
        size = math.exp(x + y if x == before else x - y * (x - before) / (y - other))
    return best, at


def _descend(
    model: nn.Module, flows: Flows, smoothing: float, size: float, count: int
) -> dict[str, Tensor]:
    """What `count` steps take off the weights."""
    moved = copy.deepcopy(model)
    for _ in range(count):
        gradient = gradient_of(moved, flows, smoothing)
        with torch.no_grad():
            for name, parameter in moved.named_parameters():
                if name in gradient:
                    parameter.sub_(gradient[name], alpha=size)
    after = dict(moved.named_parameters())
    return {name: p.detach() - after[name].detach() for name, p in model.named_parameters()}
