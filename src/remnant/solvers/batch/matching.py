"""Gradient matching: search for a batch whose gradient is the observed one, by descent.

The optimisation baseline, for networks where nothing exact applies: deep leakage from gradients
(DLG, Zhu et al. 2019: squared distance, L-BFGS, labels optimised too), iDLG (Zhao et al. 2020:
the label read off the output layer first) and inverting gradients (Geiping et al. 2020: cosine
distance, Adam on the sign of the gradient, total variation, pixel box). The number of records is
known. Restarts are ranked by how well they match, the only thing that an adversary can measure;
a good match is no proof of the records.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from functools import partial
from typing import Any, Literal, Self

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.checkpoints import checkpoint
from remnant.errors import InputError, expected
from remnant.progress import Step, task
from remnant.solvers.batch.label_counts import infer_labels
from remnant.training import Loss, loss_named
from remnant.types import Weights

CHUNK = 20  # iterations that one call of L-BFGS makes
PROBES = 256  # random inputs, for what the model says of no input in particular
Bounds = tuple[Tensor | float, Tensor | float]


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Settings of the search; `dlg`, `idlg` and `inverting` are the papers'."""

    distance: Literal["l2", "cosine"] = "cosine"
    optimiser: Literal["lbfgs", "adam"] = "adam"
    labels: Literal["known", "inferred", "joint"] = "inferred"
    steps: int = 1000  # of the optimiser, in each restart
    restarts: int = 1
    lr: float = 0.1
    signed: bool = True  # Adam sees only the gradient's sign
    decay: bool = True  # a tenth of the rate after 3/8, 5/8 and 7/8 of the steps
    tv: float = 1e-4  # weight of total variation; flat inputs have none
    project: bool = True  # on the pixel box after every step, where there is one
    double: bool = False  # search in float64

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("restarts", 1), ("tv", 0)):
            if not getattr(self, name) >= low:
                wanted = f"{low} or more"
                raise InputError(expected(f"matching: {name}", wanted, getattr(self, name)))
        if not self.lr > 0:
            raise InputError(expected("matching: lr", "a positive number", self.lr))

    @classmethod
    def dlg(cls, **changes: Any) -> Self:
        """Squared distance, L-BFGS, soft labels optimised with the inputs."""
        dlg: dict[str, Any] = {
            "distance": "l2",
            "optimiser": "lbfgs",
            "labels": "joint",
            "steps": 300,
            "lr": 1.0,
            "tv": 0.0,
            "signed": False,
            "decay": False,
            "project": False,
            "double": True,
        }
        return cls(**(dlg | changes))

    @classmethod
    def idlg(cls, **changes: Any) -> Self:
        """DLG with labels read off the output layer."""
        return cls.dlg(**({"labels": "inferred"} | changes))

    @classmethod
    def inverting(cls, **changes: Any) -> Self:
        """Cosine distance, signed Adam, total variation, box. The paper takes 4800 to 24000."""
        return cls(**({"steps": 4800} | changes))


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """inputs n x shape in the model's scale and labels n of the restart that matches best.

    loss: its distance, without priors: |g - observed|^2 / |observed|^2, or 1 - cosine. trace: the
    same along the way. restarts: where each ended (infinite = diverged). soft: n x c class
    probabilities or targets, where they were optimised.
    """

    inputs: Tensor
    labels: Tensor
    loss: float
    trace: list[float]
    restarts: list[float]
    soft: Tensor | None = None


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """What is minimised: the model and loss, the observed gradient, the known labels if any."""

    model: nn.Module
    loss: str
    observed: Weights
    settings: Matching
    labels: Tensor | None

    def distance(self, inputs: Tensor, free: Tensor | None) -> Tensor:
        """Between the gradient at `inputs` with labels (or free ones, n x c) and the observed."""
        outputs = self.model(inputs)
        if free is None:
            assert self.labels is not None
            value = loss_named(self.loss)(outputs, self.labels)
        else:
            value = soft_loss(self.loss)(outputs, free)
        held = dict(self.model.named_parameters())
        found = torch.autograd.grad(
            value,
            [held[name] for name in self.observed],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        wanted = torch.cat([value.flatten() for value in self.observed.values()])
        here = torch.cat([g.flatten() for g in found])
        if self.settings.distance == "l2":
            return (here - wanted).square().sum() / wanted.square().sum()
        return 1 - F.cosine_similarity(here, wanted, dim=0, eps=1e-30)


def match_gradient(
    model: nn.Module,
    loss: str,
    gradient: Weights,
    *,
    count: int,
    input_shape: tuple[int, ...],
    settings: Matching,
    generator: torch.Generator,
    labels: Tensor | None = None,
    bounds: Bounds | None = None,
) -> Matched:
    """`count` records whose gradient under the loss of that name is near `gradient`.

    `gradient` names the parameters to match; others are left out of account. `bounds` is the
    pixel box in the model's scale: starts are uniform in it, without it standard normal.
    """
    dtype = torch.float64 if settings.double else torch.float32
    model = copy.deepcopy(model).to(dtype).requires_grad_(True)
    observed = {name: value.detach().to(dtype) for name, value in gradient.items()}
    check_gradient(model, observed, count)
    if settings.labels == "known":
        labels = _known(labels, count, dtype)
    elif settings.labels == "joint":
        labels = None
    else:
        probes = draw(PROBES, input_shape, bounds, generator).to(dtype)
        labels = infer_labels(model, loss, observed, count=count, probes=probes)
    objective = Objective(
        model=model, loss=loss, observed=observed, settings=settings, labels=labels
    )
    ends = []
    with task("gradient matching", settings.restarts * settings.steps) as step:
        for _ in range(settings.restarts):
            start = draw(count, input_shape, bounds, generator).to(dtype)
            free = None
            if labels is None:
                outputs = model(start).shape[1]
                free = torch.randn(count, outputs, generator=generator).to(dtype)
            ends.append(_descend(objective, start, free, bounds, step))
    return _best(ends, objective)


def _known(labels: Tensor | None, count: int, dtype: torch.dtype) -> Tensor:
    if labels is None or len(labels) != count:
        got = "none" if labels is None else len(labels)
        do = "give them, or take labels='inferred'"
        raise InputError(expected("matching: labels", f"{count}, one a record", got, do))
    return labels.to(dtype) if labels.is_floating_point() else labels


def _best(ends: list[tuple[float, Tensor, Tensor | None, list[float]]], of: Objective) -> Matched:
    value, inputs, free, trace = min(ends, key=lambda end: end[0])
    labels, soft = of.labels, None
    if free is not None:
        soft = soften(of.loss, free)
        middle = 0.5 if of.loss == "bce" else 0.0
        labels = soft.argmax(1) if soft.shape[1] > 1 else (soft[:, 0] > middle).long()
    assert labels is not None
    return Matched(
        inputs=inputs,
        labels=labels,
        loss=value,
        trace=trace,
        restarts=[end[0] for end in ends],
        soft=soft,
    )


def check_gradient(model: nn.Module, gradient: Weights, count: int) -> None:
    held = {name: tuple(p.shape) for name, p in model.named_parameters()}
    for name, value in gradient.items():
        if held.get(name) != tuple(value.shape):
            got = tuple(value.shape)
            raise InputError(expected(f"gradient: {name}", held.get(name, "no such name"), got))
    if not any(bool(value.any()) for value in gradient.values()):
        raise InputError(expected("gradient", "numbers other than zero", "zeros or nothing"))
    if count < 1:
        raise InputError(expected("matching: count", "1 or more", count))


def draw(
    count: int, shape: tuple[int, ...], bounds: Bounds | None, generator: torch.Generator
) -> Tensor:
    """Random inputs, count x shape: uniform in the box, or standard normal."""
    if bounds is None:
        return torch.randn(count, *shape, generator=generator, dtype=torch.float64)
    low, high = (torch.as_tensor(end, dtype=torch.float64) for end in bounds)
    return low + (high - low) * torch.rand(count, *shape, generator=generator, dtype=torch.float64)


def total_variation(inputs: Tensor) -> Tensor:
    """Mean absolute difference of neighbouring pixels, down plus across; flat inputs have none."""
    if inputs.ndim < 4:
        return inputs.new_zeros(())
    return inputs.diff(dim=-2).abs().mean() + inputs.diff(dim=-1).abs().mean()


def _descend(
    objective: Objective, start: Tensor, free: Tensor | None, bounds: Bounds | None, step: Step
) -> tuple[float, Tensor, Tensor | None, list[float]]:
    """The best point on the way from `start`: its distance, inputs, free labels, the trace."""
    settings = objective.settings
    variables = [start.clone().requires_grad_()]
    if free is not None:
        variables.append(free.clone().requires_grad_())
    low, high = (None, None) if bounds is None else (torch.as_tensor(e).to(start) for e in bounds)
    best, lowest, trace = math.inf, [v.detach().clone() for v in variables], []
    given = [objective.observed, objective.model, objective.labels, objective.loss, settings]
    kept = checkpoint("matching", given, start, free, low, high)
    begin = None
    if kept.state is not None:
        begin, places, best, lowest, trace = kept.state
        for variable, place in zip(variables, places, strict=True):
            variable.data.copy_(place)
        step(begin[0])
    for value, done, state in _iterates(objective, variables, begin):
        if settings.optimiser == "adam" and kept.due():
            kept.save([state(), variables, best, lowest, trace])
        step(done)
        trace.append(value)
        if not math.isfinite(value):
            break
        if value < best:
            best, lowest = value, [v.detach().clone() for v in variables]
        if settings.project and low is not None:
            with torch.no_grad():
                variables[0].clamp_(low, high)
    return best, lowest[0], lowest[1] if free is not None else None, trace


def _iterates(
    objective: Objective, variables: list[Tensor], begin: list[Any] | None
) -> Iterator[tuple[float, int, Callable[[], list[Any]]]]:
    """Moves the variables; yields the distance where they stand, the steps since the last, and
    what to `begin` with to be there again.
    """
    settings = objective.settings
    seen = [math.inf]

    def evaluate() -> Tensor:
        distance = objective.distance(variables[0], variables[1] if variables[1:] else None)
        total = distance + settings.tv * total_variation(variables[0])
        gradients = torch.autograd.grad(total, variables)
        for variable, gradient in zip(variables, gradients, strict=True):
            variable.grad = gradient.sign() if settings.signed else gradient
        seen[0] = distance.item()
        return total.detach()

    if settings.optimiser == "lbfgs":
        yield from _lbfgs(evaluate, variables, settings, seen)
    else:
        optimiser = torch.optim.Adam(variables, lr=settings.lr)
        cuts = [settings.steps * eighths // 8 for eighths in (3, 5, 7)] if settings.decay else []
        schedule = torch.optim.lr_scheduler.MultiStepLR(optimiser, cuts, gamma=0.1)
        first = 0
        if begin is not None:
            first, moments, rate = begin
            optimiser.load_state_dict(moments)
            schedule.load_state_dict(rate)
        for i in range(first, settings.steps):
            evaluate()
            # Before the step: the value belongs to where the variables stand.
            yield seen[0], 1, partial(_held, i, optimiser, schedule)
            optimiser.step()
            schedule.step()


def _held(*parts: Any) -> list[Any]:
    return [part if isinstance(part, int) else part.state_dict() for part in parts]


def _lbfgs(
    evaluate: Callable[[], Tensor], variables: list[Tensor], settings: Matching, seen: list[float]
) -> Iterator[tuple[float, int, Callable[[], list[Any]]]]:
    optimiser = torch.optim.LBFGS(
        variables,
        lr=settings.lr,
        history_size=100,
        tolerance_grad=0,
        tolerance_change=0,
        line_search_fn="strong_wolfe",
    )
    for done in range(0, settings.steps, CHUNK):
        steps = min(CHUNK, settings.steps - done)
        for group in optimiser.param_groups:
            group["max_iter"], group["max_eval"] = steps, 2 * steps
        optimiser.step(evaluate)
        evaluate()  # the line search may have ended elsewhere
        yield seen[0], steps, list


def soften(loss: str, free: Tensor) -> Tensor:
    """Free labels n x c as the loss takes them: probabilities for ce and bce, else targets."""
    if loss == "ce":
        return free.softmax(1)
    return free.sigmoid() if loss == "bce" else free


def soft_loss(loss: str) -> Loss:
    """The loss of free labels, n x c."""
    if loss == "ce":
        return lambda outputs, free: F.cross_entropy(outputs, soften(loss, free))
    return lambda outputs, free: loss_named(loss)(outputs, soften(loss, free))
