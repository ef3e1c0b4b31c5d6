"""One scene of paper 001: fixed records, targets, public records, the models released, and the
three ways back. What an adversary does not know, it draws itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.models import build
from remnant.scoring.criteria import mse_each
from remnant.seeds import generator_for
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn
from remnant.solvers.reconstructor.ridge import fit_per_label
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.solve import Replayed, class_starts, replay
from remnant.solvers.replay.ways import ReplaySettings
from remnant.training import SGD, Adam, GradientDescent
from remnant.training.fleet import FixedStep, SharedRun, share, train_fleet
from remnant.types import Examples, Scaling, Weights

Row = dict[str, Any]
METHODS = ("replay", "ridge", "reconn")


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What is unlike the default in a row of Tables II and V. None = the settings' own."""

    fixed: int | None = None
    model: str = "mlp:784-10-10:elu"
    lr: float = 0.2
    momentum: float = 0.9
    more_epochs: float = 1.0
    adam: bool = False
    layers: tuple[str, ...] | None = None
    probes: int = 0
    initial_known: bool = True
    batch_size: int | None = None
    order_known: bool = True


FACTORS: Mapping[str, Factor] = {
    "default": Factor(),
    "fixed set of 300": Factor(fixed=300),
    "fixed set of 1000": Factor(fixed=1000),
    "hidden layer of 30": Factor(model="mlp:784-30-10:elu"),
    "second layer only": Factor(layers=("3.",)),
    "2.5 times the epochs": Factor(more_epochs=2.5),
    "ReLU": Factor(model="mlp:784-10-10"),
    "max(-0.5, x)": Factor(model="mlp:784-10-10:floor"),
    "leaky ReLU": Factor(model="mlp:784-10-10:leaky"),
    "sigmoid": Factor(model="mlp:784-10-10:sigmoid"),
    "softplus": Factor(model="mlp:784-10-10:softplus"),
    "swish": Factor(model="mlp:784-10-10:silu"),
    "tanh": Factor(model="mlp:784-10-10:tanh"),
    "CELU": Factor(model="mlp:784-10-10:celu"),
    "SELU": Factor(model="mlp:784-10-10:selu"),
    "GELU": Factor(model="mlp:784-10-10:gelu"),
    "identity": Factor(model="mlp:784-10-10:identity"),
    "learning rate 0.01": Factor(lr=0.01),
    "Adam": Factor(adam=True, lr=0.002),
    "unknown initialisation": Factor(initial_known=False),
    "black box": Factor(probes=200),
    "batches, known order": Factor(batch_size=128, lr=0.01, momentum=0.0),
    "batches, unknown order": Factor(batch_size=128, lr=0.01, momentum=0.0, order_known=False),
}


# The rows of Table II for the convolutional network; its model is what follows the input's shape.
CNN = "c16k4s2-c32k4-10-10"
CNN_FACTORS: Mapping[str, Factor] = {
    "default": Factor(model=f"{CNN}:elu", lr=0.01),
    "unknown initialisation": Factor(model=f"{CNN}:elu", lr=0.01, initial_known=False),
    "black box": Factor(model=f"{CNN}:elu", lr=0.01, probes=200),
    "dense layers only": Factor(model=f"{CNN}:elu", lr=0.01, layers=("5.", "7.")),
    "hidden layer of 30": Factor(model="c16k4s2-c32k4-30-10:elu", lr=0.01),
    "2.5 times the epochs": Factor(model=f"{CNN}:elu", lr=0.01, more_epochs=2.5),
    "learning rate 0.002": Factor(model=f"{CNN}:elu", lr=0.002),
    "twice the fixed set": Factor(model=f"{CNN}:elu", lr=0.01, fixed=120),
    "ReLU": Factor(model=CNN, lr=0.01),
}


def cnn_factor(name: str, data: Examples) -> Factor:
    """The row of that name for records of these shapes."""
    shape = "x".join(str(size) for size in data.shape)
    return replace(CNN_FACTORS[name], model=f"cnn:{shape}-{CNN_FACTORS[name].model}")


@dataclass(frozen=True, kw_only=True)
class Factors:
    """Tables II and V, at a size that takes minutes; the paper has 10,000 fixed records, 59,000
    shadows and 1000 targets."""

    fixed: int = 500
    shadows: int = 1000
    targets: int = 6
    epochs: int = 50
    factors: tuple[str, ...] = tuple(FACTORS)
    methods: tuple[str, ...] = METHODS
    evaluations: int = 80
    reconn_epochs: int = 30
    classifier_epochs: int = 8
    repeats: int = 1
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """Released models (k x shape each), their targets, and what the adversary may use."""

    factor: Factor
    fixed: Examples
    targets: Examples
    public: Examples
    model: nn.Module
    recipe: FixedStep
    released: Weights
    seed: int


def recipe_of(factor: Factor, epochs: int, records: int) -> FixedStep:
    count = round(epochs * factor.more_epochs)
    if factor.adam:
        return Adam(lr=factor.lr, steps=count, batch_size=factor.batch_size)
    if factor.batch_size is None or factor.batch_size >= records:
        return GradientDescent(lr=factor.lr, momentum=factor.momentum, steps=count)
    return SGD(lr=factor.lr, momentum=factor.momentum, epochs=count, batch_size=factor.batch_size)


