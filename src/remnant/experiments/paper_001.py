"""Paper 001, sections V and VI: the informed adversary's criteria, tables and figures.

Released models share their fixed records and differ in one target each. `replay` is ours, `ridge`
and `reconn` learn from shadow models. All three are told the labels of public records only. The
criterion is the paper's: a reconstruction counts if it is closer to the target than the nearest
record that the adversary had already (the oracle). The paper has 10,000 fixed records, 59,000
shadows and 1000 targets; the sizes here take minutes, but for `informed-paper`.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, fields, replace
from functools import lru_cache
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.errors import InputError, expected
from remnant.experiments import informed_sides, private_descent
from remnant.experiments.informed_targets import (
    CNN_FACTORS,
    FACTORS,
    LEARNED,
    InformedSizes,
    Released,
    assumed_run,
    by_replay,
    lpips,
    make_released,
    train_shadows,
)
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import draw_parts
from remnant.models import build
from remnant.report.sheet import draw_sheet, short_number
from remnant.scoring.criteria import (
    kl_each,
    membership_auc,
    membership_game,
    mse_each,
    oracle,
    order_statistics,
)
from remnant.scoring.nulls import nearest_public
from remnant.seeds import generator_for
from remnant.sweep.table import Row
from remnant.training import Adam, accuracy, train
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


def about_training(scene: Released) -> Row:
    """How well records and others are classified, how well a record's loss tells the model that was
    trained on it from the others, and the share of weights whose slope in it is 0 (Figure 22)."""
    run, k = assumed_run(scene), len(scene.targets)
    weights = [scene.released[name].detach().requires_grad_() for name in run.names]
    outputs = run.forward(weights, scene.targets.inputs, True)  # models x classes x targets
    losses = F.cross_entropy(outputs, scene.targets.labels.expand(k, -1), reduction="none")
    own = torch.eye(k, dtype=torch.bool)
    slopes = torch.autograd.grad(losses[own].sum(), weights)
    with torch.no_grad():
        right = {
            f"{side}_accuracy": accuracy(run.forward(weights, some.inputs, True), some.labels)
            for side, some in (("train", scene.fixed), ("test", scene.public))
        }
    still = sum(int((slope == 0).sum()) for slope in slopes)
    auc = membership_auc(losses[own].detach(), losses[~own].detach())
    return {**right, "loss_auc": auc, "silent": still / sum(slope.numel() for slope in slopes)}


def correlation(a: Tensor, b: Tensor) -> float | None:
    """Spearman's over targets; unknown of fewer than three, or where one side is constant."""
    if len(a) < 3 or len(set(a.tolist())) < 2 or len(set(b.tolist())) < 2:
        return None
    return float(spearmanr(a.numpy(), b.numpy()).statistic)


def yardstick(scene: Released, judge: tuple[nn.Module, float]) -> Callable[[Tensor], Row]:
    """The criteria of V-B for reconstructions of a scene's targets, k x shape; `kl_rank` and
    `lpips_rank` are rank correlations with the error over targets (Figures 5 and 19)."""
    truth, pool = scene.targets.inputs, torch.cat([scene.fixed.inputs, scene.public.inputs])
    index, _ = nearest_public(truth, pool)
    near, limits = oracle(truth, pool), order_statistics(truth, pool)
    classifier, right = judge
    trained, look = about_training(scene), lpips()

    def row(guess: Tensor) -> Row:
        error, kl = mse_each(guess, truth), kl_each(classifier, guess, truth)
        seen = None if look is None else look(truth, guess)
        scores = {
            "targets": len(truth),
            "mse": float(error.mean()),
            "median_mse": float(error.median()),
            "oracle": float(near.mean()),
            "percentile": limits["q0.01"],
            "success": float((error < near).double().mean()),
            "exact": int((error < 1e-4).sum()),
            "kl": float(kl.mean()),
            "kl_rank": correlation(error, kl),
            "classifier_accuracy": right,
            "lpips": None if seen is None else float(seen.mean()),
            "lpips_rank": None if seen is None else correlation(error, seen),
            "game": membership_game(guess, truth, truth.roll(1, 0)),
            "game_nearest": membership_game(guess, truth, pool[index]),
        }
        return finite(scores | trained)  # type: ignore[no-any-return]

    return row


def sheet_of(scene: Released, guess: Tensor, title: str) -> bytes:
    """Targets over their reconstructions, the best first (Figures 1, 4, 14, 24)."""
    error = mse_each(guess, scene.targets.inputs)
    order = error.argsort()
    near = oracle(scene.targets.inputs, torch.cat([scene.fixed.inputs, scene.public.inputs]))
    return draw_sheet(
        scene.targets.inputs[order], guess[order],
        [(short_number(float(error[i])), short_number(float(near[i]))) for i in order.tolist()],
        rows=("mean squared", "oracle's"), marked=(error < near)[order].tolist(), title=title,
        footer="framed: closer than the nearest record that the adversary had",
    )  # fmt: skip


