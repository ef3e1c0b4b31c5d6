"""Scenes of paper 001: fixed records, targets, public records, a model released for each target,
and the three ways back. What an adversary does not know, it draws itself."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from typing import Protocol

import torch
from torch import Tensor, nn

from remnant.experiments.targets import dense, draw_parts
from remnant.models import build
from remnant.scoring.criteria import mse_each
from remnant.scoring.lpips import LPIPS, installed_weights, load_lpips
from remnant.seeds import generator_for
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn
from remnant.solvers.reconstructor.ridge import fit_per_label
from remnant.solvers.replay.problem import ReplaySettings
from remnant.solvers.replay.run import Observation
from remnant.solvers.replay.solve import Replayed, class_starts, replay
from remnant.sweep.table import Row
from remnant.training import SGD, Adam, GradientDescent, train
from remnant.training.fleet import SharedRun, share, train_fleet
from remnant.training.recipes import FixedStep
from remnant.training.shadows import Fleet, trained
from remnant.types import Examples, Scaling, Weights


@dataclass(frozen=True, kw_only=True)
class Factor:
    """What is unlike the default in a row of Tables II and V. None = as the sizes say.

    convolutions: in front of the dense layers. options: of the model, its activation. strangers:
    public records are of classes that no target has. pretrained: epochs of training on as many
    other records, before the run that the adversary sees from its start.
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
    strangers: bool = False
    pretrained: int = 0


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
    "shadows of other classes": Factor(strangers=True),
    "pretrained start": Factor(pretrained=100),
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
    critic_width: int = 64
    classifier_epochs: int = 8


@dataclass(frozen=True, kw_only=True, eq=False)
class Released:
    """Released models (k x shape each), their targets, and what the adversary may use.

    rest: records of no other part.
    """

    factor: Factor
    fixed: Examples
    targets: Examples
    public: Examples
    rest: Examples
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
    targets, fixed, rest = draw_parts(examples, seed, sizes.targets, n, len(examples))
    if factor.strangers:
        rest = rest.take((~torch.isin(rest.labels, targets.labels)).nonzero().flatten())
    public = rest.take(range(min(sizes.shadows, len(rest))))
    rest = rest.take(range(len(public), len(rest)))
    text = model_text(examples, factor, sizes.width)
    model = build(text, generator=generator_for(seed, "weights"))
    if factor.pretrained:
        before, recipe = (
            rest.take(range(min(n, len(rest)))),
            recipe_of(factor, factor.pretrained, n),
        )
        generator = generator_for(seed, "pretraining")
        model = train(model, before, recipe, scaling=Scaling(), generator=generator).model
    scene = Released(
        factor=factor, fixed=fixed, targets=targets, public=public, rest=rest, text=text,
        model=model, recipe=recipe_of(factor, sizes.epochs, n + 1), released={}, seed=seed,
    )  # fmt: skip
    return release(scene)


def release(scene: Released, drawn: str = "order") -> Released:
    """The scene with a model trained for each target. drawn: the purpose of what is drawn, the
    order of batches or the noise."""
    released = train_fleet(
        scene.model, scene.fixed, scene.targets.inputs, scene.targets.labels, scene.recipe,
        scaling=Scaling(), generator=generator_for(scene.seed, drawn),
    )  # fmt: skip
    return replace(scene, released=released)


def on_other_records(scene: Released) -> Released:
    """The same targets and public records with another fixed set, as large, that shares no record
    with the first (Figure 12)."""
    fixed = scene.rest.take(range(min(len(scene.fixed), len(scene.rest))))
    return release(replace(scene, fixed=fixed))


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


def starts_of(scene: Released, count: int, purpose: str) -> dict[str, Tensor]:
    """Fresh starting weights for so many models, count x shape each."""
    streams = [generator_for(scene.seed, f"{purpose} {k}") for k in range(count)]
    each = [dict(build(scene.text, generator=one).named_parameters()) for one in streams]
    return {name: torch.stack([w[name].detach() for w in each]) for name in each[0]}


def train_shadows(scene: Released) -> dict[str, Tensor]:
    """One model for each public record; what is unknown of the run is drawn anew for each."""
    factor, public, count = scene.factor, scene.public, len(scene.public)
    if not factor.order_known:
        order = [generator_for(scene.seed, f"shadow order {k}") for k in range(count)]
        return train_fleet(
            scene.model, scene.fixed, public.inputs, public.labels, scene.recipe,
            scaling=Scaling(), generator=order,
        )  # fmt: skip
    initial = None if factor.initial_known else starts_of(scene, count, "shadow weights")
    return trained(
        Fleet(
            model=scene.model, fixed=scene.fixed, inputs=public.inputs, labels=public.labels,
            recipe=scene.recipe, scaling=Scaling(), initial=initial,
            order_seed=generator_for(scene.seed, "order").initial_seed(),
        )
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


class Way(Protocol):
    """How a method learns the way back from so many shadow models."""

    def __call__(
        self, scene: Released, shadows: Weights, count: int, sizes: InformedSizes
    ) -> tuple[Tensor, Row]: ...


def by_ridge(
    scene: Released, shadows: Weights, count: int, sizes: InformedSizes
) -> tuple[Tensor, Row]:
    run, observation = assumed_run(scene), observation_of(scene)
    seen = observation.seen(run, shadows)[:count]
    learned = fit_per_label(seen, scene.public.inputs[:count], scene.public.labels[:count])
    guess, labels = learned(observation.seen(run, scene.released))
    right = float((labels == scene.targets.labels).double().mean())
    return guess.float().clamp(0, 1), {"labels_right": right}


def by_network(
    scene: Released, shadows: Weights, count: int, sizes: InformedSizes,
    network: RecoNN, perceptual: bool = False,
) -> tuple[Tensor, Row]:  # fmt: skip
    """A reconstructor network. perceptual: with LPIPS in its loss, where the weights for it are
    installed; the row says whether they were."""
    run, observation = assumed_run(scene), observation_of(scene)
    look = lpips() if perceptual else None
    learned = fit_reconn(
        observation.seen(run, shadows)[:count],
        scene.public.inputs[:count],
        replace(network, epochs=sizes.reconn_epochs),
        generator=generator_for(scene.seed, "reconn"),
        labels=scene.public.labels[:count],
        perceptual=None if look is None else lambda guess, truth: look(guess, truth).mean(),
    )
    row: Row = {"loss": learned.losses[-1], "labels_right": None}  # it tells no label
    row |= {"perceptual": look is not None} if perceptual else {}
    return learned(observation.seen(run, scene.released)).clamp(0, 1), row


def by_transposed(
    scene: Released, shadows: Weights, count: int, sizes: InformedSizes
) -> tuple[Tensor, Row]:
    """The paper's network for images, on the shadows' principal components: all 55,000 weights
    would make 226 million in its first layer. The paper's rate and batches are for 54,000 shadows
    and 1000 epochs; of a few hundred they would make too few steps to learn anything."""
    network = replace(
        RecoNN.cifar(), components=min(1000, count - 1), critic_width=sizes.critic_width, lr=1e-3,
        batch_size=16,
    )  # fmt: skip
    return by_network(scene, shadows, count, sizes, network, perceptual=True)


@lru_cache(maxsize=1)
def lpips() -> LPIPS | None:
    """None where the weights are not installed."""
    return load_lpips() if installed_weights() else None


by_reconn = partial(by_network, network=RecoNN())
LEARNED: Mapping[str, Way] = {
    "ridge": by_ridge,
    "reconn": by_reconn,
    "reconn of the paper": partial(by_network, network=RecoNN.paper()),
    "transposed": by_transposed,
}
