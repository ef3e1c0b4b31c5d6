"""Finished targets of paper 000 and the truth about them: train, attack, explain.

Two hidden layers, squared loss, full batch at a low rate, float64. Weights and biases have variance
1/fan_in, as the weights of the paper's networks: PyTorch's own, a third of it, give a kernel so
small that training moves it far, whatever the width. (With biases of 0 a network is homogeneous,
and only what they change by tells how large an image is.)
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
from remnant.solvers.descent.paper import GRADUAL, descend
from remnant.training import GradientDescent, solve_linearised, targets, train
from remnant.training import accuracy as share_right
from remnant.types import Examples, Knowledge, Scaling, Status, Target

Row = dict[str, Any]
ATTACKS = ("paper", "exact")
NEAR = 0.1  # of what the mean image is off by: an error below it shows the record plainly


@dataclass(frozen=True, kw_only=True, eq=False)
class Finished:
    """A target that was trained, and the truth about it. Inputs are in the model's scale."""

    target: Target
    truth: Examples
    inputs: Tensor
    wanted: Tensor  # n x c, what the labels stand for; trained towards a `lazy`th of the way
    lazy: float
    null: Tensor  # n, errors if 2 n images that were not trained on are taken for candidates
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


def network(records: Examples, width: int, outputs: int, seed: int) -> nn.Module:
    text = f"mlp:{math.prod(records.shape)}-{width}-{width}-{outputs}"
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
    records: Examples,
    public: Examples,
    *,
    width: int,
    seed: int,
    dynamics: str = "standard",
    stop_loss: float = 1e-6,
) -> Finished:
    """Train on `records`, less the public mean image, for one output or one a class.

    dynamics: standard; linearised; lazy C: the outputs go a C-th of the way from where they start
    to the labels, and the kernel moves about a C-th as far. At C = 1 that is standard, and the more
    C grows, the more it is linearised (Chizat and others, 2019), as in ever wider networks.
    """
    begun = time.process_time()
    scaling = Scaling(mean=mean_image(public))
    model = network(records, width, 1 if public.classes == 2 else public.classes, seed)
    lazy = float(dynamics.removeprefix("lazy ")) if dynamics.startswith("lazy ") else 1.0
    if dynamics == "linearised":
        trained = solve_linearised(model, records, scaling=scaling)
    else:
        inputs = scaling.to_model(records.inputs.double())
        with torch.no_grad():
            before = model(inputs)
        labels = before + (targets(before, records.labels) - before) / lazy
        # A two hundredth of what is stable without momentum: close to the gradient's flow.
        rule = GradientDescent(
            lr=0.005 * len(records) / top_eigenvalue(model, inputs), momentum=0.9, steps=100_000,
            loss="mse", stop_loss=stop_loss / lazy**2,
        )  # fmt: skip
        trained = train(
            model, replace(records, labels=labels), rule, scaling=scaling,
            generator=generator_for(seed, "batches"),
        )  # fmt: skip
    return finished(
        model, records, public, trained.initial, trained.final, lazy=lazy,
        linearised=isinstance(trained.model, Linearised),
        loss=float(trained.ledger["loss"]) * lazy**2,
        seconds=time.process_time() - begun,
    )  # fmt: skip


def finished(
    model: nn.Module,
    records: Examples,
    public: Examples,
    initial: Mapping[str, Tensor],
    final: Mapping[str, Tensor],
    *,
    linearised: bool,
    loss: float,
    seconds: float,
    lazy: float = 1.0,
) -> Finished:
    model = copy.deepcopy(model)
    model.load_state_dict(model.state_dict() | dict(final))
    scaling = Scaling(mean=mean_image(public))
    inputs = scaling.to_model(records.inputs.double())
    with torch.no_grad():
        wanted = targets(model(inputs), records.labels)
    knowledge = Knowledge(initial=initial, records=len(records))
    target = Target(model=model, input_shape=records.shape, scaling=scaling, knowledge=knowledge)
    null = greedy(squared_l2(records.inputs, public.inputs[: 2 * len(records)])).distance
    return Finished(
        target=target, truth=records, inputs=inputs, wanted=wanted, lazy=lazy, null=null,
        linearised=linearised, loss=loss, seconds=seconds,
    )  # fmt: skip


def attacked(run: Finished, attack: str, steps: int, seed: int) -> tuple[Tensor, Row]:
    """Error of every record (infinite: no candidate), and what the attack says of itself."""
    if attack not in ATTACKS:
        raise InputError(expected("attack", " or ".join(ATTACKS), repr(attack)))
    begun, generator = time.process_time(), generator_for(seed, "attack")
    if attack == "exact":
        found = NTK(preset="exact")(run.target, generator=generator)
        inputs, certified, status = found.inputs, found.figures.get("certified"), found.status
    else:
        inputs, certified, status = _descended(run, steps, generator), None, Status.INCONCLUSIVE
    seconds = time.process_time() - begun
    error = greedy(squared_l2(run.truth.inputs, inputs)).distance
    said = {"status": str(status), "certified": certified, "cpu_seconds": round(seconds, 3)}
    return error, said


def _descended(run: Finished, steps: int, generator: torch.Generator) -> Tensor:
    """Candidates of the paper's descent, in the data's scale."""
    evidence = weight_difference(run.target)
    # In the labels' own units, whatever share of the way to them training went.
    vector = {name: run.lazy * change for name, change in evidence.vector.items()}
    features: Literal["initial", "final"] = "initial" if run.linearised else "final"
    found = descend(
        run.target.model, replace(evidence, vector=vector),
        replace(GRADUAL, features=features, steps=steps),
        shape=run.target.input_shape, records=len(run.truth), generator=generator,
    )  # fmt: skip
    return run.target.scaling.to_data(found.inputs)


def scored(run: Finished, error: Tensor, said: Row) -> Row:
    """The reconstruction curve's errors beside their null's, and how far training went."""
    close = NEAR * float(run.inputs.flatten(1).square().sum(1).mean())
    return said | {
        "mean_error": finite(error.mean()),
        "median_error": finite(error.median()),
        "near": int((error < close).sum()),
        "null_error": finite(run.null.mean()),
        "null_near": int((run.null < close).sum()),
        "kernel_distance": run.distance(),
        "loss": run.loss,
        "training_seconds": round(run.seconds, 3),
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
    model = network(records, width, 1, seed)
    inputs = Scaling(mean=mean_image(public)).to_model(records.inputs.double())
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
    seconds = time.process_time() - begun
    run = finished(
        model, records, public, initial, final, linearised=False, loss=loss, seconds=seconds
    )
    return run, integral


def accuracy(run: Finished, public: Examples) -> float:
    """On records that were not trained on."""
    with torch.no_grad():
        outputs = run.target.model(run.target.scaling.to_model(public.inputs.double()))
    return share_right(outputs, public.labels)
