"""The records that make the known training run end at the released weights."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.replay.chart import Chart, chart_of
from remnant.solvers.replay.columns import Box, Rounds, columns
from remnant.solvers.replay.depend import MOVE, idle_records
from remnant.solvers.replay.kinks import has_kinks, with_kinks
from remnant.solvers.replay.lbfgs import Minimum, joined, minimise
from remnant.solvers.replay.newton import gauss_newton
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.outside import first_weight
from remnant.solvers.replay.unroll import end_of_run, misfit
from remnant.training.fleet import SharedRun, slots
from remnant.training.recipes import Adam
from remnant.types import Weights

BEND = 10.0  # of the kinks where Gauss-Newton steps did not arrive and a line search goes on


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How the run is solved for its unknown records.

    evaluations: runs forward and backward for each target, after its label is told. labels_tried:
    unknown labels that are followed up, by `label_evaluations` each, if their first guess is
    within `doubt` times the best one's. tolerance: the share of the start's misfit below which a
    run counts as matched; its square for logits, for Adam and for several unknown records, its cube
    where nothing is known, since mixtures of records of one class fit almost as well as the
    records. bends, inner: Gauss-Newton steps for networks with ReLU, see `newton`. algebra: use
    what the first layer tells, see `chart`. memory: bytes that the kept states of a run may fill.
    """

    evaluations: int = 80
    history: int = 30
    labels_tried: int = 10
    label_evaluations: int = 12
    doubt: float = 1.1
    tolerance: float = 1e-4
    bends: tuple[float, ...] = (
        3.0, 3.0, 10.0, 10.0, 30.0, 30.0, 30.0, 100.0, 100.0, 100.0, 300.0, 300.0,
        0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip
    inner: int = 12
    algebra: bool = True
    memory: int = 1 << 30


@dataclass(frozen=True, kw_only=True, eq=False)
class Replayed:
    """K answers: records K x m x shape in the model's scale, labels K x m.

    residual: K, misfit as a share of that at the start, 0 for a run matched exactly. matched: K,
    below the tolerance. idle: K x m, records of a matched run that could move without spoiling the
    match (see `depend`). determined: K, none is idle, as many numbers are seen as are unknown, and
    no other match was found near; without it a match says nothing. trace: the median residual
    after every evaluation.
    """

    records: Tensor
    labels: Tensor
    residual: Tensor
    matched: Tensor
    idle: Tensor
    determined: Tensor
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
    box: Box | None = None,
) -> Replayed:
    """Solve K runs at once.

    released: K x shape each. labels: K x m, or None for one unknown record of unknown class.
    starts: with labels K x m x shape, without them classes x shape, where to start for each class.
    box: least and greatest value of each entry (shape each), for Adam; None = those of all known
    entries. All in the model's scale.
    """
    settings, observation = settings or ReplaySettings(), observation or Observation()
    problem = Problem(
        run=run,
        observation=observation,
        settings=settings,
        seen=observation.seen(run, released),
        chart=chart_of(run, released) if settings.algebra and observation.whole else Chart(),
        box=None
        if box is None
        else (box[0].flatten().to(run.inputs), box[1].flatten().to(run.inputs)),
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
    """K runs to match. seen: K x q of what is observed."""

    run: SharedRun
    observation: Observation
    settings: ReplaySettings
    seen: Tensor
    chart: Chart
    box: Box | None = None

    def rows(self, index: Tensor) -> Problem:
        return replace(self, seen=self.seen[index], chart=self.chart.rows(index))

    @property
    def columnar(self) -> bool:
        """Whether one record is unknown and all weights that read its entries are seen."""
        told = self.settings.algebra and self.observation.whole and self.run.extra == 1
        return told and first_weight(self.run) is not None

    @property
    def jumps(self) -> bool:
        """Whether the run jumps, and by steps that Gauss-Newton can follow."""
        descent = not isinstance(self.run.recipe, Adam)
        return bool(self.settings.bends) and has_kinks(self.run) and descent

    @property
    def tolerance(self) -> float:
        """The share of the misfit below which a run is matched; see `ReplaySettings`."""
        if not len(self.run.inputs):
            power = 3.0
        else:
            flat = isinstance(self.run.recipe, Adam) or self.observation.probes is not None
            power = 2.0 if flat or self.run.extra > 1 else 1.0
        return float(self.settings.tolerance**power)


Solver = Callable[[Problem, Tensor, Tensor, int], Minimum]
"""(problem, starts, labels, evaluations) -> points in the problem's chart."""


def in_rounds(problem: Problem, starts: Tensor, labels: Tensor, before: Tensor | None) -> Replayed:
    """Gauss-Newton steps where the run jumps, then evaluations for the rows not matched by them.

    before: the misfit that counts as 1, K; None = that at the starts.
    """
    points, left = starts.clone(), torch.arange(len(starts))
    residual = torch.full((len(starts),), torch.inf, dtype=starts.dtype)
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
    idle, determined = held(problem, points, labels, matched, before)
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


def solvers_for(problem: Problem) -> tuple[Solver, ...]:
    """In turn, for the rows that those before have not matched."""
    kinks = has_kinks(problem.run)
    if problem.columnar and (kinks or isinstance(problem.run.recipe, Adam)):
        first = partial(by_columns, how=Rounds(bright=8 * kinks, robust=kinks))
        if not kinks:
            return first, partial(by_columns, how=Rounds(bright=8)), solve
        near = partial(by_columns, how=Rounds(grids=0, plain=12, robust=True))
        if not problem.jumps:
            return first, near, solve
        return first, partial(newton, steps=slice(3, None, 2)), near, newton, near, solve
    return (newton, partial(solve, bend=BEND), solve) if problem.jumps else (solve,)


def held(
    problem: Problem, records: Tensor, labels: Tensor, matched: Tensor, before: Tensor
) -> tuple[Tensor, Tensor]:
    """`idle` and `determined` of `Replayed`."""
    idle = torch.zeros_like(labels, dtype=torch.bool)
    if bool(matched.any()):
        idle[matched] = idle_records(
            problem.run, records[matched], labels[matched], problem.tolerance * before[matched],
            observe=problem.observation.of(problem.run), memory=problem.settings.memory,
        )  # fmt: skip
    determined = ~idle.any(1) & (problem.seen.shape[1] >= records[0].numel())
    sure = (matched & determined).nonzero()[:, 0]
    if len(sure) and not problem.observation.whole:
        determined[sure] = ~another(problem.rows(sure), records[sure], labels[sure], before[sure])
    return idle, determined


def another(problem: Problem, records: Tensor, labels: Tensor, before: Tensor) -> Tensor:
    """K: whether a search from a little beside the found records matches the run elsewhere.

    Some layers, or logits, may be many numbers and yet hold few directions of a record.
    """
    generator = torch.Generator().manual_seed(0)  # its own: it changes no other result
    draw = torch.randn(records.shape[1:], generator=generator, dtype=torch.float64).to(records)
    known = problem.run.inputs
    far = MOVE * (known if len(known) else records).std()
    plain = replace(problem, settings=replace(problem.settings, bends=(0.0,) * 4))
    solver = newton if problem.jumps else solve
    found = solver(plain, records + far * draw, labels, problem.settings.evaluations)
    apart = (problem.chart.records(found.points, records) - records).flatten(1).square().mean(1)
    return (found.values <= problem.tolerance * before) & (apart.sqrt() > far / 2)


def newton(
    problem: Problem, starts: Tensor, labels: Tensor, evaluations: int, steps: slice = slice(None)
) -> Minimum:
    """Gauss-Newton steps for runs that jump; as many rows at once as fit the memory. They cost
    what they cost, whatever the evaluations."""
    run, settings = problem.run, problem.settings
    state = sum(w.numel() for w in run.start) * (1 + slots(run.recipe))
    chunk = settings.memory // (state * (1 + len(run.rows)) * starts.element_size())
    parts = [
        gauss_newton(
            run, starts[rows], labels[rows], problem.seen[rows],
            observe=problem.observation.of(run), chart=problem.chart.rows(rows),
            bends=settings.bends[steps], inner=settings.inner,
        )
        for rows in torch.arange(len(starts)).split(max(1, chunk))
    ]  # fmt: skip
    return joined(parts)


def by_columns(
    problem: Problem, starts: Tensor, labels: Tensor, evaluations: int, how: Rounds
) -> Minimum:
    """Rounds of `columns`, as many rows at once as fit the memory."""
    run, chart, first = problem.run, problem.chart, first_weight(problem.run)
    assert first is not None
    still = torch.zeros_like(starts.flatten(1)) if chart.scale is None else chart.scale == 0
    kept = 4 * len(run.rows) * run.start[first].numel() * starts.element_size()
    parts = [
        columns(
            run, starts[rows], labels[rows], problem.seen[rows], first=first, how=how,
            observe=problem.observation.of(run), rounds=evaluations, still=still[rows].bool(),
            box=problem.box or known_box(run),
        )
        for rows in torch.arange(len(starts)).split(max(1, problem.settings.memory // kept))
    ]  # fmt: skip
    return joined([replace(part, points=chart.place(part.points)) for part in parts])


def known_box(run: SharedRun) -> Box:
    """The least and the greatest of all known entries, for every entry."""
    like = torch.ones_like(run.inputs[0].flatten())
    return run.inputs.min() * like, run.inputs.max() * like


def solve(
    problem: Problem, starts: Tensor, labels: Tensor, evaluations: int, bend: float = 0.0
) -> Minimum:
    """L-BFGS on |n (seen by the end of the run - seen)|^2 over the records, all rows at once.

    The influence of one record is 1 / n of all, hence the factor: the misfit is then of order 1
    for an error of order 1 in the record.
    """
    run, settings, chart = problem.run, problem.settings, problem.chart
    observe, scale = problem.observation.of(run), float(run.records)
    mine = with_kinks(run, bend) if bend else run

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = misfit(
            mine,
            chart.records(point, starts),
            labels,
            lambda weights: observe(weights) * scale,
            problem.seen * scale,
            memory=settings.memory,
        )
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


def likely_labels(
    problem: Problem, released: Weights, starts: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """For each target where its best class's short run ended, that class (K x 1) and the misfit
    that it began with (K).

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
    short = solvers_for(problem)[0]
    if short is newton:
        short = partial(newton, steps=slice(2))
    found = short(many, points, labels, settings.label_evaluations)
    best = torch.stack(
        [mine[found.values[mine].argmin()] for mine in torch.split(
            torch.arange(len(targets)), torch.bincount(targets).tolist()
        )]
    )  # fmt: skip
    ended = many.chart.records(found.points, points)
    return ended[best], labels[best], found.trace[0][best]


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
        idle=found.idle[order],
        determined=found.determined[order],
        evaluations=found.evaluations,
        trace=found.trace,
    )
