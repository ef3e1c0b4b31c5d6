"""Descend on the misfit of stationarity from independent random starts."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.normal import best_duals
from remnant.solvers.kkt.optimisers import Moment, Search, by_adam, by_lbfgs, by_stages, moment
from remnant.solvers.kkt.problem import (
    Problem,
    box_misfit,
    forward,
    misfits,
    range_misfit,
    signals,
    span_misfit,
    to_double,
    variation,
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """k starts of m candidates: coordinates k x m x r, inputs k x m x d, duals, signed, k x m.

    misfit: k x layers at the end. range_misfit: k x m. outputs: k x m x c. trace: total by step.
    weight: k x m, the length of what each candidate adds to the first dense layer.
    """

    coordinates: Tensor
    inputs: Tensor
    duals: Tensor
    outputs: Tensor
    misfit: Tensor
    range_misfit: Tensor
    weight: Tensor
    trace: list[float]


def descend(
    problem: Problem,
    duals: Duals,
    search: Search,
    *,
    starts: int,
    generator: torch.Generator,
    begin: Tensor | None = None,
    solved: bool = False,
) -> Found:
    """From `starts` random sets of candidates, or from coordinates `begin`, k x m x r.

    solved: duals begin at the best for those candidates, by non-negative least squares.
    """
    m, dtype = len(duals.labels), problem.columns.dtype
    if begin is None:
        shape = (starts, m, problem.coordinates)
        begin = search.spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    s, raw = begin.to(dtype), duals.start(len(begin), dtype)
    trace: list[float] = []
    kept = checkpoint("kkt", problem, duals, search, s)

    def total(s: Tensor, raw: Tensor, at: Moment) -> Tensor:
        return objective(problem, duals, search, s, raw, at)

    def spreads(s: Tensor) -> list[float]:
        with torch.no_grad():
            return forward(problem, s).spreads()

    if solved:
        raw = best_duals(problem, duals, s, raw, moment(search, 0.0, spreads(s)))

    def solve_duals(s: Tensor, raw: Tensor, at: Moment) -> Tensor:
        return best_duals(problem, duals, s, raw, at)

    with task("descent", search.steps) as step:
        if search.optimiser == "lbfgs":
            s, raw = by_stages(search, s, raw, total, spreads, step, kept)
        else:
            solve = solve_duals if search.optimiser == "varpro" else None
            s, raw = by_adam(search, s, raw, total, spreads, solve, trace, step, kept)
    if search.finish:
        held = Moment(sharpness=search.sharpness[1], whiten=search.whiten, spreads=spreads(s))
        problem, s, raw = _finish(to_double(problem), duals, search, s, raw, held)
    return _found(problem, duals, search, s, raw, trace)


def _finish(
    problem: Problem, duals: Duals, search: Search, s: Tensor, raw: Tensor, held: Moment
) -> tuple[Problem, Tensor, Tensor]:
    """L-BFGS in double precision; the problem comes back for what is measured there."""

    def total(s: Tensor, raw: Tensor, at: Moment) -> Tensor:
        return objective(problem, duals, search, s, raw, at)

    return problem, *by_lbfgs(s.double(), raw.double(), total, held, search.finish)


def _found(
    problem: Problem, duals: Duals, search: Search, s: Tensor, raw: Tensor, trace: list[float]
) -> Found:
    with torch.no_grad():
        seen = forward(problem, s)
        values = duals.values(raw)
        direction = duals.directions(raw, seen.outputs[-1])
        arrived = signals(problem, seen, direction, search.sharpness[1], seen.spreads())
        d, h = (x[problem.first_dense].reshape(*s.shape[:2], -1) for x in (arrived, seen.inputs))
        return Found(
            coordinates=s,
            inputs=problem.inputs(s),
            duals=values,
            outputs=seen.outputs[-1].view(*s.shape[:2], -1),
            misfit=misfits(problem, seen, arrived, values, 0.0),
            range_misfit=range_misfit(problem, arrived, values),
            weight=values.abs() * d.norm(dim=2) * h.norm(dim=2),
            trace=trace,
        )


def objective(
    problem: Problem,
    duals: Duals,
    search: Search,
    s: Tensor,
    raw: Tensor,
    at: Moment,
) -> Tensor:
    """k: the misfits of all layers and what is held against a candidate besides."""
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
