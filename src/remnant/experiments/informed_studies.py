"""Paper 001, sections V and VI: the informed adversary's criteria, tables and figures.

Released models share their fixed records and differ in one target each. `replay` is ours, `ridge`
and `reconn` learn from shadow models. All three are told the labels of public records only. The
criterion is the paper's: a reconstruction counts if it is closer to the target than the nearest
record that the adversary had already (the oracle).
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.experiments.informed_scenes import (
    CNN_FACTORS,
    FACTORS,
    LEARNED,
    Factor,
    Factors,
    Row,
    Scene,
    assumed_run,
    by_replay,
    cnn_factor,
    make_scene,
    train_shadows,
)
from remnant.models import build
from remnant.report.lines import Panel, line_panels
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
from remnant.types import Examples


@lru_cache(maxsize=2)
def good_classifier(data: Examples, settings: Factors, seed: int) -> tuple[nn.Module, float]:
    """A LeNet trained on a scene's public records, and its accuracy on those of no split at all
    (or, where none is left, on the targets)."""
    order = torch.randperm(len(data), generator=generator_for(seed, "split"))
    first = settings.targets + settings.fixed
    last = first + settings.shadows
    public, rest = data.take(order[first:last]), data.take(order[last : last + 1000])
    test = rest if len(rest) else data.take(order[: settings.targets])
    side, channels = public.shape[-1], public.shape[0]
    body = "c6k5p2-m2-c16k5-m2-120-84" if side >= 12 else "c16k3p1-m2-84"
    text = f"cnn:{channels}x{side}x{side}-{body}-{data.classes}"
    generator = generator_for(seed, "classifier")
    model = build(text, generator=generator)
    steps = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(settings.classifier_epochs):
        for rows in torch.randperm(len(public), generator=generator).split(32):
            steps.zero_grad()
            F.cross_entropy(model(public.inputs[rows]), public.labels[rows]).backward()
            steps.step()
    with torch.no_grad():
        right = (model.eval()(test.inputs).argmax(1) == test.labels).double().mean()
    return model, float(right)


@lru_cache(maxsize=1)
def lpips() -> LPIPS | None:
    """None where the weights are not installed."""
    return load_lpips() if installed_weights() else None


def loss_auc(scene: Scene) -> float:
    """How well a record's loss tells the model that was trained on it from the others."""
    run, k = assumed_run(scene), len(scene.targets)
    with torch.no_grad():
        weights = [scene.released[name] for name in run.names]
        outputs = run.forward(weights, scene.targets.inputs, True)  # models x classes x targets
        losses = F.cross_entropy(outputs, scene.targets.labels.expand(k, -1), reduction="none")
    own = torch.eye(k, dtype=torch.bool)
    return membership_auc(losses[own], losses[~own])


@dataclass(frozen=True, kw_only=True)
class Convolutions(Factors):
    """Table II for the convolutional network, at a size that takes an hour or two."""

    fixed: int = 60
    shadows: int = 200
    targets: int = 2
    epochs: int = 10
    factors: tuple[str, ...] = tuple(CNN_FACTORS)
    evaluations: int = 72
    data: tuple[str, ...] = ("cifar10",)


@dataclass(frozen=True, kw_only=True)
class Shadows(Factors):
    """Figure 5c: the error against the number of shadow models; replay needs none."""

    shadows: int = 3000
    targets: int = 50
    methods: tuple[str, ...] = ("ridge", "reconn")
    counts: tuple[int, ...] = (100, 300, 1000, 3000)


@dataclass(frozen=True, kw_only=True)
class Batches(Factors):
    """Figure 7: the error against the batch size, the order of batches known or not."""

    shadows: int = 300
    epochs: int = 20
    lrs: tuple[float, ...] = (0.01, 0.2)
    sizes: tuple[int, ...] = (64, 128, 256, 501)
    methods: tuple[str, ...] = ("replay", "ridge")


QUICK_FACTORS = Factors(
    fixed=150,
    shadows=300,
    targets=4,
    epochs=15,
    evaluations=52,
    reconn_epochs=10,
    factors=("default", "second layer only", "ReLU", "unknown initialisation", "black box"),
)
QUICK_CONVOLUTIONS = Convolutions(
    fixed=20, shadows=50, epochs=3, evaluations=32, reconn_epochs=3, factors=("default",)
)
QUICK_SHADOWS = Shadows(
    fixed=150,
    shadows=600,
    targets=4,
    epochs=15,
    evaluations=52,
    reconn_epochs=10,
    counts=(100, 600),
)
QUICK_BATCHES = Batches(
    fixed=150, shadows=300, targets=3, epochs=5, evaluations=52, lrs=(0.05,), sizes=(50, 151)
)


