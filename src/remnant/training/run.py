"""Train a copy of a model by a recipe, and keep the books."""

from __future__ import annotations

import copy
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.training.basis import Basis, reduced
from remnant.training.descent import (
    Ending,
    Trace,
    TrainingLoss,
    Walk,
    descend,
    descend_for_decay_time,
    descend_in_proportion,
)
from remnant.training.losses import accuracy, check_labels, loss_named
from remnant.training.private import Watch, descend_privately
from remnant.training.recipes import (
    Adam,
    DecayTime,
    LossProportional,
    PrivateDescent,
    Recipe,
    describe,
)
from remnant.types import Examples, Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class Trained:
    """A trained copy of the model, its weights before and after, and the books.

    `trace` has `step` and `loss`, at most some 500 points: the loss after that many steps, or for
    mini-batches the mean over the epoch that ended there; the last point is the whole set's loss.
    `ledger` holds JSON values. Its `outcome` is "complete", "unfinished" (steps ran out before the
    recipe's own end) or "diverged"; then the weights are the last ones whose loss, on their batch,
    was finite.
    """

    model: nn.Module
    initial: dict[str, Tensor]
    final: dict[str, Tensor]
    trace: Mapping[str, Sequence[float]]
    ledger: Mapping[str, Any]


@computed_there
def train(
    model: nn.Module,
    examples: Examples,
    recipe: Recipe,
    *,
    scaling: Scaling,
    generator: torch.Generator,
    dtype: torch.dtype | None = None,
    reduce: bool = True,
    watch: Watch | None = None,
) -> Trained:
    """Train a copy of `model` on `examples`; the model that came is not touched.

    The copy computes in `dtype` (None = the model's own) and in evaluation mode: statistics of
    batch norm stay as they are and dropout is off, so that a step is a function of the weights and
    the batch alone. Parameters that do not require a gradient stay as they are. `generator`
    shuffles mini-batches, or samples and makes the noise of private training, whose ledger has
    `privacy`: what `bounds.Ledger` takes, or None for the controls. `reduce` allows the records'
    own basis for the first layer (see `basis`): the same training up to rounding, faster. `watch`
    sees what the strongest adversary of the privacy accounting sees.
    """
    trained, inputs, labels = prepare(model, examples, recipe.loss, scaling, dtype)
    initial = named(trained)
    no_basis = isinstance(recipe, Adam | PrivateDescent) or not reduce
    found = None if no_basis else reduced(trained, inputs)
    small, seen, basis = found or (trained, inputs, None)
    problem, start = _problem(small, seen, labels, recipe.loss, basis)
    walk, trace = Walk(start), Trace()
    stopped, figures = _loop(problem, walk, recipe, generator, trace, watch)
    looks = not isinstance(recipe, PrivateDescent)  # at the loss, to decide what is released
    stopped, loss, outputs = _settle(problem, walk, start, stopped, looks)
    _put_back(trained, problem, walk.weights, basis)
    ledger = {
        "recipe": describe(recipe),
        "outcome": _outcome(recipe, stopped, loss),
        "stopped": stopped,
        "steps": walk.steps,
        "reduced_basis": basis is not None,
        **figures,
        **measures(examples, outputs, loss),
    }
    return ended(trained, initial, trace, ledger)


def ended(
    model: nn.Module, initial: dict[str, Tensor], trace: Trace, ledger: dict[str, Any]
) -> Trained:
    """The books of a run; the trace's last point is the whole set's loss, as the ledger has it."""
    steps, loss = ledger["steps"], ledger["loss"]
    points = [(step, value) for step, value in trace.points if step < steps]
    points += [(steps, loss)] if loss is not None else []
    series = {"step": [float(step) for step, _ in points], "loss": [value for _, value in points]}
    return Trained(model=model, initial=initial, final=named(model), trace=series, ledger=ledger)


