"""What a few images leave behind in a network that was not trained from scratch (000, section 5).

A small residual network is pretrained on some classes and fine-tuned on a few images of the others,
its batch norm frozen: all its layers, or new dense layers alone. And a convolutional network is
trained for a few steps from known weights. Attacks: `hybrid` (the paper's objective, all layers,
features at both ends), `features` (exact features of each record through the dense layers, then
images that have them), `exact` (the `ntk` attack's own way to do the same), `replay` (that attack,
told recipe and labels too). All are scored beside held-out images of the same classes.
"""

from __future__ import annotations

import copy
import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.attacks import NTK
from remnant.attacks.outcome import model_box
from remnant.data import split
from remnant.errors import InputError, expected
from remnant.evidence import weight_difference
from remnant.models import build
from remnant.models.residual import freeze_norms, residual
from remnant.progress import task
from remnant.report.lines import Panel, line_panels
from remnant.scoring import score, summarise
from remnant.seeds import generator_for
from remnant.solvers.descent.features import FeatureInversion, invert_by_descent
from remnant.solvers.descent.paper import SCALED, descend
from remnant.training import GradientDescent, train
from remnant.types import Candidates, Examples, Knowledge, Scaling, Status, Target

Row = dict[str, Any]


@dataclass(frozen=True, kw_only=True)
class FineTuning:
    """cases: what is trained, and by which attack it is tried.

    all layers, dense head (on all places of the last block), pooled head (on their mean): of the
    residual network. cnn N: a convolution and two dense layers, N steps from known weights.
    """

    cases: tuple[tuple[str, str], ...] = (
        ("all layers", "hybrid"),
        ("dense head", "features"),
        ("pooled head", "features"),
        ("cnn 10", "exact"),
        ("cnn 10", "hybrid"),
        ("cnn 10", "replay"),
        ("cnn 50", "exact"),
        ("cnn 50", "hybrid"),
        ("cnn 50", "replay"),
    )
    widths: tuple[int, ...] = (16, 32, 64)  # of the residual network's blocks
    known: int = 6  # classes it is pretrained on; the others are fine-tuned on
    epochs: int = 6
    hidden: int = 256  # width of the new dense layers
    per_class: int = 2  # images fine-tuned on
    rate: float = 0.01
    tuning: int = 100  # steps of fine-tuning
    cnn: str = "c16k3s2p1-256-10"
    cnn_records: int = 8
    cnn_rate: float = 0.001
    steps: int = 600  # of the hybrid descent
    inversion: int = 500  # evaluations from features to images
    repeats: int = 1
    data: tuple[str, ...] = ("cifar10", "mnist")  # of the residual network, of the other


QUICK_TUNING = FineTuning(
    cases=(("all layers", "hybrid"), ("dense head", "features"), ("cnn 10", "exact")),
    widths=(8, 16), epochs=2, hidden=128, per_class=1, tuning=50,
    cnn="c8k3s2p1-256-10", cnn_records=4, steps=150, inversion=200, data=("mnist",),
)  # fmt: skip


def tuning_cells(settings: FineTuning, seed: int) -> list[Row]:
    return [
        {"case": case, "attack": attack, "seed": seed + k}
        | {"data": settings.data[-1 if case.startswith("cnn") else 0]}
        for case, attack in settings.cases
        for k in range(settings.repeats)
    ]


