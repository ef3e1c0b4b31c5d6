"""What a few images leave behind in a network that was not trained from scratch (000, section 5).

A small residual network is pretrained on some classes and fine-tuned on a few images of the others,
its batch norm frozen: all its layers, or new dense layers alone. And a convolutional network is
trained for a few steps from known weights. Attacks: `hybrid` (the paper's objective, all layers,
features at both ends), `exact` (that preset of `ntk`: exact features of each record through the
dense layers, then images that have them), `replay` (that attack, told recipe and labels too). All
are scored beside held-out images of the same classes.
"""

from __future__ import annotations

import copy
import math
from dataclasses import replace
from functools import lru_cache, partial

import torch
from torch import nn
from torch.nn import functional as F

from remnant.attacks import NTK, Informed
from remnant.data import split
from remnant.errors import InputError, expected
from remnant.experiments.kernel_targets import by_descent
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import (
    Attack,
    Scene,
    attack,
    matched_sheet,
    of_classes,
    train_scene,
)
from remnant.models import build
from remnant.models.residual import freeze_norms, residual
from remnant.progress import task
from remnant.scoring import score, summarise
from remnant.seeds import generator_for
from remnant.solvers.descent.paper import SHARPENED
from remnant.sweep.table import Row
from remnant.training import GradientDescent, recipe_from
from remnant.types import Candidates, Examples, Scaling


def measure_tuning(
    examples: Examples, *, case: str, attack: str, records: int, tuning: int, rate: float,
    widths: tuple[int, ...], known: int, epochs: int, width: int, per_class: int,
    cnn: str, cnn_rate: float, steps: int, inversion: int, seed: int,
) -> Rows:  # fmt: skip
    """case: all layers, dense head (on all places of the last block) or pooled head (on their
    mean) of the residual network; or cnn N, N steps of a convolutional network.

    Residual network: its blocks' `widths`, pretrained for `epochs` on the first `known` classes,
    new dense layers `width` wide, tuned on `per_class` images of each other class for `tuning`
    steps at `rate`. steps: of the hybrid descent. inversion: evaluations from features to images.
    """
    if case.startswith("cnn"):
        scene = small_cnn(examples, cnn, records, cnn_rate, int(case.split()[1]), seed)
    else:
        model, scaling = pretrained(examples, widths, known, epochs)
        recipe = GradientDescent(lr=rate, steps=tuning)
        scene = tuned(model, scaling, examples, case, known, width, per_class, recipe, seed)
    found, seconds = attack_on(scene, attack, steps, inversion, seed)
    row = scored(scene, found, seconds)
    if len(found):
        name = f"sheet-{case}-{attack}-{seed}.png".replace(" ", "-")
        row["files"] = {name: matched_sheet(scene.truth, found.inputs, f"{case}: {attack}")}
    return [row]


# targets


@lru_cache(maxsize=2)
def pretrained(
    examples: Examples, widths: tuple[int, ...], known: int, epochs: int, seed: int = 0
) -> tuple[nn.Sequential, Scaling]:
    """A residual network trained on the first `known` classes, and how it takes its inputs."""
    mine = of_classes(examples, known)
    inputs, labels = mine.inputs, mine.labels
    mean = inputs.mean((0, 2, 3), keepdim=True)[0]
    scaling = Scaling(mean=mean, std=inputs.std().reshape(()))
    model = residual(examples.shape, widths, (known,), generator=generator_for(seed, "weights"))
    model.train()
    rule = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=5e-4)
    generator, size = generator_for(seed, "pretraining"), 64
    total = epochs * math.ceil(len(mine) / size)
    falling = torch.optim.lr_scheduler.CosineAnnealingLR(rule, total)
    with task("pretraining", total) as step:
        for _ in range(epochs):
            for batch in torch.randperm(len(mine), generator=generator).split(size):
                loss = F.cross_entropy(model(scaling.to_model(inputs[batch])), labels[batch])
                rule.zero_grad()
                loss.backward()
                rule.step()
                falling.step()
                step()
    return model.eval(), scaling


def tuned(
    model: nn.Sequential, scaling: Scaling, examples: Examples, case: str, known: int, width: int,
    per_class: int, recipe: GradientDescent, seed: int,
) -> Scene:  # fmt: skip
    """The pretrained network with a new output, or new dense layers, tuned on the other classes.

    Its model is a pair: the body, frozen unless all layers are tuned, and what follows.
    """
    new = examples.take((examples.labels >= known).nonzero().flatten())
    new = replace(new, labels=new.labels - known)
    count = per_class * new.classes
    sides = split(new, train=count, public=None, holdout=count, seed=seed)
    blocks = list(copy.deepcopy(model))[: -3 if case == "dense head" else -1]
    body = nn.Sequential(*blocks, *([nn.Flatten()] if case == "dense head" else []))
    with torch.no_grad():
        wide = body(scaling.to_model(new.inputs[:1])).shape[1]
    between = "" if case == "all layers" else f"{width}-"
    text = f"mlp:{wide}-{between}{new.classes}"
    head = build(text, generator=generator_for(seed, "weights"))
    assert isinstance(head, nn.Sequential)
    if case != "all layers":
        body.requires_grad_(False)
    whole = freeze_norms(nn.Sequential(body, head[1:]))  # the body ends with its Flatten
    return _finish(whole, sides, scaling, recipe, seed=seed)


