"""Paper 000's reconstruction: descend on images and duals until their gradients add up.

    minimise |(theta_f - theta_0) - sum_j alpha_j . grad f(x_j)|^2     (Eq. 7; classes: Eq. 18)

from M random images, with features at the final weights, the initial ones, or both with duals of
their own (`hybrid`, Appendix K). Algorithm 1 moves all candidates at once, Algorithm 2 a batch at a
time against a running sum. A small loss is no proof of the records: status and confidence have to
come from elsewhere.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Literal

import torch
from torch import Tensor, nn

from remnant.checkpoints import checkpoint
from remnant.errors import InputError, expected
from remnant.gradients.calls import call
from remnant.progress import task
from remnant.solvers.descent.objective import Objective, objective
from remnant.solvers.descent.stack import stack_slopes
from remnant.types import Evidence, Weights

Bounds = tuple[Tensor | float, Tensor | float]
TRACE_POINTS = 200


@dataclass(frozen=True, kw_only=True)
class Descent:
    """Settings; the defaults are the paper's (Appendix J.3)."""

    features: Literal["initial", "final", "hybrid"] = "final"
    steps: int = 80_000
    lr: float = 0.02
    per_record: float = 2.0  # candidates: M = 2 N
    image_std: float = 0.2
    dual_range: float = 0.5
    temperature: tuple[float, float] = (10.0, 200.0)  # of the softplus, from first to last step
    batch: int | None = None  # candidates that a step moves (Algorithm 2); None = all
    geometric: bool = False  # temperatures rise by a factor a step, not by a sum
    cosine: bool = False  # the rate falls to 0 as a cosine; the paper's stays
    box: float = 0.0  # weight of the squared excess over the pixel box, where there is one
    double: bool = False  # float64
    # The paper's temperatures and duals suit the scale of its own networks. scaled: temperatures
    # are in units of the least spread of what enters a ReLU, duals (and their rate) in that unit
    # in which the first sum is as long as the evidence, and biases count as much as weights.
    scaled: bool = False

    def __post_init__(self) -> None:
        if self.features not in ("initial", "final", "hybrid"):
            wanted = "initial, final or hybrid"
            raise InputError(expected("descent: features", wanted, repr(self.features)))
        for name, low in (("steps", 1), ("batch", 1), ("box", 0)):
            value = getattr(self, name)
            if value is not None and not value >= low:
                raise InputError(expected(f"descent: {name}", f"{low} or more", value))
        for name in ("lr", "per_record", "image_std", "dual_range"):
            if not getattr(self, name) > 0:
                raise InputError(expected(f"descent: {name}", "more than 0", getattr(self, name)))
        if len(self.temperature) != 2 or not min(self.temperature) > 0:
            wanted = "two positive numbers"
            raise InputError(expected("descent: temperature", wanted, self.temperature))

    def points(self, evidence: Evidence) -> list[Weights]:
        """Where features are taken."""
        ends = {"initial": [evidence.start], "final": [evidence.end]}
        return ends.get(self.features, [evidence.end, evidence.start])


# For networks with PyTorch's initial weights, in a fifth of the paper's steps: what enters their
# ReLUs spreads so little that at the paper's last temperature, 200, a softplus is not one yet.
SHARPENED = Descent(temperature=(10.0, 1000.0), cosine=True, steps=16_000)
# For weights of thrice that variance, 1/fan_in as in the paper: there 1000 is steep, and a rise by
# equal sums is past what the candidates can follow early on. (PyTorch's networks fare worse by it.)
GRADUAL = replace(SHARPENED, geometric=True)
# Paper 000's settings for networks of any scale, in an eighth of its steps.
SCALED = Descent(scaled=True, temperature=(0.6, 60.0), cosine=True, steps=10_000)


