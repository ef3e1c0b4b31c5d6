"""How a known training run is solved for its unknown records: the ways, and which comes when."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers.numerics import Minimum, joined, minimise
from remnant.solvers.replay.chart import Chart
from remnant.solvers.replay.columns import Box, columns
from remnant.solvers.replay.kinks import has_kinks
from remnant.solvers.replay.newton import gauss_newton
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.outside import first_weight
from remnant.solvers.replay.unroll import misfit
from remnant.training.fleet import SharedRun
from remnant.training.recipes import Adam
from remnant.training.steps import slots


@dataclass(frozen=True, kw_only=True)
class ReplaySettings:
    """How the run is solved for its unknown records.

    A run is matched where its misfit is below `tolerance` times that at the start. The tolerance is
    taken to the power 1.5 where convolutions come first (of two targets of CIFAR-10, residuals of
    9e-5, 1e-5 and 4e-6 left an MSE of 1.4e-3, 5e-4 and 3e-4), squared for logits, for Adam and for
    several unknown records, cubed where nothing is known: mixtures of records of one class fit
    almost as well as the records.
    """

    evaluations: int = 80  # runs forward and backward for each target
    history: int = 30  # steps that L-BFGS remembers
    labels_tried: int = 10  # unknown labels that are followed up
    label_evaluations: int = 12  # of each of them
    doubt: float = 1.1  # labels whose first guess is within that of the best one's are followed up
    tolerance: float = 1e-4
    bends: tuple[float, ...] = (
        3.0, 3.0, 10.0, 10.0, 30.0, 30.0, 30.0, 100.0, 100.0, 100.0, 300.0, 300.0,
        0.0, 0.0, 0.0, 0.0,
    )  # fmt: skip
    """Gauss-Newton steps for networks with ReLU, see `newton`."""
    inner: int = 12  # conjugate gradients of each of them
    memory: int = 1 << 30  # bytes that the kept states of a run may fill


@dataclass(frozen=True, kw_only=True, eq=False)
class ReplayProblem:
    """K runs to match. seen: K x q of what is observed."""

    run: SharedRun
    observation: Observation
    settings: ReplaySettings
    seen: Tensor
    chart: Chart
    box: Box | None = None

    def rows(self, index: Tensor) -> ReplayProblem:
        return replace(self, seen=self.seen[index], chart=self.chart.rows(index))

    @property
    def columnar(self) -> bool:
        """Whether one record is unknown and all weights that read its entries are seen."""
        told = self.observation.whole and self.run.extra == 1
        return told and first_weight(self.run) is not None

    @property
    def tolerance(self) -> float:
        """The share of the misfit below which a run is matched; see `ReplaySettings`."""
        if not len(self.run.inputs):
            power = 3.0
        else:
            flat = isinstance(self.run.recipe, Adam) or self.observation.probes is not None
            convolved = first_weight(self.run) is None
            power = 2.0 if flat or self.run.extra > 1 else 1.5 if convolved else 1.0
        return float(self.settings.tolerance**power)


Solver = Callable[[ReplayProblem, Tensor, Tensor, int], Minimum]
"""(problem, starts, labels, evaluations) -> points in the problem's chart."""


def solvers_for(problem: ReplayProblem) -> tuple[Solver, ...]:
    """In turn, for the rows that those before have not matched."""
    kinks, adam = has_kinks(problem.run), isinstance(problem.run.recipe, Adam)
    if not problem.columnar or not (kinks or adam):
        return (solve,)
    far = partial(by_columns, robust=kinks)
    if not kinks:
        return (far, solve)
    near = partial(by_columns, near=True, robust=True)
    if adam or not problem.settings.bends:
        return far, near
    return far, newton, near, newton, near, solve


def newton(problem: ReplayProblem, starts: Tensor, labels: Tensor, evaluations: int) -> Minimum:
    """Gauss-Newton steps for runs that jump; as many rows at once as fit the memory. They cost
    what they cost, whatever the evaluations."""
    run, settings = problem.run, problem.settings
    state = sum(w.numel() for w in run.start) * (1 + slots(run.recipe))
    chunk = settings.memory // (state * (1 + len(run.rows)) * starts.element_size())
    parts = [
        gauss_newton(
            run, starts[rows], labels[rows], problem.seen[rows], chart=problem.chart.rows(rows),
            bends=settings.bends, inner=settings.inner,
        )
        for rows in torch.arange(len(starts)).split(max(1, chunk))
    ]  # fmt: skip
    return joined(parts)


def by_columns(
    problem: ReplayProblem,
    starts: Tensor,
    labels: Tensor,
    evaluations: int,
    *,
    near: bool = False,
    robust: bool = False,
) -> Minimum:
    """Rounds of `columns`, as many rows at once as fit the memory."""
    run, chart, first = problem.run, problem.chart, first_weight(problem.run)
    assert first is not None
    still = torch.zeros_like(starts.flatten(1)) if chart.scale is None else chart.scale == 0
    kept = 4 * len(run.rows) * run.start[first].numel() * starts.element_size()
    parts = [
        columns(
            run, starts[rows], labels[rows], problem.seen[rows], first=first, near=near,
            observe=problem.observation.of(run), rounds=evaluations, still=still[rows].bool(),
            box=problem.box or known_box(run), robust=robust,
        )
        for rows in torch.arange(len(starts)).split(max(1, problem.settings.memory // kept))
    ]  # fmt: skip
    return joined([replace(part, points=chart.place(part.points)) for part in parts])


def known_box(run: SharedRun) -> Box:
    """The least and the greatest of all known entries, for every entry."""
    like = torch.ones_like(run.inputs[0].flatten())
    return run.inputs.min() * like, run.inputs.max() * like


def solve(problem: ReplayProblem, starts: Tensor, labels: Tensor, evaluations: int) -> Minimum:
    """L-BFGS on |n (seen by the end of the run - seen)|^2 over the records, all rows at once.

    The influence of one record is 1 / n of all, hence the factor: the misfit is then of order 1
    for an error of order 1 in the record.
    """
    run, settings, chart = problem.run, problem.settings, problem.chart
    observe, scale = problem.observation.of(run), float(run.records)

    def objective(point: Tensor) -> tuple[Tensor, Tensor]:
        value, gradient = misfit(
            run,
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