def measure_tuning(settings: FineTuning, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    scene = scene_of(settings, cell, data[cell["data"]])
    begun = time.process_time()
    found = attack(settings, scene, cell["attack"], cell["seed"])
    seconds = time.process_time() - begun
    return [cell | scored(scene, found) | {"cpu_seconds": round(seconds, 3)}]


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """A fine-tuned target, what it was tuned on, and images of the same classes that it was not.

    backbone: the frozen layers before those that were trained, None where all were. recipe: how.
    """

    target: Target
    truth: Examples
    holdout: Examples
    backbone: nn.Module | None
    recipe: GradientDescent
    loss: float


def scene_of(settings: FineTuning, cell: Row, examples: Examples) -> Scene:
    if cell["case"].startswith("cnn"):
        return small_cnn(settings, examples, int(cell["case"].split()[1]), cell["seed"])
    return tuned(settings, examples, cell["case"], cell["seed"])


# targets


@lru_cache(maxsize=2)
def pretrained(
    examples: Examples, widths: tuple[int, ...], known: int, epochs: int, seed: int = 0
) -> tuple[nn.Sequential, Scaling]:
    """A residual network trained on the first `known` classes, and how it takes its inputs."""
    rows = (examples.labels < known).nonzero().flatten()
    inputs, labels = examples.inputs[rows], examples.labels[rows]
    mean = inputs.mean((0, 2, 3), keepdim=True)[0]
    scaling = Scaling(mean=mean, std=inputs.std().reshape(()))
    model = residual(examples.shape, widths, (known,), generator=generator_for(seed, "weights"))
    model.train()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    generator, size = generator_for(seed, "pretraining"), 64
    total = epochs * math.ceil(len(rows) / size)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(rule, total)
    with task("pretraining", total) as step:
        for _ in range(epochs):
            for batch in torch.randperm(len(rows), generator=generator).split(size):
                loss = F.cross_entropy(model(scaling.to_model(inputs[batch])), labels[batch])
                rule.zero_grad()
                loss.backward()
                rule.step()
                falling.step()
                step()
    return model.eval(), scaling


def tuned(settings: FineTuning, examples: Examples, case: str, seed: int) -> Scene:
    """The pretrained network with a new output, or new dense layers, tuned on the other classes."""
    model, scaling = copy.deepcopy(
        pretrained(examples, settings.widths, settings.known, settings.epochs)
    )
    new = examples.take((examples.labels >= settings.known).nonzero().flatten())
    new = replace(new, labels=new.labels - settings.known)
    count = settings.per_class * new.classes
    sides = split(new, train=count, public=None, holdout=count, seed=seed)
    blocks = list(model)[: -3 if case == "dense head" else -1]  # pooling, Flatten, output
    body = nn.Sequential(*blocks, *([nn.Flatten()] if case == "dense head" else []))
    with torch.no_grad():
        wide = body(scaling.to_model(new.inputs[:1])).shape[1]
    hidden = "" if case == "all layers" else f"{settings.hidden}-"
    text, generator = f"mlp:{wide}-{hidden}{new.classes}", generator_for(seed, "weights")
    head = build(text, generator=generator)
    assert isinstance(head, nn.Sequential)
    head = head[1:]  # the body ends with its Flatten
    if case != "all layers":
        body.requires_grad_(False)
    whole = freeze_norms(nn.Sequential(body, head))
    backbone = None if case == "all layers" else body
    recipe = GradientDescent(lr=settings.rate, steps=settings.tuning)
    return finish(whole, sides.train, sides.holdout, scaling, recipe, backbone, seed)


def small_cnn(settings: FineTuning, examples: Examples, steps: int, seed: int) -> Scene:
    """A convolutional network after a few steps from known weights."""
    n = settings.cnn_records
    sides = split(examples, train=n, public=None, holdout=n, seed=seed)
    shape = "x".join(map(str, examples.shape))
    model = build(f"cnn:{shape}-{settings.cnn}", generator=generator_for(seed, "weights"))
    recipe = GradientDescent(lr=settings.cnn_rate, momentum=0.9, steps=steps)
    scaling = Scaling(mean=sides.public.inputs.mean(0))
    return finish(model, sides.train, sides.holdout, scaling, recipe, None, seed)


def finish(
    model: nn.Module, truth: Examples, holdout: Examples, scaling: Scaling,
    recipe: GradientDescent, backbone: nn.Module | None, seed: int,
) -> Scene:  # fmt: skip
    """Train in float64 and release both checkpoints in float32."""
    generator = generator_for(seed, "batches")
    trained = train(model, truth, recipe, scaling=scaling, generator=generator, dtype=torch.float64)
    initial = {name: value.float() for name, value in trained.initial.items()}
    target = Target(
        model=trained.model.float(),
        input_shape=truth.shape,
        scaling=scaling,
        knowledge=Knowledge(initial=initial, records=len(truth)),
    )
    return Scene(
        target=target, truth=truth, holdout=holdout, backbone=backbone, recipe=recipe,
        loss=float(trained.ledger["loss"]),
    )  # fmt: skip


# attacks


def attack(settings: FineTuning, scene: Scene, name: str, seed: int) -> Candidates:
    generator, target = generator_for(seed, "attack"), scene.target
    if name == "hybrid":
        return hybrid(target, settings.steps, generator)
    if name == "features":
        assert scene.backbone is not None
        return through_features(target, scene.backbone, settings.inversion, generator)
    if name == "exact":
        return NTK(preset="exact")(target, generator=generator)
    if name == "replay":
        told = replace(target.knowledge, recipe=scene.recipe, labels=scene.truth.labels)
        target = replace(target, knowledge=told)
        return NTK()(target, generator=generator)
    raise InputError(expected("attack", "hybrid, features, exact or replay", repr(name)))


def hybrid(target: Target, steps: int, generator: torch.Generator) -> Candidates:
    """The paper's objective on all that moved, features at both ends."""
    assert target.knowledge.records is not None
    found = descend(
        target.model, weight_difference(target), replace(SCALED, features="hybrid", steps=steps),
        shape=target.input_shape, records=target.knowledge.records, generator=generator,
    )  # fmt: skip
    return Candidates(
        inputs=target.scaling.to_data(found.inputs),
        confidence=torch.zeros(len(found.inputs)),
        status=Status.INCONCLUSIVE,
        reason="the paper's descent has no certificate",
        figures={"loss": found.loss},
    )


def through_features(
    target: Target, backbone: nn.Module, evaluations: int, generator: torch.Generator
) -> Candidates:
    """Exact features of the records from the change of the dense layers after a frozen backbone,
    then images that have them. The certificate is of the features, not of the pixels."""
    found = NTK(preset="exact")(head_target(target), generator=generator)
    if not len(found):
        return replace(found, inputs=torch.zeros(0, *target.input_shape))
    images, misfit = invert_by_descent(
        backbone, found.inputs, FeatureInversion(evaluations=evaluations),
        shape=target.input_shape, generator=generator, bounds=model_box(target),
    )  # fmt: skip
    exact = int(found.figures.get("certified") or 0)
    return Candidates(
        inputs=target.scaling.to_data(images),
        confidence=torch.zeros(len(images)),
        status=Status.INCONCLUSIVE,
        reason=f"features: {found.reason}; that the images are those of the records is not proved",
        figures={"counted": found.figures.get("counted"), "features": exact, "certified": 0}
        | {"misfit": float(misfit.median())},
    )


def head_target(target: Target) -> Target:
    """The dense layers after the backbone, as a model of features."""
    assert isinstance(target.model, nn.Sequential)
    assert target.knowledge.initial is not None
    head = target.model[1]
    initial = {n: target.knowledge.initial[f"1.{n}"] for n, _ in head.named_parameters()}
    wide = next(head.parameters()).shape[1]
    knowledge = Knowledge(initial=initial)
    return Target(model=head, input_shape=(wide,), bounds=None, knowledge=knowledge)


# scores


def scored(scene: Scene, found: Candidates) -> Row:
    """Squared L2 and centred correlation, beside as many held-out images scored alike."""
    here = score(scene.truth, found.inputs)
    null = score(scene.truth, scene.holdout.inputs)
    mine, theirs = summarise(here), summarise(null)
    return {
        "records": len(scene.truth),
        "counted": found.figures.get("counted"),
        "certified": found.figures.get("certified"),
        "features": found.figures.get("features"),  # certified, where images are made of them
        "misfit": found.figures.get("misfit"),
        "status": str(found.status),
        "recovered": mine["recovered"],
        "mean_error": mine["curve_mean"],
        "correlation": middle(here.correlation),
        "null_recovered": theirs["recovered"],
        "null_error": theirs["curve_mean"],
        "null_correlation": middle(null.correlation),
        "training_loss": scene.loss,
        "reason": found.reason,
    }


def middle(values: Tensor) -> float | None:
    known = values[~values.isnan()]
    return float(known.median()) if len(known) else None


def plot_tuning(rows: Sequence[Row]) -> tuple[Panel, ...]:
    shown = [
        {"case": row["case"], "place": f"{row['case']}, {row['attack']}"}
        | {"line": line, "height": row[key]}
        for row in rows
        for line, key in (("found", "correlation"), ("held-out images", "null_correlation"))
    ]
    return line_panels(
        shown,
        panel=lambda row: "cnn" if row["case"].startswith("cnn") else "residual network",
        line="line",
        x="place",
        y="height",
        across="what was trained, and the attack",
        up="median centred correlation",
        log_y=False,
    )