def measure_factor(
    examples: Examples, *, factor: str, methods: Sequence[str], seed: int,
    counts: Sequence[int] = (), cnn: bool = False, sheets: bool = False, **asked: Any,
) -> Rows:  # fmt: skip
    """A row for each method (and number of shadows: those of `counts` that are fewer than all, and
    all): errors beside the oracle's. sheets: a picture with each. asked: of the sizes, and whatever
    else a `Factor` says in place of what it says itself."""
    known = ("replay", *LEARNED)
    if unknown := [method for method in methods if method not in known]:
        raise InputError(expected("--methods", " or ".join(known), repr(unknown[0])))
    table, own = CNN_FACTORS if cnn else FACTORS, {field.name for field in fields(InformedSizes)}
    size = InformedSizes(**{name: value for name, value in asked.items() if name in own})
    changes = {name: value for name, value in asked.items() if name not in own}
    scene = make_released(size, replace(table[factor], **changes), examples, seed)
    scale = yardstick(scene, good_classifier(examples, size, seed))
    began = time.process_time()
    shadows = train_shadows(scene) if any(method in LEARNED for method in methods) else {}
    steps = sorted({*(c for c in counts if c < len(scene.public)), len(scene.public)})
    training = time.process_time() - began
    rows = []
    for method in methods:
        for count in (0,) if method == "replay" else steps:
            began = time.process_time()
            if method == "replay":
                guess, figures = by_replay(scene, size)
            else:
                guess, figures = LEARNED[method](scene, shadows, count, size)
            spent = time.process_time() - began + training * count / max(1, len(scene.public))
            row: Row = changes | {"method": method, "shadows": count} | scale(guess) | figures
            if sheets:
                title = f"{method}, {count} shadow models"
                name = f"sheet-{method.replace(' ', '-')}-{count}-{seed}.png"
                row["files"] = {name: sheet_of(scene, guess, title)}
            rows.append(row | {"cpu_seconds": round(spent, 2)})
    return rows


