"""Scenes of paper 001: fixed records, targets, public records, a model released for each target,
and the three ways back. What an adversary does not know, it draws itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import partial

import torch
from torch import Tensor, nn

from remnant.experiments.targets import dense, draw_parts
from remnant.models import build
from remnant.scoring.criteria import mse_each
from remnant.seeds import generator_for
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn
from remnant.solvers.reconstructor.ridge import fit_per_label
from remnant.solvers.replay.problem import ReplaySettings
from remnant.solvers.replay.run import Observation
from remnant.solvers.replay.solve import Replayed, class_starts, replay
from remnant.sweep.table import Row
from remnant.training import SGD, Adam, GradientDescent
from remnant.training.fleet import SharedRun, share, train_fleet
from remnant.training.recipes import FixedStep
from remnant.types import Examples, Scaling, Weights


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What is unlike the default in a row of Tables II and V. None = as the sizes say.

    convolutions: in front of the dense layers. options: of the model, its activation.
    """

    fixed: int | None = None
    width: int | None = None
    convolutions: str = ""
    options: str = ":elu"
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
    "hidden layer of 30": Factor(width=30),
    "second layer only": Factor(layers=("3.",)),
    "2.5 times the epochs": Factor(more_epochs=2.5),
    "ReLU": Factor(options=""),
    "max(-0.5, x)": Factor(options=":floor"),
    "leaky ReLU": Factor(options=":leaky"),
    "sigmoid": Factor(options=":sigmoid"),
    "softplus": Factor(options=":softplus"),
    "swish": Factor(options=":silu"),
    "tanh": Factor(options=":tanh"),
    "CELU": Factor(options=":celu"),
    "SELU": Factor(options=":selu"),
    "GELU": Factor(options=":gelu"),
    "identity": Factor(options=":identity"),
    "learning rate 0.01": Factor(lr=0.01),
    "Adam": Factor(adam=True, lr=0.002),
    "unknown initialisation": Factor(initial_known=False),
    "black box": Factor(probes=200),
    "batches, known order": Factor(batch_size=128, lr=0.01, momentum=0.0),
    "batches, unknown order": Factor(batch_size=128, lr=0.01, momentum=0.0, order_known=False),
}
_cnn = partial(Factor, convolutions="c16k4s2-c32k4", lr=0.01)
CNN_FACTORS: Mapping[str, Factor] = {
    "default": _cnn(),
    "unknown initialisation": _cnn(initial_known=False),
    "black box": _cnn(probes=200),
    "convolutional layers only": _cnn(layers=("0.", "2.")),
    "dense layers only": _cnn(layers=("5.", "7.")),
    "hidden layer of 30": _cnn(width=30),
    "2.5 times the epochs": _cnn(more_epochs=2.5),
    "learning rate 0.002": _cnn(lr=0.002),
    "twice the fixed set": _cnn(fixed=120),
    "ReLU": _cnn(options=""),
}


@dataclass(frozen=True, kw_only=True)
class InformedSizes:
    """How large a scene is, and how long the ways back may take. records: the fixed ones."""

    records: int = 500
    width: int = 10
    shadows: int = 1000
    targets: int = 6
    epochs: int = 50
    evaluations: int = 80  # of replay
    reconn_epochs: int = 30
    classifier_epochs: int = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Released:
    """Released models (k x shape each), their targets, and what the adversary may use."""

    factor: Factor
    fixed: Examples
    targets: Examples
    public: Examples
    text: str  # of the model
    model: nn.Module
    recipe: FixedStep
    released: Weights
    seed: int


def model_text(examples: Examples, factor: Factor, width: int) -> str:
    wide = factor.width or width
    if not factor.convolutions:
        return dense(examples, wide, options=factor.options)
    shape = "x".join(str(size) for size in examples.shape)
    return f"cnn:{shape}-{factor.convolutions}-{wide}-{examples.classes}{factor.options}"


def recipe_of(factor: Factor, epochs: int, records: int) -> FixedStep:
    count = round(epochs * factor.more_epochs)
    if factor.adam:
        return Adam(lr=factor.lr, steps=count, batch_size=factor.batch_size)
    if factor.batch_size is None or factor.batch_size >= records:
        return GradientDescent(lr=factor.lr, momentum=factor.momentum, steps=count)
    return SGD(lr=factor.lr, momentum=factor.momentum, epochs=count, batch_size=factor.batch_size)


