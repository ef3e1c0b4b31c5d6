"""Gradient matching: search for a batch whose gradient is the observed one, by descent.

The optimisation baseline, for networks where nothing exact applies: inverting gradients (Geiping et
al. 2020), that is cosine distance, Adam on the sign of the gradient, total variation and the pixel
box, with labels read off the output layer where they are unknown (iDLG, Zhao et al. 2020). The
number of records is known. Restarts are ranked by how well they match, the only thing that an
adversary can measure; a good match is no proof of the records.
"""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.checkpoints import checkpoint
from remnant.errors import InputError, expected
from remnant.progress import Step, task
from remnant.solvers.descent.images import Bounds, draw, sign_descent, total_variation
from remnant.solvers.descent.label_counts import infer_labels
from remnant.training.losses import loss_named
from remnant.types import Weights

End = tuple[float, Tensor, list[float]]
"""The least distance of a descent, the inputs there, and the distance along the way."""


@dataclass(frozen=True, kw_only=True)
class Matching:
    """Settings of the search. The rate falls to a tenth after 3/8, 5/8 and 7/8 of the steps."""

    steps: int = 4800  # of Adam, in each restart; the paper takes up to 24000
    restarts: int = 1
    lr: float = 0.1
    tv: float = 1e-4  # weight of total variation; flat inputs have none
    probes: int = 256  # random inputs, for what the model says of no input in particular

    def __post_init__(self) -> None:
        for name, low in (("steps", 1), ("restarts", 1), ("tv", 0)):
            if not getattr(self, name) >= low:
                wanted = f"{low} or more"
                raise InputError(expected(f"matching: {name}", wanted, getattr(self, name)))
        if not self.lr > 0:
            raise InputError(expected("matching: lr", "a positive number", self.lr))


@dataclass(frozen=True, kw_only=True, eq=False)
class Matched:
    """inputs n x shape in the model's scale and labels n of the restart that matches best.

    loss: its distance, without priors: 1 - cosine. trace: the same along the way. restarts: where
    each ended (infinite = diverged).
    """

    inputs: Tensor
    labels: Tensor
    loss: float
    trace: list[float]
    restarts: list[float]


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """What is minimised: the model and loss, the observed gradient, the labels."""

    model: nn.Module
    loss: str
    observed: Weights
    settings: Matching
    labels: Tensor

    def distance(self, inputs: Tensor) -> Tensor:
        """1 - cosine between the gradient at `inputs` and the observed one."""
        held = dict(self.model.named_parameters())
        found = torch.autograd.grad(
            loss_named(self.loss)(self.model(inputs), self.labels),
            [held[name] for name in self.observed],
            create_graph=True,
            allow_unused=True,
            materialize_grads=True,
        )
        wanted = torch.cat([value.flatten() for value in self.observed.values()])
        here = torch.cat([g.flatten() for g in found])
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

    `gradient` names the parameters to match; others are left out of account. labels: None = read
    off the output layer. `bounds` is the pixel box in the model's scale: starts are uniform in it,
    without it standard normal.
    """
    model = copy.deepcopy(model).float().requires_grad_(True)
    observed = {name: value.detach().float() for name, value in gradient.items()}
    check_gradient(model, observed, count)
    if labels is None:
        probes = draw(settings.probes, input_shape, bounds, generator).float()
        labels = infer_labels(model, loss, observed, count=count, probes=probes)
    elif len(labels) != count:
        wanted = f"{count}, one a record"
        raise InputError(expected("matching: labels", wanted, len(labels), "or give none"))
    labels = labels.float() if labels.is_floating_point() else labels
    objective = Objective(
        model=model, loss=loss, observed=observed, settings=settings, labels=labels
    )
    with task("gradient matching", settings.restarts * settings.steps) as step:
        ends = [
            _descend(objective, draw(count, input_shape, bounds, generator).float(), bounds, step)
            for _ in range(settings.restarts)
        ]
    least, inputs, trace = min(ends, key=lambda end: end[0])
    reached = [end[0] for end in ends]
    return Matched(inputs=inputs, labels=labels, loss=least, trace=trace, restarts=reached)


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


def _descend(objective: Objective, start: Tensor, bounds: Bounds | None, step: Step) -> End:
    """Adam on the sign of the gradient from `start`, on the box after every step; the best point
    on the way."""
    settings, inputs = objective.settings, start.clone().requires_grad_()
    low, high = (None, None) if bounds is None else (torch.as_tensor(e).to(start) for e in bounds)
    adam, rates = sign_descent(inputs, settings.lr, settings.steps)
    best, lowest, trace = math.inf, start.clone(), []
    given = [objective.observed, objective.model, objective.labels, objective.loss, settings]
    kept = checkpoint("matching", given, start, low, high)
    if kept.state is not None:
        place, moments, rate, best, lowest, trace = kept.state
        inputs.data.copy_(place)
        adam.load_state_dict(moments)
        rates.load_state_dict(rate)
        step(len(trace))
    while len(trace) < settings.steps:
        if kept.due():
            state = [inputs, adam.state_dict(), rates.state_dict()]
            kept.save([*state, best, lowest, trace])
        distance = objective.distance(inputs)
        total = distance + settings.tv * total_variation(inputs)
        (slope,) = torch.autograd.grad(total, inputs)
        step(1)
        trace.append(distance.item())
        if not math.isfinite(trace[-1]):
            break
        if trace[-1] < best:
            best, lowest = trace[-1], inputs.detach().clone()
        inputs.grad = slope.sign()
        adam.step()
        rates.step()
        if low is not None:
            inputs.data.clamp_(low, high)
    return best, lowest, trace
