"""Paper 000: why weight differences leak, and which records do (sections 4 and 6, Appendix I).

Errors are squared L2 in pixels between a record and its candidate, one to one, beside the null: as
many images again that were not trained on, taken for candidates. Targets and attacks are those of
`kernel_targets`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from statistics import fmean, mode
from typing import Any

import torch
from torch import Tensor

from remnant.data import split
from remnant.experiments import distill_series, fine_tuning, haim
from remnant.experiments.kernel_targets import (
    attack_named,
    attacked,
    duals_and_influence,
    finish_training,
    sides_of,
    train_and_integrate,
)
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import accuracy_on, errors, matched_sheet, of_classes
from remnant.experiments.targets import attack as play
from remnant.seeds import generator_for
from remnant.types import Examples, finite

FACTORS = ("dual", "error_integral", "influence")

# measures


def measure_target(
    examples: Examples, *, task: str, records: int, seed: int, attack: str, steps: int,
    **training: Any,
) -> Rows:  # fmt: skip
    """One target, one attack. training: arguments of `finish_training`."""
    scene = finish_training(sides_of(examples, task, records, seed), seed=seed, **training)
    return [attacked(scene, attack, steps, seed)[1]]


def width_for(per_root: float, records: int) -> int:
    """The paper's, which keeps the attack from recovering all or none."""
    return round(per_root * math.sqrt(records))


def measure_factors(
    examples: Examples, *, part: str, classes: int, task: str, records: int, class_records: int,
    per_root: float, width: int | None, attack: str, steps: int, seed: int,
) -> Rows:  # fmt: skip
    """Part `records`: a row a record, its error and what might explain it. Part `classes`: a row
    of as many records of more or fewer classes."""
    n = records if part == "records" else class_records
    width = width or width_for(per_root, n)
    if part == "classes":
        few = of_classes(examples, classes)
        sides = split(few, train=n, public=None, holdout=n, seed=seed)
        scene = finish_training(sides, width=width, seed=seed)
        return [{"width": width} | attacked(scene, attack, steps, seed)[1]]
    sides = sides_of(examples, task, n, seed)
    scene, integral = train_and_integrate(sides, width=width, seed=seed)
    error, whole = attacked(scene, attack, steps, seed)
    null = errors(scene.truth, scene.public.inputs[: 2 * n])
    dual, influence = duals_and_influence(scene)
    whole |= {"width": width, "cpu_seconds": whole["cpu_seconds"] / n}
    each = {"dual": dual.abs(), "error_integral": integral.abs(), "influence": influence.abs()}
    each |= {"error": error, "null": null}
    return [
        whole
        | {"id": scene.truth.ids[i], "label": int(scene.truth.labels[i])}
        | {name: finite(float(values[i])) for name, values in each.items()}
        for i in range(n)
    ]


def measure_onion(
    examples: Examples, *, removed: str, balanced: bool, attack: str, dynamics: str, task: str,
    records: int,
    remove: int, rounds: int, per_root: float, width: int | None, steps: int, seed: int,
) -> Rows:  # fmt: skip
    """Remove the most exposed records, train again, attack again: a row a round.

    `top`: the records that are removed next if the most exposed are.
    """
    sides = sides_of(examples, task, records, seed)
    generator = generator_for(seed, "removal")
    left, before, rows = sides.train, dict[str, float](), []
    for turn in range(rounds + 1):
        wide = width or width_for(per_root, len(left))
        held = replace(sides, train=left)
        scene = finish_training(held, width=wide, seed=seed, dynamics=dynamics)
        error, row = attacked(scene, attack, steps, seed)
        top = most_exposed(error, left.labels, remove, balanced)
        earlier = [before[left.ids[i]] for i in top.tolist() if left.ids[i] in before]
        rows.append(
            row
            | {"round": turn, "width": wide, "top_error": finite(float(error[top].mean()))}
            | {"top_before": finite(sum(earlier) / len(earlier)) if earlier else None}
        )
        if dynamics == "standard":  # the plain network at a linear model's weights is neither
            rows[-1]["test_accuracy"] = accuracy_on(scene.target, sides.public)
        before = dict(zip(left.ids, error.tolist(), strict=True))
        if removed == "random":
            noise = torch.rand(len(left), generator=generator)
            top = most_exposed(noise, left.labels, remove, balanced)
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


