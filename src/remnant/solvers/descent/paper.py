"""Paper 000's reconstruction: descend on images and duals until their gradients add up.

    minimise |(theta_f - theta_0) - sum_j alpha_j . grad f(x_j)|^2     (Eq. 7; classes: Eq. 18)

from M random images, with features at the final weights, the initial ones, or both with duals of
their own (`hybrid`, Appendix K). By Adam on all candidates (the paper's Algorithm 1), or on some at
a time beside the kept sum of all (Algorithm 2). A small loss is no proof of the records: status
and confidence have to come from elsewhere.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from remnant.checkpoints import checkpoint
from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.gradients.calls import call
from remnant.gradients.smoothing import smoothed
from remnant.gradients.sums import weighted_sum
from remnant.progress import task
from remnant.solvers.descent.images import draw
from remnant.types import Evidence, Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """The loss at inputs m x shape and duals m x (p c), for features at p points of weight space.

    model: a smooth copy that belongs to the objective. relus: the softplus in place of each ReLU.
    """

    model: nn.Module
    relus: Sequence[nn.Softplus]
    points: Sequence[Weights]
    vector: Weights

    @property
    def square(self) -> float:
        """|vector|^2."""
        return _squared(self.vector).item()

    def loss(self, inputs: Tensor, duals: Tensor) -> Tensor:
        """The whole residual's square; divide by `square` to compare models."""
        sums = self.sums(inputs, duals, create_graph=True)
        return _squared({name: value - sums[name] for name, value in self.vector.items()})

    def sums(self, inputs: Tensor, duals: Tensor, *, create_graph: bool = False) -> Weights:
        """sum_j sum_k alpha_jk grad f_k(x_j) itself, by name."""
        total: dict[str, Tensor] = {}
        for part, point in zip(duals.chunk(len(self.points), dim=1), self.points, strict=True):
            found = weighted_sum(self.model, inputs, part, weights=point, create_graph=create_graph)
            total = {name: total.get(name, 0.0) + value for name, value in found.items()}
        return total

    def anneal(self, temperature: float) -> None:
        """Sharpen every softplus that stands for a ReLU."""
        for softplus in self.relus:
            softplus.beta = temperature


def objective(
    model: nn.Module,
    vector: Weights,
    points: Sequence[Weights],
    *,
    temperature: float,
    dtype: torch.dtype = torch.float32,
) -> Objective:
    """The objective of a model at `points`; every nn.ReLU becomes a softplus of that temperature.

    A parameter whose `vector` is zero was frozen: its gradients say nothing and are not taken.
    """
    own = {name for name, module in model.named_modules() if isinstance(module, nn.Softplus)}
    twin = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)
    twin = smoothed(twin, beta=temperature)
    values = {name: value.detach().to(dtype) for name, value in vector.items() if value.any()}
    if not values:
        raise InputError(expected("descent: evidence", "numbers other than zero", "zeros"))
    twin.load_state_dict({n: v for n, v in points[0].items() if n not in values}, strict=False)
    held = dict(twin.named_parameters())
    cast = [{n: point.get(n, held[n]).detach().to(dtype) for n in values} for point in points]
    relus = [
        module
        for name, module in twin.named_modules()
        if isinstance(module, nn.Softplus) and name not in own
    ]
    return Objective(model=twin, relus=relus, points=cast, vector=values)