@dataclass(frozen=True, kw_only=True, eq=False)
class Descended:
    """inputs m x shape in the model's scale, duals m x c (hybrid: m x 2c, the final point's first).

    loss: over |evidence|^2, the smallest in the last quarter of the steps, and they are from there:
    at a constant rate Adam throws all candidates about now and then, and the last step may be such.
    trace: the same along the way.
    """

    inputs: Tensor
    duals: Tensor
    loss: float
    trace: list[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Iterate:
    """Where the descent stands before step `step`; the tensors move on with it."""

    step: int
    inputs: Tensor
    duals: Tensor
    loss: float  # over |evidence|^2, without the box
    movers: tuple[RowAdam, RowAdam] | None = None  # of both, where they are all there is to it


def descend(
    model: nn.Module,
    evidence: Evidence,
    settings: Descent,
    *,
    shape: tuple[int, ...],
    records: int,
    generator: torch.Generator,
    bounds: Bounds | None = None,
) -> Descended:
    """Candidates for `records` records of that shape. `bounds`: the pixel box, model's scale.

    Any model that maps m x shape to m x c: layerwise where it is dense, autograd elsewhere. Batch
    norm keeps its statistics. A linearised model's features are its base's at the initial weights:
    give that base and features="initial".
    """
    every = max(1, settings.steps // TRACE_POINTS)
    trace, best = list[float](), None
    drawn = generator.get_state()  # only the start is drawn
    kept = checkpoint("descent", model, evidence, settings, shape, records, bounds, drawn)
    begin = None
    if kept.state is not None:
        begin, trace, held = kept.state
        best = None if held is None else Iterate(**held)
    with task("descent", settings.steps) as step:
        step(0 if begin is None else begin[0])
        for now in iterates(
            model,
            evidence,
            settings,
            shape=shape,
            records=records,
            generator=generator,
            bounds=bounds,
            begin=begin,
        ):
            if now.movers is not None and kept.due():
                kept.save([[now.step, *(mover.state() for mover in now.movers)], trace, best])
            if now.step % every == 0 or now.step == settings.steps:
                trace.append(now.loss)
            if not math.isfinite(now.loss):
                break
            if best is None or _better(now, best, settings.steps):
                inputs, duals = now.inputs.clone(), now.duals.clone()
                best = replace(now, inputs=inputs, duals=duals, movers=None)
            step()
    if best is None:
        raise InputError(expected("descent: loss", "a finite number at the start", "none"))
    return Descended(inputs=best.inputs, duals=best.duals, loss=best.loss, trace=trace)


def _better(now: Iterate, best: Iterate, steps: int) -> bool:
    """Only the last quarter counts, once it is reached."""
    late, was_late = (4 * it.step >= 3 * steps for it in (now, best))
    return late and (now.loss < best.loss or not was_late)


def iterates(
    model: nn.Module,
    evidence: Evidence,
    settings: Descent,
    *,
    shape: tuple[int, ...],
    records: int,
    generator: torch.Generator,
    bounds: Bounds | None = None,
    begin: tuple[int, list[Tensor], list[Tensor]] | None = None,
) -> Iterator[Iterate]:
    """The descent, step by step; the last one stands where the descent ended.

    begin: a step and the movers' states there, for Algorithm 1.
    """
    if records < 1:
        raise InputError(expected("descent: records", "1 or more", records))
    dtype = torch.float64 if settings.double else torch.float32
    count = max(1, round(settings.per_record * records))
    inputs = (settings.image_std * normal(count, shape, generator)).to(dtype)
    points = settings.points(evidence)
    goal = objective(
        model,
        evidence.vector,
        points,
        inputs[:1],
        temperature=settings.temperature[0],
        dtype=dtype,
        rank=0 if settings.batch else count + 1,
    )
    width = call(goal.model, inputs[:1], goal.points[0]).shape[1] * len(points)
    uniform = torch.rand(count, width, generator=generator, dtype=torch.float64)
    duals = ((2 * uniform - 1) * settings.dual_range).to(dtype)
    pace = 1.0
    if settings.scaled:
        goal, settings, pace = _in_own_units(goal, settings, inputs, duals)
        duals *= pace
    box = None if bounds is None or not settings.box else bounds
    if settings.batch is None or settings.batch >= count:
        movers = RowAdam(inputs), RowAdam(duals)
        if begin is not None:
            for mover, state in zip(movers, begin[1:], strict=True):
                mover.restore(state)
        yield from _all_at_once(goal, settings, movers, box, pace, begin[0] if begin else 0)
    else:
        yield from _batched(goal, settings, inputs, duals, box, pace, generator)


def _in_own_units(
    goal: Objective, settings: Descent, inputs: Tensor, duals: Tensor
) -> tuple[Objective, Descent, float]:
    """See `Descent.scaled`; the number is the unit of duals."""
    low, high = (end / goal.spread(inputs) for end in settings.temperature)
    goal.anneal(low)
    goal = goal.balanced(inputs)
    size = goal.against(goal.sums(inputs, duals, settings.batch)).square
    return goal, replace(settings, temperature=(low, high)), math.sqrt(goal.square / size)


def normal(count: int, shape: tuple[int, ...], generator: torch.Generator) -> Tensor:
    """Drawn in float64, so that every dtype starts at the same candidates."""
    return torch.randn(count, *shape, generator=generator, dtype=torch.float64)


def temperature_at(settings: Descent, step: int) -> float:
    first, last = settings.temperature
    share = step / max(1, settings.steps - 1)
    if settings.geometric:
        return float(first * (last / first) ** share)
    return first + (last - first) * share


def rate_at(settings: Descent, step: int) -> float:
    if not settings.cosine:
        return settings.lr
    return settings.lr * 0.5 * (1 + math.cos(math.pi * step / settings.steps))


def slopes(
    goal: Objective, inputs: Tensor, duals: Tensor, box: Bounds | None, weight: float
) -> tuple[float, Tensor, Tensor]:
    """The loss (without the box) and the gradient of all that is minimised."""
    loss, by_input, by_dual = stack_slopes(goal, inputs, duals) or traced_slopes(
        goal, inputs, duals
    )
    if box is not None:
        x = inputs.detach().requires_grad_()
        by_input = by_input + weight * torch.autograd.grad(outside(x, box), x)[0]
    return loss, by_input, by_dual


def traced_slopes(goal: Objective, inputs: Tensor, duals: Tensor) -> tuple[float, Tensor, Tensor]:
    """The loss and its gradient for any model."""
    x, a = inputs.detach().requires_grad_(), duals.detach().requires_grad_()
    loss = goal.loss(x, a)
    by_input, by_dual = torch.autograd.grad(loss, (x, a))
    return loss.item(), by_input, by_dual


def outside(inputs: Tensor, box: Bounds) -> Tensor:
    """The squared excess over the box."""
    low, high = (torch.as_tensor(end).to(inputs) for end in box)
    return ((low - inputs).clamp(min=0) + (inputs - high).clamp(min=0)).square().sum()


class RowAdam:
    """Adam whose rows have counts of their own: a row that was not moved has not aged."""

    def __init__(self, values: Tensor) -> None:
        self.values = values
        self.first, self.second = torch.zeros_like(values), torch.zeros_like(values)
        self.counts = torch.zeros(len(values), *[1] * (values.ndim - 1), dtype=values.dtype)

    def state(self) -> list[Tensor]:
        return [self.values, self.first, self.second, self.counts]

    def restore(self, state: list[Tensor]) -> None:
        for here, there in zip(self.state(), state, strict=True):
            here.copy_(there)

    def move(self, gradient: Tensor, lr: float, rows: Tensor | None = None) -> None:
        parts = self.state() if rows is None else [part[rows] for part in self.state()]
        values, first, second, t = parts
        t += 1
        first.lerp_(gradient, 0.1)
        second.mul_(0.999).addcmul_(gradient, gradient, value=0.001)
        root = (second / (1 - 0.999**t)).sqrt_().add_(1e-8)
        values.addcdiv_(first / (1 - 0.9**t), root, value=-lr)
        if rows is not None:
            for whole, part in zip(self.state(), parts, strict=True):
                whole[rows] = part


def _all_at_once(
    goal: Objective,
    settings: Descent,
    movers: tuple[RowAdam, RowAdam],
    box: Bounds | None,
    pace: float,
    first: int,
) -> Iterator[Iterate]:
    """Algorithm 1. pace: the rate of duals over that of images."""
    images, weights = movers
    inputs, duals = images.values, weights.values
    for step in range(first, settings.steps + 1):
        goal.anneal(temperature_at(settings, min(step, settings.steps - 1)))
        loss, by_input, by_dual = slopes(goal, inputs, duals, box, settings.box)
        share = loss / goal.square
        yield Iterate(step=step, inputs=inputs, duals=duals, loss=share, movers=movers)
        lr = rate_at(settings, step)
        if step < settings.steps:
            images.move(by_input, lr)
            weights.move(by_dual, pace * lr)


def _batched(
    goal: Objective,
    settings: Descent,
    inputs: Tensor,
    duals: Tensor,
    box: Bounds | None,
    pace: float,
    generator: torch.Generator,
) -> Iterator[Iterate]:
    """Algorithm 2: what the other candidates add stands still, and is kept as one sum.

    The temperature moves once per pass over the candidates, and the sum is then taken anew;
    else it would hold parts of other temperatures, and rounding would pile up in it.
    """
    assert settings.batch is not None
    images, weights = RowAdam(inputs), RowAdam(duals)
    step = 0
    while True:
        goal.anneal(temperature_at(settings, min(step, settings.steps - 1)))
        sums = goal.sums(inputs, duals, settings.batch)
        missing = {name: goal.vector[name] - sums[name] for name in goal.vector}
        for rows in torch.randperm(len(inputs), generator=generator).split(settings.batch):
            share = goal.sums(inputs[rows], duals[rows])
            left = goal.against({name: missing[name] + share[name] for name in missing})
            loss, by_input, by_dual = slopes(left, inputs[rows], duals[rows], box, settings.box)
            yield Iterate(step=step, inputs=inputs, duals=duals, loss=loss / goal.square)
            if step == settings.steps:
                return
            lr = rate_at(settings, step)
            images.move(by_input, lr, rows)
            weights.move(by_dual, pace * lr, rows)
            after = goal.sums(inputs[rows], duals[rows])
            missing = {name: left.vector[name] - after[name] for name in missing}
            step += 1
