"""Finished targets of paper 000 and the truth about them: train, attack, explain.

Two hidden layers, N(0, 1/fan_in) weights, squared loss, full batch, float64.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, Literal

import torch
from torch import Tensor, nn

from remnant.attacks import NTK
from remnant.data import mean_image
from remnant.errors import InputError, expected
from remnant.evidence import weight_difference
from remnant.gradients import gram, kernel_distance
from remnant.models import Linearised, build
from remnant.scoring import greedy, squared_l2
from remnant.seeds import generator_for
from remnant.solvers.descent.paper import SCALED, descend
from remnant.solvers.descent.projected import Projected, search
from remnant.training import GradientDescent, solve_linearised, targets, train
from remnant.types import Examples, Knowledge, Scaling, Target

Row = dict[str, Any]
ATTACKS = ("paper", "projected", "projected-final", "exact")


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A target that was trained, and the truth about it. Inputs are in the model's scale."""

    target: Target
    truth: Examples
    inputs: Tensor
    wanted: Tensor  # n x c, what the outputs were trained towards
    linearised: bool
    loss: float
    seconds: float

    @property
    def initial(self) -> Mapping[str, Tensor]:
        assert self.target.knowledge.initial is not None
        return self.target.knowledge.initial

    def kernel(self, weights: Mapping[str, Tensor]) -> Tensor:
        """n x n, traced over outputs."""
        return gram(self.target.model, self.inputs, weights=weights)

    def distance(self) -> float:
        """d(K0, Kf); a linearised model keeps its kernel."""
        if self.linearised:
            return 0.0
        return kernel_distance(self.kernel(self.initial), self.kernel(self.target.weights))


def finish_training(
    records: Examples,
    public: Examples,
    *,
    width: int,
    seed: int,
    dynamics: str = "standard",
    stop_loss: float = 1e-6,
    lr: float = 0.01,
) -> Finished:
    """Train on `records`, less the public mean image; `lr` is for the mean loss over records."""
    begun = time.process_time()
    scaling = Scaling(mean=mean_image(public))
    outputs = 1 if public.classes == 2 else public.classes
    text = f"mlp:{math.prod(records.shape)}-{width}-{width}-{outputs}"
    generator = generator_for(seed, "weights")
    model = build(text, generator=generator, init="normal", dtype=torch.float64)
    if dynamics == "linearised":
        trained = solve_linearised(model, records, scaling=scaling)
    else:
        rule = GradientDescent(lr=lr, momentum=0.9, steps=100_000, loss="mse", stop_loss=stop_loss)
        trained = train(
            model, records, rule, scaling=scaling, generator=generator_for(seed, "batches")
        )
    return finished(
        model, records, scaling, trained.initial, trained.final,
        linearised=isinstance(trained.model, Linearised),
        loss=float(trained.ledger["loss"]),
        seconds=time.process_time() - begun,
    )  # fmt: skip


def finished(
    model: nn.Module,
    records: Examples,
    scaling: Scaling,
    initial: Mapping[str, Tensor],
    final: Mapping[str, Tensor],
    *,
    linearised: bool,
    loss: float,
    seconds: float,
) -> Finished:
    model = copy.deepcopy(model)
    model.load_state_dict(model.state_dict() | dict(final))
    inputs = scaling.to_model(records.inputs.double())
    with torch.no_grad():
        wanted = targets(model(inputs), records.labels)
    knowledge = Knowledge(initial=initial, records=len(records))
    target = Target(model=model, input_shape=records.shape, scaling=scaling, knowledge=knowledge)
    return Finished(
        target=target, truth=records, inputs=inputs, wanted=wanted, linearised=linearised,
        loss=loss, seconds=seconds,
    )  # fmt: skip


