"""Whether the end of a run depends on the records that match it, and how far they may be off.

A record that silences every ReLU, or an entry that no active unit reads, leaves the run as it is
wherever it moves: the run is matched, and by many others as well. By the derivative in each entry
such a match is told from one that holds its records in place. None of it needs the truth.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.numerics import least_squares
from remnant.solvers.replay.problem import ReplayProblem
from remnant.solvers.replay.run import Observation, end_of_run, misfit
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun
from remnant.types import Weights


def idle_records(
    problem: ReplayProblem, records: Tensor, labels: Tensor, matched: Tensor
) -> Tensor:
    """K x m: which records could move without the end of the run showing it: some entry has no
    effect at all, or all entries together have next to none.

    matched: K, the misfit below which a run counts as matched. A record that moves alone by `move`
    in every entry must, by its derivative, leave `far` times as much. The squared length of the
    derivative in each entry is estimated by random combinations of what is seen (0 is exact); the
    draws are always the same and those of no other generator.
    """
    run, observe = problem.run, problem.observation.of(problem.run)
    generator = torch.Generator().manual_seed(0)
    end = observe(end_of_run(run, records, labels))
    slopes = torch.zeros_like(records)
    for _ in range(TOLERANCES.sense_draws):
        draw = torch.randn(end.shape[1], generator=generator, dtype=torch.float64).to(end)
        memory = problem.settings.memory
        _, slope = misfit(run, records, labels, observe, end - draw / 2, memory=memory)
        slopes += slope.square() / TOLERANCES.sense_draws
    slopes = slopes.flatten(2)
    spread = (run.inputs if len(run.inputs) else records).std()
    moved = (TOLERANCES.move * spread * run.records) ** 2 * slopes.sum(2)
    return (slopes == 0).any(2) | ~(moved > TOLERANCES.far * matched[:, None])


def squared_errors(
    run: SharedRun,
    released: Weights,
    records: Tensor,
    labels: Tensor,
    *,
    observation: Observation,
    precision: float,
    memory: int,
) -> Tensor:
    """m: squared errors (L2) to expect of records (m x shape) in a run in double precision.

    What the run with them leaves over, and noise as large (not below the rounding of the weights),
    is put through the run backwards: the move of the records that would explain it is their error,
    up to a factor. Derivatives along a move are differences of two runs, so that any recipe will
    do. released: 1 x shape each. precision: the relative rounding of the weights.
    """
    observe, seen = observation.of(run), observation.seen(run, released)
    draws = TOLERANCES.noise_draws
    many = records.to(run.inputs)[None].expand(1 + draws, *records.shape).contiguous()
    tags = labels[None].expand(1 + draws, -1)
    end = observe(end_of_run(run, many[:1], tags[:1]))
    rest = seen - end
    level = torch.hypot(rest.square().mean().sqrt(), precision * seen / 12**0.5)
    generator = torch.Generator().manual_seed(0)  # its own: it changes no other result
    noise = torch.randn(draws, rest.shape[1], generator=generator, dtype=rest.dtype)
    wanted = torch.cat([rest, level * noise])
    size = TOLERANCES.error_move * float(many.square().mean().sqrt().clamp(min=1e-30))

    def forward(change: Tensor) -> Tensor:
        length = change.square().mean(1, keepdim=True).sqrt().clamp(min=1e-300)
        moved = many + (size / length * change).view_as(many)
        return (observe(end_of_run(run, moved, tags)) - end) * length / size

    def backward(pull: Tensor) -> Tensor:
        return misfit(run, many, tags, observe, end - pull / 2, memory=memory)[1].flatten(1)

    moves = least_squares(forward, backward, wanted, iterations=TOLERANCES.error_steps)
    moves = moves.view_as(many).flatten(2).square().sum(2)
    return TOLERANCES.safety * (moves[0] + moves[1:].mean(0))
