"""Descend on the misfit of stationarity from independent random starts, and pool what they find.

One objective (`objective.py`), one descent (`descend`, by Adam), one way to pool (`agreed`): the
candidates of all starts, what several return alike and what the weights speak for first, go through
a last short descent together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.consensus import Clusters, cluster, unit_rows
from remnant.solvers.kkt.duals import Duals
from remnant.solvers.kkt.objective import (
    Objective,
    Weights,
    forward,
    misfits,
    outside_columns,
    outside_rows,
    signals,
    sums,
)
from remnant.solvers.kkt.prior import sizes_of
from remnant.solvers.kkt.problem import Problem
from remnant.solvers.kkt.tolerances import TOLERANCES, Tolerances


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the descent. sharpness: of the smoothed ReLU, in units of pre-activations.
    columns, rows, sizes: the weights (`objective.Weights`) that are reached where there are as
    many records as neurons in a layer.

    One start takes steps of lr, one of finest_lr, and all others of what ended with the lesser
    misfit: photographs want the larger, of digits it leaves more unexplained. These others also
    expect coordinates to be as large as what ended so.
    """

    steps: int = 600
    lr: float = 0.2
    finest_lr: float = 0.05
    spread: float = 0.3  # deviation of the first coordinates, in units of their expected sizes
    sharpness: tuple[float, float] = (1.0, 50.0)
    columns: float = 100.0
    rows: tuple[float, float] = (160.0, 320.0)
    whiten: float = 0.5
    box: float = 1.0
    sizes: float = 0.04
    variation: float = 0.0
    last_steps: int = 120  # of the descent from what the starts returned
    last_lr: float = 0.015
    tolerances: Tolerances = TOLERANCES

    def weights(self, share: float) -> Weights:
        """The weights at that share (0 to 1) of the descent; those that rise do so by a constant
        factor a step until 70% of it."""
        risen = min(1.0, share / 0.7)
        sharpness, rows = (a * (b / a) ** risen for a, b in (self.sharpness, self.rows))
        return Weights(
            sharpness=sharpness,
            whiten=self.whiten,
            columns=self.columns,
            rows=rows,
            box=self.box,
            sizes=self.sizes,
            variation=self.variation,
        )

    def last(self) -> Search:
        """The settings of the last short descent, which continues from where the starts ended."""
        return replace(
            self,
            steps=self.last_steps,
            lr=self.last_lr,
            sharpness=(max(25.0, self.sharpness[0]), self.sharpness[1]),
            rows=(self.rows[1], self.rows[1]),
        )


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """What a descent ended with: k starts of m candidates.

    inputs: k x m x d. outputs: k x m x c. s: k x m x r, coordinates. raw: numbers behind the
    duals. misfit: k x layers. worth: k x m, how much the weights speak for each candidate, in
    standard deviations. trace: the objective's mean over starts along the way.
    """

    inputs: Tensor
    outputs: Tensor
    duals: Tensor
    s: Tensor
    raw: Tensor
    misfit: Tensor
    worth: Tensor
    trace: list[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Pooled:
    """Candidates m x d, likeliest first, with outputs m x c and labels m.

    agreement: m, the mean correlation with the closest candidate of every other start, times the
    share of starts that return one alike; at least `Tolerances.sure` where two starts are closer
    than that, however many miss it. starts: m, how many starts return one alike.
    """

    inputs: Tensor
    outputs: Tensor
    labels: Tensor
    agreement: Tensor
    starts: Tensor


def agreed(
    problem: Problem, duals: Duals, search: Search, *, starts: int, generator: torch.Generator
) -> tuple[Found, Pooled] | None:
    """The starts that came to rest, and what they return between them.

    None where every start left the range of numbers.
    """
    found = descend(problem, duals, search, starts=starts, generator=generator)
    found = settled(found, search.tolerances)
    if not len(found.inputs):
        return None
    return found, pool(problem, duals, search, found, generator)


def settled(found: Found, tolerances: Tolerances = TOLERANCES) -> Found:
    """The starts that have come to rest, but at least two and at least the better half of all;
    the others agree with nothing and would only lower the share of starts that agree."""
    total = found.misfit.sum(1)
    better = total.sort().values[: max(2, len(total) // 2)]
    rest = total <= torch.maximum(tolerances.settled * better[0], better[-1])
    kept: dict[str, Any] = {
        name: value[rest] for name, value in vars(found).items() if isinstance(value, Tensor)
    }
    return replace(found, **kept)


def pool(
    problem: Problem, duals: Duals, search: Search, found: Found, generator: torch.Generator
) -> Pooled:
    """As many candidates as one start has: the likeliest clusters of candidates that are alike,
    descended from once more, all together."""
    k, m = found.worth.shape
    groups, problem = cluster(found.inputs), expecting(problem, found)
    order = (rank(found, groups)).argsort(descending=True, stable=True)[:m]
    begin, raw = _begin(problem, duals, found, groups, order)
    labels = duals.labels[groups.seed[order] % m]
    last = replace(duals, labels=labels)
    done = descend_from(problem, last, search.last(), begin[None], raw[None], generator)
    same = (unit_rows(done.inputs[0].double()) * unit_rows(groups.centres[order])).sum(1)
    same = same.clamp(0, 1)  # what the last descent took elsewhere was agreed on by no start
    agreement = (groups.agreement * groups.starts / k)[order] * same
    two, sure = groups.closest[order] * same, search.tolerances.sure
    agreement = torch.where(two > sure, agreement.clamp(min=sure), agreement)
    by = agreement.argsort(descending=True, stable=True)
    return Pooled(
        inputs=done.inputs[0][by].double(),
        outputs=done.outputs[0][by],
        labels=labels[by],
        agreement=agreement[by],
        starts=groups.starts[order][by],
    )


def rank(found: Found, groups: Clusters) -> Tensor:
    """How likely each of c clusters is a record: by its members' worth and by how far starts
    agree on it."""
    member, worth = groups.member.flatten(), found.worth.flatten().double()
    total = torch.zeros(len(groups), dtype=torch.float64).index_add(0, member, worth)
    mean: Tensor = total / torch.bincount(member, minlength=len(groups))
    return mean + TOLERANCES.agreement_worth * groups.agreement * groups.starts / len(found.inputs)


def _begin(
    problem: Problem, duals: Duals, found: Found, groups: Clusters, order: Tensor
) -> tuple[Tensor, Tensor]:
    """Coordinates at the centres, in units of expected sizes, and raw duals that add up to those of
    all members, of all starts' mean."""
    centres = groups.centres[order].to(found.s)
    s = centres if problem.basis is None else centres @ problem.basis
    place = torch.full((len(groups),), -1)
    place[order] = torch.arange(len(order))
    member = place[groups.member.flatten()]
    kept, raw = member >= 0, found.raw.flatten(0, 1)
    joined = duals.joined(raw[kept], member[kept], len(order), len(found.inputs))
    return s / problem.sizes, joined


def descend(
    problem: Problem, duals: Duals, search: Search, *, starts: int, generator: torch.Generator
) -> Found:
    """From `starts` random sets of candidates, one for each label of `duals`."""
    steps = [search.lr, search.finest_lr][: min(starts, 1 + (search.finest_lr < search.lr))]
    found: list[Found] = []
    with task("starts", starts) as step:
        for lr in steps:
            found.append(_starts(problem, duals, replace(search, lr=lr), 1, generator))
            step(1)
        ended = [float(one.misfit.sum().nan_to_num(torch.inf)) for one in found]
        least = ended.index(min(ended))
        best, problem = replace(search, lr=steps[least]), expecting(problem, found[least])
        at_once = max(1, search.tolerances.rows // len(duals.labels))
        for first in range(len(found), starts, at_once):
            k = min(at_once, starts - first)
            found.append(_starts(problem, duals, best, k, generator))
            step(k)
    joined: dict[str, Any] = {
        name: torch.cat([getattr(one, name) for one in found])
        for name, value in vars(found[0]).items()
        if isinstance(value, Tensor)
    }
    traces = zip(*(one.trace for one in found), strict=True)
    return Found(**joined, trace=[sum(values) / len(found) for values in traces])


def expecting(problem: Problem, found: Found) -> Problem:
    """The problem with coordinates expected to be as large as those that the start of least misfit
    ended with, which is nearer to the records than what was expected before anything was fitted.
    As it was where no row space tells records from others: most of what a start ends with is none
    there."""
    best = found.s[found.misfit.sum(1).nan_to_num(torch.inf).argmin()]
    if not problem.rows or not bool(best.isfinite().all()):
        return problem
    return replace(problem, sizes=sizes_of(best.double()).to(problem.sizes))


def _starts(
    problem: Problem, duals: Duals, search: Search, k: int, generator: torch.Generator
) -> Found:
    """k random sets of candidates, descended from at once."""
    dtype, shape = problem.columns.dtype, (k, len(duals.labels), problem.coordinates)
    begin = search.spread * torch.randn(shape, generator=generator, dtype=torch.float64)
    return descend_from(problem, duals, search, begin.to(dtype), duals.start(k, dtype), generator)


def descend_from(
    problem: Problem,
    duals: Duals,
    search: Search,
    u: Tensor,
    raw: Tensor,
    generator: torch.Generator,
) -> Found:
    """From coordinates k x m x r in units of expected sizes, and raw duals."""
    u, raw, trace = _adam(problem, duals, search, u, raw, generator)
    return _found(problem, duals, search, u, raw, trace)


def _found(
    problem: Problem, duals: Duals, search: Search, u: Tensor, raw: Tensor, trace: list[float]
) -> Found:
    """What the descent ended with, some candidates at a time."""
    (k, m), size = u.shape[:2], max(1, search.tolerances.rows // len(u))
    spreads = _spreads(problem, u * problem.sizes, search)
    totals: list[Tensor] = []
    outputs, inputs, away = [], [], []
    with torch.no_grad():
        for a in range(0, m, size):
            s, some = u[:, a : a + size] * problem.sizes, raw[:, a : a + size]
            mine = replace(duals, labels=duals.labels[a : a + size])
            seen, dual = forward(problem, s), mine.values(some)
            direction = mine.directions(some, seen.outputs[-1])
            arrived = signals(problem, seen, direction, search.sharpness[1], spreads)
            more = sums(problem, seen, arrived, dual)
            totals = [x + y for x, y in zip(totals, more, strict=True)] if totals else more
            outputs.append(seen.outputs[-1].view(k, s.shape[1], -1))
            inputs.append(problem.inputs(s))
            strength = dual.abs() * s.norm(dim=2)
            shares = [outside_columns(problem, arrived, dual), outside_rows(problem, seen, dual)]
            away.append(torch.stack([1 / strength.clamp(min=1e-30), *shares]))
    worth = torch.stack([_deviations(-x.clamp(min=1e-12).log()) for x in torch.cat(away, dim=2)])
    return Found(
        inputs=torch.cat(inputs, dim=1),
        outputs=torch.cat(outputs, dim=1),
        duals=duals.values(raw),
        s=u * problem.sizes,
        raw=raw,
        misfit=misfits(problem, totals, 0.0),
        worth=worth.sum(0),
        trace=trace,
    )


def _deviations(values: Tensor) -> Tensor:
    """Each start's values in standard deviations from its mean; 0 where all values are alike."""
    return (values - values.mean(1, keepdim=True)) / values.std(1, keepdim=True).clamp(min=1e-6)


def _spreads(problem: Problem, s: Tensor, search: Search) -> list[float]:
    """Of the first candidates, as many as a step holds."""
    some = s[:, : max(1, search.tolerances.rows // len(s))]
    with torch.no_grad():
        return forward(problem, some).spreads()


def _adam(
    problem: Problem,
    duals: Duals,
    search: Search,
    u: Tensor,
    raw: Tensor,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, list[float]]:
    """All starts at once: Adam works entry by entry, so they stay independent."""
    numbers = search.tolerances
    kept = checkpoint("kkt", problem, duals, search, u, raw, generator=generator)
    first, spreads, trace, moments = 0, list[float](), list[float](), None
    if kept.state is not None:
        first, u, raw, spreads, trace, moments = kept.state
    u, raw = u.clone().requires_grad_(), raw.clone().requires_grad_()
    optimiser = torch.optim.Adam([u, raw], lr=search.lr)
    if moments is not None:
        optimiser.load_state_dict(moments)
    pixels = math.prod(problem.input_shape)
    with task("descent", search.steps) as step:
        step(first)
        for i in range(first, search.steps):
            share = i / search.steps
            looks = i % numbers.refresh == 0
            if looks:
                spreads = _spreads(problem, u.detach() * problem.sizes, search)
            rate = 1.0 if share < 0.5 else 0.5 * (1 + math.cos(math.pi * (share - 0.5) / 0.5))
            optimiser.param_groups[0]["lr"] = search.lr * max(1e-3, rate)
            some = None
            if pixels > numbers.box_pixels and problem.basis is not None:
                some = torch.randperm(pixels, generator=generator)[: numbers.box_pixels]
            at = Objective(
                problem=problem,
                duals=duals,
                weights=search.weights(share),
                spreads=spreads,
                pixels=some,
            )
            value, u.grad, raw.grad = at.gradient(u, raw, numbers.rows)
            optimiser.step()
            if looks:
                trace.append(float(value.mean()))
            if kept.due() or i + 1 == search.steps:
                kept.save([i + 1, u, raw, spreads, trace, optimiser.state_dict()])
            step()
    return u.detach(), raw.detach(), trace
