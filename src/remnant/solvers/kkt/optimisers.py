"""How the misfit of stationarity is descended: Adam, with or without solved duals, or L-BFGS."""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from remnant.checkpoints import Checkpoint
from remnant.progress import Step

Optimiser = Literal["adam", "varpro", "lbfgs"]
OPTIMISERS: tuple[Optimiser, ...] = ("adam", "varpro", "lbfgs")
REFRESH = 50  # steps between looks at the pre-activations' spread
SOLVE = 25  # steps between solutions for the duals (varpro)
STAGES = 10  # of the smoothing (lbfgs)


@dataclass(frozen=True, kw_only=True)
class Search:
    """The descent's settings; sharpness is of the smoothed ReLU, in units of pre-activations."""

    optimiser: Optimiser = "adam"
    steps: int = 1000
    finish: int = 20  # iterations of L-BFGS in float64
    lr: float = 0.1
    spread: float = 0.3  # deviation of the first coordinates
    sharpness: tuple[float, float] = (1.0, 50.0)
    range_weight: float = 1.0
    whiten: float = 0.5  # power of the first layer's singular values, reached at the end
    box_weight: float = 1.0
    span_weight: float = 0.3
    tv_weight: float = 0.0


@dataclass(frozen=True, kw_only=True)
class Moment:
    """What a schedule has reached. spreads: of the hidden layers' pre-activations."""

    sharpness: float
    whiten: float
    spreads: list[float]


Total = Callable[[Tensor, Tensor, Moment], Tensor]
"""Coordinates k x m x r and raw duals -> k, what is descended for each start."""


def moment(search: Search, share: float, spreads: list[float]) -> Moment:
    """At that share of the descent: sharpness is geometric over the first 70%."""
    low, high = search.sharpness
    sharpness = low * (high / low) ** min(1.0, share / 0.7)
    return Moment(sharpness=sharpness, whiten=search.whiten * share, spreads=spreads)


def by_adam(
    search: Search,
    s: Tensor,
    raw: Tensor,
    total: Total,
    spreads: Callable[[Tensor], list[float]],
    solve_duals: Callable[[Tensor, Tensor, Moment], Tensor] | None,
    trace: list[float],
    step: Step,
    kept: Checkpoint,
) -> tuple[Tensor, Tensor]:
    """All starts at once: Adam works entry by entry, so they stay independent."""
    first, seen = 0, list[float]()
    if kept.state is not None:
        first, s, raw, seen, trace[:], moments = kept.state
        step(first)
    s, raw = s.clone().requires_grad_(), raw.clone().requires_grad_()
    optimiser = torch.optim.Adam([s, raw], lr=search.lr)
    if first:
        optimiser.load_state_dict(moments)
    for i in range(first, search.steps):
        share = i / search.steps
        if i % REFRESH == 0:
            seen = spreads(s)
        at = moment(search, share, seen)
        if solve_duals is not None and i % SOLVE == 0 and i:
            raw.data.copy_(solve_duals(s.detach(), raw.detach(), at))
        rate = 1.0 if share < 0.5 else 0.5 * (1 + math.cos(math.pi * (share - 0.5) / 0.5))
        optimiser.param_groups[0]["lr"] = search.lr * max(1e-3, rate)
        value = total(s, raw, at).sum()
        s.grad, raw.grad = torch.autograd.grad(value, [s, raw])
        optimiser.step()
        if i % REFRESH == 0:
            trace.append(float(value.detach()) / len(s))
        if kept.due():
            kept.save([i + 1, s, raw, seen, trace, optimiser.state_dict()])
        step()
    return s.detach(), raw.detach()


def by_stages(
    search: Search,
    s: Tensor,
    raw: Tensor,
    total: Total,
    spreads: Callable[[Tensor], list[float]],
    step: Step,
    kept: Checkpoint,
) -> tuple[Tensor, Tensor]:
    """L-BFGS at a sharpness that is held for a stage and then raised."""
    each, first = max(1, search.steps // STAGES), 0
    if kept.state is not None:
        first, s, raw = kept.state
        step(first * each)
    for stage in range(first, STAGES):
        at = moment(search, (stage + 0.5) / STAGES, spreads(s))
        s, raw = by_lbfgs(s, raw, total, at, each)
        if kept.due():
            kept.save([stage + 1, s, raw])
        step(each)
    return s, raw


def by_lbfgs(
    s: Tensor, raw: Tensor, total: Total, at: Moment, iterations: int
) -> tuple[Tensor, Tensor]:
    """One start after the other: a line search over several would tie them together."""
    ends = []
    for k in range(len(s)):
        x, y = (value[k : k + 1].clone().requires_grad_() for value in (s, raw))
        optimiser = torch.optim.LBFGS(
            [x, y], max_iter=iterations, history_size=20, line_search_fn="strong_wolfe"
        )

        def closure(x: Tensor = x, y: Tensor = y) -> float:
            value = total(x, y, at).sum()
            x.grad, y.grad = (g.contiguous() for g in torch.autograd.grad(value, [x, y]))
            return float(value.detach())

        optimiser.step(closure)
        ends.append((x.detach(), y.detach()))
    return torch.cat([x for x, _ in ends]), torch.cat([y for _, y in ends])
