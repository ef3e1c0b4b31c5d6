"""The end of a training run as a function of the unknown records, what of it is seen, and how it
moves with them.

The gradient is that of the steps taken in reverse: forward, the states are kept; backward, each
step is taken once more with a graph, which returns the adjoint of the state before it and what it
adds to the gradient in the records. One step's graph is alive at a time. Where all states would
not fit, only every s-th is kept and the s between are computed again.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.training.fleet import MEMORY, SharedRun, advance, begin, step_gradient, step_loss
from remnant.training.steps import slots
from remnant.types import Weights

Observe = Callable[[Sequence[Tensor]], Tensor]
"""Stacked weights (K x shape each) -> what the adversary sees of them, K x q."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """What of the released model is matched: all weights, chosen layers, or logits on probes.

    layers: prefixes of parameter names (None = all). probes: p x shape, in the model's scale;
    where given, the black box's outputs on them are seen and no weights.
    """

    layers: tuple[str, ...] | None = None
    probes: Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether all weights are seen."""
        return self.layers is None and self.probes is None

    def chosen(self, names: Sequence[str]) -> tuple[str, ...]:
        """The parameters that are seen."""
        if self.layers is None:
            return tuple(names)
        found = tuple(name for name in names if name.startswith(self.layers))
        if not found:
            wanted = f"the beginning of some of {', '.join(names)}"
            raise InputError(expected("layers", wanted, ", ".join(self.layers)))
        return found

    def of(self, run: SharedRun) -> Observe:
        """K x q from stacked weights in the run's order."""
        if self.probes is not None:
            probes = self.probes.to(run.inputs)
            return lambda weights: run.forward(weights, probes, True).flatten(1)
        chosen = set(self.chosen(run.names))
        places = [i for i, name in enumerate(run.names) if name in chosen]
        return lambda weights: torch.cat([weights[i].flatten(1) for i in places], 1)

    def seen(self, run: SharedRun, released: Weights) -> Tensor:
        """K x q from released weights, K x shape each."""
        with torch.no_grad():
            return self.of(run)([released[name].to(run.inputs) for name in run.names])

    def without_first_weight(self, run: SharedRun) -> Observation:
        """What tells the label best: the first weight matrix says more about pixels."""
        first = next((n for n, w in zip(run.names, run.start, strict=True) if w.ndim > 1), None)
        rest = tuple(name for name in self.chosen(run.names) if name != first)
        return replace(self, layers=rest) if self.probes is None and rest else self


def stacked(weights: Weights) -> dict[str, Tensor]:
    """One released model as a stack of one."""
    return {name: value[None] for name, value in weights.items()}


def states(run: SharedRun, records: Tensor, labels: Tensor, every: int = 1) -> list[list[Tensor]]:
    """The state before every s-th step of the run with those records (K x m x shape), and last of
    all the one after its end."""
    state, path = begin(run, len(records)), []
    for step in range(len(run.rows)):
        if step % every == 0:
            path.append(state)
        state = advance(run, step, state, records, labels)
    return [*path, state]


def end_of_run(run: SharedRun, records: Tensor, labels: Tensor) -> list[Tensor]:
    """The trained weights (K x shape each) with those records (K x m x shape) in the run."""
    return states(run, records, labels, len(run.rows))[-1][: len(run.start)]


def pull_back(
    run: SharedRun,
    path: Sequence[list[Tensor]],
    records: Tensor,
    labels: Tensor,
    adjoint: Sequence[Tensor],
    every: int = 1,
) -> Tensor:
    """The adjoint of the records (K x m x shape) from that of the last state. path: `states`."""
    total, steps = torch.zeros_like(records), len(run.rows)
    for first in reversed(range(0, steps, every)):
        between = [path[first // every]]
        for step in range(first, min(first + every, steps) - 1):
            between.append(advance(run, step, between[-1], records, labels))
        for step in reversed(range(first, first + len(between))):
            before = [s.detach().requires_grad_() for s in between.pop()]
            point = records.detach().requires_grad_()
            with torch.enable_grad():
                weights = before[: len(run.start)]
                grads = step_gradient(run, weights, step, point, labels, graph=True)
                *adjoint, added = torch.autograd.grad(
                    run.update(step, before, grads),
                    [*before, point],
                    grad_outputs=list(adjoint),
                    allow_unused=True,
                    materialize_grads=True,
                )
            total += added
    return total


def misfit(
    run: SharedRun,
    records: Tensor,
    labels: Tensor,
    observe: Observe,
    seen: Tensor,
    *,
    scale: float = 1.0,
    memory: int = MEMORY,
) -> tuple[Tensor, Tensor]:
    """K: the squared length of scale (observe(end of run) - seen), and its gradient in the records,
    K x m x shape. memory: bytes that the kept states may fill."""
    size, steps = len(run.start), len(run.rows)
    one = sum(w.numel() for w in run.start) * (1 + slots(run.recipe)) * run.inputs.element_size()
    every = 1 if one * len(records) * steps <= memory else math.isqrt(steps) + 1
    path = states(run, records, labels, every)
    weights = [w.detach().requires_grad_() for w in path[-1][:size]]
    with torch.enable_grad():
        value = (observe(weights) * scale - seen * scale).square().sum(1)
        ends = torch.autograd.grad(value.sum(), weights, allow_unused=True, materialize_grads=True)
    adjoint = [*ends, *(torch.zeros_like(s) for s in path[-1][size:])]
    return value.detach(), pull_back(run, path, records, labels, adjoint, every)


def push_forward(
    run: SharedRun,
    path: Sequence[Sequence[Tensor]],
    records: Tensor,
    labels: Tensor,
    change: Tensor,
) -> list[Tensor]:
    """How the final weights (K x shape each) move with the records; for descent with momentum.

    The loss's second derivatives are symmetric: how its gradient moves along (weights, records) is
    the gradient of its slope in that direction. path: all `states`.
    """
    size = len(run.start)
    moves = [torch.zeros_like(s) for s in path[0]]
    for step in range(len(run.rows)):
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