def prepare(
    model: nn.Module, examples: Examples, loss: str, scaling: Scaling, dtype: torch.dtype | None
) -> tuple[nn.Module, Tensor, Tensor]:
    """A copy of the model in that dtype, the records as it takes them, and fitting labels."""
    if len(examples) == 0:
        raise InputError(expected(f"{examples.name}: records", "one or more", 0))
    parameter = next((p for p in model.parameters() if p.requires_grad), None)
    if parameter is None:
        raise InputError(expected("model", "parameters that require a gradient", "none"))
    mine = copy.deepcopy(model).to(dtype or parameter.dtype).eval()
    inputs = scaling.to_model(examples.inputs.to(parameter.device, dtype or parameter.dtype))
    labels = examples.labels.to(parameter.device)
    try:
        with torch.no_grad():
            outputs = mine(inputs[:1])
    except RuntimeError as error:
        reason = str(error).splitlines()[0]
        raise InputError(f"model: inputs of shape {examples.shape} do not fit: {reason}") from None
    if outputs.ndim != 2:
        raise InputError(expected("model: outputs", "n x c", tuple(outputs.shape)))
    check_labels(loss, outputs.expand(len(inputs), -1), labels)
    return mine, inputs, labels


def named(model: nn.Module) -> dict[str, Tensor]:
    """All parameters by name, as copies."""
    return {name: p.detach().clone() for name, p in model.named_parameters()}


def measures(examples: Examples, outputs: Tensor, loss: float) -> dict[str, Any]:
    """The ledger's last lines: what the trained model does on its records."""
    classes = not examples.labels.is_floating_point()
    share = accuracy(outputs, examples.labels) if classes else None
    dtype = str(outputs.dtype).removeprefix("torch.")
    known = loss if math.isfinite(loss) else None
    return {"loss": known, "accuracy": share, "records": len(examples), "dtype": dtype}


def _problem(
    model: nn.Module, inputs: Tensor, labels: Tensor, loss: str, basis: Basis | None
) -> tuple[TrainingLoss, list[Tensor]]:
    """The loss of that model on those inputs, and the weights at which it starts."""
    moving = [p for p in model.parameters() if p.requires_grad]
    start = [p.detach().clone() for p in moving]
    outside = None
    if basis:
        start.append(torch.ones((), dtype=torch.float64))
        outside = basis.outside.square().sum().item()
    problem = TrainingLoss(
        model=model,
        parameters=moving,
        inputs=inputs,
        labels=labels,
        loss=loss_named(loss),
        outside=outside,
    )
    return problem, start


def _loop(
    problem: TrainingLoss, walk: Walk, recipe: Recipe, generator: torch.Generator, trace: Trace,
    watch: Watch | None,
) -> Ending:  # fmt: skip
    if isinstance(recipe, PrivateDescent):
        return descend_privately(problem, walk, recipe, generator, trace, watch)
    if isinstance(recipe, DecayTime):
        return descend_for_decay_time(problem, walk, recipe, trace)
    if isinstance(recipe, LossProportional):
        return descend_in_proportion(problem, walk, recipe, trace)
    return descend(problem, walk, recipe, generator, trace)


@torch.no_grad()
def _settle(
    problem: TrainingLoss, walk: Walk, start: Sequence[Tensor], stopped: str, looks: bool
) -> tuple[str, float, Tensor]:
    """Go back to finite weights if need be: why it stopped, the loss there and the outputs."""
    outputs = problem.outputs(walk.weights)
    loss = problem.loss(outputs, problem.labels).item()
    if stopped != "diverged" and (math.isfinite(loss) or not looks):
        return stopped, loss, outputs
    if walk.steps:
        walk.retreat()
    if not all(bool(w.isfinite().all()) for w in walk.weights):
        # A finite loss can hide infinite weights, as a ReLU hides -inf.
        walk.weights, walk.steps = list(start), 0
    outputs = problem.outputs(walk.weights)
    return "diverged", problem.loss(outputs, problem.labels).item(), outputs


def _outcome(recipe: Recipe, stopped: str, loss: float) -> str:
    if stopped in ("diverged", "stop_loss", "decay_time"):
        return "diverged" if stopped == "diverged" else "complete"
    if isinstance(recipe, DecayTime):
        return "unfinished"
    if isinstance(recipe, PrivateDescent):
        return "complete" if math.isfinite(loss) else "diverged"
    return "complete" if recipe.stop_loss is None or loss <= recipe.stop_loss else "unfinished"


@torch.no_grad()
def _put_back(
    model: nn.Module, problem: TrainingLoss, weights: Sequence[Tensor], basis: Basis | None
) -> None:
    names = [name for name, p in problem.model.named_parameters() if p.requires_grad]
    for name, value in zip(names, weights, strict=False):
        full = basis.expand(value, weights[-1]) if basis and name == basis.weight else value
        model.get_parameter(name).copy_(full)
