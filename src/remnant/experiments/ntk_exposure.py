"""Which records leak (paper 000, section 6): what is large where a record comes back, and what is
exposed once the most exposed are gone. Errors, null and attacks as in `ntk_studies`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from remnant.data import split
from remnant.experiments.ntk_studies import rank_correlation, sides_of, words
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

FACTORS = ("dual", "error_integral", "influence")


@dataclass(frozen=True, kw_only=True)
class LeakFactors:
    """000, Figures 5, 7 and 11: which records leak, and the number of classes."""

    records: int = 40
    per_root: float = 55.0  # width = 55 sqrt(n)
    classes: tuple[int, ...] = (2, 3, 5, 10)
    class_records: int = 30
    attack: str = "paper"
    steps: int = 6000
    repeats: int = 2
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Onion:
    """000, Figures 6 and 21: remove the most exposed records, train again, attack again."""

    records: int = 30
    remove: int = 6
    rounds: int = 3
    per_root: float = 55.0  # width = 55 sqrt(n)
    # (which records are removed, as many of each class, by which attack)
    removals: tuple[tuple[str, bool, str], ...] = (
        ("exposed", True, "paper"),
        ("random", True, "paper"),
        ("exposed", False, "paper"),
        ("exposed", True, "exact"),
    )
    steps: int = 6000
    repeats: int = 1
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


QUICK_FACTORS = LeakFactors(records=20, classes=(2, 10), class_records=10, steps=1500, repeats=1)
QUICK_ONION = Onion(
    records=16, remove=4, rounds=2, steps=1500,
    removals=(("exposed", True, "paper"), ("random", True, "paper")),
)  # fmt: skip


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
    width = width_for(settings.per_root, n)
    run = finish_training(sides.train, sides.public, width=width, seed=cell["seed"])
    outcome = attacked(run, settings.attack, settings.steps, cell["seed"])
    return [cell | {"records": n, "width": width} | scored(run, *outcome)]


def width_for(per_root: float, records: int) -> int:
    """The paper's, which keeps the attack from recovering all or none."""
    return round(per_root * math.sqrt(records))


def _measure_records(settings: LeakFactors, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """One row a record: its error, and what might explain it."""
    sides = sides_of(settings, data, settings.records, cell["seed"])
    width = width_for(settings.per_root, settings.records)
    run, integral = train_and_integrate(sides.train, sides.public, width=width, seed=cell["seed"])
    error, said = attacked(run, settings.attack, settings.steps, cell["seed"])
    dual, influence = duals_and_influence(run)
    said["cpu_seconds"] /= len(error)
    whole = {"records": len(error), "width": width} | scored(run, error, said)
    return [
        cell | {"id": run.truth.ids[i], "label": int(run.truth.labels[i])}
        | {"error": finite(error[i]), "null": float(run.null[i]), "dual": abs(float(dual[i]))}
        | {"error_integral": abs(float(integral[i])), "influence": abs(float(influence[i]))}
        | whole
        for i in range(len(error))
    ]  # fmt: skip


def plot_factors(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Errors by fifths of what might explain them, and by the number of classes."""
    records = [row for row in rows if row["part"] == "records"]
    shown: list[Row] = []
    for factor in FACTORS:
        rho, null = (words(rank_correlation(records, factor, y)) for y in ("error", "null"))
        ordered = sorted(records, key=lambda row: row[factor])
        shown += [
            {"panel": f"{factor.replace('_', ' ')}: rank correlation {rho}, null {null}"}
            | {"x": f"fifth {1 + 5 * i // len(ordered)}", "line": line, "error": row[key]}
            for i, row in enumerate(ordered)
            for line, key in (("candidates", "error"), ("other images", "null"))
        ]
    shown += [
        {"panel": "number of classes", "x": str(row["classes"]), "line": line, "error": row[key]}
        for row in rows
        if row["part"] == "classes"
        for line, key in (("candidates", "mean_error"), ("other images", "null_error"))
    ]
    return line_panels(
        shown,
        panel="panel",
        line="line",
        x="x",
        y="error",
        across=lambda title: "classes" if "classes" in title else "records by size, smallest first",
        up="median squared L2",
    )


# the privacy onion


def onion_cells(settings: Onion, seed: int) -> list[Row]:
    return [
        {"removed": removed, "balanced": balanced, "attack": attack, "seed": seed + k}
        for removed, balanced, attack in settings.removals
        for k in range(settings.repeats)
    ]


def measure_onion(settings: Onion, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """A row a round. `top`: the records that are removed next if the most exposed are."""
    sides = sides_of(settings, data, settings.records, cell["seed"])
    generator = generator_for(cell["seed"], "removal")
    left, before, rows = sides.train, dict[str, float](), []
    for turn in range(settings.rounds + 1):
        width = width_for(settings.per_root, len(left))
        run = finish_training(left, sides.public, width=width, seed=cell["seed"])
        error, said = attacked(run, cell["attack"], settings.steps, cell["seed"])
        top = most_exposed(error, left.labels, settings.remove, cell["balanced"])
        earlier = [before[left.ids[i]] for i in top.tolist() if left.ids[i] in before]
        rows.append(
            cell
            | {"round": turn, "records": len(left), "width": width}
            | {"top_error": finite(error[top].mean())}
            | {"top_before": finite(sum(earlier) / len(earlier)) if earlier else None}
            | {"test_accuracy": accuracy(run, sides.public)}
            | scored(run, error, said)
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
        words = [row["removed"], "" if row["balanced"] else "any class"]
        return ", ".join(w for w in [*words, "" if row["attack"] == "paper" else "exact"] if w)

    shared: Any = {"line": name, "x": "records", "across": "records left", "log_x": False}
    errors = line_panels(
        [row for row in rows if row["attack"] == "paper"] or rows,
        panel=lambda row: "the most exposed of each round",
        y="top_error",
        up="mean squared L2",
        log_y=False,
        **shared,
    )
    tests = line_panels(
        [row | {"score": 100 * row["test_accuracy"]} for row in rows],
        panel=lambda row: "test accuracy",
        y="score",
        up="%",
        log_y=False,
        **shared,
    )
    return (*errors, *tests)