BASE: Mapping[str, Any] = {
    "methods": ("replay", "ridge", "reconn"), "data": "mnist", **asdict(InformedSizes()),
}  # fmt: skip
QUICK: Mapping[str, Any] = {
    "records": 150, "targets": 4, "epochs": 15, "evaluations": 52, "reconn_epochs": 10,
}  # fmt: skip
CRITERIA = (
    "mse", "median_mse", "oracle", "success", "exact", "kl", "lpips", "kl_rank", "lpips_rank",
    "game", "loss_auc",
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
            "counts": (100, 300, 1000), "shadows": 3000, "targets": 50,
        },
        quick={**QUICK, "shadows": 600, "counts": (100,)},
        columns=("method", "shadows", *CRITERIA),
        figures=(errors_over("shadows", "shadow models"),),
    ),
    "informed-batch": Study(
        title="One unknown record: error against the batch size",
        measure=measure_factor,
        settings={
            "lr": [0.01, 0.2], "order_known": [True, False], "batch_size": [64, 128, 256, 501],
            "factor": "default", **BASE, "methods": ("replay", "ridge"), "shadows": 300,
            "epochs": 20, "momentum": 0.0,
        },
        quick={**QUICK, "lr": [0.05], "batch_size": [50, 151], "targets": 3, "epochs": 5},
        columns=("lr", "order_known", "batch_size", "method", *CRITERIA),
        figures=(
            errors_over(
                "batch_size", "batch size", "learning rate {lr}",
                "{method}, order known: {order_known}",
            ),
        ),
    ),
    "informed-paper": Study(
        title="One unknown record at the paper's own size: error against the shadow models",
        measure=measure_factor,
        settings={
            "factor": "default", **BASE, "methods": ("ridge", "reconn", "reconn of the paper"),
            "counts": (100, 300, 1000, 3000, 10_000, 30_000), "records": 10_000, "sheets": True,
            "shadows": 49_000, "targets": 1000, "epochs": 100, "reconn_epochs": 100,
            "data": "mnist-full",
        },
        quick={**QUICK, "shadows": 200, "counts": (50,), "data": "mnist"},
        columns=("method", "shadows", *CRITERIA),
        figures=(errors_over("shadows", "shadow models"),),
    ),
    "informed-images": Study(
        title="One unknown image of a convolutional network: the transposed reconstructor",
        measure=measure_factor,
        settings={
            "factor": "default", **BASE, "methods": ("ridge", "reconn", "transposed"), "cnn": True,
            "records": 60, "shadows": 300, "targets": 20, "epochs": 10, "reconn_epochs": 60,
            "critic_width": 16, "sheets": True, "data": "cifar10",
        },
        quick={"records": 20, "shadows": 50, "targets": 4, "epochs": 3, "reconn_epochs": 40}
        | {"critic_width": 8, "data": "mnist"},
        columns=("method", "perceptual", "shadows", *CRITERIA),
        figures=(errors_over("method", "method", line="reconstructions"),),
    ),
    "informed-starts": Study(
        title="One unknown record: rate, momentum, and the start of training known or not",
        measure=measure_factor,
        settings={
            "factor": "default", **BASE, "methods": ("ridge",), "initial_known": [True, False],
            "lr momentum": [(0.01, 0.0), (0.01, 0.9), (0.2, 0.0), (0.2, 0.9)],
        },
        quick={**QUICK, "shadows": 200, "lr momentum": [(0.01, 0.0), (0.2, 0.9)]},
        columns=("lr", "momentum", "initial_known", "method", *CRITERIA),
        figures=(
            errors_over("initial_known", "start known", line="rate {lr}, momentum {momentum}"),
        ),
    ),
    "informed-width": Study(
        title="One unknown record: error against the width of the released model",
        measure=measure_factor,
        settings={
            **BASE, "methods": ("ridge",),
            "factor width": [("default", w) for w in (1, 10, 100)] + [("second layer only", 100)],
        },
        quick={**QUICK, "shadows": 200},
        columns=("factor", "width", "method", *CRITERIA),
        figures=(errors_over("width", "width of the hidden layer", line="{factor}"),),
    ),
    "informed-optimiser": Study(
        title="One unknown image: optimiser, fixed set and epochs, beside membership",
        measure=measure_factor,
        settings={
            "factor": "default", **BASE, "methods": ("ridge",), "cnn": True,
            "adam lr": [(False, 0.01), (True, 0.002)], "records": [30, 60],
            "more_epochs": [1.0, 2.5, 5.0], "shadows": 200, "targets": 6, "epochs": 10,
            "data": "cifar10",
        },
        quick={"records": 20, "shadows": 40, "targets": 3, "epochs": 3, "data": "mnist"}
        | {"more_epochs": [1.0, 2.5]},
        columns=(
            "adam", "records", "more_epochs", "method", "mse", "oracle", "success", "lpips",
            "train_accuracy", "test_accuracy", "loss_auc", "silent", "cpu_seconds",
        ),
        figures=(
            errors_over(
                "more_epochs", "epochs, in units of the default", "{records} records",
                "Adam: {adam}",
            ),
        ),
    ),
    "informed-transfer": Study(
        title="A reconstructor for one fixed set, tuned for another",
        measure=informed_sides.measure_transfer,
        settings={
            "counts": (10, 30, 100, 300, 1000), "records": 500, "width": 10, "shadows": 2000,
            "targets": 50, "epochs": 50, "reconn_epochs": 30, "data": "mnist",
        },
        quick={"counts": (10, 50), "records": 150, "shadows": 300, "targets": 10, "epochs": 15}
        | {"reconn_epochs": 10},
        columns=("method", "shadows", "mse", "oracle", "success", "targets", "cpu_seconds"),
        figures=(errors_over("shadows", "shadow models of the second fixed set"),),
    ),
    "informed-pool": Study(
        title="How far a target is from the records that the adversary had",
        measure=informed_sides.measure_pool,
        settings={"bins": 40, "records": 500, "shadows": 3500, "targets": 500, "data": "mnist"},
        quick={"bins": 20},
        columns=("error", "share", "nearest", "q0.01", "q0.1", "q0.5", "cpu_seconds"),
        figures=(
            Figure(
                x="error", lines={"share": "pairs"}, across="mean squared error", up="share",
                panel="{data}", log_x=False, log_y=False,
            ),
        ),
    ),
    "informed-membership": Study(
        title="Membership from a record's loss, the start of training known or not",
        measure=informed_sides.measure_membership,
        settings={
            "start": ["shared", "fresh"], "models": 100, "records": 500, "width": 10,
            "shadows": 100, "targets": 5, "epochs": 50, "data": "mnist",
        },
        quick={"models": 30, "records": 150, "shadows": 30, "targets": 3, "epochs": 15},
        columns=("start", "target", "auc", "with_loss", "without_loss", "cpu_seconds"),
        figures=(
            Figure(
                x="start", lines={"auc": "telling members by the loss"}, across="start of training",
                up="area under the curve", panel="{data}", log_x=False, log_y=False,
            ),
        ),
    ),
    "private-descent": private_descent.STUDY,
}  # fmt: skip
