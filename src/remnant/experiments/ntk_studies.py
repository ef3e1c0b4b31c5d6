"""Why weight differences leak (paper 000, sections 4 and 6, Appendices E, I, L).

Errors are squared L2 in pixels between a record and its candidate, greedy one-to-one matching (the
reconstruction curve). Two hidden layers, squared loss, full batch. Attacks: `paper` (descent on
images and duals, in the network's own units), `projected-final` (the same objective, features at
the final weights, with the duals projected out, in the first layer's span), `projected` (features
at the initial weights, which hardly suffers when the kernel moves), `exact` (the `ntk` attack). All
but `exact` are told the number of records.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from scipy.stats import spearmanr
from torch import Tensor

from remnant.data import Split, binary_task, split
from remnant.experiments.ntk_targets import (
    Row,
    accuracy,
    attacked,
    duals_and_influence,
    finish_training,
    finite,
    scored,
    train_and_integrate,
)
from remnant.report.lines import Panel, line_panels
from remnant.seeds import generator_for
from remnant.types import Examples


@dataclass(frozen=True, kw_only=True)
class KernelDistance:
    """000, Figure 3: mean error against how far training moved the kernel, width x records."""

    widths: tuple[int, ...] = (128, 256, 512)
    records: tuple[int, ...] = (10, 20)
    dynamics: tuple[str, ...] = ("linearised", "standard")
    attack: str = "paper"
    steps: int = 3000
    stop_loss: float = 1e-6
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """000, Figure 15: the loss at which training stops, and what comes back."""

    stops: tuple[float, ...] = (1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
    attacks: tuple[str, ...] = ("paper", "exact")
    records: int = 20
    width: int = 512
    steps: int = 3000
    repeats: int = 1
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class LeakFactors:
    """000, Figures 5, 7 and 11: which records leak, and the number of classes."""

    records: int = 60
    width: int = 300
    classes: tuple[int, ...] = (2, 3, 5, 10)
    class_records: int = 30
    attack: str = "paper"
    steps: int = 2500
    repeats: int = 1
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Onion:
    """000, Figures 6 and 21: remove the most exposed records, train again, attack again."""

    records: int = 40
    remove: int = 8
    rounds: int = 3
    per_root: float = 55.0  # width = 55 sqrt(n)
    # (which records are removed, as many of each class)
    removals: tuple[tuple[str, bool], ...] = (
        ("exposed", True),
        ("random", True),
        ("exposed", False),
    )
    attack: str = "paper"
    steps: int = 2500
    repeats: int = 1
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


QUICK_KERNEL = KernelDistance(widths=(64, 128, 256), records=(6, 12), steps=1000)
QUICK_STOPPING = EarlyStopping(
    stops=(1e-1, 1e-3, 1e-5), records=10, width=256, repeats=1, steps=1500
)
QUICK_FACTORS = LeakFactors(
    records=30, width=200, classes=(2, 10), class_records=20, steps=1500, repeats=1
)
QUICK_ONION = Onion(
    records=30, remove=6, rounds=3, removals=(("exposed", True), ("random", True)), steps=1000
)


def sides_of(settings: Any, data: Mapping[str, Examples], records: int, seed: int) -> Split:
    examples = data[settings.data[0]]
    if settings.task:
        examples = binary_task(examples, settings.task)
    sides = split(examples, train=records, public=None, holdout=records, seed=seed)
    return replace(sides, public=sides.public.take(range(min(2000, len(sides.public)))))


def rank_correlation(rows: Sequence[Row], x: str, y: str) -> float | None:
    """Spearman's, over rows that have both; None where fewer than three do, or one is constant."""
    pairs = [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]
    if len(pairs) < 3 or any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def words(rho: float | None) -> str:
    return "unknown" if rho is None else f"{rho:.2f}"


# kernel distance


def kernel_cells(settings: KernelDistance, seed: int) -> list[Row]:
    return [
        {"dynamics": dynamics, "width": width, "records": n, "seed": seed}
        for dynamics in settings.dynamics
        for width in settings.widths
        for n in settings.records
    ]


