"""Several unknown records of a training by Adam.

Adam divides every weight's gradient by its own size, so that most weights move by whole steps
whatever the records are: as a function of these the end of the run is flat, with cliffs where a
gradient changes its sign. A larger `eps` in the denominator makes the same steps smooth. So the run
is replayed with an eps that falls from about the gradient's size, and the records descend on the
sum of absolute misfits: weights that are a whole step off count once, not by their square. What
comes out is near the records at best; as everywhere, only a run of the true recipe that ends at the
released weights certifies it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers.numerics import Minimum
from remnant.solvers.replay.problem import ReplayProblem
from remnant.solvers.replay.run import end_of_run, pull_back, states
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun, step_gradient
from remnant.training.recipes import Adam, AdamW
from remnant.training.steps import first_state


def by_smoothing(
    problem: ReplayProblem, starts: Tensor, labels: Tensor, evaluations: int
) -> Minimum:
    """Descend from `starts` (K x m x shape) while Adam's eps falls. All weights are seen; how many
    steps there are is a tolerance's, not `evaluations`'."""
    run, steps = problem.run, TOLERANCES.smooth_steps
    assert isinstance(run.recipe, Adam)
    sizes = [w.numel() for w in run.start]
    wanted = [
        part.view(-1, *w.shape)
        for part, w in zip(problem.seen.split(sizes, dim=1), run.start, strict=True)
    ]
    unit, idle = gradient_size(run, starts, labels), unmoved(run, wanted, starts)
    box = problem.box and tuple(end.view(starts.shape[2:]) for end in problem.box)
    spread = float((box[1] - box[0]).mean()) if box else 1.0
    points = starts.clone().requires_grad_()
    adam = torch.optim.Adam([points], lr=TOLERANCES.smooth_rate * spread)
    with task("replay", steps) as step:
        for done in range(steps):
            share = done / steps
            fall = (TOLERANCES.eps_to / TOLERANCES.eps_from) ** share
            eps = max(run.recipe.eps, TOLERANCES.eps_from * unit * fall)
            smooth = replace(run, recipe=replace(run.recipe, eps=eps))
            points.grad = slope(smooth, points.detach(), labels, wanted)
            adam.param_groups[0]["lr"] = TOLERANCES.smooth_rate * spread * (1 - share)
            adam.step()
            with torch.no_grad():
                if box:
                    points.clamp_(*box)
                points[idle] = 0.0
            step()
    found = points.detach()
    trace = tuple(misfits(problem, some, labels) for some in (starts, found))
    return Minimum(points=found.flatten(1), values=trace[-1], evaluations=steps, trace=trace)


def slope(run: SharedRun, records: Tensor, labels: Tensor, wanted: Sequence[Tensor]) -> Tensor:
    """The derivative, in the records, of the sum of absolute misfits at the end of the run, each
    parameter's as a share of how far it moved."""
    path, size = states(run, records, labels), len(run.start)
    adjoint = [
        (end - goal).sign() / (goal - start).abs().sum().clamp(min=1e-30) * len(goal)
        for end, goal, start in zip(path[-1][:size], wanted, run.start, strict=True)
    ]
    still = [torch.zeros_like(s) for s in path[-1][size:]]
    return pull_back(run, path, records, labels, [*adjoint, *still])


def gradient_size(run: SharedRun, records: Tensor, labels: Tensor) -> float:
    """The root mean square of the first step's gradient, over the weights that have one."""
    weights = [w.requires_grad_() for w in run.stack(len(records))]
    with torch.enable_grad():
        grads = step_gradient(run, weights, 0, records, labels)
    every = torch.cat([g.flatten() for g in grads])
    return float(every[every != 0].square().mean().sqrt())


def unmoved(run: SharedRun, wanted: Sequence[Tensor], starts: Tensor) -> Tensor:
    """K x m x shape: entries that every record has as 0, since no weight that reads them moved, but
    by a decay of its own."""
    first = next((i for i, w in enumerate(run.start) if w.ndim > 1), 0)
    told = run.start[first].shape[1:] == (starts[0, 0].numel(),)
    if not told or (run.recipe.weight_decay and not isinstance(run.recipe, AdamW)):
        return torch.zeros_like(starts, dtype=torch.bool)
    still = [torch.zeros_like(run.start[first][:1, :1])]
    state = first_state(run.recipe, [still[0] + 1])
    for step in range(len(run.rows)):
        state = run.update(step, state, still)
    kept = state[0] * run.start[first]
    rounding = 4 * torch.finfo(torch.float32).eps * kept.abs()
    dead = ((wanted[first] - kept).abs() <= rounding).all(1)
    return dead.view(len(starts), 1, *starts.shape[2:]).expand_as(starts)


def misfits(problem: ReplayProblem, records: Tensor, labels: Tensor) -> Tensor:
    """K: squared, of the run by its true recipe."""
    observe = problem.observation.of(problem.run)
    gap = observe(end_of_run(problem.run, records, labels)) - problem.seen
    return (problem.run.records * gap).square().sum(1)
