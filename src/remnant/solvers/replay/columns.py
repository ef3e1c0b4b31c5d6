"""One unknown record, entry by entry: for Adam, and for networks with ReLU.

Adam divides every weight's gradient by its own size, so that how far a weight moves is a steep or
saturated function of the record's entry; with ReLU the end of a run jumps. No quadratic model of
the misfit holds for long. But an entry reaches the end of the run mainly through the weights that
read it. With the known records' gradients and the record's own signals taken from the last replay,
each entry stands alone in its column of the first layer: one unknown, and as many numbers seen as
the layer has units. It is found on a grid and by Gauss-Newton steps. A replay with all entries
found corrects the signals, and so on.

Signals and entries come as products: a record that is too dark fits as well with signals that
are too strong, and has them, since it is fitted less. That one direction is searched by the
misfit of the whole run. The rest converges, and Anderson's extrapolation speeds it up. A unit that
switched is one number among those of a column: sums of absolute values forgive it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers.numerics import Minimum, joined
from remnant.solvers.replay.chart import first_weight
from remnant.solvers.replay.problem import Box, ReplayProblem
from remnant.solvers.replay.run import end_of_run
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun, begin, step_gradient
from remnant.training.losses import loss_named
from remnant.training.steps import slots


@dataclass(frozen=True, kw_only=True, eq=False)
class Parts:
    """The first layer's gradients, steps x K x h x d: known + own (steps x K x h) times the record.
    end: the weights that the run ends at."""

    known: Tensor
    own: Tensor
    end: list[Tensor]


def parts_of(run: SharedRun, first: int, records: Tensor, labels: Tensor) -> Parts:
    """A replay with those records, K x 1 x shape; `first` is the first layer's place."""
    state, size, flat = begin(run, len(records)), len(run.start), records.flatten(1)
    loss, length = loss_named(run.recipe.loss), flat.square().sum(1, keepdim=True).clamp(min=1e-30)
    known, own = [], []
    for step, rows in enumerate(run.rows):
        weights = [s.detach().requires_grad_() for s in state[:size]]
        part = run.records if rows is None else len(rows)
        here = rows is None or bool((rows >= len(run.inputs)).any())
        with torch.enable_grad():
            grads = step_gradient(run, weights, step, records, labels)
            outputs = run.forward(weights, records, False)[:, :, 0]
            alone = loss(outputs, labels[:, 0]) * (len(records) * here / part)
            (mine,) = torch.autograd.grad(alone, [weights[first]])  # signals times the record
        own.append((mine @ flat[:, :, None])[:, :, 0] / length)
        known.append(grads[first] - own[-1][:, :, None] * flat[:, None])
        state = run.update(step, [s.detach() for s in state], grads)
    return Parts(known=torch.stack(known), own=torch.stack(own), end=state[:size])


def end_of_layer(run: SharedRun, start: Tensor, parts: Parts, entries: Tensor) -> Tensor:
    """K x h x d: where the first layer ends with those entries (K x d) and those signals."""
    zero = torch.zeros_like(parts.known[0])
    state = [start + zero, *[zero] * slots(run.recipe)]
    for step, (known, own) in enumerate(zip(parts.known, parts.own, strict=True)):
        state = run.update(step, state, [known + own[:, :, None] * entries[:, None]])
    return state[0]


def solve_columns(
    run: SharedRun,
    start: Tensor,
    parts: Parts,
    wanted: Tensor,
    entries: Tensor,
    grid: Tensor,
    *,
    robust: bool = False,
) -> Tensor:
    """K x d: the entries whose columns end nearest to `wanted`, of those on the grid (values x d;
    none = those given) and then by Gauss-Newton steps. robust: misfits of a column count by their
    absolute values, not by their squares."""

    def end(values: Tensor) -> Tensor:
        return end_of_layer(run, start, parts, values)

    least = torch.full_like(entries, torch.inf)
    for value in grid:
        cost = (end(value.expand_as(entries)) - wanted).abs().sum(1)
        entries = torch.where(cost < least, value, entries)
        least = torch.minimum(least, cost)
    least = torch.full_like(entries, torch.inf)
    best, step = entries, torch.zeros_like(entries)
    number = torch.finfo(entries.dtype)
    # Differences: forward differentiation of the steps takes ten times as long.
    small = number.eps**0.4 * (entries.abs() + 0.01)
    for _ in range(TOLERANCES.column_steps + 1):
        here = end(entries)
        slope = (end(entries + small) - here) / small[:, None]
        gap = wanted - here
        size, weight = gap.square(), torch.ones_like(gap)
        if robust:
            size = gap.abs()
            weight = 1 / (size + size.median(1, keepdim=True).values).clamp(min=number.tiny)
        cost = size.sum(1)
        better = cost < least
        best, least = torch.where(better, entries, best), torch.where(better, cost, least)
        full = (weight * gap * slope).sum(1) / (weight * slope.square()).sum(1).clamp(
            min=number.tiny
        )
        # A step that does not come nearer is tried again at a quarter of its length.
        step = torch.where(better, full, step / 4)
        entries = best + step
    return best


def grid_of(box: Box) -> Tensor:
    """Values to try x d: evenly over the box of each entry, and finer towards 0."""
    low, high = box
    even = low + torch.linspace(0, 1, TOLERANCES.grid_even + 1).to(low)[:, None] * (high - low)
    fine = 10 ** (-torch.arange(5, 5 + TOLERANCES.grid_fine) / 2).to(low)[:, None] * (high - low)
    return torch.cat([even, torch.zeros_like(low)[None], fine, -fine]).clamp(low, high)


