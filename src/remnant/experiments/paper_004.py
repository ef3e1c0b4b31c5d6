"""Papers 003 and 004: what final weights alone give away, and when.

Targets are D-W-W-C networks trained by plain descent with weight decay (or from a small first layer
without). The attack gets the weights, the number of records and the loss. Records are counted whose
candidate correlates above .9 (and .8); `null` counts held-out records in the candidates' place.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks.kkt import KKT
from remnant.data import binary_task
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import (
    Scene,
    above,
    attack,
    dense,
    draw_sides,
    of_classes,
    train_scene,
)
from remnant.models import build
from remnant.scoring import papers_ssim, score
from remnant.seeds import generator_for
from remnant.solvers.kkt.network import read_network
from remnant.sweep.table import Row
from remnant.training import DecayTime, LossProportional, loss_named
from remnant.types import Candidates, Examples

CASES: Mapping[str, dict[str, Any]] = {  # what breaks an assumption
    "none": {},
    "unfinished": {"decay_time": 0.5},
    "not separated": {"weight_decay": 0.13},  # margins give way, the weights not yet
    "biases": {"bias": True},
    "small first layer": {"task": "bce", "small": 1e-4},
    "untrained": {"decay_time": 1e-6},
}
FIFTHS = ("closest", "second", "third", "fourth", "farthest")


def make_victim(
    examples: Examples,
    *,
    records: int,
    width: int,
    task: str = "ce",
    seed: int,
    weight_decay: float = 5e-3,
    decay_time: float = 7.5,
    lr: float | None = None,
    bias: bool = False,
    small: float | None = None,
    model: str | None = None,
    tell: Sequence[str] = ("records", "loss"),
) -> Scene:
    """task: the loss. `ce` keeps the classes, the others have one output (odd digits against even).

    small: the first layer's scale, trained without decay far past separation (Haim et al. 2022).
    """
    examples = examples if task == "ce" else binary_task(examples, "odd-even")
    sides, scaling = draw_sides(examples, records, seed)
    outputs = examples.classes if task == "ce" else 1
    options = "" if bias else ":nobias"
    text = model or dense(examples, width, width, outputs=outputs, options=options)
    start = build(text, generator=generator_for(seed, "weights"), first_layer_scale=small)
    recipe: DecayTime | LossProportional = DecayTime(
        lr=lr or (0.5 if task in ("ce", "bce") else 0.2),
        weight_decay=weight_decay,
        decay_time=decay_time,
        loss=task,
    )
    if small is not None:
        recipe = LossProportional(loss=task)
    return train_scene(start, sides, scaling, recipe, seed=seed, tell=tell)


def measured(victim: Scene, how: KKT, seed: int) -> tuple[Candidates, Row]:
    """What comes back, and its figures beside the null's."""
    found, seconds = attack(how, victim.target, seed)
    truth, null, n = victim.truth, victim.holdout.inputs, len(victim.truth)
    row: Row = {
        "recovered": above(truth, found.inputs, 0.9),
        "above_0.8": above(truth, found.inputs, 0.8),
        "null": above(truth, null, 0.9),
        "null_above_0.8": above(truth, null, 0.8),
    }
    row |= {"share": row["recovered"] / n, "null_share": row["null"] / n}
    for name in ("agreed", "misclassified", "imbalance"):
        row[name] = found.figures.get(name)
    about = {"status": str(found.status), "reason": found.reason, "cpu_seconds": seconds}
    return found, row | about


def stationarity(victim: Scene) -> Row:
    """How far the weights are from what their own records explain; needs the truth.

    residual: |W_l + grad_l / decay| / |W_l| per layer (None without decay). cosine: of W_l and
    -grad_l. kinks: the share of (record, neuron) pairs of the first hidden layer within 1% of a
    deviation of zero, where ReLU has no slope. errors: records on the wrong side.
    """
    model, loss_name = victim.target.model, victim.target.knowledge.loss or "ce"
    inputs = victim.target.scaling.to_model(victim.truth.inputs)
    loss = loss_named(loss_name)(model(inputs), victim.truth.labels)
    weights = [p for p in model.parameters() if p.ndim > 1]
    slopes = torch.autograd.grad(loss, weights)
    pairs = [(w.detach().double(), g.double()) for w, g in zip(weights, slopes, strict=True)]
    decay = victim.training["recipe"].get("weight_decay", 0.0)
    layers = read_network(model)
    assert not isinstance(layers, str), layers
    z = inputs.flatten(1).double() @ layers[0].weight.T
    z = z if layers[0].bias is None else z + layers[0].bias
    return {
        "residual": [float((w + g / decay).norm() / w.norm()) for w, g in pairs] if decay else None,
        "cosine": [
            float(-(w * g).sum() / (w.norm() * g.norm()).clamp(min=1e-30)) for w, g in pairs
        ],
        "kinks": float((z.abs() < 0.01 * z.std()).double().mean()),
        "errors": int((hardness(victim) <= 0).sum()) if loss_name in ("ce", "bce") else None,
    }


def hardness(victim: Scene) -> Tensor:
    """n: the margin to the nearest boundary (classes), or the negative loss (regression)."""
    labels, loss = victim.truth.labels, victim.target.knowledge.loss
    with torch.no_grad():
        outputs = victim.target.model(victim.target.scaling.to_model(victim.truth.inputs)).double()
    if loss == "ce":
        mine = nn.functional.one_hot(labels, outputs.shape[1]).bool()
        margin: Tensor = outputs[mine] - outputs.masked_fill(mine, -torch.inf).max(1).values
        return margin
    signed: Tensor = outputs[:, 0] * (2 * labels - 1)
    return signed if loss == "bce" else -(1 - signed).abs()


