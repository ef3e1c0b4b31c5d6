"""Descend on the misfit of stationarity from independent random starts, and pool what they find.

One objective (`objective`), one descent (`descend`, by Adam), one way to pool starts (`agreed`):
what several of them return alike.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.consensus import Clusters, cluster, most_starts_first
from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.problem import (
    Problem,
    box_misfit,
    forward,
    misfits,
    range_misfit,
    signals,
    span_misfit,
    variation,
)
from remnant.solvers.kkt.tolerances import TOLERANCES, Tolerances


@dataclass(frozen=True, kw_only=True)
class Search:
    """The descent's settings; sharpness is of the smoothed ReLU, in units of pre-activations."""

    steps: int = 1000
    lr: float = 0.1
    spread: float = 0.3  # deviation of the first coordinates
    sharpness: tuple[float, float] = (1.0, 50.0)
    range_weight: float = 1.0
    whiten: float = 0.5  # power of the first layer's singular values, reached at the end
    box_weight: float = 1.0
    span_weight: float = 0.3
    tv_weight: float = 0.0
    tolerances: Tolerances = TOLERANCES


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What the schedules have reached. spreads: of the hidden layers' pre-activations."""

    sharpness: float
    whiten: float
    spreads: list[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """k starts of m candidates: inputs k x m x d, duals k x m, outputs k x m x c.

    misfit: k x layers at the end. trace: the objective's mean over starts along the way.
    """

    inputs: Tensor
    duals: Tensor
    outputs: Tensor
    misfit: Tensor
    trace: list[float]


def agreed(
    problem: Problem, duals: Duals, search: Search, *, starts: int, generator: torch.Generator
) -> tuple[Found, Clusters] | None:
    """The starts that came to rest and their candidates in clusters, most agreed on first.

    None where every start left the range of numbers.
    """
    found = descend(problem, duals, search, starts=starts, generator=generator)
    found = settled(found, search.tolerances)
    if not len(found.inputs):
        return None
    return found, most_starts_first(cluster(found.inputs), len(found.inputs))


def settled(found: Found, tolerances: Tolerances = TOLERANCES) -> Found:
    """The starts that have come to rest; never fewer than two, or the better half.

    The others agree with nothing, and would only lower the share of starts that agree.
    """
    total = found.misfit.sum(1)
    better = total.sort().values[: max(2, len(total) // 2)]
    rest = total <= torch.maximum(tolerances.settled * better[0], better[-1])
    kept: dict[str, Any] = {
        name: value[rest] for name, value in vars(found).items() if isinstance(value, Tensor)
    }
    return replace(found, **kept)


def descend(
    problem: Problem, duals: Duals, search: Search, *, starts: int, generator: torch.Generator
) -> Found:
    """From `starts` random sets of candidates, one for each label of `duals`."""
    dtype = problem.columns.dtype
    shape = (starts, len(duals.labels), problem.coordinates)
    begin = search.spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    s, raw, trace = _adam(problem, duals, search, begin.to(dtype), duals.start(starts, dtype))
    with torch.no_grad():
        seen, values = forward(problem, s), duals.values(raw)
        direction = duals.directions(raw, seen.outputs[-1])
        arrived = signals(problem, seen, direction, search.sharpness[1], seen.spreads())
        return Found(
            inputs=problem.inputs(s),
            duals=values,
            outputs=seen.outputs[-1].view(*s.shape[:2], -1),
            misfit=misfits(problem, seen, arrived, values, 0.0),
            trace=trace,
        )


def objective(
    problem: Problem, duals: Duals, search: Search, s: Tensor, raw: Tensor, at: Moment
) -> Tensor:
    """k: the misfits of all layers and what is held against a candidate besides.

    s: coordinates k x m x r. raw: the duals' raw numbers.
    """
    seen = forward(problem, s)
    values = duals.values(raw)
    direction = duals.directions(raw, seen.outputs[-1])
    arrived = signals(problem, seen, direction, at.sharpness, at.spreads)
    total = misfits(problem, seen, arrived, values, at.whiten).sum(1)
    if search.range_weight:
        share = values.detach().abs()
        outside = range_misfit(problem, arrived, values)
        total = total + search.range_weight * (share * outside).sum(1) / share.sum(1)
    if search.box_weight:
        total = total + search.box_weight * box_misfit(problem, s)
    if search.span_weight and problem.rows is not None:
        total = total + search.span_weight * span_misfit(problem, seen)
    if search.tv_weight:
        total = total + search.tv_weight * variation(problem, s)
    return total


def moment(search: Search, share: float, spreads: list[float]) -> Moment:
    """At that share of the descent: sharpness is geometric over the first 70%."""
    low, high = search.sharpness
    sharpness = low * (high / low) ** min(1.0, share / 0.7)
    return Moment(sharpness=sharpness, whiten=search.whiten * share, spreads=spreads)


def _spreads(problem: Problem, s: Tensor) -> list[float]:
    with torch.no_grad():
        return forward(problem, s).spreads()


def _adam(
    problem: Problem, duals: Duals, search: Search, s: Tensor, raw: Tensor
) -> tuple[Tensor, Tensor, list[float]]:
    """All starts at once: Adam works entry by entry, so they stay independent."""
    kept = checkpoint("kkt", problem, duals, search, s)
    first, spreads, trace, moments = 0, list[float](), list[float](), None
    if kept.state is not None:
        first, s, raw, spreads, trace, moments = kept.state
    s, raw = s.clone().requires_grad_(), raw.clone().requires_grad_()
    optimiser = torch.optim.Adam([s, raw], lr=search.lr)
    if moments is not None:
        optimiser.load_state_dict(moments)
    with task("descent", search.steps) as step:
        step(first)
        for i in range(first, search.steps):
            share = i / search.steps
            looks = i % search.tolerances.refresh == 0
            if looks:
                spreads = _spreads(problem, s)
            rate = 1.0 if share < 0.5 else 0.5 * (1 + math.cos(math.pi * (share - 0.5) / 0.5))
            optimiser.param_groups[0]["lr"] = search.lr * max(1e-3, rate)
            at = moment(search, share, spreads)
            value = objective(problem, duals, search, s, raw, at).sum()
            s.grad, raw.grad = torch.autograd.grad(value, [s, raw])
            optimiser.step()
            if looks:
                trace.append(float(value.detach()) / len(s))
            if kept.due():
                kept.save([i + 1, s, raw, spreads, trace, optimiser.state_dict()])
            step()
    return s.detach(), raw.detach(), trace
