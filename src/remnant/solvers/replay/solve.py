"""The records that make the known training run end at the released weights."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.replay.kinks import has_kinks, with_kinks
from remnant.solvers.replay.lbfgs import Minimum, minimise
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.outside import frames
from remnant.solvers.replay.unroll import end_of_run, misfit
from remnant.training.fleet import SharedRun
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How the run is solved for its unknown records.

    evaluations: runs forward and backward for each target, after its label is told. labels_tried:
    unknown labels that are followed up, by `label_evaluations` each. tolerance: the share of the
    start's misfit below which a run counts as matched; its square for logits and for several
    unknown records, its cube where nothing is known, since mixtures of records of one class fit
    almost as well as the records. kinks: for ReLU networks, see `kinks` (0 = the plain derivative,
    which is right once no unit switches any more); one round of evaluations each for the rows that
    are not matched yet. algebra: use what the first layer tells, see `outside`. memory: bytes that
    the kept states of a run may fill.
    """

    evaluations: int = 80
    history: int = 30
    labels_tried: int = 3
    label_evaluations: int = 12
    tolerance: float = 1e-4
    kinks: tuple[float, ...] = (10.0, 0.0, 3.0, 0.0)
    algebra: bool = True
    memory: int = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """K answers: records K x m x shape in the model's scale, labels K x m.

    residual: K, misfit as a share of that at the start, 0 for a run matched exactly. matched: K,
    below the tolerance. determined: as many numbers are seen as are unknown, without which a
    match proves nothing. trace: the median residual after every evaluation.
    """

    records: Tensor
    labels: Tensor
    residual: Tensor
    matched: Tensor
    determined: bool
    evaluations: int
    trace: tuple[float, ...]


def replay(
    run: SharedRun,
    released: Weights,
    *,
    starts: Tensor,
    labels: Tensor | None = None,
    observation: Observation | None = None,
    settings: ReplaySettings | None = None,
) -> Replayed:
    """Solve K runs at once.

    released: K x shape each. labels: K x m, or None for one unknown record of unknown class.
    starts: with labels K x m x shape, without them classes x shape, where to start for each class.
    All in the model's scale.
    """
    settings, observation = settings or ReplaySettings(), observation or Observation()
    all_seen = observation.layers is None and observation.probes is None
    problem = Problem(
        run=run,
        observation=observation,
        settings=settings,
        seen=observation.seen(run, released),
        frame=frames(run, released) if settings.algebra and all_seen else None,
    )
    if labels is None:
        if run.extra != 1:
            wanted = "one unknown record, or the labels of all"
            raise InputError(expected("replay: unknown records", wanted, run.extra))
        starts, labels, before = likely_labels(problem, released, starts)
        return in_rounds(problem, starts, labels, before)
    if labels.shape != starts.shape[:2] or labels.shape[1] != run.extra:
        got = f"{tuple(labels.shape)} labels and {tuple(starts.shape)} starts"
        raise InputError(expected("replay", f"K x {run.extra} and K x {run.extra} x shape", got))
    return in_rounds(problem, starts, labels, None)


@dataclass(frozen=True, kw_only=True, eq=False)
class Problem:
    """K runs to match. seen: K x q. frame: K x d x f, where the records lie, None = anywhere."""

    run: SharedRun
    observation: Observation
    settings: ReplaySettings
    seen: Tensor
    frame: Tensor | None

    def rows(self, index: Tensor) -> Problem:
        frame = None if self.frame is None else self.frame[index]
        return replace(self, seen=self.seen[index], frame=frame)

    @property
    def bends(self) -> tuple[float, ...]:
        """What stands for the slope's derivative in each round of evaluations."""
        return self.settings.kinks if self.settings.kinks and has_kinks(self.run) else (0.0,)

    @property
    def tolerance(self) -> float:
        """The share of the misfit below which a run is matched; see `ReplaySettings`."""
        if not len(self.run.inputs):
            return self.settings.tolerance**3
        alone = self.run.extra == 1 and self.observation.probes is None
        return self.settings.tolerance ** (1 if alone else 2)

    def coordinates(self, records: Tensor) -> Tensor:
        flat = records.flatten(1)
        return flat if self.frame is None else (flat[:, None] @ self.frame)[:, 0]

    def records(self, coordinates: Tensor, like: Tensor) -> Tensor:
        if self.frame is not None:
            coordinates = (self.frame @ coordinates[:, :, None])[:, :, 0]
        return coordinates.view_as(like)


