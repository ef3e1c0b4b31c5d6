"""Paper 001, sections V and VI: the informed adversary's criteria, tables and figures.

Released models share their fixed records and differ in one target each. `replay` is ours, `ridge`
and `reconn` learn from shadow models. All three are told the labels of public records only. The
criterion is the paper's: a reconstruction counts if it is closer to the target than the nearest
record that the adversary had already (the oracle). The paper has 10,000 fixed records, 59,000
shadows and 1000 targets; the sizes here take minutes.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.experiments import private_descent
from remnant.experiments.informed_targets import (
    CNN_FACTORS,
    FACTORS,
    LEARNED,
    InformedSizes,
    Released,
    assumed_run,
    by_replay,
    make_released,
    train_shadows,
)
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import accuracy, draw_parts
from remnant.models import build
from remnant.scoring.criteria import (
    kl_each,
    membership_auc,
    membership_game,
    mse_each,
    oracle,
    order_statistics,
)
from remnant.scoring.lpips import LPIPS, installed_weights, load_lpips
from remnant.scoring.nulls import nearest_public
from remnant.seeds import generator_for
from remnant.sweep.table import Row
from remnant.training import Adam, train
from remnant.types import Examples, Scaling, finite


@lru_cache(maxsize=2)
def good_classifier(examples: Examples, sizes: InformedSizes, seed: int) -> tuple[nn.Module, float]:
    """A LeNet trained on a scene's public records, and its accuracy on those of no split at all
    (or, where none is left, on the targets)."""
    targets, _, public, rest = draw_parts(
        examples, seed, sizes.targets, sizes.records, sizes.shadows, 1000
    )
    test = rest if len(rest) else targets
    side, channels = public.shape[-1], public.shape[0]
    body = "c6k5p2-m2-c16k5-m2-120-84" if side >= 12 else "c16k3p1-m2-84"
    text = f"cnn:{channels}x{side}x{side}-{body}-{examples.classes}"
    generator, size = generator_for(seed, "classifier"), 32
    steps = sizes.classifier_epochs * -(-len(public) // size)
    recipe = Adam(steps=steps, lr=2e-3, batch_size=size)
    start = build(text, generator=generator)
    model = train(start, public, recipe, scaling=Scaling(), generator=generator).model
    with torch.no_grad():
        return model, accuracy(model(test.inputs), test.labels)


@lru_cache(maxsize=1)
def lpips() -> LPIPS | None:
    """None where the weights are not installed."""
    return load_lpips() if installed_weights() else None


def loss_auc(scene: Released) -> float:
    """How well a record's loss tells the model that was trained on it from the others."""
    run, k = assumed_run(scene), len(scene.targets)
    with torch.no_grad():
        weights = [scene.released[name] for name in run.names]
        outputs = run.forward(weights, scene.targets.inputs, True)  # models x classes x targets
        losses = F.cross_entropy(outputs, scene.targets.labels.expand(k, -1), reduction="none")
    own = torch.eye(k, dtype=torch.bool)
    return membership_auc(losses[own], losses[~own])


def yardstick(scene: Released, judge: tuple[nn.Module, float]) -> Callable[[Tensor], Row]:
    """The criteria of V-B for reconstructions of a scene's targets, k x shape."""
    truth, pool = scene.targets.inputs, torch.cat([scene.fixed.inputs, scene.public.inputs])
    index, _ = nearest_public(truth, pool)
    near, limits = oracle(truth, pool), order_statistics(truth, pool)
    classifier, right = judge
    auc, look = loss_auc(scene), lpips()

    def row(guess: Tensor) -> Row:
        error = mse_each(guess, truth)
        scores = {
            "targets": len(truth),
            "mse": float(error.mean()),
            "median_mse": float(error.median()),
            "oracle": float(near.mean()),
            "percentile": limits["q0.01"],
            "success": float((error < near).double().mean()),
            "exact": int((error < 1e-4).sum()),
            "kl": float(kl_each(classifier, guess, truth).mean()),
            "classifier_accuracy": right,
            "lpips": float(look(truth, guess).mean()) if look is not None else None,
            "game": membership_game(guess, truth, truth.roll(1, 0)),
            "game_nearest": membership_game(guess, truth, pool[index]),
            "loss_auc": auc,
        }
        return finite(scores)  # type: ignore[no-any-return]

    return row


