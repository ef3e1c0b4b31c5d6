"""Paper 001, sections V and VI: the informed adversary's criteria, tables and figures.

Released models share their fixed records and differ in one target each. `replay` is ours, `ridge`
and `reconn` learn from shadow models. All three are told the labels of public records only. The
criterion is the paper's: a reconstruction counts if it is closer to the target than the nearest
record that the adversary had already (the oracle).
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.experiments.informed_scenes import (
    FACTORS,
    LEARNED,
    Factor,
    Factors,
    Row,
    Scene,
    by_replay,
    make_scene,
    train_shadows,
)
from remnant.models import build
from remnant.report.lines import Panel, line_panels
from remnant.types import Examples

# Criteria (V-B)


def mse_each(guess: Tensor, truth: Tensor) -> Tensor:
    """k: the mean squared error of each of k x shape."""
    return (guess - truth).flatten(1).square().mean(1)


def oracle(truth: Tensor, pool: Tensor) -> Tensor:
    """k: the mean squared error of the nearest of the adversary's own records (pool x shape)."""
    distance = torch.cdist(truth.flatten(1), pool.flatten(1))
    return distance.min(1).values.square() / truth[0].numel()


def order_statistics(
    truth: Tensor, pool: Tensor, shares: Sequence[float] = (0.01, 0.1, 0.5)
) -> dict[str, float]:
    """Figure 3: mean over targets of the nearest error to the pool, and of its quantiles."""
    errors = torch.cdist(truth.flatten(1), pool.flatten(1)).square() / truth[0].numel()
    found = {"nearest": float(errors.min(1).values.mean())}
    quantiles = torch.quantile(errors, torch.tensor(shares, dtype=errors.dtype), dim=1).mean(1)
    return found | {f"q{share:g}": float(q) for share, q in zip(shares, quantiles, strict=True)}


def kl_each(classifier: nn.Module, guess: Tensor, truth: Tensor) -> Tensor:
    """k: KL divergence of the classifier's outputs at the guess from those at the truth."""
    with torch.no_grad():
        at_truth, at_guess = (classifier(x).log_softmax(1) for x in (truth, guess))
    return F.kl_div(at_guess, at_truth, reduction="none", log_target=True).sum(1)


def good_classifier(
    public: Examples, test: Examples, *, generator: torch.Generator, epochs: int = 8
) -> tuple[nn.Module, float]:
    """A LeNet trained on the public records, and its accuracy on records it has not seen."""
    side, channels = public.shape[-1], public.shape[0]
    text = f"cnn:{channels}x{side}x{side}-c6k5p2-m2-c16k5-m2-120-84-{public.classes}"
    model = build(text, generator=generator)
    steps = torch.optim.Adam(model.parameters(), lr=2e-3)
    for _ in range(epochs):
        for rows in torch.randperm(len(public), generator=generator).split(32):
            steps.zero_grad()
            F.cross_entropy(model(public.inputs[rows]), public.labels[rows]).backward()
            steps.step()
    with torch.no_grad():
        right = (model.eval()(test.inputs).argmax(1) == test.labels).double().mean()
    return model, float(right)


def membership_game(guess: Tensor, truth: Tensor, other: Tensor) -> float:
    """Algorithm 2 played with a reconstruction: how often it is nearer to the member (k x shape
    each) than to the other record that might have been."""
    return float((mse_each(guess, truth) < mse_each(guess, other)).double().mean())


def loss_threshold_auc(members: Tensor, others: Tensor) -> float:
    """The area under the curve of "a member's loss is lower": P(member < other), ties half."""
    below = (members[:, None] < others[None]).double().mean()
    ties = (members[:, None] == others[None]).double().mean()
    return float(below + ties / 2)


@dataclass(frozen=True, kw_only=True)
class Shadows(Factors):
    """Figure 5c: the error against the number of shadow models; replay needs none."""

    factors: tuple[str, ...] = ("default",)
    counts: tuple[int, ...] = (100, 300, 1000, 3500)


@dataclass(frozen=True, kw_only=True)
class Batches(Factors):
    """Figure 7: the error against the batch size, the order of batches known or not."""

    lrs: tuple[float, ...] = (0.01, 0.2)
    sizes: tuple[int, ...] = (128, 256, 512, 1001)
    methods: tuple[str, ...] = ("replay", "ridge")


QUICK_FACTORS = Factors(
    fixed=150,
    shadows=300,
    targets=4,
    epochs=15,
    evaluations=40,
    reconn_epochs=10,
    factors=("default", "second layer only", "ReLU", "unknown initialisation", "black box"),
)
QUICK_SHADOWS = Shadows(
    fixed=150,
    shadows=600,
    targets=4,
    epochs=15,
    evaluations=40,
    reconn_epochs=10,
    counts=(100, 600),
)
QUICK_BATCHES = Batches(
    fixed=150, shadows=300, targets=3, epochs=5, evaluations=40, lrs=(0.05,), sizes=(50, 151)
)


def measured(
    settings: Factors, factor: Factor, data: Examples, seed: int, counts: Sequence[int] = ()
) -> list[Row]:
    """A row for each method (and number of shadows): errors beside the oracle's."""
    scene = make_scene(settings, factor, data, seed)
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
                | criteria(scene, guess)
                | figures
                | {"cpu_seconds": round(spent, 2)}
            )
    return rows


def criteria(scene: Scene, guess: Tensor) -> Row:
    truth = scene.targets.inputs
    error = mse_each(guess, truth)
    nearest = oracle(truth, torch.cat([scene.fixed.inputs, scene.public.inputs]))
    return {
        "targets": len(truth),
        "mse": finite(error.mean()),
        "median_mse": finite(error.median()),
        "oracle": float(nearest.mean()),
        "success": float((error < nearest).double().mean()),
        "exact": int((error < 1e-4).sum()),
        "game": membership_game(guess, truth, truth.roll(1, 0)),
    }


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


def plot_factors(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        with_oracle(rows),
        panel=lambda row: "MNIST",
        line=lambda row: row["method"],
        x="factor",
        y="mse",
        across="factor",
        up="mean squared error",
    )


def plot_shadows(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        with_oracle([row for row in rows if row["method"] != "replay"]),
        panel=lambda row: "MNIST",
        line=lambda row: row["method"],
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