def grid_sheet(data: Mapping[str, Examples], values: Mapping[str, Any], most: int = 20) -> bytes:
    """Figure 1's images: up to `most` records of one network, under them what comes back."""
    examples, seed = next(iter(data.values())), values["seed"][0]
    asked = [max(v) if isinstance(v, list) else v for v in (values["width"], values["records"])]
    task = values["task"] if isinstance(values["task"], str) else values["task"][0]
    sides = sides_of(examples, task, min(most, asked[1]), seed)
    scene = finish_training(sides, width=asked[0], seed=seed)
    found, _ = play(attack_named(values["attack"], scene, values["steps"]), scene.target, seed)
    title = f"{len(scene.truth)} records, width {asked[0]}"
    return matched_sheet(scene.truth, found.inputs, title, f"attack: {values['attack']}")


# rows as they are drawn


def averaged(rows: Rows) -> Rows:
    """A row a target, means over its seeds; `usual`: of the commonest number of records."""
    groups: dict[tuple[Any, ...], Rows] = {}
    for row in rows:
        groups.setdefault((row["dynamics"], row["width"], row["records"]), []).append(row)
    usual = mode(key[2] for key in groups)
    return [
        group[0]
        | {key: fmean(row[key] for row in group) for key in ("kernel_distance", "mean_error")}
        | {"usual": group[0]["records"] == usual}
        for group in groups.values()
    ]


def in_fifths(rows: Rows) -> Rows:
    """Records once for each factor, in its order, and the rows of classes."""
    drawn = [row | {"by": "classes", "group": str(row["classes"])} for row in rows]
    drawn = [row for row in drawn if row["part"] == "classes"]
    records = [row for row in rows if row["part"] == "records"]
    for factor in FACTORS:
        ordered = sorted(records, key=lambda row: row[factor])
        drawn += [
            row | {"by": factor, "group": f"fifth {1 + 5 * i // len(ordered)}"}
            for i, row in enumerate(ordered)
        ]
    return drawn


# declarations

COMMON: Mapping[str, Any] = {"task": "odd-even", "steps": 6000, "data": "mnist"}
ERRORS = ("mean_error", "median_error", "near", "null_error", "cpu_seconds")
MEAN = "mean squared L2"

