"""The records that make the known training run end at the released weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.solvers.replay.chart import Chart, chart_of
from remnant.solvers.replay.columns import Box
from remnant.solvers.replay.depend import idle_records
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.solvers.replay.unroll import end_of_run
from remnant.solvers.replay.ways import ReplayProblem, ReplaySettings, solve, solvers_for
from remnant.training.fleet import SharedRun
from remnant.training.recipes import Adam
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """K answers: records K x m x shape in the model's scale, labels K x m.

    residual: K, misfit as a share of that at the start, 0 for a run matched exactly. matched: K,
    below the tolerance. idle: K x m, records of a matched run that could move without spoiling the
    match (see `depend`). determined: K, none is idle, as many numbers are seen as are unknown, and
    no other match was found near; without it a match says nothing. evaluations: of a target at
    most, but for its label's short run. trace: the median residual after every one.
    """

    EACH: ClassVar = ("records", "labels", "residual", "matched", "idle", "determined")

    records: Tensor
    labels: Tensor
    residual: Tensor
    matched: Tensor
    idle: Tensor
    determined: Tensor
    evaluations: int
    trace: tuple[float, ...]


@dataclass(frozen=True, kw_only=True, eq=False)
class Begun:
    """K runs to solve from where a search for their labels left them: points K x m x shape, labels
    K x m.

    before: K, the misfit that counts as 1; None = that at the points.
    """

    points: Tensor
    labels: Tensor
    before: Tensor | None = None


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
    box: least and greatest value of each entry (shape each), for Adam; None = those of all known
    entries. All in the model's scale.
    """
    settings, observation = settings or ReplaySettings(), observation or Observation()
    problem = ReplayProblem(
        run=run,
        observation=observation,
        settings=settings,
        seen=observation.seen(run, released),
        chart=chart_of(run, released) if observation.whole else Chart(),
        box=None
        if box is None
        else (box[0].flatten().to(run.inputs), box[1].flatten().to(run.inputs)),
    )
    if labels is None:
        if run.extra != 1:
            wanted = "one unknown record, or the labels of all"
            raise InputError(expected("replay: unknown records", wanted, run.extra))
        return in_rounds(problem, likely_labels(problem, released, starts))
    if labels.shape != starts.shape[:2] or labels.shape[1] != run.extra:
        got = f"{tuple(labels.shape)} labels and {tuple(starts.shape)} starts"
        raise InputError(expected("replay", f"K x {run.extra} and K x {run.extra} x shape", got))
    return in_rounds(problem, Begun(points=starts, labels=labels))


def in_rounds(problem: ReplayProblem, begun: Begun) -> Replayed:
    """The problem's solvers in turn, each for the rows that those before have not matched."""
    points, labels, before = begun.points.clone(), begun.labels, begun.before
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
    idle = torch.zeros_like(labels, dtype=torch.bool)
    if bool(matched.any()):
        idle[matched] = idle_records(
            problem.run, records[matched], labels[matched], problem.tolerance * before[matched],
            observe=problem.observation.of(problem.run), memory=problem.settings.memory,
        )  # fmt: skip
    determined = ~idle.any(1) & (problem.seen.shape[1] >= records[0].numel())
    sure = (matched & determined).nonzero()[:, 0]
    if len(sure) and not problem.observation.whole:
        determined[sure] = ~matches_elsewhere(
            problem.rows(sure), records[sure], labels[sure], before[sure]
        )
    return idle, determined


def matches_elsewhere(
    problem: ReplayProblem, records: Tensor, labels: Tensor, before: Tensor
) -> Tensor:
    """K: whether a search from a little beside the found records matches the run elsewhere.

    Some layers, or logits, may be many numbers and yet hold few directions of a record.
    """
    generator = torch.Generator().manual_seed(0)  # its own: it changes no other result
    draw = torch.randn(records.shape[1:], generator=generator, dtype=torch.float64).to(records)
    known = problem.run.inputs
    far = TOLERANCES.move * (known if len(known) else records).std()
    found = solve(problem, records + far * draw, labels, problem.settings.evaluations)
    apart = (problem.chart.records(found.points, records) - records).flatten(1).square().mean(1)
    return (found.values <= problem.tolerance * before) & (apart.sqrt() > far / 2)


def likely_labels(problem: ReplayProblem, released: Weights, starts: Tensor) -> Begun:
    """For each target where its best class's short run ended, and that class.

    One run per class ranks them, mostly by the later layers (for Adam by absolute values over
    all: few weights move by whole steps whatever the label); those that lead are followed up.
    """
    run, settings = problem.run, problem.settings
    ends = end_of_run(run, starts[:, None], torch.arange(len(starts))[:, None])
    adam, ranking = isinstance(run.recipe, Adam), problem.observation
    if not adam:
        ranking = ranking.without_first_weight(run)
    seen, there = ranking.seen(run, released).double(), ranking.of(run)(ends).double()
    gaps = torch.cdist(seen, there, p=1.0 if adam else 2.0)
    tried = gaps.topk(min(settings.labels_tried, len(starts)), largest=False)
    targets, places = (tried.values <= settings.doubt * tried.values[:, :1]).nonzero(as_tuple=True)
    labels = tried.indices[targets, places][:, None]
    points = starts[labels[:, 0]][:, None]
    many = problem.rows(targets)
    found = solvers_for(problem)[0](many, points, labels, settings.label_evaluations)
    ended = many.chart.records(found.points, points)
    each = torch.arange(len(targets)).split(torch.bincount(targets).tolist())
    best = torch.stack([mine[found.values[mine].argmin()] for mine in each])
    return Begun(points=ended[best], labels=labels[best], before=found.trace[0][best])


def class_starts(inputs: Tensor, labels: Tensor, classes: int) -> Tensor:
    """classes x shape: the mean input of each class; of all where a class has none."""
    overall = inputs.mean(0)
    means = [inputs[labels == c].mean(0) if bool((labels == c).any()) else overall
             for c in range(classes)]  # fmt: skip
    return torch.stack(means)


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
    found = replay(run, many, starts=starts, labels=labels.expand(restarts, -1), settings=settings)
    order = found.residual.argsort()
    return replace(found, **{name: getattr(found, name)[order] for name in Replayed.EACH})
