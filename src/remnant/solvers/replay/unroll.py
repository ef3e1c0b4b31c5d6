"""The end of a training run as a function of the unknown records, and its gradient.

The gradient is that of the steps taken in reverse: forward, the states are kept; backward, each
step is taken once more with a graph, which returns the adjoint of the state before it and what it
adds to the gradient in the records. One step's graph is alive at a time. Where all states would
not fit, only every s-th is kept and the s between are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from torch import Tensor

from remnant.training.fleet import (
    SharedRun,
    advance,
    begin,
    step_gradient,
    step_loss,
)
from remnant.training.steps import slots

Observe = Callable[[Sequence[Tensor]], Tensor]
"""Stacked weights (K x shape each) -> what the adversary sees of them, K x q."""


def end_of_run(run: SharedRun, records: Tensor, labels: Tensor) -> list[Tensor]:
    """The trained weights (K x shape each) with those records (K x m x shape) in the run."""
    state = begin(run, len(records))
    for step in range(len(run.rows)):
        state = advance(run, step, state, records, labels)
    return state[: len(run.start)]


def misfit(
    run: SharedRun,
    records: Tensor,
    labels: Tensor,
    observe: Observe,
    seen: Tensor,
    *,
    memory: int,
) -> tuple[Tensor, Tensor]:
    """sum (observe(end of run) - seen)^2, K, and its gradient in the records, K x m x shape."""
    every = segment(run, len(records), memory)
    kept, steps = [begin(run, len(records))], len(run.rows)
    state = kept[0]
    for step in range(steps):
        state = advance(run, step, state, records, labels)
        if (step + 1) % every == 0 and step + 1 < steps:
            kept.append(state)
    size = len(run.start)
    weights = [w.detach().requires_grad_() for w in state[:size]]
    with torch.enable_grad():
        value = (observe(weights) - seen).square().sum(1)
        ends = torch.autograd.grad(value.sum(), weights, allow_unused=True, materialize_grads=True)
    adjoint = [*ends, *(torch.zeros_like(s) for s in state[size:])]
    gradient = torch.zeros_like(records)
    for first in reversed(range(0, steps, every)):
        states = [kept.pop()]
        for step in range(first, min(first + every, steps) - 1):
            states.append(advance(run, step, states[-1], records, labels))
        for step in reversed(range(first, first + len(states))):
            adjoint, added = _back(run, step, states.pop(), records, labels, adjoint)
            gradient += added
    return value.detach(), gradient


def _back(
    run: SharedRun,
    step: int,
    state: Sequence[Tensor],
    records: Tensor,
    labels: Tensor,
    adjoint: Sequence[Tensor],
) -> tuple[list[Tensor], Tensor]:
    """The adjoint before a step from that after it, and the step's part of the gradient."""
    before = [s.detach().requires_grad_() for s in state]
    point = records.detach().requires_grad_()
    with torch.enable_grad():
        grads = step_gradient(run, before[: len(run.start)], step, point, labels, graph=True)
        after = run.update(step, before, grads)
        *back, added = torch.autograd.grad(
            after,
            [*before, point],
            grad_outputs=list(adjoint),
            allow_unused=True,
            materialize_grads=True,
        )
    return back, added


def states(run: SharedRun, records: Tensor, labels: Tensor) -> list[list[Tensor]]:
    """Every state of the run, from before the first step to after the last."""
    path = [begin(run, len(records))]
    for step in range(len(run.rows)):
        path.append(advance(run, step, path[-1], records, labels))
    return path


def pull_back(
    run: SharedRun,
    path: Sequence[Sequence[Tensor]],
    records: Tensor,
    labels: Tensor,
    adjoint: Sequence[Tensor],
) -> Tensor:
    """The adjoint of the records (K x m x shape) from that of the last state."""
    total = torch.zeros_like(records)
    for step in reversed(range(len(path) - 1)):
        adjoint, added = _back(run, step, path[step], records, labels, adjoint)
        total += added
    return total


def push_forward(
    run: SharedRun,
    path: Sequence[Sequence[Tensor]],
    records: Tensor,
    labels: Tensor,
    change: Tensor,
) -> list[Tensor]:
    """How the final weights (K x shape each) move with the records; for descent with momentum.

    The loss's second derivatives are symmetric: how its gradient moves along (weights, records) is
    the gradient of its slope in that direction.
    """
    size = len(run.start)
    moves = [torch.zeros_like(s) for s in path[0]]
    for step in range(len(path) - 1):
        weights = [s.detach().requires_grad_() for s in path[step][:size]]
        point = records.detach().requires_grad_()
        with torch.enable_grad():
            loss = step_loss(run, weights, step, point, labels)
            slopes = torch.autograd.grad(
                loss, [*weights, point], create_graph=True, materialize_grads=True
            )
            ways = [*moves[:size], change]
            along = torch.stack([(s * w).sum() for s, w in zip(slopes, ways, strict=True)]).sum()
            grads = torch.autograd.grad(along, weights, allow_unused=True, materialize_grads=True)
        moves = run.update(step, moves, grads)  # linear in the state
    return moves[:size]


def segment(run: SharedRun, rows: int, memory: int) -> int:
    """After how many steps a state is kept, so that `memory` bytes suffice where they can."""
    one = sum(w.numel() for w in run.start) * (1 + slots(run.recipe)) * run.inputs.element_size()
    steps = len(run.rows)
    return 1 if one * rows * steps <= memory else math.isqrt(steps) + 1
