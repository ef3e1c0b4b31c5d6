"""`kkt`: the adversary holds nothing but the final weights (003, 004, Haim et al. 2022)."""

from __future__ import annotations

import copy
import math
import time
from dataclasses import dataclass, replace
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor, nn

from remnant.attacks.about import (
    HELD,
    LINEAR,
    About,
    Choice,
    Cost,
    Range,
    Scene,
    Space,
    measured,
    pass_seconds,
    setting,
    training_seconds,
)
from remnant.attacks.kkt_outcome import conclude, conclude_paper, records_of
from remnant.attacks.outcome import model_box, nothing
from remnant.devices import computed_there
from remnant.errors import InputError, expected
from remnant.evidence import stored_precision
from remnant.gradients import smoothed
from remnant.solvers.kkt.duals import OBJECTIVES, Duals, Objective, balanced_labels
from remnant.solvers.kkt.network import Balance, Layer, balance, read_network
from remnant.solvers.kkt.paper import LOGARITHMIC, RANGES, descend_on_pixels, drawn
from remnant.solvers.kkt.problem import Problem, pose
from remnant.solvers.kkt.search import Search, agreed, descend
from remnant.solvers.kkt.tolerances import TOLERANCES
from remnant.solvers.spans import Spectrum, count_in_noise
from remnant.training import DecayTime, train
from remnant.types import Candidates, Examples, Knowledge, Status, Target

Preset = Literal["default", "paper"]
PRESETS: tuple[Preset, ...] = ("default", "paper")
ABOUT = About(
    summary="records from the final weights alone",
    example="--model mlp:784-300-300-10 --weights released.safetensors --records 50 "
    "--shape 1x28x28",
    title="The released weights alone",
    holds="nothing but the released weights",
    defence="Train with less weight decay, stop before a stationary point, or train with "
    "differential privacy.",
    takes=(*HELD, "loss"),
    spaces={
        "papers": Space(  # 004, appendix B: random search over the papers' own descent
            axes={
                name: Range(low=low, high=high, log=name in LOGARITHMIC)
                for name, (low, high) in RANGES.items()
            },
            fixed={"preset": "paper"},
        ),
        "default": Space(
            axes={
                "range_weight": Range(low=3.0, high=30.0, log=True),
                "whiten": Range(low=0.2, high=1.1),
                "inner_rank": Choice((20, 40, 80)),
                "lambda_min": Choice((0.0, 1e-3)),
                "tv_weight": Choice((0.0, 1e-5, 1e-4)),
            }
        ),
    },
)


def twin_recipe(loss: str) -> DecayTime:
    """How a twin is trained, the way that leaks."""
    return DecayTime(loss=loss, lr=0.5 if loss in ("ce", "bce") else 0.2)