def measure_factor(
    examples: Examples, *, factor: str, methods: Sequence[str], seed: int,
    counts: Sequence[int] = (), cnn: bool = False, changes: Mapping[str, Any] | None = None,
    **sizes: int,
) -> Rows:  # fmt: skip
    """A row for each method (and number of shadows): errors beside the oracle's."""
    table, size = CNN_FACTORS if cnn else FACTORS, InformedSizes(**sizes)
    scene = make_released(size, replace(table[factor], **(changes or {})), examples, seed)
    scale = yardstick(scene, good_classifier(examples, size, seed))
    began = time.process_time()
    shadows = train_shadows(scene) if any(method in LEARNED for method in methods) else {}
    training = time.process_time() - began
    rows = []
    for method in methods:
        for count in (0,) if method == "replay" else (counts or (len(scene.public),)):
            began = time.process_time()
            if method == "replay":
                guess, figures = by_replay(scene, size)
            else:
                guess, figures = LEARNED[method](scene, shadows, count, size)
            spent = time.process_time() - began + training * count / max(1, len(scene.public))
            row: Row = {"method": method, "shadows": count} | scale(guess) | figures
            rows.append(row | {"cpu_seconds": round(spent, 2)})
    return rows


def measure_batch(
    examples: Examples, *, lr: float, batch_size: int, order: str, **asked: Any
) -> Rows:
    """Figure 7: the order of batches known or not."""
    changes = {"lr": lr, "momentum": 0.0, "batch_size": batch_size}
    changes["order_known"] = order == "known"
    return measure_factor(examples, changes=changes, **asked)


BASE: Mapping[str, Any] = {
    "methods": ("replay", "ridge", "reconn"), "records": 500, "width": 10, "shadows": 1000,
    "targets": 6, "epochs": 50, "evaluations": 80, "reconn_epochs": 30, "data": "mnist",
}  # fmt: skip
QUICK: Mapping[str, Any] = {
    "records": 150, "targets": 4, "epochs": 15, "evaluations": 52, "reconn_epochs": 10,
}  # fmt: skip
CRITERIA = (
    "mse", "median_mse", "oracle", "success", "exact", "kl", "lpips", "game", "loss_auc",
    "certified", "wrongly_certified", "labels_right", "cpu_seconds",
)  # fmt: skip


def errors_over(x: str, across: str, panel: str = "{data}", line: str = "{method}") -> Figure:
    lines = {"mse": line, "oracle": "oracle"}
    return Figure(x=x, lines=lines, across=across, up="mean squared error", panel=panel)


STUDIES: Mapping[str, Study] = {
    "informed-factors": Study(
        title="One unknown record: replay, ridge and reconstructor network, factor by factor",
        measure=measure_factor,
        settings={"factor": list(FACTORS), **BASE},
        quick={
            **QUICK,
            "shadows": 300,
            "factor": [
                "default", "second layer only", "ReLU", "unknown initialisation", "black box",
            ],
        },
        columns=("factor", "method", "shadows", *CRITERIA),
        figures=(errors_over("factor", "factor"),),
    ),
    "informed-cnn": Study(
        title="One unknown record of a convolutional network, factor by factor",
        measure=measure_factor,
        settings={
            "factor": list(CNN_FACTORS), **BASE, "cnn": True, "records": 60, "shadows": 200,
            "targets": 2, "epochs": 10, "evaluations": 72, "data": "cifar10",
        },
        quick={"factor": ["default"], "records": 20, "shadows": 50, "epochs": 3}
        | {"evaluations": 32, "reconn_epochs": 3},
        columns=("factor", "method", "shadows", *CRITERIA),
        figures=(errors_over("factor", "factor"),),
    ),
    "informed-shadows": Study(
        title="One unknown record: error against the number of shadow models",
        measure=measure_factor,
        settings={
            "factor": "default", **BASE, "methods": ("ridge", "reconn"),
            "counts": (100, 300, 1000, 3000), "shadows": 3000, "targets": 50,
        },
        quick={**QUICK, "shadows": 600, "counts": (100, 600)},
        columns=("method", "shadows", *CRITERIA),
        figures=(errors_over("shadows", "shadow models"),),
    ),
    "informed-batch": Study(
        title="One unknown record: error against the batch size",
        measure=measure_batch,
        settings={
            "lr": [0.01, 0.2], "order": ["known", "unknown"], "batch_size": [64, 128, 256, 501],
            "factor": "default", **BASE, "methods": ("replay", "ridge"), "shadows": 300,
            "epochs": 20,
        },
        quick={**QUICK, "lr": [0.05], "batch_size": [50, 151], "targets": 3, "epochs": 5},
        columns=("lr", "order", "batch_size", "method", *CRITERIA),
        figures=(
            errors_over(
                "batch_size", "batch size", "learning rate {lr}", "{method}, order {order}"
            ),
        ),
    ),
    "private-descent": private_descent.STUDY,
}  # fmt: skip