def by_columns(
    problem: ReplayProblem, starts: Tensor, labels: Tensor, evaluations: int, *, near: bool = False
) -> Minimum:
    """At most so many rounds of the above from `starts` (K x 1 x shape); of each row the best
    point, the one with the least sum of absolute misfits, in the problem's chart.

    As many rows at once as fit the memory. near: the starts are close, so that neither the whole
    range of an entry nor the brightness is searched.
    """
    run, first = problem.run, first_weight(problem.run)
    assert first is not None
    kept = 4 * len(run.rows) * run.start[first].numel() * starts.element_size()
    chunks = torch.arange(len(starts)).split(max(1, problem.settings.memory // kept))
    parts = [
        rounds(problem.rows(rows), first, starts[rows], labels[rows], evaluations, near)
        for rows in chunks
    ]
    return joined([replace(part, points=problem.chart.place(part.points)) for part in parts])


def rounds(
    problem: ReplayProblem, first: int, starts: Tensor, labels: Tensor, most: int, near: bool
) -> Minimum:
    """As `by_columns`, all rows at once, points as records; `first` is the first layer's place."""
    run, seen, still = problem.run, problem.seen, problem.chart.scale
    n, box, kinks = float(run.records), problem.box or known_box(run), problem.kinks
    grid, observe = grid_of(box), problem.observation.of(run)
    grids, bright, plain = TOLERANCES.near_rounds if near else TOLERANCES.far_rounds
    before, entries = sum(w.numel() for w in run.start[:first]), run.start[first].numel()
    wanted = seen[:, before : before + entries].view(-1, *run.start[first].shape)
    x, past, since = starts.flatten(1), Anderson(), 0
    best, least, trace = x, torch.full_like(x[:, 0], torch.inf), []
    values = least
    with task("columns", most) as tick:
        for count in range(most):
            parts = parts_of(run, first, x.view_as(starts), labels)
            gap = n * (observe(parts.end) - seen)
            size = gap.abs().sum(1)
            better = size < least
            best, least = torch.where(better[:, None], x, best), torch.where(better, size, least)
            values = torch.where(better, gap.square().sum(1), values)
            trace.append(values)
            tick(note=f"misfit {float(values.median()):.1e}")
            since = 0 if bool(better.any()) else since + 1
            ended = bool((values <= 1e-3 * torch.finfo(x.dtype).eps).all())
            if since == TOLERANCES.patience or ended:
                break
            tried = grid if count < grids else grid[:0]
            found = solve_columns(run, run.start[first], parts, wanted, x, tried, robust=kinks)
            if still is not None:
                found = torch.where(still == 0, 0.0, found)
            found = found.clamp(*box)
            if count < bright:
                x = found * brightness(problem, found, starts, labels)[:, None]
            else:
                x = found if count < plain else past.extrapolated(x, found - x)
            x = x.clamp(*box)
    return Minimum(points=best, values=values, evaluations=len(trace), trace=tuple(trace))


def known_box(run: SharedRun) -> Box:
    """The least and the greatest of all known entries, for every entry."""
    like = torch.ones_like(run.inputs[0].flatten())
    return run.inputs.min() * like, run.inputs.max() * like


def brightness(problem: ReplayProblem, found: Tensor, like: Tensor, labels: Tensor) -> Tensor:
    """K: the factor of each row of `found` with the least misfit, by a parabola through three."""
    run, observe = problem.run, problem.observation.of(problem.run)
    factors = (1 - TOLERANCES.brighter, 1.0, 1 + TOLERANCES.brighter)
    tried = [end_of_run(run, (found * factor).view_as(like), labels) for factor in factors]
    low, middle, high = ((observe(end) - problem.seen).square().sum(1) for end in tried)
    bend = low - 2 * middle + high
    step = torch.where(bend > 0, (low - high) / (2 * bend), 2 * (low - high).sign())
    return 1 + TOLERANCES.brighter * step.clamp(-2, 2)


class Anderson:
    """Anderson's extrapolation of a repetition, row by row: it keeps the last points and how far a
    round moved each, and says where the moves would vanish."""

    def __init__(self) -> None:
        self.points: list[Tensor] = []
        self.moves: list[Tensor] = []

    def extrapolated(self, point: Tensor, move: Tensor) -> Tensor:
        """K x d: where the moves would vanish if they were linear in the points."""
        self.points = [*self.points, point][-TOLERANCES.history - 1 :]
        self.moves = [*self.moves, move][-TOLERANCES.history - 1 :]
        if len(self.points) < 2:
            return point + move
        dx, df = torch.stack(self.points, 2).diff(dim=2), torch.stack(self.moves, 2).diff(dim=2)
        gram = df.transpose(1, 2) @ df
        number = torch.finfo(gram.dtype)
        small = max(1e-10, 10 * number.eps) * gram.diagonal(dim1=1, dim2=2).mean(1) + number.tiny
        gram = gram + small[:, None, None] * torch.eye(gram.shape[1]).to(gram)
        weights: Tensor = torch.linalg.solve(gram, df.transpose(1, 2) @ move[:, :, None])
        return point + move - ((dx + df) @ weights).squeeze(2)