def measure_target(
    examples: Examples,
    *,
    starts: int,
    steps: int,
    seed: int,
    case: str = "none",
    classes: int | None = None,
    training_steps: int | None = None,
    **target: Any,
) -> Rows:
    """One row of one target. case: of `CASES`. classes: only the first ones. training_steps: how
    long it is trained, where that is not by the decay time."""
    if classes is not None:
        examples = of_classes(examples, classes)
    if training_steps is not None:
        target["decay_time"] = training_steps * target["weight_decay"] * 0.5
    victim = make_victim(examples, seed=seed, **target | CASES[case])
    _, row = measured(victim, KKT(starts=starts, steps=steps), seed)
    return [{"decay_time": target.get("decay_time")} | stationarity(victim) | row]


def measure_exposure(
    examples: Examples, *, starts: int, steps: int, seed: int, **target: Any
) -> Rows:
    """One row a record; the CPU time is the attack's, shared out among them."""
    victim = make_victim(examples, seed=seed, **target)
    found, row = measured(victim, KKT(starts=starts, steps=steps), seed)
    truth, distance = victim.truth, hardness(victim)
    ranks = distance.argsort().argsort() * len(FIFTHS) // len(truth)
    correlation = score(truth, found.inputs).correlation.nan_to_num(0.0)
    papers = papers_ssim(truth, found.inputs, mean=victim.target.scaling.mean)
    return [
        {
            "id": truth.ids[i],
            "hardness": float(distance[i]),
            "fifth": FIFTHS[int(ranks[i])],
            "correlation": float(correlation[i]),
            "ssim": float(papers[i]),
            "cpu_seconds": row["cpu_seconds"] / len(truth),
        }
        for i in distance.argsort().tolist()
    ]


def shares(x: str, across: str, panel: str, line: str = "", *, log_x: bool = False) -> Figure:
    """Shares of records above .9, and the null's."""
    lines = {"share": f"attack{line}", "null_share": f"held-out{line}"}
    up = "share of records above .9"
    return Figure(x=x, lines=lines, across=across, up=up, panel=panel, log_x=log_x, log_y=False)


COUNTS = (
    "recovered", "above_0.8", "null", "null_above_0.8", "agreed", "imbalance", "status",
    "cpu_seconds",
)  # fmt: skip
BASE: Mapping[str, Any] = {"data": "mnist", "width": 300, "starts": 2, "steps": 600}

STUDIES: Mapping[str, Study] = {
    "kkt-grid": Study(
        title="Final weights alone: width against the number of records",
        measure=measure_target,
        settings={"task": ["ce", "bce"], **BASE, "width": [100, 300], "records": [10, 20, 50]},
        quick={"width": [100], "records": [10, 20], "steps": 300},
        columns=("task", "width", "records", "seed", *COUNTS),
        figures=(shares("records", "records", "task {task}", ", width {width}"),),
    ),
    "kkt-classes": Study(
        title="Final weights alone: more classes leak more",
        measure=measure_target,
        settings={"classes": [2, 3, 5, 10], "records": 30, **BASE},
        quick={"classes": [2, 10], "records": 20, "steps": 300},
        columns=("classes", "records", "seed", *COUNTS),
        figures=(shares("classes", "classes", "records {records}"),),
        seeds=2,
    ),
    "kkt-decay": Study(
        title="Final weights alone: weight decay in a middle range leaks most",
        measure=measure_target,
        settings={
            "task": ["ce", "bce"],
            "weight_decay": [1e-4, 5e-4, 2e-3, 5e-3, 2e-2, 5e-2],
            "training_steps": 3000,
            "records": 20,
            **BASE,
        },
        quick={"task": ["ce"], "weight_decay": [5e-4, 5e-3, 5e-2], "width": 100, "steps": 300},
        columns=("task", "weight_decay", "records", "seed", *COUNTS),
        figures=(
            shares(
                "weight_decay", "weight decay", "records {records}", ", task {task}", log_x=True
            ),
        ),
    ),
    "kkt-assumptions": Study(
        title="Final weights alone: one assumption broken at a time",
        measure=measure_target,
        settings={"case": list(CASES), "records": 20, **BASE, "starts": 3},
        quick={"records": 10, "width": 100, "starts": 2, "steps": 300},
        columns=("case", "records", "seed", *COUNTS),
        figures=(shares("case", "what is broken", "records {records}"),),
    ),
    "kkt-exposure": Study(
        title="Final weights alone: which records leak, by margin or loss",
        measure=measure_exposure,
        settings={"task": ["ce", "bce", "mse", "power2.5", "huber1"], "records": 50, **BASE},
        quick={"task": ["ce", "mse"], "records": 20, "width": 100, "steps": 300},
        columns=("task", "seed", "id", "hardness", "fifth", "correlation", "ssim"),
        figures=(
            Figure(
                x="fifth",
                lines={"correlation": "median of a fifth"},
                across="records by margin, or by falling loss",
                up="correlation",
                panel="{task}",
                log_x=False,
                log_y=False,
            ),
        ),
    ),
}