def hours_of(
    model: nn.Module,
    shape: tuple[int, ...],
    count: int,
    steps: int,
    *,
    projected: bool = False,
    rate: float = 5e9,
) -> float:
    """An estimate: hours that so many steps of so many candidates of that shape take on one core.

    rate: operations of the model's own evaluation a second, at which a step, some six times as
    much work, was measured. projected: duals are solved for in each, by a kernel of all classes.
    """
    twin = copy.deepcopy(model).eval()
    probe = torch.zeros(2, *shape, dtype=next(twin.parameters()).dtype)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        outputs = twin(probe)
    more = 1 + outputs.shape[1] / 3 if projected else 1.0
    return float(counter.get_total_flops() / 2 * count * steps * more / rate / 3600)


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
    cosine: bool = False  # the rate falls to 0 as a cosine; the paper's stays
    double: bool = False  # float64
    batch: int | None = None  # candidates of a step, so that only their graph is held; None = all
    # The paper's duals suit the scale of its own networks. own_duals: duals and their rate are in
    # that unit in which the first sum is as long as the evidence.
    own_duals: bool = False

    def __post_init__(self) -> None:
        if self.features not in ("initial", "final", "hybrid"):
            wanted = "initial, final or hybrid"
            raise InputError(expected("descent: features", wanted, repr(self.features)))
        if self.steps < 1:
            raise InputError(expected("descent: steps", "1 or more", self.steps))
        if self.batch is not None and self.batch < 1:
            raise InputError(expected("descent: batch", "1 or more", self.batch))
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
# For weights of thrice that variance, 1/fan_in as in the paper: its own temperatures, and duals in
# their own unit. Those of such networks are a tenth and less of what the paper's range begins with,
# and at its rate they would jump about the size that they ought to have.
FAIR = Descent(own_duals=True, cosine=True, steps=16_000)


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