def in_rounds(problem: Problem, starts: Tensor, labels: Tensor, before: Tensor | None) -> Replayed:
    """All rounds of evaluations; rows that are matched leave after each.

    before: the misfit that counts as 1, K; None = that at the starts.
    """
    settings = problem.settings
    tolerance = problem.tolerance
    points, left = starts.clone(), torch.arange(len(starts))
    residual = torch.full((len(starts),), torch.inf, dtype=starts.dtype)
    trace: list[float] = []
    for bend in problem.bends:
        found = solve(problem.rows(left), points[left], labels[left], settings.evaluations, bend)
        if before is None:
            before = found.trace[0].clamp(min=1e-30)
        points[left] = problem.rows(left).records(found.points, points[left])
        for value in found.trace:
            residual[left] = value / before[left]
            trace.append(float(residual.median()))
        left = (~(residual <= tolerance)).nonzero()[:, 0]
        if not len(left):
            break
    return Replayed(
        records=points,
        labels=labels,
        residual=residual,
        matched=residual <= tolerance,
        determined=problem.seen.shape[1] >= starts[0].numel(),
        evaluations=len(trace),
        trace=tuple(trace),
    )


def solve(
    problem: Problem, starts: Tensor, labels: Tensor, evaluations: int, bend: float
) -> Minimum:
    """L-BFGS on |n (seen by the end of the run - seen)|^2 over the records, all rows at once.

    The influence of one record is 1 / n of all, hence the factor: the misfit is then of order 1
    for an error of order 1 in the record.
    """
    run, settings = problem.run, problem.settings
    observe, scale = problem.observation.of(run), float(run.records)
    mine = with_kinks(run, bend) if bend else run

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = misfit(
            mine,
            problem.records(point, starts),
            labels,
            lambda weights: observe(weights) * scale,
            problem.seen * scale,
            memory=settings.memory,
        )
        return value, problem.coordinates(gradient)

    with task("replay", evaluations) as step:
        return minimise(
            objective,
            problem.coordinates(starts),
            evaluations=evaluations,
            history=settings.history,
            enough=1e-3 * torch.finfo(starts.dtype).eps,
            each=step,
        )


def likely_labels(
    problem: Problem, released: Weights, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor | None]:
    """For each target where its best class's short run ended, that class (K x 1) and the misfit
    that it began with (K; None where one class alone was in question).

    One run per class ranks them, mostly by the later layers; those that lead are followed up.
    """
    run, settings, count = problem.run, problem.settings, len(problem.seen)
    ends = end_of_run(run, starts[:, None], torch.arange(len(starts))[:, None])
    ranking = problem.observation.without_first_weight(run)
    gaps = torch.cdist(ranking.seen(run, released).double(), ranking.of(run)(ends).double())
    tried = min(settings.labels_tried, len(starts))
    labels = gaps.topk(tried, largest=False).indices.flatten()[:, None]  # K * tried x 1
    points = starts[labels[:, 0]][:, None]
    if tried == 1:
        return points, labels, None
    many = problem.rows(torch.arange(count).repeat_interleave(tried))
    found = solve(many, points, labels, settings.label_evaluations, problem.bends[0])
    best = found.values.view(count, tried).argmin(1) + tried * torch.arange(count)
    return many.records(found.points, points)[best], labels[best], found.trace[0][best]


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
    return Replayed(
        records=found.records[order],
        labels=found.labels[order],
        residual=found.residual[order],
        matched=found.matched[order],
        determined=found.determined,
        evaluations=found.evaluations,
        trace=found.trace,
    )