def small_cnn(
    examples: Examples, text: str, records: int, rate: float, steps: int, seed: int
) -> Scene:
    """A convolutional network after a few steps from known weights."""
    sides = split(examples, train=records, public=None, holdout=records, seed=seed)
    shape = "x".join(map(str, examples.shape))
    model = build(f"cnn:{shape}-{text}", generator=generator_for(seed, "weights"))
    recipe = GradientDescent(lr=rate, momentum=0.9, steps=steps)
    scaling = Scaling(mean=sides.public.inputs.mean(0))
    return _finish(model, sides, scaling, recipe, seed=seed)


_finish = partial(train_scene, tell=("initial", "records"), dtype=torch.float64)


# attacks


def attack_on(
    scene: Scene, name: str, steps: int, inversion: int, seed: int
) -> tuple[Candidates, float]:
    """What the attack of that name finds, and its CPU seconds."""
    target, ways = scene.target, dict[str, Attack]()
    hybrid = replace(SHARPENED, own_duals=True, features="hybrid", steps=steps)
    ways["hybrid"] = partial(by_descent, settings=hybrid)
    ways["exact"], ways["replay"] = NTK(preset="exact", steps=inversion), Informed()
    if name not in ways:
        raise InputError(expected("attack", " or ".join(ways), repr(name)))
    if name == "replay":
        recipe = recipe_from(scene.training["recipe"])
        told = replace(target.knowledge, recipe=recipe, labels=scene.truth.labels)
        target = replace(target, knowledge=told)
    return attack(ways[name], target, seed)


# scores


def scored(scene: Scene, found: Candidates, seconds: float) -> Row:
    """Squared L2 and centred correlation, beside as many held-out images scored alike."""
    row: Row = {
        "records": len(scene.truth),
        "counted": found.stated.counted,
        "certified": found.stated.certified,
        "features": found.figures.get("features"),  # certified, where images are made of them
        "misfit": found.figures.get("misfit"),
        "status": str(found.status),
        "training_loss": float(scene.training["loss"]),
        "reason": found.reason,
        "cpu_seconds": seconds,
    }
    for prefix, inputs in (("", found.inputs), ("null_", scene.holdout.inputs)):
        each = score(scene.truth, inputs)
        whole, known = summarise(each), each.correlation[~each.correlation.isnan()]
        row[f"{prefix}recovered"] = whole["recovered"]
        row["null_error" if prefix else "mean_error"] = whole["mean_squared_l2"]
        row[f"{prefix}correlation"] = float(known.median()) if len(known) else None
    return row


LINES = {"correlation": "found", "null_correlation": "held-out images"}
RESIDUAL, CNN = "cifar10", "mnist"  # data of the two networks

STUDY = Study(
    title="A few images fine-tuned on, or a few steps: what comes back",
    measure=measure_tuning,
    settings={
        "case attack data": [
            ("all layers", "hybrid", RESIDUAL),
            ("dense head", "exact", RESIDUAL),
            ("pooled head", "exact", RESIDUAL),
            *((case, how, CNN) for case in ("cnn 10", "cnn 50")
              for how in ("exact", "hybrid", "replay")),
        ],
        "widths": (16, 32, 64), "known": 6, "epochs": 6, "width": 256, "per_class": 2,
        "rate": 0.01, "tuning": 100, "cnn": "c16k3s2p1-256-10", "records": 8, "cnn_rate": 0.001,
        "steps": 600, "inversion": 500,
    },
    quick={
        "case attack data": [
            ("all layers", "hybrid", CNN), ("dense head", "exact", CNN), ("cnn 10", "exact", CNN)
        ],
        "widths": (8, 16), "epochs": 2, "width": 128, "per_class": 1, "tuning": 50,
        "cnn": "c8k3s2p1-256-10", "records": 4, "steps": 150, "inversion": 200,
    },
    columns=(
        "case", "attack", "records", "recovered", "null_recovered", "correlation",
        "null_correlation", "mean_error", "null_error", "features", "certified", "status",
        "cpu_seconds",
    ),
    figures=(
        Figure(
            x="place", lines=LINES, across="what was trained, and the attack",
            up="median centred correlation", panel="{network}", log_y=False,
        ),
    ),
    condense=lambda rows: [
        row
        | {"place": f"{row['case']}, {row['attack']}"}
        | {"network": "cnn" if row["case"].startswith("cnn") else "residual network"}
        for row in rows
    ],
)  # fmt: skip
