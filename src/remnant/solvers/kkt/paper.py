"""The papers' own descent on pixels, for any model that autograd can differentiate twice.

|theta - sum_i lambda_i grad_theta <direction_i, f(x_i)>|^2, plus what leaves the box and what falls
below lambda_min, by SGD with momentum; ReLU's derivative is sigmoid(alpha x).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.checkpoints import checkpoint
from remnant.gradients import smoothed, weighted_sum
from remnant.progress import task
from remnant.solvers.kkt.duals import Duals

RANGES: Mapping[str, tuple[float, float]] = {
    "lr": (1e-5, 1.0),  # log-uniform, as is sigma; the others are uniform
    "sigma": (1e-6, 0.1),
    "lambda_min": (0.01, 0.5),
    "alpha": (10.0, 500.0),
}
LOGARITHMIC = ("lr", "sigma")


@dataclass(frozen=True, kw_only=True)
class Descent:
    """003 and 004's hyperparameters: step, deviation of first pixels, least dual, smoothing."""

    lr: float = 0.01
    sigma: float = 1e-3
    lambda_min: float = 0.1
    alpha: float = 100.0
    momentum: float = 0.9
    steps: int = 50_000


@dataclass(frozen=True, kw_only=True, eq=False)
class Descended:
    """inputs: m x shape in the model's scale. loss: at the end, infinity where it diverged."""

    inputs: Tensor
    duals: Tensor
    loss: float
    trace: list[float]


def drawn(generator: torch.Generator, *, steps: int, **fixed: float | None) -> Descent:
    """Hyperparameters drawn from the papers' ranges, apart from those that are given."""
    values = {}
    for name, (low, high) in RANGES.items():
        u = float(torch.rand((), generator=generator, dtype=torch.float64))
        given = fixed.get(name)
        if given is not None:
            values[name] = given
        elif name in LOGARITHMIC:
            values[name] = math.exp(math.log(low) + u * math.log(high / low))
        else:
            values[name] = low + u * (high - low)
    return Descent(steps=steps, **values)


def descend_on_pixels(
    model: nn.Module,
    input_shape: tuple[int, ...],
    duals: Duals,
    settings: Descent,
    *,
    box: tuple[Tensor, Tensor] | None,
    generator: torch.Generator,
) -> Descended:
    """One run in the model's own precision; a run that diverges stops there."""
    smooth = smoothed(model, alpha=settings.alpha).eval()
    like = next(model.parameters()).detach()
    x, dual = _start(input_shape, duals, settings.sigma, like, generator)
    optimiser = torch.optim.SGD([x, dual], lr=settings.lr, momentum=settings.momentum)
    ends = None if box is None else [end.to(x.detach()) for end in box]
    trace: list[float] = []
    value, begin = math.inf, 0
    kept = checkpoint("kkt on pixels", model, duals, settings, ends, x, dual)
    if kept.state is not None:
        begin, place, held, value, trace, velocities = kept.state
        x.data.copy_(place)
        dual.data.copy_(held)
        optimiser.load_state_dict(velocities)
    with task("descent on pixels", settings.steps) as step:
        step(begin)
        for i in range(begin, settings.steps):
            loss = _loss(smooth, x, dual, duals, settings.lambda_min, ends)
            value = float(loss.detach())
            if not math.isfinite(value):
                value = math.inf
                break
            x.grad, dual.grad = torch.autograd.grad(loss, [x, dual])
            optimiser.step()
            if i % max(1, settings.steps // 100) == 0:
                trace.append(value)
            if kept.due():
                kept.save([i + 1, x, dual, value, trace, optimiser.state_dict()])
            step()
    return Descended(
        inputs=torch.nan_to_num(x.detach(), posinf=0.0, neginf=0.0),
        duals=dual.detach(),
        loss=value,
        trace=trace,
    )


def _start(
    shape: tuple[int, ...], duals: Duals, sigma: float, like: Tensor, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """Random inputs m x shape and raw duals, m or m x c, drawn in float64."""
    m, c = len(duals.labels), duals.outputs
    inputs = torch.randn(m, *shape, generator=generator, dtype=torch.float64)
    several = duals.objective == "free" and c > 1
    first = torch.rand((m, c) if several else (m,), generator=generator, dtype=torch.float64)
    if duals.objective == "free":
        first = 2 * first - 1
    return (sigma * inputs).to(like).requires_grad_(), first.to(like).requires_grad_()


def _loss(
    model: nn.Module,
    x: Tensor,
    dual: Tensor,
    duals: Duals,
    least: float,
    box: list[Tensor] | None,
) -> Tensor:
    coefficients = dual
    if duals.objective != "free":
        with torch.no_grad():
            outputs = model(x)
        coefficients = dual[:, None] * duals.directions(dual, outputs)
    elif dual.ndim == 1:
        coefficients = dual[:, None]
    total = weighted_sum(model, x, coefficients, create_graph=True)
    loss = x.new_zeros(())
    for name, weight in model.named_parameters():
        loss = loss + (weight.detach() - total[name]).square().sum()
    if duals.objective != "free":
        loss = loss + (least - dual).relu().square().sum()
    if box is not None:
        loss = loss + (x - x.clamp(box[0], box[1])).square().sum()
    return loss
