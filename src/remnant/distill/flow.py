"""Gradient flow of the squared loss: what descent with a small rate follows, in few large steps.

A wide network's kernel hardly moves, so that for a while the flow is that of the linear model about
the present weights, d f / dt = K (y - f), whose solution is known for any time t:

    theta(t) = theta + J^T K^-1 (1 - exp(-K t)) (y - f)

Such a step (an exponential integrator) is as long as the network agrees with its own tangent, and
is redone at half the length where it does not.
"""

from __future__ import annotations

import copy
from typing import NamedTuple

import torch
from torch import Tensor, nn

from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.gradients import gram, weighted_sum
from remnant.progress import task


class Flowed(NamedTuple):
    """A trained copy, its mean squared loss there, and how many steps were tried.

    A loss above the one asked for says that `most_steps` were not enough.
    """

    model: nn.Module
    loss: float
    steps: int


@torch.no_grad()
@computed_there
def flow(
    model: nn.Module,
    inputs: Tensor,
    wanted: Tensor,
    *,
    tolerance: float = 0.05,
    stop_loss: float = 1e-6,
    first: float = 0.1,
    most_steps: int = 500,
) -> Flowed:
    """Train a copy of `model` on inputs n x shape and targets n x c until the mean loss is there.

    A step stands if the network ends within `tolerance` of what its tangent says, as a share of
    the residual; then the next is twice as long, else half. first: the first step's length, in
    times of the kernel's fastest mode.
    """
    if not 0 < tolerance < 1 or not stop_loss > 0:
        got = f"{tolerance} and {stop_loss}"
        raise InputError(expected("flow: tolerance, stop loss", "in (0, 1) and above 0", got))
    mine = copy.deepcopy(model).eval()
    time, outputs = 0.0, mine(inputs)
    tangent = _tangent(mine, inputs)
    with task("gradient flow") as advance:
        for step in range(most_steps):
            missing = wanted - outputs
            loss = float(missing.square().sum(1).mean())
            advance(note=f"loss {loss:.2g}")
            if loss <= stop_loss:
                return Flowed(mine, loss, step)
            time = time or first / float(tangent[0][-1])
            duals, predicted = _exponential(tangent, missing, time)
            change = weighted_sum(mine, inputs, duals.to(inputs))
            _add(mine, change, 1.0)
            ahead = mine(inputs)
            if float((ahead - outputs - predicted).norm()) > tolerance * float(missing.norm()):
                _add(mine, change, -1.0)
                time /= 2
                continue
            outputs, time = ahead, 2 * time
            tangent = _tangent(mine, inputs)
    return Flowed(mine, loss, most_steps)


def _tangent(model: nn.Module, inputs: Tensor) -> tuple[Tensor, Tensor]:
    """Eigenvalues and vectors of the kernel nc x nc, in float64."""
    kernel = gram(model, inputs, per_class=True).double()
    size = kernel.shape[0] * kernel.shape[1]
    values, vectors = torch.linalg.eigh(kernel.reshape(size, size))
    return values.clamp(min=1e-12 * float(values[-1])), vectors


def _exponential(
    tangent: tuple[Tensor, Tensor], missing: Tensor, time: float
) -> tuple[Tensor, Tensor]:
    """Duals n x c of the linear flow over `time`, and the change of outputs that they promise."""
    values, vectors = tangent
    along = vectors.T @ missing.double().reshape(-1)
    done = -torch.expm1(-values * time) * along
    duals, change = vectors @ (done / values), vectors @ done
    return duals.reshape(missing.shape), change.reshape(missing.shape).to(missing)


def _add(model: nn.Module, change: dict[str, Tensor], sign: float) -> None:
    for name, value in change.items():
        model.get_parameter(name).add_(value, alpha=sign)