@dataclass(frozen=True, kw_only=True)
class KKT:
    """Reconstruct training records from the final weights.

    default: descent in the row space of the first layer (`remnant.solvers.kkt`) from independent
    starts, whose agreement is the confidence; ReLU networks of dense layers, convolutions before.
    paper: the papers' SGD on pixels with their random search, for any differentiable model.
    """

    about: ClassVar[About] = ABOUT
    preset: Preset = setting("default", "default or paper")
    objective: Objective | None = setting(
        None, "margin, soft or free (default: by the loss and the outputs)"
    )
    candidates: int | None = setting(None, "in each start (default: twice the records)")
    starts: int = setting(4, "independent sets of candidates")
    steps: int | None = setting(None, "of each start (default: 600; paper: 50000)")
    rank: int | None = setting(None, "of the first dense layer (default: the records)")
    inner_rank: int | None = setting(40, "of dense layers between")
    lambda_min: float | None = setting(None, "smallest dual (default: 0; paper: drawn)")
    range_weight: float | None = setting(
        None, "of a record's own signal (default: by the objective)"
    )
    whiten: float | None = setting(None, "power of the first layer's singular values")
    tv_weight: float = setting(0.0, "of a prior on neighbouring pixels")
    trials: int = setting(1, "paper: random draws of what is not given below")
    lr: float | None = setting(None, "of paper (default: drawn)")
    sigma: float | None = setting(None, "paper: deviation of the first pixels (default: drawn)")
    alpha: float | None = setting(None, "paper: sharpness of the smoothed ReLU (default: drawn)")

    def __post_init__(self) -> None:
        if self.preset not in PRESETS:
            raise InputError(expected("preset", " or ".join(PRESETS), repr(self.preset)))
        if self.objective not in (None, *OBJECTIVES):
            raise InputError(expected("objective", ", ".join(OBJECTIVES), repr(self.objective)))
        for name in ("candidates", "starts", "steps", "rank", "inner_rank", "trials"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise InputError(expected(name, "1 or more", value))

    @computed_there
    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        layers = read_network(target.model)
        if self.preset == "paper":
            return self.paper(target, None if isinstance(layers, str) else layers, generator)
        if isinstance(layers, str):
            reason = f"{layers}; --preset paper takes any model"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        return self.solve(target, layers, generator)

    def why_not(self, scene: Scene) -> str | None:
        if scene.linear:
            return LINEAR
        layers = read_network(scene.target.model)
        return layers if isinstance(layers, str) and self.preset != "paper" else None

    def cost(self, scene: Scene) -> Cost:
        """Of a descent's steps, a few of which are done."""
        target, n = scene.target, scene.records
        memory = 40.0 * (scene.parameters + n * n)
        recipe = twin_recipe(scene.loss)
        steps = recipe.decay_time / (recipe.lr * recipe.weight_decay)
        twin = training_seconds(scene, recipe, round(1.5 * steps))  # rates fall on the way
        layers = read_network(target.model)
        if self.preset == "paper" or isinstance(layers, str):
            each = pass_seconds(scene, TOLERANCES.per_record * n)
            seconds = self.trials * (self.steps or 50_000) * each
            return Cost(seconds=seconds, memory=memory, twin=twin)
        if any(not bool(layer.weight.any()) for layer in layers):
            return Cost(seconds=0.0, memory=memory, twin=twin)
        told = replace(target, knowledge=replace(target.knowledge, records=n, loss=scene.loss))
        begun = time.process_time()
        problem, duals, how = self.posed(told, layers, n, balance(layers))
        posing, tried = time.process_time() - begun, replace(how, steps=4)
        chance = torch.Generator().manual_seed(0)
        few = partial(descend, problem, duals, tried, starts=self.starts, generator=chance)
        each = measured(few) / tried.steps
        steps = how.steps + how.last_steps / self.starts
        return Cost(seconds=posing + steps * each, memory=memory, twin=twin)

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """Trained from fresh weights to stationarity with weight decay, the way that leaks."""
        target, loss = scene.target, scene.loss
        model = fresh_model(target.model, generator)
        trained = train(
            model, strangers, twin_recipe(loss), scaling=target.scaling, generator=generator
        )
        told = target.knowledge.labels is not None and not strangers.labels.is_floating_point()
        labels = strangers.labels if told else None
        held = Knowledge(records=len(strangers), loss=loss, labels=labels)
        return replace(target, model=trained.model, knowledge=held)

    def solve(
        self, target: Target, layers: tuple[Layer, ...], generator: torch.Generator
    ) -> Candidates:
        empty = [index for index, layer in enumerate(layers) if not bool(layer.weight.any())]
        if empty:
            reason = f"all weights of layer {empty[0] + 1} are 0: no record moved them"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        spectrum, state = spectrum_of(target, layers), balance(layers)
        counted = records_of(target) or spectrum.count
        problem, duals, how = self.posed(target, layers, counted, state)
        found = agreed(problem, duals, how, starts=self.starts, generator=generator)
        if found is None:
            reason = (
                "the search left the range of numbers from every start: the weights are far out"
            )
            return nothing(target, Status.INCONCLUSIVE, reason)
        return conclude(target, layers, spectrum, state, duals, *found)

    def posed(
        self,
        target: Target,
        layers: tuple[Layer, ...],
        counted: int,
        state: Balance,
    ) -> tuple[Problem, Duals, Search]:
        """What is descended on, for so many records."""
        m = self.candidates or TOLERANCES.per_record * counted
        first = next(layer for layer in layers if not layer.conv)
        spare = 1.0 if records_of(target) else TOLERANCES.spare_rank
        rank = min(self.rank or math.ceil(spare * counted), *first.weight.shape)
        duals = duals_for(target, len(layers[-1].weight), m, self.objective)
        duals = replace(duals, least=self.lambda_min or 0.0)
        if duals.outputs == 1 and duals.objective != "free":
            share = TOLERANCES.first_share * float(layers[-1].weight.square().sum()) / counted
            duals = replace(duals, first=min(duals.first, share))
        problem = pose(
            layers,
            target.input_shape,
            records=counted,
            rank=rank,
            inner_rank=self.inner_rank,
            bias_decayed=state.bias_decayed,
            box=model_box(target),
            public=public_inputs(target),
        )
        if state.imbalance > TOLERANCES.far_off:
            problem = replace(problem, rows={})
        return problem, duals, self.search(duals, layers, counted)

    def search(self, duals: Duals, layers: tuple[Layer, ...], records: int) -> Search:
        """Weights by the kind of duals and by how records crowd the first dense layer: the more
        there are to a neuron, the less the misfit of all together says (docs/research/kkt.md)."""
        plain = Search()
        free, conv = duals.objective == "free", layers[0].conv
        least = 3.0 if free else 10.0 if duals.outputs == 1 else 1.0
        crowd = records / len(next(layer for layer in layers if not layer.conv).weight)
        whiten = 0.0 if free else plain.whiten / 2 if duals.outputs == 1 else plain.whiten
        return replace(
            plain,
            steps=self.steps or plain.steps,
            lr=0.05 if conv else plain.lr,
            sharpness=(5.0, 50.0) if conv else plain.sharpness,
            columns=max(least, plain.columns * crowd**2)
            if self.range_weight is None
            else self.range_weight,
            rows=(plain.rows[0] * crowd, plain.rows[1] * crowd),
            sizes=plain.sizes * crowd,
            whiten=whiten if self.whiten is None else self.whiten,
            variation=self.tv_weight,
        )

    def paper(
        self, target: Target, layers: tuple[Layer, ...] | None, generator: torch.Generator
    ) -> Candidates:
        counted = records_of(target)
        if counted is None and layers is not None:
            counted = spectrum_of(target, layers).count
        m = self.candidates or TOLERANCES.per_record * (counted or 0)
        if not m:
            reason = "the number of records cannot be read off this model; give --records"
            return nothing(target, Status.NOT_APPLICABLE, reason)
        outputs = outputs_of(target)
        chosen = self.objective or objective_for(target.knowledge.loss, outputs)
        chosen = "margin" if chosen == "soft" and self.objective is None else chosen
        duals = duals_for(target, outputs, m, chosen)
        runs, settings = [], []
        for _ in range(self.trials):
            settings.append(
                drawn(
                    generator,
                    steps=self.steps or 50_000,
                    lr=self.lr,
                    sigma=self.sigma,
                    alpha=self.alpha,
                    lambda_min=self.lambda_min,
                )
            )
            runs.append(
                descend_on_pixels(
                    target.model,
                    target.input_shape,
                    duals,
                    settings[-1],
                    box=model_box(target),
                    generator=generator,
                )
            )
        return conclude_paper(target, duals, runs, [vars(s) for s in settings], counted)


def outputs_of(target: Target) -> int:
    """The number of outputs, from a copy in evaluation mode."""
    model = smoothed(target.model, alpha=1.0).eval()
    with torch.no_grad():
        count: int = model(next(model.parameters()).new_zeros(1, *target.input_shape)).shape[1]
    return count


def spectrum_of(target: Target, layers: tuple[Layer, ...]) -> Spectrum:
    """The singular values of the first dense layer and the rank that they show: the number of
    records, once weight decay has shrunk what the layer began with."""
    first = next(layer for layer in layers if not layer.conv)
    values = torch.linalg.svdvals(first.weight)
    return count_in_noise(values, first.weight, stored_precision(target.weights))


def objective_for(loss: str | None, outputs: int) -> Objective:
    """Which constraints the duals obey, by the loss and the number of outputs; a model of
    unknown loss is taken for a classifier."""
    if loss is not None and loss not in ("bce", "ce"):
        return "free"
    return "margin" if outputs == 1 else "soft"


def duals_for(target: Target, outputs: int, m: int, objective: Objective | None) -> Duals:
    """The candidates' labels, which decide the signs of their duals: the known labels over and
    over, or else equally many candidates of each class."""
    known = target.knowledge
    labels = balanced_labels(m, outputs)
    if known.labels is not None and not known.labels.is_floating_point():
        labels = known.labels.flatten().long().repeat(-(-m // len(known.labels)))[:m]
    return Duals(
        objective=objective or objective_for(known.loss, outputs),
        labels=labels,
        outputs=outputs,
    )


def public_inputs(target: Target) -> Tensor | None:
    """p x d in the model's scale, where the adversary holds other records."""
    held = target.knowledge.public
    return None if held is None else target.scaling.to_model(held.double()).flatten(1)


def fresh_model(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with new weights: uniform in +-1/sqrt(fan in), PyTorch's own law; norms as made."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in module.parameters(recurse=False):
                draws = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                with torch.no_grad():
                    parameter.copy_((2 * draws - 1) * bound)
    return twin
