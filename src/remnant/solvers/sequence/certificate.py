"""The proof: the gradient computed again from what was found is the gradient that is held."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.progress import task
from remnant.solvers.sequence.labels import Flows
from remnant.solvers.sequence.layouts import Weights
from remnant.solvers.sequence.prefixes import Text


@dataclass(frozen=True, kw_only=True)
class Returned:
    """error: the part of what is held that the gradient computed again leaves, at the best common
    scale (a clipped gradient is the same but for its scale)."""

    error: float
    scale: float


def gradient_of(
    model: nn.Module, flows: Flows, smoothing: float, *, batch: int = 8
) -> dict[str, Tensor]:
    """The gradient of the losses of all prefixes with their labels, each by its weight."""
    leaves = _paths(flows)
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    total = {name: torch.zeros_like(p) for name, p in named}
    done = set[Text]()
    with task("gradient computed again", len(leaves)) as advance:
        for start in range(0, len(leaves), batch):
            part = leaves[start : start + batch]
            loss = _loss(model, part, flows, smoothing, done)
            advance(len(part))
            if loss is None:
                continue
            found = torch.autograd.grad(loss, [p for _, p in named], allow_unused=True)
            for (name, _), value in zip(named, found, strict=True):
                if value is not None:
                    total[name] += value
    return total


def _paths(flows: Flows) -> list[Text]:
    """The prefixes that no other continues, longest first so that batches are of a length."""
    inner = {prefix[:-1] for prefix in flows}
    return sorted((p for p in flows if p not in inner), key=len, reverse=True)


def _loss(
    model: nn.Module, rows: Sequence[Text], flows: Flows, smoothing: float, done: set[Text]
) -> Tensor | None:
    length = max(map(len, rows))
    tokens = torch.zeros(len(rows), length, dtype=torch.int64)
    for row, text in zip(tokens, rows, strict=True):
        row[: len(text)] = torch.tensor(text)
    at, labels, weights = list[tuple[int, int]](), list[int](), list[float]()
    for i, text in enumerate(rows):
        for k in range(len(text)):
            prefix = text[: k + 1]
            if prefix in flows and prefix not in done:
                done.add(prefix)
                for label, weight in flows[prefix].items():
                    at.append((i, k))
                    labels.append(label)
                    weights.append(weight)
    if not at:
        return None
    with torch.enable_grad():
        outputs = model(tokens)
        logits = outputs if isinstance(outputs, Tensor) else outputs.logits
        i, k = torch.tensor(at).T
        losses = torch.nn.functional.cross_entropy(
            logits[i, k], torch.tensor(labels), reduction="none", label_smoothing=smoothing
        )
        return (losses * torch.tensor(weights, dtype=losses.dtype)).sum()


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
    start = {name: p.detach().clone() for name, p in model.named_parameters()}
    size = best.scale
    for count in range(2, most + 1):
        size *= (count - 1) / count
        found, size = _fitted(model, start, flows, smoothing, change, size, count)
        if found.error >= best.error:
            break
        best, steps = found, count
    return best, steps


def _fitted(
    model: nn.Module,
    start: Weights,
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
        found = compare(change, _descend(model, start, flows, smoothing, size, count))
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
    model: nn.Module, start: Weights, flows: Flows, smoothing: float, size: float, count: int
) -> dict[str, Tensor]:
    """What `count` steps take off the weights; the model is at `start` again afterwards."""
    try:
        for _ in range(count):
            gradient = gradient_of(model, flows, smoothing)
            with torch.no_grad():
                for name, parameter in model.named_parameters():
                    if name in gradient:
                        parameter.sub_(gradient[name], alpha=size)
        return {name: start[name] - p.detach() for name, p in model.named_parameters()}
    finally:
        with torch.no_grad():
            for name, parameter in model.named_parameters():
                parameter.copy_(start[name])
