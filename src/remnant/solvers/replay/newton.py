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
from remnant.solvers.numerics import Minimum, least_squares
from remnant.solvers.replay.chart import Chart
from remnant.solvers.replay.kinks import with_kinks
from remnant.solvers.replay.unroll import pull_back, push_forward, states
from remnant.training.fleet import SharedRun


def gauss_newton(
    run: SharedRun,
    starts: Tensor,
    labels: Tensor,
    seen: Tensor,
    *,
    chart: Chart,
    bends: Sequence[float],
    inner: int,
) -> Minimum:
    """One full step for each of `bends` (see `kinks`; 0 = the plain derivative), from `starts`.

    seen: K x q, all weights in a row. inner: steps of conjugate gradients for each. Of all points
    the one with the least sum of absolute misfits is kept, since a step need not come closer. Rows
    that end at rounding are left alone.
    """
    n, point = float(run.records), chart.place(starts)
    best, least = point.clone(), torch.full_like(point[:, 0], torch.inf)
    values, left, trace = least.clone(), torch.arange(len(starts)), []
    rounding = (1e3 * torch.finfo(starts.dtype).eps) ** 2
    with task("gauss-newton", len(bends) + 1) as tick:
        for bend in (*bends, None):
            mine = chart.rows(left)
            records = mine.records(point[left], starts[left])
            path = states(run, records, labels[left])
            gap = n * (seen[left] - in_a_row(path[-1][: len(run.start)]))
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
            point[left] += step(
                with_kinks(run, bend) if bend else run,
                path, records, labels[left], gap / n, mine, inner,
            )  # fmt: skip
            left = left[far]
    return Minimum(points=best, values=values, evaluations=len(trace), trace=tuple(trace))


def in_a_row(weights: Sequence[Tensor]) -> Tensor:
    """K x q: all weights (K x shape each), flat."""
    return torch.cat([w.flatten(1) for w in weights], 1)


def step(
    run: SharedRun,
    path: Sequence[Sequence[Tensor]],
    records: Tensor,
    labels: Tensor,
    gap: Tensor,
    chart: Chart,
    inner: int,
) -> Tensor:
    """The change of coordinates that closes most of `gap` (K x q), weighted as for a sum of
    absolute values."""
    end = path[-1][: len(run.start)]
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

    return least_squares(forward, backward, gap * weight, iterations=inner)