def make_released(sizes: InformedSizes, factor: Factor, examples: Examples, seed: int) -> Released:
    """Split the data and train one released model for each target."""
    n = factor.fixed or sizes.records
    targets, fixed, public = draw_parts(examples, seed, sizes.targets, n, sizes.shadows)
    text = model_text(examples, factor, sizes.width)
    model = build(text, generator=generator_for(seed, "weights"))
    recipe = recipe_of(factor, sizes.epochs, n + 1)
    released = train_fleet(
        model, fixed, targets.inputs, targets.labels, recipe,
        scaling=Scaling(), generator=generator_for(seed, "order"),
    )  # fmt: skip
    return Released(
        factor=factor, fixed=fixed, targets=targets, public=public, text=text, model=model,
        recipe=recipe, released=released, seed=seed,
    )  # fmt: skip


def some_of(scene: Released, rows: Tensor) -> Released:
    """The scene with those of its targets only."""
    released = {name: weights[rows] for name, weights in scene.released.items()}
    return replace(scene, targets=scene.targets.take(rows), released=released)


def assumed_run(scene: Released, *, double: bool = False) -> SharedRun:
    """The run as the adversary believes it was: with its own guess of what it does not know."""
    factor = scene.factor
    model = scene.model
    if not factor.initial_known:
        model = build(scene.text, generator=generator_for(scene.seed, "guessed weights"))
    order = generator_for(scene.seed, "order" if factor.order_known else "guessed order")
    dtype = torch.float64 if double else torch.float32
    return share(model, scene.fixed, scene.recipe, scaling=Scaling(), order=order, dtype=dtype)


def observation_of(scene: Released) -> Observation:
    probes = scene.public.inputs[: scene.factor.probes] if scene.factor.probes else None
    return Observation(layers=scene.factor.layers, probes=probes)


def train_shadows(scene: Released) -> dict[str, Tensor]:
    """One model for each public record; what is unknown of the run is drawn anew for each."""
    factor, count = scene.factor, len(scene.public)
    initial: dict[str, Tensor] | None = None
    if not factor.initial_known:
        streams = [generator_for(scene.seed, f"shadow weights {k}") for k in range(count)]
        each = [dict(build(scene.text, generator=one).named_parameters()) for one in streams]
        initial = {name: torch.stack([w[name].detach() for w in each]) for name in each[0]}
    order: torch.Generator | list[torch.Generator] = generator_for(scene.seed, "order")
    if not factor.order_known:
        order = [generator_for(scene.seed, f"shadow order {k}") for k in range(count)]
    return train_fleet(
        scene.model, scene.fixed, scene.public.inputs, scene.public.labels, scene.recipe,
        scaling=Scaling(), generator=order, initial=initial,
    )  # fmt: skip


# Methods: each returns reconstructions k x shape and figures


def replayed(scene: Released, settings: ReplaySettings) -> Replayed:
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


def by_replay(scene: Released, sizes: InformedSizes) -> tuple[Tensor, Row]:
    found = replayed(scene, ReplaySettings(evaluations=sizes.evaluations))
    certified = found.matched & found.determined
    guess = found.records[:, 0].float().clamp(0, 1)
    wrong = certified & (mse_each(guess, scene.targets.inputs) > 1e-3)
    return guess, {
        "certified": int(certified.sum()),
        "wrongly_certified": int(wrong.sum()),
        "residual": float(found.residual.median()),
        "labels_right": float((found.labels[:, 0] == scene.targets.labels).double().mean()),
    }


def by_ridge(
    scene: Released, shadows: Weights, count: int, sizes: InformedSizes
) -> tuple[Tensor, Row]:
    run, observation = assumed_run(scene), observation_of(scene)
    seen = observation.seen(run, shadows)[:count]
    learned = fit_per_label(seen, scene.public.inputs[:count], scene.public.labels[:count])
    guess, labels = learned(observation.seen(run, scene.released))
    right = float((labels == scene.targets.labels).double().mean())
    return guess.float().clamp(0, 1), {"labels_right": right}


def by_reconn(
    scene: Released, shadows: Weights, count: int, sizes: InformedSizes
) -> tuple[Tensor, Row]:
    run, observation = assumed_run(scene), observation_of(scene)
    learned = fit_reconn(
        observation.seen(run, shadows)[:count],
        scene.public.inputs[:count],
        RecoNN(epochs=sizes.reconn_epochs),
        generator=generator_for(scene.seed, "reconn"),
        labels=scene.public.labels[:count],
    )
    return learned(observation.seen(run, scene.released)).clamp(0, 1), {"loss": learned.losses[-1]}


LEARNED = {"ridge": by_ridge, "reconn": by_reconn}