def measured(
    settings: Factors, factor: Factor, data: Examples, seed: int, counts: Sequence[int] = ()
) -> list[Row]:
    """A row for each method (and number of shadows): errors beside the oracle's."""
    scene = make_scene(settings, factor, data, seed)
    scale = yardstick(scene, good_classifier(data, settings, seed))
    began = time.process_time()
    learned = [method for method in settings.methods if method in LEARNED]
    shadows = train_shadows(scene) if learned else {}
    training = time.process_time() - began
    rows = []
    for method in settings.methods:
        for count in (0,) if method == "replay" else (counts or (len(scene.public),)):
            began = time.process_time()
            if method == "replay":
                guess, figures = by_replay(scene, settings)
            else:
                guess, figures = LEARNED[method](scene, shadows, count, settings)
            spent = time.process_time() - began + training * count / max(1, len(scene.public))
            rows.append(
                {"method": method, "shadows": count}
                | scale(guess)
                | figures
                | {"cpu_seconds": round(spent, 2)}
            )
    return rows


def yardstick(scene: Scene, judge: tuple[nn.Module, float]) -> Callable[[Tensor], Row]:
    """The criteria of V-B for reconstructions of a scene's targets, k x shape."""
    truth, pool = scene.targets.inputs, torch.cat([scene.fixed.inputs, scene.public.inputs])
    index, _ = nearest_public(truth, pool)
    near, limits = oracle(truth, pool), order_statistics(truth, pool)
    classifier, accuracy = judge
    auc, look = loss_auc(scene), lpips()

    def row(guess: Tensor) -> Row:
        error = mse_each(guess, truth)
        return {
            "targets": len(truth),
            "mse": finite(error.mean()),
            "median_mse": finite(error.median()),
            "oracle": float(near.mean()),
            "percentile": limits["q0.01"],
            "success": float((error < near).double().mean()),
            "exact": int((error < 1e-4).sum()),
            "kl": finite(kl_each(classifier, guess, truth).mean()),
            "classifier_accuracy": accuracy,
            "lpips": finite(look(truth, guess).mean()) if look is not None else None,
            "game": membership_game(guess, truth, truth.roll(1, 0)),
            "game_nearest": membership_game(guess, truth, pool[index]),
            "loss_auc": auc,
        }

    return row


def finite(value: Tensor) -> float | None:
    return float(value) if math.isfinite(float(value)) else None


# The studies


def factor_cells(settings: Factors, seed: int) -> list[Row]:
    return [
        {"factor": name, "seed": seed + k}
        for name in settings.factors
        for k in range(settings.repeats)
    ]


def measure_factors(settings: Factors, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    rows = measured(settings, FACTORS[cell["factor"]], data[settings.data[0]], cell["seed"])
    return [cell | row for row in rows]


def measure_convolutions(
    settings: Convolutions, cell: Row, data: Mapping[str, Examples]
) -> list[Row]:
    records = data[settings.data[0]]
    rows = measured(settings, cnn_factor(cell["factor"], records), records, cell["seed"])
    return [cell | row for row in rows]


def shadow_cells(settings: Shadows, seed: int) -> list[Row]:
    return [{"seed": seed + k} for k in range(settings.repeats)]


def measure_shadows(settings: Shadows, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    digits = data[settings.data[0]]
    rows = measured(settings, Factor(), digits, cell["seed"], counts=settings.counts)
    return [cell | row for row in rows]


def batch_cells(settings: Batches, seed: int) -> list[Row]:
    return [
        {"lr": lr, "batch_size": size, "order": order, "seed": seed + k}
        for lr in settings.lrs
        for order in ("known", "unknown")
        for size in settings.sizes
        for k in range(settings.repeats)
    ]


def measure_batches(settings: Batches, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    factor = Factor(
        lr=cell["lr"],
        momentum=0.0,
        batch_size=cell["batch_size"],
        order_known=cell["order"] == "known",
    )
    rows = measured(settings, factor, data[settings.data[0]], cell["seed"])
    return [cell | row for row in rows]


def with_oracle(rows: Sequence[Row]) -> list[Row]:
    """The rows, and the oracle as one more method where it was measured."""
    seen = [row | {"method": "oracle", "mse": row["oracle"]} for row in rows]
    return [*rows, *seen]


def plot_factors(rows: Sequence[Row], panel: str = "MNIST") -> tuple[Panel, ...]:
    return line_panels(
        with_oracle(rows),
        panel=lambda row: panel,
        line="method",
        x="factor",
        y="mse",
        across="factor",
        up="mean squared error",
    )


def plot_shadows(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        with_oracle([row for row in rows if row["method"] != "replay"]),
        panel=lambda row: "MNIST",
        line="method",
        x="shadows",
        y="mse",
        across="shadow models",
        up="mean squared error",
    )


def plot_batches(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel=lambda row: f"learning rate {row['lr']:g}",
        line=lambda row: f"{row['method']}, order {row['order']}",
        x="batch_size",
        y="mse",
        across="batch size",
        up="mean squared error",
    )
