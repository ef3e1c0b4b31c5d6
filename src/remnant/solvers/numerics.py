"""Iterations that solvers share, many problems at once: conjugate gradients, Levenberg-Marquardt.

Points are rows, `k x n`, one problem each. Rows do not meet: each has its own step and its own
damping, and one that has arrived, or cannot go on, stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from remnant.solvers.algebra import damped_cholesky

Rows = Callable[[Tensor], Tensor]


def least_squares(
    forward: Rows, backward: Rows, wanted: Tensor, *, iterations: int, tolerance: float = 0.0
) -> Tensor:
    """Rows x (k x n) that bring forward(x) near `wanted` (k x q), from 0, by conjugate gradients.

    forward is linear, row by row, and backward its transpose: no matrix is asked for. A row ends
    where the gradient backward(wanted - forward(x)) is `tolerance` times as long as at first. Few
    iterations damp: weak directions come last.
    """
    left = wanted
    gradient = backward(left)
    found, direction = torch.zeros_like(gradient), gradient
    square = gradient.square().sum(1, keepdim=True)
    goal = tolerance**2 * square
    for _ in range(iterations):
        running = square > goal
        if not bool(running.any()):
            break
        image = forward(direction)
        bend = image.square().sum(1, keepdim=True)
        running = running & (bend > 0)  # else the direction is in the null space
        step = torch.where(running, square / bend, 0.0)
        found, left = found + step * direction, left - step * image
        gradient = backward(left)
        square, before = torch.where(running, gradient.square().sum(1, keepdim=True), 0.0), square
        direction = gradient + torch.where(running, square / before, 0.0) * direction
    return found


def levenberg_marquardt(
    cost: Rows,
    linearise: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    steps: int,
    move: Callable[[Tensor, Tensor], Tensor] = torch.add,
    damping: float = 1e-2,
    factor: float = 5.0,
    limits: tuple[float, float] = (1e-10, 1e6),
) -> Tensor:
    """Rows (k x n) of a cost no higher than at `start`, after at most that many steps.

    cost: k x n -> k. linearise: the Gauss-Newton matrix J^T J (k x n x n) and gradient J^T r (k x
    n) there. move: from a point along a step, which may keep it on a surface. A step solves
    (J^T J + damping diag(J^T J)) step = -J^T r; where it lowers the cost it is taken and the
    damping falls by `factor`, elsewhere it rises, within `limits`. Ends where no row can go on.
    """
    at, value = start, cost(start)
    held = torch.full_like(value, damping)
    for _ in range(steps):
        gram, gradient = linearise(at)
        size = gram.diagonal(dim1=1, dim2=2).clamp(min=torch.finfo(gram.dtype).tiny)
        factors = damped_cholesky(gram + torch.diag_embed(held[:, None] * size), 0.0)
        step = -torch.cholesky_solve(gradient[:, :, None], factors)[:, :, 0]
        trial = move(at, step)
        trial_value = cost(trial)
        better = trial_value < value
        stuck = ~better & (held >= limits[1])
        at = torch.where(better[:, None], trial, at)
        value = torch.where(better, trial_value, value)
        held = torch.where(better, held / factor, held * factor).clamp(*limits)
        if bool(stuck.all()):
            break
    return at
