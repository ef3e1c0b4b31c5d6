"""The records that make the known training run end at the released weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.numerics import Minimum, minimise
from remnant.solvers.replay.certify import idle_records
from remnant.solvers.replay.chart import Chart, chart_of
from remnant.solvers.replay.columns import by_columns
from remnant.solvers.replay.newton import newton
from remnant.solvers.replay.problem import Box, ReplayProblem, ReplaySettings
from remnant.solvers.replay.run import Observation, end_of_run, misfit
from remnant.solvers.replay.smoothing import by_smoothing
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """K answers: records K x m x shape in the model's scale, labels K x m.

    residual: K, misfit as a share of that at the start, 0 for a run matched exactly. matched: K,
    below the tolerance. idle: K x m, records of a matched run that could move without spoiling the
    match (see `certify`). determined: K, none is idle, as many numbers are seen as are unknown, and
    no other match was found near; without it a match says nothing. evaluations: of a target at
    most, but for its label's short run. trace: the median residual after every one.
    """

    records: Tensor
    labels: Tensor
    residual: Tensor
    matched: Tensor
    idle: Tensor
    determined: Tensor
    evaluations: int
    trace: tuple[float, ...]

    def rows(self, order: Tensor) -> Replayed:
        each = ("records", "labels", "residual", "matched", "idle", "determined")
        return replace(self, **{name: getattr(self, name)[order] for name in each})


Begun = tuple[Tensor, Tensor, Tensor | None]
"""K runs to solve from where a search for their labels left them: points K x m x shape, labels K x
m, and the misfit that counts as 1, K; None = that at the points."""

Solver = Callable[[ReplayProblem, Tensor, Tensor, int], Minimum]
"""(problem, starts, labels, evaluations) -> points in the problem's chart."""


def replay(
    run: SharedRun,
    released: Weights,
    *,
    starts: Tensor,
    labels: Tensor | None = None,
    observation: Observation | None = None,
    settings: ReplaySettings | None = None,
    box: Box | None = None,
) -> Replayed:
    """Solve K runs at once.

    released: K x shape each. labels: K x m, or None for one unknown record of unknown class.
    starts: with labels K x m x shape, without them classes x shape, where to start for each class.
    box: least and greatest value of each entry (shape each), for columns; None = those of all known
    entries. All in the model's scale.
    """
    observation = observation or Observation()
    problem = ReplayProblem(
        run=run,
        observation=observation,
        settings=settings or ReplaySettings(),
        seen=observation.seen(run, released),
        chart=chart_of(run, released) if observation.whole else Chart(),
        box=box and (box[0].flatten().to(run.inputs), box[1].flatten().to(run.inputs)),
    )
    if labels is None:
        if run.extra != 1:
            wanted = "one unknown record, or the labels of all"
            raise InputError(expected("replay: unknown records", wanted, run.extra))
        return in_rounds(problem, likely_labels(problem, released, starts))
    if labels.shape != starts.shape[:2] or labels.shape[1] != run.extra:
        got = f"{tuple(labels.shape)} labels and {tuple(starts.shape)} starts"
        raise InputError(expected("replay", f"K x {run.extra} and K x {run.extra} x shape", got))
    return in_rounds(problem, (starts, labels, None))


def solvers_for(problem: ReplayProblem) -> tuple[Solver, ...]:
    """In turn, for the rows that those before have not matched."""
    if problem.adam and problem.run.extra > 1 and problem.observation.whole:
        return (by_smoothing,)
    if not problem.columnar or not (problem.kinks or problem.adam):
        return (solve,)
    if not problem.kinks:
        return (by_columns, solve)
    near = partial(by_columns, near=True)
    if problem.adam:
        return by_columns, near
    return by_columns, newton, near, newton, near, solve


def solve(problem: ReplayProblem, starts: Tensor, labels: Tensor, evaluations: int) -> Minimum:
    """L-BFGS on |n (seen by the end of the run - seen)|^2 over the records, all rows at once.

    The influence of one record is 1 / n of all, hence the factor: the misfit is then of order 1
    for an error of order 1 in the record.
    """
    run, settings, chart = problem.run, problem.settings, problem.chart
    match = partial(misfit, scale=float(run.records), memory=settings.memory)
    observe = problem.observation.of(run)

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        records = chart.records(point, starts)
        value, gradient = match(run, records, labels, observe, problem.seen)
        return value, chart.pull(gradient)

    with task("replay", evaluations) as step:
        return minimise(
            objective,
            chart.place(starts),
            evaluations=evaluations,
            history=settings.history,
            enough=1e-3 * torch.finfo(starts.dtype).eps,
            each=step,
        )