def attacked(run: Finished, attack: str, steps: int, seed: int) -> tuple[Tensor, float]:
    """Error of every record (infinite: no candidate), and CPU seconds of the attack."""
    if attack not in ATTACKS:
        raise InputError(expected("attack", " or ".join(ATTACKS), repr(attack)))
    begun = time.process_time()
    target, generator = run.target, generator_for(seed, "attack")
    final = not run.linearised and attack != "projected"
    features: Literal["initial", "final"] = "final" if final else "initial"
    if attack == "exact":
        found = NTK()(target, generator=generator).inputs
    else:
        evidence = weight_difference(target)
        given: Any = {"shape": target.input_shape, "records": len(run.truth)}
        if attack == "paper":
            rule = replace(SCALED, features=features, steps=steps)
            inputs = descend(target.model, evidence, rule, generator=generator, **given).inputs
        else:
            plan = Projected(features=features, steps=steps, starts=1)
            inputs = search(target.model, evidence, plan, generator=generator, **given).starts[0]
        found = target.scaling.to_data(inputs)
    error = greedy(squared_l2(run.truth.inputs, found)).distance
    return error, time.process_time() - begun


def scored(run: Finished, error: Tensor, seconds: float) -> Row:
    return {
        "mean_error": finite(error.mean()),
        "median_error": finite(error.median()),
        "kernel_distance": run.distance(),
        "loss": run.loss,
        "training_seconds": round(run.seconds, 3),
        "cpu_seconds": round(seconds, 3),
    }


def finite(value: Tensor | float) -> float | None:
    """JSON knows no infinity: None stands for a record without a candidate."""
    return float(value) if math.isfinite(value) else None


def duals_and_influence(run: Finished) -> tuple[Tensor, Tensor]:
    """alpha = K0^-1 (y - f0), and y_i less its prediction without it, alpha_i / (K0^-1)_ii; n each.

    Of one output. The second is leave-one-out regression in closed form (Appendix E).
    """
    start = copy.deepcopy(run.target.model)
    start.load_state_dict(start.state_dict() | dict(run.initial))
    with torch.no_grad():
        missing = run.wanted - start(run.inputs)
    inverse = torch.linalg.inv(run.kernel(run.initial))
    dual = (inverse @ missing)[:, 0]
    return dual, dual / inverse.diagonal()


def train_and_integrate(
    records: Examples, public: Examples, *, width: int, seed: int,
    steps: int = 20_000, stop_loss: float = 1e-5,
) -> tuple[Finished, Tensor]:  # fmt: skip
    """Plain descent on half the summed squares, and each record's error integral (Appendix E.1).

    sum_t eta (y_i - f_t(x_i)), n: what every step adds to theta is that residual times a gradient.
    """
    begun = time.process_time()
    scaling = Scaling(mean=mean_image(public))
    text = f"mlp:{math.prod(records.shape)}-{width}-{width}-1"
    generator = generator_for(seed, "weights")
    model = build(text, generator=generator, init="normal", dtype=torch.float64)
    inputs = scaling.to_model(records.inputs.double())
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    # Half of what the kernel's largest eigenvalue allows.
    eta = 1.0 / float(torch.linalg.eigvalsh(gram(model, inputs))[-1])
    integral, loss = torch.zeros(len(records), dtype=torch.float64), math.inf
    for _ in range(steps):
        outputs = model(inputs)
        residual = targets(outputs, records.labels) - outputs
        loss = residual.square().mean().item()
        if loss < stop_loss:
            break
        integral += eta * residual.detach()[:, 0]
        moves = torch.autograd.grad(residual.square().sum() / 2, list(model.parameters()))
        with torch.no_grad():
            for parameter, move in zip(model.parameters(), moves, strict=True):
                parameter.sub_(move, alpha=eta)
    final = {name: p.detach().clone() for name, p in model.named_parameters()}
    seconds = time.process_time() - begun
    run = finished(
        model, records, scaling, initial, final, linearised=False, loss=loss, seconds=seconds
    )
    return run, integral


def accuracy(run: Finished, public: Examples) -> float:
    """On records that were not trained on."""
    with torch.no_grad():
        outputs = run.target.model(run.target.scaling.to_model(public.inputs.double()))
    guess = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    return float((guess == public.labels).double().mean())