@computed_there
def descend(
    model: nn.Module,
    evidence: Evidence,
    settings: Descent,
    *,
    shape: tuple[int, ...],
    records: int,
    generator: torch.Generator,
) -> Descended:
    """Candidates for `records` records of that shape, from any model that maps m x shape to m x c.

    Batch norm keeps its statistics. A linearised model's features are its base's at the initial
    weights: give that base and features="initial".
    """
    if records < 1:
        raise InputError(expected("descent: records", "1 or more", records))
    drawn = generator.get_state()  # only the start is drawn
    kept = checkpoint("descent", model, evidence, settings, shape, records, drawn)
    goal, inputs, duals, pace = _start(model, evidence, settings, shape, records, generator)
    part = Part(goal, settings.batch, generator) if settings.batch else None
    kind = torch.optim.Adam if part is None else torch.optim.SparseAdam
    adam = kind([{"params": [inputs]}, {"params": [duals]}])
    first, trace, best = 0, list[float](), None
    if kept.state is not None:
        first, trace, best, moments, *places = kept.state
        for here, there in zip((inputs, duals), places, strict=True):
            here.data.copy_(there)
        adam.load_state_dict(moments)
    square, every = goal.square, max(1, settings.steps // 200)
    with task("descent", settings.steps) as tick:
        tick(first)
        for step in range(first, settings.steps + 1):
            if kept.due():
                kept.save([step, trace, best, adam.state_dict(), inputs, duals])
            goal.anneal(temperature_at(settings, min(step, settings.steps - 1)))
            total = goal.loss(inputs, duals) if part is None else part.loss(inputs, duals)
            loss = total.item() / square
            if step % every == 0 or step == settings.steps:
                trace.append(loss)
            if not math.isfinite(loss):
                break
            if best is None or _better(step, loss, best, settings.steps):
                best = [step, loss, inputs.detach().clone(), duals.detach().clone()]
            if step < settings.steps:
                for group, unit in zip(adam.param_groups, (1.0, pace), strict=True):
                    group["lr"] = unit * rate_at(settings, step)
                if part is None:
                    inputs.grad, duals.grad = torch.autograd.grad(total, (inputs, duals))
                else:
                    inputs.grad, duals.grad = part.gradients(total, (inputs, duals))
                adam.step()
            tick()
    if best is None:
        raise InputError(expected("descent: loss", "a finite number at the start", "none"))
    return Descended(inputs=best[2], duals=best[3], loss=best[1], trace=trace)


class Part:
    """A random part of the candidates at each step, the others' sum kept (000, Algorithm 2).

    The sum is taken anew once as many candidates have moved as there are: the softplus has
    sharpened since, and rounding adds up.
    """

    def __init__(self, goal: Objective, size: int, generator: torch.Generator) -> None:
        self.goal, self.size, self.generator = goal, size, generator
        self.kept: dict[str, Tensor] = {}
        self.rows, self.moved = torch.zeros(0, dtype=torch.long), 0
        self.pieces: list[Tensor] = []

    def loss(self, inputs: Tensor, duals: Tensor) -> Tensor:
        """The whole residual's square, differentiable in the candidates of a new part alone."""
        m = len(inputs)
        if not self.kept or self.moved >= m:
            self.kept, self.moved = self._sums(inputs, duals, torch.arange(m)), 0
        elif len(self.rows):  # the part before this one has moved
            self._add(self._sums(inputs, duals, self.rows))
        self.rows = torch.randperm(m, generator=self.generator)[: self.size]
        self.moved += len(self.rows)
        self._add(self._sums(inputs, duals, self.rows), sign=-1)
        vector = {name: value - self.kept[name] for name, value in self.goal.vector.items()}
        self.pieces = [whole.detach()[self.rows].requires_grad_() for whole in (inputs, duals)]
        return replace(self.goal, vector=vector).loss(*self.pieces)

    def gradients(self, total: Tensor, wholes: tuple[Tensor, Tensor]) -> list[Tensor]:
        """Of inputs and duals, sparse: only this part moves, and only its moments."""
        found = torch.autograd.grad(total, self.pieces)
        return [
            torch.sparse_coo_tensor(self.rows[None], value, whole.shape, check_invariants=True)
            for value, whole in zip(found, wholes, strict=True)
        ]

    def _sums(self, inputs: Tensor, duals: Tensor, rows: Tensor) -> dict[str, Tensor]:
        total: dict[str, Tensor] = {}
        for some in rows.split(self.size):
            found = self.goal.sums(inputs.detach()[some], duals.detach()[some])
            total = {name: total.get(name, 0.0) + value.detach() for name, value in found.items()}
        return total

    def _add(self, sums: Weights, sign: int = 1) -> None:
        for name, value in sums.items():
            self.kept[name] = self.kept[name] + sign * value


def _better(step: int, loss: float, best: list[Any], steps: int) -> bool:
    """Only the last quarter counts, once it is reached."""
    late, was_late = (4 * at >= 3 * steps for at in (step, best[0]))
    return late and (loss < best[1] or not was_late)


def _start(
    model: nn.Module,
    evidence: Evidence,
    settings: Descent,
    shape: tuple[int, ...],
    records: int,
    generator: torch.Generator,
) -> tuple[Objective, Tensor, Tensor, float]:
    """The objective, the first candidates and duals, and the rate of duals over that of images."""
    dtype = torch.float64 if settings.double else torch.float32
    points = settings.points(evidence)
    goal = objective(
        model, evidence.vector, points, temperature=settings.temperature[0], dtype=dtype
    )
    count = max(1, round(settings.per_record * records))
    inputs = (settings.image_std * draw(count, shape, None, generator)).to(dtype)
    width = call(goal.model, inputs[:1], goal.points[0]).shape[1] * len(points)
    uniform = torch.rand(count, width, generator=generator, dtype=torch.float64)
    duals, pace = ((2 * uniform - 1) * settings.dual_range).to(dtype), 1.0
    if settings.own_duals:
        sums = goal.sums(inputs, duals)
        first = replace(goal, vector={name: sums[name] for name in goal.vector})
        pace = math.sqrt(goal.square / first.square)
    return goal, inputs.requires_grad_(), (pace * duals).requires_grad_(), pace


def _squared(values: Weights) -> Tensor:
    return torch.stack([v.square().sum() for v in values.values()]).sum()


def temperature_at(settings: Descent, step: int) -> float:
    first, last = settings.temperature
    return first + (last - first) * step / max(1, settings.steps - 1)


def rate_at(settings: Descent, step: int) -> float:
    if not settings.cosine:
        return settings.lr
    return settings.lr * 0.5 * (1 + math.cos(math.pi * step / settings.steps))