def make_scene(settings: Factors, factor: Factor, data: Examples, seed: int) -> Scene:
    """Split the data and train one released model for each target."""
    n, k = factor.fixed or settings.fixed, settings.targets
    order = torch.randperm(len(data), generator=generator_for(seed, "split"))
    targets, fixed = data.take(order[:k]), data.take(order[k : k + n])
    public = data.take(order[k + n : k + n + settings.shadows])
    model = build(factor.model, generator=generator_for(seed, "weights"))
    recipe = recipe_of(factor, settings.epochs, n + 1)
    released = train_fleet(
        model, fixed, targets.inputs, targets.labels, recipe,
        scaling=Scaling(), generator=generator_for(seed, "order"),
    )  # fmt: skip
    return Scene(
        factor=factor, fixed=fixed, targets=targets, public=public, model=model, recipe=recipe,
        released=released, seed=seed,
    )  # fmt: skip


def some_of(scene: Scene, rows: Tensor) -> Scene:
    """The scene with those of its targets only."""
    released = {name: weights[rows] for name, weights in scene.released.items()}
    return replace(scene, targets=scene.targets.take(rows), released=released)


def assumed_run(scene: Scene, *, double: bool = False) -> SharedRun:
    """The run as the adversary believes it was: with its own guess of what it does not know."""
    factor = scene.factor
    model = scene.model
    if not factor.initial_known:
        model = build(factor.model, generator=generator_for(scene.seed, "guessed weights"))
    order = generator_for(scene.seed, "order" if factor.order_known else "guessed order")
    dtype = torch.float64 if double else torch.float32
    return share(model, scene.fixed, scene.recipe, scaling=Scaling(), order=order, dtype=dtype)


def observation_of(scene: Scene) -> Observation:
    probes = scene.public.inputs[: scene.factor.probes] if scene.factor.probes else None
    return Observation(layers=scene.factor.layers, probes=probes)


def train_shadows(scene: Scene) -> dict[str, Tensor]:
    """One model for each public record; what is unknown of the run is drawn anew for each."""
    factor, count = scene.factor, len(scene.public)
    initial: dict[str, Tensor] | None = None
    if not factor.initial_known:
        streams = [generator_for(scene.seed, f"shadow weights {k}") for k in range(count)]
        each = [dict(build(factor.model, generator=one).named_parameters()) for one in streams]
        initial = {name: torch.stack([w[name].detach() for w in each]) for name in each[0]}
    order: torch.Generator | list[torch.Generator] = generator_for(scene.seed, "order")
    if not factor.order_known:
        order = [generator_for(scene.seed, f"shadow order {k}") for k in range(count)]
    return train_fleet(
        scene.model, scene.fixed, scene.public.inputs, scene.public.labels, scene.recipe,
        scaling=Scaling(), generator=order, initial=initial,
    )  # fmt: skip


# Methods: each returns reconstructions k x shape and figures


def replayed(scene: Scene, settings: ReplaySettings) -> Replayed:
    """Replay as the attack does it, the labels inferred; all targets at once."""
    hard = bool(scene.factor.probes or scene.factor.layers or scene.factor.adam)
    run = assumed_run(scene, double=hard)
    classes = len(run.forward(run.stack(1), run.inputs[:1], True)[0])
    return replay(
        run,
        scene.released,
        starts=class_starts(run.inputs, run.labels, classes),
        observation=observation_of(scene),
        settings=settings,
    )


def by_replay(scene: Scene, settings: Factors) -> tuple[Tensor, Row]:
    found = replayed(scene, ReplaySettings(evaluations=settings.evaluations))
    certified = found.matched & found.determined
    guess = found.records[:, 0].float().clamp(0, 1)
    wrong = certified & (mse_each(guess, scene.targets.inputs) > 1e-3)
    return guess, {
        "certified": int(certified.sum()),
        "wrongly_certified": int(wrong.sum()),
        "residual": float(found.residual.median()),
        "labels_right": float((found.labels[:, 0] == scene.targets.labels).double().mean()),
    }


def by_ridge(scene: Scene, shadows: Weights, count: int, settings: Factors) -> tuple[Tensor, Row]:
    run, observation = assumed_run(scene), observation_of(scene)
    seen = observation.seen(run, shadows)[:count]
    learned = fit_per_label(seen, scene.public.inputs[:count], scene.public.labels[:count])
    guess, labels = learned(observation.seen(run, scene.released))
    right = float((labels == scene.targets.labels).double().mean())
    return guess.float().clamp(0, 1), {"labels_right": right}


def by_reconn(scene: Scene, shadows: Weights, count: int, settings: Factors) -> tuple[Tensor, Row]:
    run, observation = assumed_run(scene), observation_of(scene)
    learned = fit_reconn(
        observation.seen(run, shadows)[:count],
        scene.public.inputs[:count],
        RecoNN(epochs=settings.reconn_epochs),
        generator=generator_for(scene.seed, "reconn"),
        labels=scene.public.labels[:count],
    )
    return learned(observation.seen(run, scene.released)).clamp(0, 1), {"loss": learned.losses[-1]}


LEARNED = {"ridge": by_ridge, "reconn": by_reconn}