STUDIES: Mapping[str, Study] = {
    "kernel-distance": Study(
        title="Mean error of reconstructions against how far training moved the kernel",
        measure=measure_target,
        settings={
            # One number of records for all dynamics, since more records are harder by themselves.
            "dynamics records": [
                ("standard", 16), ("lazy 3", 16), ("lazy 10", 16), ("linearised", 16),
                ("standard", 8), ("standard", 32),
            ],
            "width": [64, 128, 256],
            "attack": "paper",
            "stop_loss": 1e-6,
            **COMMON,
        },
        quick={
            "dynamics records": [
                ("standard", 8), ("lazy 3", 8), ("lazy 10", 8), ("linearised", 8), ("standard", 4),
            ],
            "width": [32, 64, 128],
            "steps": 1500,
        },
        columns=("dynamics", "width", "records", "seed", "kernel_distance", *ERRORS),
        figures=(
            Figure(
                x="kernel_distance", lines={"mean_error": "width {width}"}, across="d(K0, Kf)",
                up=MEAN, panel="{records} records, by kernel distance", only={"usual": True},
                rank="kernel_distance", log_x=False, log_y=False,
            ),
            Figure(
                x="dynamics", lines={"mean_error": "width {width}"}, across="dynamics", up=MEAN,
                panel="{records} records, by dynamics", only={"usual": True}, log_y=False,
            ),
            Figure(
                x="width", lines={"mean_error": "{records} records"}, across="width", up=MEAN,
                panel="standard dynamics", only={"dynamics": "standard"}, log_y=False,
            ),
        ),
        seeds=2,
        condense=averaged,
    ),
    "early-stopping": Study(
        title="What comes back when training stops early",
        measure=measure_target,
        settings={
            "stop_loss": [0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6],
            "attack": ["paper", "exact"],
            "records": 20,
            "width": 512,
            **COMMON,
        },
        quick={"stop_loss": [1e-1, 1e-3, 1e-5], "records": 8, "width": 128, "steps": 2000},
        columns=("attack", "stop_loss", "seed", "kernel_distance", *ERRORS),
        figures=(
            Figure(
                x="stop_loss", lines={"mean_error": "{attack}"}, across="training loss at the end",
                up=MEAN, panel="standard dynamics",
            ),
        ),
    ),
    "leak-factors": Study(
        title="Which records leak, and how the number of classes matters",
        measure=measure_factors,
        settings={
            "part classes": [("records", 2), *(("classes", c) for c in (2, 3, 5, 10))],
            "records": 40,
            "class_records": 30,
            "per_root": 55.0,  # width = 55 sqrt(n), where none is given
            "width": None,
            "attack": "paper",
            **COMMON,
        },
        quick={"part classes": [("records", 2), ("classes", 2), ("classes", 10)]}
        | {"records": 20, "class_records": 10, "steps": 1500},
        columns=(
            "part", "classes", "id", "error", "null", "dual", "error_integral", "influence",
            *ERRORS,
        ),
        figures=(
            *(
                Figure(
                    x="group", lines={"error": "candidates", "null": "other images"},
                    across="records by size, smallest first", up="median squared L2",
                    panel=factor.replace("_", " "), only={"by": factor}, rank=factor,
                )
                for factor in FACTORS
            ),
            Figure(
                x="group", lines={"mean_error": "candidates", "null_error": "other images"},
                across="classes", up="median squared L2", panel="number of classes",
                only={"by": "classes"},
            ),
        ),
        seeds=2,
        condense=in_fifths,
    ),
    "onion": Study(
        title="Remove the most exposed records, train again, attack again",
        measure=measure_onion,
        settings={
            "removed balanced attack dynamics": [
                ("exposed", True, "paper", "standard"),
                ("random", True, "paper", "standard"),
                ("exposed", False, "paper", "standard"),
                ("exposed", True, "exact", "standard"),
                ("exposed", True, "exact", "linearised"),
            ],
            "records": 30,
            "remove": 6,
            "rounds": 3,
            "per_root": 55.0,
            "width": None,
            **COMMON,
        },
        quick={
            "removed balanced attack dynamics": [
                ("exposed", True, "paper", "standard"),
                ("random", True, "paper", "standard"),
                ("exposed", True, "exact", "linearised"),
            ],
            "records": 16,
            "remove": 4,
            "rounds": 2,
            "steps": 1500,
        },
        columns=(
            "removed", "balanced", "attack", "dynamics", "round", "records", "top_error",
            "top_before", "test_accuracy", *ERRORS,
        ),
        figures=(
            Figure(
                x="records", lines={"top_error": "{removed}, balanced: {balanced}"},
                across="records left", up=MEAN, panel="the most exposed of each round",
                only={"attack": "paper"}, log_x=False, log_y=False,
            ),
            Figure(
                x="records", lines={"percent": "{removed}, balanced: {balanced}"},
                across="records left", up="%", panel="test accuracy, {attack}",
                log_x=False, log_y=False,
            ),
        ),
        condense=lambda rows: [
            row | {"percent": 100 * row["test_accuracy"]} if "test_accuracy" in row else row
            for row in rows
        ],
    ),
    "ntk-grid": Study(
        title="Weight differences and the exact attack: width against the number of records",
        measure=measure_target,
        settings={
            **COMMON,
            "task": ["odd-even", "all classes"],
            "width": [64, 128, 256, 512],
            "records": [5, 10, 20, 40, 80],
            "attack": "exact",
            "steps": 0,
        },
        quick={"width": [64, 128], "records": [5, 10, 20]},
        columns=(
            "task", "width", "records", "near", "certified", "status", "mean_error",
            "kernel_distance", "null_near", "cpu_seconds",
        ),
        figures=(
            Figure(
                x="records", lines={"share": "width {width}"}, across="records",
                up="share recovered", panel="{task}", log_y=False,
            ),
        ),
        sheet=grid_sheet,
    ),
    "against-haim": haim.STUDY,
    "distill-series": distill_series.STUDY,
    "fine-tuning": fine_tuning.STUDY,
}  # fmt: skip
