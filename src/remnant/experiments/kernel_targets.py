"""Targets of paper 000 and the two attacks on them.

Two hidden layers, squared loss, full batch at a low rate, float64. Weights and biases have variance
1/fan_in, as the weights of the paper's networks: PyTorch's own, a third of it, give a kernel so
small that training moves it far, whatever the width. (With biases of 0 a network is homogeneous,
and only what they change by tells how large an image is.)

Attacks: `paper`, 000's descent with settings for these networks (`FAIR`; told the number of
records), and `exact`, that preset of `ntk`.
"""

from __future__ import annotations

import math
import time
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks import NTK
from remnant.data import Split, binary_task, mean_image, split
from remnant.errors import InputError, expected
from remnant.evidence import weight_difference
from remnant.experiments.targets import (
    Attack,
    Scene,
    attack,
    dense,
    errors,
    place,
    squared_scores,
    with_weights,
)
from remnant.gradients import gram, kernel_distance
from remnant.models import build
from remnant.seeds import generator_for
from remnant.solvers.descent.paper import FAIR, Descent, descend
from remnant.sweep.table import Row
from remnant.training import GradientDescent, solve_linearised, targets, train
from remnant.types import Candidates, Examples, Scaling, Status, Target, Weights

# targets


def sides_of(examples: Examples, task: str, records: int, seed: int, public: int = 2000) -> Split:
    """Records to train on and others: of a binary task, or of all classes. public: how many others
    at most; their mean image is subtracted."""
    if task != "all classes":
        examples = binary_task(examples, task)
    sides = split(examples, train=records, public=None, holdout=records, seed=seed)
    return replace(sides, public=sides.public.take(range(min(public, len(sides.public)))))


def network(records: Examples, width: int, seed: int) -> nn.Module:
    """One output for two classes, else one a class."""
    outputs = 1 if records.classes == 2 else records.classes
    text = dense(records, width, width, outputs=outputs)
    model = build(text, generator=generator_for(seed, "weights"), dtype=torch.float64)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(math.sqrt(3))  # PyTorch's law has a variance of 1 / (3 fan_in)
    return model


def top_eigenvalue(model: nn.Module, inputs: Tensor) -> float:
    """Of the kernel of all records and outputs."""
    kernel = gram(model, inputs, per_class=True).detach()
    size = math.isqrt(kernel.numel())
    return float(torch.linalg.eigvalsh(kernel.reshape(size, size))[-1])


def finish_training(
    sides: Split, *, width: int, seed: int, dynamics: str = "standard", stop_loss: float = 1e-6
) -> Scene:
    """Train on the first side, less the public mean image.

    dynamics: standard; linearised; lazy C: the outputs go a C-th of the way from where they start
    to the labels, and the kernel moves about a C-th as far. At C = 1 that is standard, and the more
    C grows, the more it is linearised (Chizat and others, 2019), as in ever wider networks.
    """
    begun, records = time.process_time(), sides.train
    scaling = Scaling(mean=mean_image(sides.public))
    model = network(sides.public, width, seed)
    lazy = laziness(dynamics)
    if dynamics == "linearised":
        trained = solve_linearised(model, records, scaling=scaling)
    else:
        inputs = scaling.to_model(records.inputs.double())
        with torch.no_grad():
            before = model(inputs)
        labels = before + (targets(before, records.labels) - before) / lazy
        # A two hundredth of what is stable without momentum: close to the gradient's flow.
        rate = 0.005 * len(records) / top_eigenvalue(model, inputs)
        rule = GradientDescent(
            lr=rate, momentum=0.9, steps=100_000, loss="mse", stop_loss=stop_loss / lazy**2
        )
        generator = generator_for(seed, "batches")
        towards = replace(records, labels=labels)
        trained = train(model, towards, rule, scaling=scaling, generator=generator)
    loss = float(trained.ledger["loss"]) * lazy**2
    return _scene(model, sides, trained.initial, trained.final, dynamics, loss, begun)