def in_rounds(problem: ReplayProblem, begun: Begun) -> Replayed:
    """The problem's solvers in turn, each for the rows that those before have not matched."""
    points, labels, before = begun[0].clone(), *begun[1:]
    left = torch.arange(len(points))
    residual = torch.full((len(points),), torch.inf, dtype=points.dtype)
    trace: list[float] = []
    for solver in solvers_for(problem):
        mine = problem.rows(left)
        found = solver(mine, points[left], labels[left], problem.settings.evaluations)
        if before is None:
            before = found.trace[0].clamp(min=1e-30)
        points[left] = mine.chart.records(found.points, points[left])
        for value in found.trace:
            residual[left] = value / before[left]
            trace.append(float(residual.median()))
        left = (~(residual <= problem.tolerance)).nonzero()[:, 0]
        if not len(left):
            break
    assert before is not None
    matched = residual <= problem.tolerance
    idle, determined = idle_and_determined(problem, points, labels, matched, before)
    return Replayed(
        records=points,
        labels=labels,
        residual=residual,
        matched=matched,
        idle=idle,
        determined=determined,
        evaluations=len(trace),
        trace=tuple(trace),
    )


def idle_and_determined(
    problem: ReplayProblem, records: Tensor, labels: Tensor, matched: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """The fields `idle` (K x m) and `determined` (K) of `Replayed` for records K x m x shape.

    matched: K, whether the run with them ends at the released weights; others are not looked at.
    before: K, the misfit that counts as 1.
    """
    idle, enough = torch.zeros_like(labels, dtype=torch.bool), problem.tolerance * before
    if bool(matched.any()):
        mine = problem.rows(matched)
        idle[matched] = idle_records(mine, records[matched], labels[matched], enough[matched])
    determined = ~idle.any(1) & (problem.seen.shape[1] >= records[0].numel())
    sure = (matched & determined).nonzero()[:, 0]
    if len(sure) and not problem.observation.whole:
        mine = problem.rows(sure)
        determined[sure] = ~matches_elsewhere(mine, records[sure], labels[sure], enough[sure])
    return idle, determined


def matches_elsewhere(
    problem: ReplayProblem, records: Tensor, labels: Tensor, enough: Tensor
) -> Tensor:
    """K: whether a search from a little beside the found records matches the run elsewhere.

    Some layers, or logits, may be many numbers and yet hold few directions of a record. enough: K,
    the misfit of a match.
    """
    generator = torch.Generator().manual_seed(0)  # its own: it changes no other result
    draw = torch.randn(records.shape[1:], generator=generator, dtype=torch.float64).to(records)
    known = problem.run.inputs
    far = TOLERANCES.move * (known if len(known) else records).std()
    found = solve(problem, records + far * draw, labels, problem.settings.evaluations)
    apart = (problem.chart.records(found.points, records) - records).flatten(1).square().mean(1)
    return (found.values <= enough) & (apart.sqrt() > far / 2)


def likely_labels(problem: ReplayProblem, released: Weights, starts: Tensor) -> Begun:
    """For each target where its best class's short run ended, and that class.

    One run per class ranks them, mostly by the later layers (for Adam by absolute values over
    all: few weights move by whole steps whatever the label); those that lead are followed up.
    """
    run, settings = problem.run, problem.settings
    ends = end_of_run(run, starts[:, None], torch.arange(len(starts))[:, None])
    ranking = problem.observation
    if not problem.adam:
        ranking = ranking.without_first_weight(run)
    seen, there = ranking.seen(run, released).double(), ranking.of(run)(ends).double()
    gaps = torch.cdist(seen, there, p=1.0 if problem.adam else 2.0)
    tried = gaps.topk(min(settings.labels_tried, len(starts)), largest=False)
    targets, places = (tried.values <= settings.doubt * tried.values[:, :1]).nonzero(as_tuple=True)
    labels = tried.indices[targets, places][:, None]
    points = starts[labels[:, 0]][:, None]
    many = problem.rows(targets)
    found = solvers_for(problem)[0](many, points, labels, settings.label_evaluations)
    ended = many.chart.records(found.points, points)
    each = torch.arange(len(targets)).split(torch.bincount(targets).tolist())
    best = torch.stack([mine[found.values[mine].argmin()] for mine in each])
    return ended[best], labels[best], found.trace[0][best]


def class_starts(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """classes x shape: the mean input of each class; of all where a class has none."""
    held = [inputs[labels == c] for c in range(classes)]
    return torch.stack([(some if len(some) else inputs).mean(0) for some in held])


def replay_update(
    run: SharedRun,
    released: Weights,
    labels: Tensor,
    *,
    shape: Sequence[int],
    generator: torch.Generator,
    restarts: int = 4,
    centres: Sequence[float] = (0.1, 0.5),
    spread: float = 0.1,
    settings: ReplaySettings | None = None,
    box: Box | None = None,
) -> Replayed:
    """A few steps on records of which nothing but the labels (m) is known, as a client of federated
    averaging takes them: from `restarts` random starts, best match first.

    released: one model's weights. centres (in turn), spread: of the starts' entries, in the model's
    scale.
    """
    like = run.start[0]
    draws = torch.randn(restarts, len(labels), *shape, generator=generator, dtype=torch.float64)
    middles = torch.tensor([centres[k % len(centres)] for k in range(restarts)])
    starts = (middles.view(-1, *[1] * (draws.ndim - 1)) + spread * draws).to(like)
    many = {n: w.to(like).expand(restarts, *w.shape) for n, w in released.items()}
    found = replay(
        run, many, starts=starts, labels=labels.expand(restarts, -1), settings=settings, box=box
    )
    return found.rows(found.residual.argsort())
