"""How far the records that match a run may be off, told without the truth.

What the run with them leaves over, and noise as large (not below the rounding of the weights), is
put through the run backwards: the move of the records that would explain it is their error, up to a
factor. Derivatives along a move are differences of two runs, so that any recipe will do.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.numerics import least_squares
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.solvers.replay.unroll import end_of_run, misfit
from remnant.training.fleet import SharedRun
from remnant.types import Weights


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

    released: 1 x shape each. precision: the relative rounding of the weights.
    """
    observe = observation.of(run)
    seen = observation.seen(run, released)
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