def laziness(dynamics: str) -> float:
    return float(dynamics.removeprefix("lazy ")) if dynamics.startswith("lazy ") else 1.0


def _scene(
    model: nn.Module, sides: Split, initial: Weights, final: Weights, dynamics: str, loss: float,
    begun: float,
) -> Scene:  # fmt: skip
    seconds = round(time.process_time() - begun, 3)
    return place(
        with_weights(model, final), sides, Scaling(mean=mean_image(sides.public)),
        training={"dynamics": dynamics, "loss": loss, "seconds": seconds},
        initial=initial, records=len(sides.train),
    )  # fmt: skip


def train_and_integrate(
    sides: Split, *, width: int, seed: int, steps: int = 20_000, stop_loss: float = 1e-5
) -> tuple[Scene, Tensor]:
    """Plain descent on half the summed squares, and each record's error integral (Appendix E.1).

    sum_t eta (y_i - f_t(x_i)), n: what every step adds to theta is that residual times a gradient.
    """
    begun, records = time.process_time(), sides.train
    model = network(sides.public, width, seed)
    inputs = Scaling(mean=mean_image(sides.public)).to_model(records.inputs.double())
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    eta = 1.0 / top_eigenvalue(model, inputs)  # half of what is stable
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
    return _scene(model, sides, initial, final, "standard", loss, begun), integral


def kernel(scene: Scene, weights: Weights) -> Tensor:
    """n x n, traced over outputs."""
    return gram(scene.target.model, scene.inputs, weights=weights)


def distance(scene: Scene) -> float:
    """d(K0, Kf): how far training moved the kernel; 0 for a linearised model."""
    if scene.training["dynamics"] == "linearised":
        return 0.0
    return kernel_distance(kernel(scene, scene.initial), kernel(scene, scene.target.weights))


def duals_and_influence(scene: Scene) -> tuple[Tensor, Tensor]:
    """alpha = K0^-1 (y - f0), and y_i less its prediction without it, alpha_i / (K0^-1)_ii; n each.

    Of one output. The second is leave-one-out regression in closed form (Appendix E).
    """
    with torch.no_grad():
        before = with_weights(scene.target.model, scene.initial)(scene.inputs)
        missing = targets(before, scene.truth.labels) - before
    inverse = torch.linalg.inv(kernel(scene, scene.initial))
    dual = (inverse @ missing)[:, 0]
    return dual, dual / inverse.diagonal()


# attacks


def by_descent(target: Target, *, settings: Descent, generator: torch.Generator) -> Candidates:
    """The paper's descent on the weights' change, told the number of records."""
    assert target.knowledge.records is not None
    found = descend(
        target.model, weight_difference(target), settings,
        shape=target.input_shape, records=target.knowledge.records, generator=generator,
    )  # fmt: skip
    return Candidates(
        inputs=target.scaling.to_data(found.inputs),
        confidence=torch.zeros(len(found.inputs)),
        status=Status.INCONCLUSIVE,
        reason="the paper's descent has no certificate",
        figures={"loss": found.loss},
    )


def attack_named(name: str, scene: Scene, steps: int) -> Attack:
    if name == "exact":
        return NTK(preset="exact")
    if name != "paper":
        raise InputError(expected("attack", "paper or exact", repr(name)))
    dynamics = scene.training.get("dynamics", "standard")
    features: Any = "initial" if dynamics == "linearised" else "final"
    settings = replace(FAIR, features=features, steps=steps)
    return partial(by_descent, settings=settings)


def attacked(scene: Scene, name: str, steps: int, seed: int) -> tuple[Tensor, Row]:
    """The error of every record (infinite: no candidate), and a row of the whole target."""
    found, seconds = attack(attack_named(name, scene, steps), scene.target, seed)
    row = squared_scores(scene, found, seconds) | {
        "records": len(scene.truth),
        "share": 0.0,
        "kernel_distance": distance(scene),
        "loss": scene.training["loss"],
        "training_seconds": scene.training["seconds"],
    }
    row["share"] = row["near"] / row["records"]
    return errors(scene.truth, found.inputs), row
