"""Gauss-Newton through a training run, for ends that jump.

With ReLU the end of a run is no continuous function of a record: whenever a unit of some record
switches, it jumps by as much as a record moves it. A line search sees a cliff in every direction.
But there are thousands of small jumps, and on average they are what the bump of `kinks` says, so
that a full step along the averaged derivative comes closer, and the closer, the fewer jumps are
left: their number falls with the error. What jumped is a minority of the weights, so the
misfit is weighted as for a sum of absolute values, which forgives it. Near the end nothing jumps
any more, and the plain derivative ends it to rounding.
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers.numerics import Minimum, joined, least_squares
from remnant.solvers.replay.kinks import with_kinks
from remnant.solvers.replay.problem import ReplayProblem
from remnant.solvers.replay.run import pull_back, push_forward, states
from remnant.training.fleet import SharedRun
from remnant.training.steps import slots


def newton(problem: ReplayProblem, starts: Tensor, labels: Tensor, evaluations: int) -> Minimum:
    """Gauss-Newton steps from `starts`, as many rows at once as fit the memory. There are as many
    as the settings have `bends`; `evaluations`, which other solvers obey, is not looked at."""
    run, state = problem.run, sum(w.numel() for w in problem.run.start)
    kept = state * (1 + slots(run.recipe)) * (1 + len(run.rows)) * starts.element_size()
    chunks = torch.arange(len(starts)).split(max(1, problem.settings.memory // kept))
    return joined([bent_steps(problem.rows(rows), starts[rows], labels[rows]) for rows in chunks])


def bent_steps(problem: ReplayProblem, starts: Tensor, labels: Tensor) -> Minimum:
    """One full step for each of the settings' `bends` (see `kinks`; 0 = the plain derivative).

    All weights are seen. Of all points the one with the least sum of absolute misfits is kept,
    since a step need not come closer. Rows that end at rounding are left alone.
    """
    run, bends = problem.run, problem.settings.bends
    n, point = float(run.records), problem.chart.place(starts)
    best, least = point.clone(), torch.full_like(point[:, 0], torch.inf)
    values, left, trace = least.clone(), torch.arange(len(starts)), []
    rounding = (1e3 * torch.finfo(starts.dtype).eps) ** 2
    with task("gauss-newton", len(bends) + 1) as tick:
        for bend in (*bends, None):
            mine = problem.rows(left)
            records = mine.chart.records(point[left], starts[left])
            path = states(run, records, labels[left])
            gap = n * (mine.seen - in_a_row(path[-1][: len(run.start)]))
            value, size = gap.square().sum(1), gap.abs().sum(1)
            closer = size < least[left]
            better = left[closer]
            best[better], least[better] = point[better], size[closer]
            values[better] = value[closer]
            trace.append(values.clone())
            tick(note=f"misfit {float(values.median()):.1e}")
            far = values[left] > rounding * trace[0][left]
            if bend is None or not bool(far.any()):
                break
            bent = with_kinks(run, bend) if bend else run
            point[left] += full_step(mine, bent, path, records, labels[left], gap / n)
            left = left[far]
    return Minimum(points=best, values=values, evaluations=len(trace), trace=tuple(trace))


def in_a_row(weights: Sequence[Tensor]) -> Tensor:
    """K x q: all weights (K x shape each), flat."""
    return torch.cat([w.flatten(1) for w in weights], 1)


def full_step(
    problem: ReplayProblem,
    run: SharedRun,
    path: Sequence[list[Tensor]],
    records: Tensor,
    labels: Tensor,
    gap: Tensor,
) -> Tensor:
    """The change of coordinates that closes most of `gap` (K x q), weighted as for a sum of
    absolute values."""
    end, chart = path[-1][: len(run.start)], problem.chart
    buffers = [torch.zeros_like(s) for s in path[-1][len(end) :]]
    size = gap.abs()
    share = 1 / (size + size.median(1, keepdim=True).values).clamp(min=1e-30)
    weight = (share / share.amax(1, keepdim=True)).sqrt()

    def forward(change: Tensor) -> Tensor:
        moved = push_forward(run, path, records, labels, chart.records(change, records))
        return weight * in_a_row(moved)

    def backward(pull: Tensor) -> Tensor:
        parts = (weight * pull).split([w[0].numel() for w in end], dim=1)
        adjoint = [part.view_as(w) for part, w in zip(parts, end, strict=True)]
        return chart.pull(pull_back(run, path, records, labels, [*adjoint, *buffers]))

    return least_squares(forward, backward, gap * weight, iterations=problem.settings.inner)