def measure_kernel(settings: KernelDistance, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    sides = sides_of(settings, data, cell["records"], cell["seed"])
    run = finish_training(
        sides.train,
        sides.public,
        width=cell["width"],
        seed=cell["seed"],
        dynamics=cell["dynamics"],
        stop_loss=settings.stop_loss,
    )
    return [cell | scored(run, *attacked(run, settings.attack, settings.steps, cell["seed"]))]


def plot_kernel(rows: Sequence[Row]) -> tuple[Panel, ...]:
    rho = rank_correlation(rows, "kernel_distance", "mean_error")
    return line_panels(
        rows,
        panel=lambda row: f"{row['dynamics']} dynamics",
        line=lambda row: f"{row['records']} records",
        x="kernel_distance",
        y="mean_error",
        across=f"d(K0, Kf); rank correlation {words(rho)} over {len(rows)} targets",
        up="mean squared L2",
    )


# early stopping


def stopping_cells(settings: EarlyStopping, seed: int) -> list[Row]:
    return [
        {"stop_loss": stop, "attack": attack, "seed": seed + k}
        for stop in settings.stops
        for attack in settings.attacks
        for k in range(settings.repeats)
    ]


def measure_stopping(settings: EarlyStopping, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    sides = sides_of(settings, data, settings.records, cell["seed"])
    run = finish_training(
        sides.train,
        sides.public,
        width=settings.width,
        seed=cell["seed"],
        stop_loss=cell["stop_loss"],
    )
    return [cell | scored(run, *attacked(run, cell["attack"], settings.steps, cell["seed"]))]


def plot_stopping(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel=lambda row: "standard dynamics",
        line=lambda row: row["attack"],
        x="stop_loss",
        y="mean_error",
        across="training loss at the end",
        up="mean squared L2",
    )


# which records leak


def factor_cells(settings: LeakFactors, seed: int) -> list[Row]:
    seeds = [seed + k for k in range(settings.repeats)]
    return [{"part": "records", "classes": 2, "seed": s} for s in seeds] + [
        {"part": "classes", "classes": c, "seed": s} for c in settings.classes for s in seeds
    ]


def measure_factors(settings: LeakFactors, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    if cell["part"] == "records":
        return _measure_records(settings, cell, data)
    examples = data[settings.data[0]]
    chosen = examples.take((examples.labels < cell["classes"]).nonzero().flatten())
    n = settings.class_records
    sides = split(chosen, train=n, public=None, holdout=n, seed=cell["seed"])
    run = finish_training(sides.train, sides.public, width=settings.width, seed=cell["seed"])
    outcome = attacked(run, settings.attack, settings.steps, cell["seed"])
    return [cell | {"records": n} | scored(run, *outcome)]


def _measure_records(settings: LeakFactors, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """One row a record: its error, and what might explain it."""
    sides = sides_of(settings, data, settings.records, cell["seed"])
    run, integral = train_and_integrate(
        sides.train, sides.public, width=settings.width, seed=cell["seed"]
    )
    error, seconds = attacked(run, settings.attack, settings.steps, cell["seed"])
    dual, influence = duals_and_influence(run)
    whole = scored(run, error, seconds / len(error))
    return [
        cell | {"records": len(error), "id": run.truth.ids[i], "label": int(run.truth.labels[i])}
        | {"error": finite(error[i]), "dual": abs(float(dual[i]))}
        | {"error_integral": abs(float(integral[i])), "influence": abs(float(influence[i]))}
        | whole
        for i in range(len(error))
    ]  # fmt: skip


def plot_factors(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Errors by fifths of what might explain them, and by the number of classes."""
    records = [row for row in rows if row["part"] == "records"]
    shown: list[Row] = []
    for factor in ("dual", "error_integral", "influence"):
        rho = words(rank_correlation(records, factor, "error"))
        ordered = sorted(records, key=lambda row: row[factor])
        shown += [
            {"panel": f"{factor.replace('_', ' ')} (rank correlation {rho})"}
            | {"x": f"fifth {1 + 5 * i // len(ordered)}", "error": row["error"]}
            for i, row in enumerate(ordered)
        ]
    shown += [
        {"panel": "number of classes", "x": str(row["classes"]), "error": row["mean_error"]}
        for row in rows
        if row["part"] == "classes"
    ]
    return line_panels(
        shown,
        panel=lambda row: row["panel"],
        line=lambda row: "median",
        x="x",
        y="error",
        across=lambda title: "classes" if "classes" in title else "records by size, smallest first",
        up="squared L2",
    )


# the privacy onion


def onion_cells(settings: Onion, seed: int) -> list[Row]:
    return [
        {"removed": removed, "balanced": balanced, "seed": seed + k}
        for removed, balanced in settings.removals
        for k in range(settings.repeats)
    ]


def measure_onion(settings: Onion, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """A row a round. `top`: the records that are removed next if the most exposed are."""
    sides = sides_of(settings, data, settings.records, cell["seed"])
    generator = generator_for(cell["seed"], "removal")
    left, before, rows = sides.train, dict[str, float](), []
    for turn in range(settings.rounds + 1):
        width = round(settings.per_root * math.sqrt(len(left)))
        run = finish_training(left, sides.public, width=width, seed=cell["seed"])
        error, seconds = attacked(run, settings.attack, settings.steps, cell["seed"])
        top = most_exposed(error, left.labels, settings.remove, cell["balanced"])
        earlier = [before[left.ids[i]] for i in top.tolist() if left.ids[i] in before]
        rows.append(
            cell
            | {"round": turn, "records": len(left), "width": width}
            | {"top_error": finite(error[top].mean())}
            | {"top_before": finite(sum(earlier) / len(earlier)) if earlier else None}
            | {"test_accuracy": accuracy(run, sides.public)}
            | scored(run, error, seconds)
        )
        before = dict(zip(left.ids, error.tolist(), strict=True))
        if cell["removed"] == "random":
            noise = torch.rand(len(left), generator=generator)
            top = most_exposed(noise, left.labels, settings.remove, cell["balanced"])
        kept = torch.ones(len(left), dtype=torch.bool)
        kept[top] = False
        left = left.take(kept.nonzero().flatten())
    return rows


def most_exposed(error: Tensor, labels: Tensor, count: int, balanced: bool) -> Tensor:
    """Rows of the `count` smallest errors; balanced: as many of each class as the count allows."""
    order = error.argsort(stable=True)
    if not balanced:
        return order[:count]
    classes = labels.unique().tolist()
    each = count // len(classes)
    return torch.cat([order[labels[order] == c][:each] for c in classes])


def plot_onion(rows: Sequence[Row]) -> tuple[Panel, ...]:
    def name(row: Mapping[str, Any]) -> str:
        return f"{row['removed']}{'' if row['balanced'] else ', any class'}"

    shared: Any = {"line": name, "x": "records", "across": "records left", "log_x": False}
    errors = line_panels(
        rows,
        panel=lambda row: "the most exposed of each round",
        y="top_error",
        up="mean squared L2",
        log_y=False,
        **shared,
    )
    tests = line_panels(
        [row | {"score": 100 * row["test_accuracy"]} for row in rows],
        panel=lambda row: "test accuracy, %",
        y="score",
        up="mean squared L2",
        log_y=False,
        **shared,
    )
    return (*errors, *tests)
