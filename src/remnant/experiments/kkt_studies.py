"""Papers 003 and 004: what final weights alone give away, and when.

Victims are D-W-W-C networks trained by plain descent with weight decay (or from a small first layer
without), the mean image of public data subtracted. The attack gets the weights, the number of
records and the loss; the truth is used afterwards, to score. Held-out records, as many as there
are candidates, are scored beside it: `null`.
"""

from __future__ import annotations

import math
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks.kkt import KKT
from remnant.data import binary_task, mean_image, split
from remnant.models import build
from remnant.report.lines import Panel, line_panels
from remnant.scoring import papers_ssim, score
from remnant.seeds import generator_for
from remnant.solvers.kkt.network import Layer, read_network
from remnant.training import DecayTime, LossProportional, train
from remnant.training.losses import loss_named
from remnant.types import Candidates, Examples, Knowledge, Scaling, Target

Row = dict[str, Any]
HIGH, LOW = 0.9, 0.8  # centred correlation
NULL = 2  # held-out inputs per record
DECAY, TIME = 5e-3, 7.5
CASES: Mapping[str, dict[str, Any]] = {  # what breaks an assumption
    "none": {},
    "unfinished": {"decay_time": 0.5},
    "not separated": {"weight_decay": 0.13},  # margins give way, the weights not yet
    "biases": {"bias": True},
    "small first layer": {"task": "bce", "small": 1e-4},
    "untrained": {"decay_time": 1e-6},
}
FIFTHS = ("closest", "second", "third", "fourth", "farthest")


@dataclass(frozen=True, kw_only=True, eq=False)
class Victim:
    """A trained model as an adversary sees it, and what only the auditor holds."""

    target: Target
    truth: Examples
    holdout: Examples
    loss: str
    weight_decay: float
    ledger: Mapping[str, Any]


def make_victim(
    examples: Examples,
    *,
    records: int,
    width: int,
    task: str = "ce",
    seed: int,
    weight_decay: float = DECAY,
    decay_time: float | None = None,
    lr: float | None = None,
    bias: bool = False,
    small: float | None = None,
    model: str | None = None,
) -> Victim:
    """task: the loss. `ce` keeps the classes, the others have one output (odd digits against even).

    small: the first layer's scale, trained without decay far past separation (Haim et al. 2022).
    """
    examples = examples if task == "ce" else binary_task(examples, "odd-even")
    sides = split(examples, train=records, public=None, holdout=NULL * records, seed=seed)
    scaling = Scaling(mean=mean_image(sides.public))
    outputs = examples.classes if task == "ce" else 1
    sizes = f"{math.prod(examples.shape)}-{width}-{width}-{outputs}"
    text = model or f"mlp:{sizes}" + ("" if bias else ":nobias")
    start = build(text, generator=generator_for(seed, "weights"), first_layer_scale=small)
    rate = lr or (0.5 if task in ("ce", "bce") else 0.2)
    recipe: DecayTime | LossProportional = DecayTime(
        lr=rate, weight_decay=weight_decay, decay_time=decay_time or TIME, loss=task
    )
    if small is not None:
        recipe = LossProportional(loss=task)
    generator = generator_for(seed, "training")
    done = train(start, sides.train, recipe, scaling=scaling, generator=generator)
    target = Target(
        model=done.model,
        input_shape=examples.shape,
        bounds=examples.bounds,
        scaling=scaling,
        knowledge=Knowledge(records=records, loss=task),
    )
    return Victim(
        target=target,
        truth=sides.train,
        holdout=sides.holdout,
        loss=task,
        weight_decay=0.0 if small is not None else weight_decay,
        ledger=done.ledger,
    )


def above(truth: Examples, candidates: Tensor, threshold: float) -> int:
    """Records whose candidate (one to one) correlates above the threshold."""
    return int((score(truth, candidates).correlation > threshold).sum())


def measured(victim: Victim, how: KKT, seed: int) -> tuple[Candidates, Row]:
    """What comes back, and its figures beside the null's."""
    begun = time.process_time()
    found = how(victim.target, generator=generator_for(seed, "attack"))
    seconds = time.process_time() - begun
    truth, null = victim.truth, victim.holdout.inputs
    recovered = above(truth, found.inputs, HIGH)
    return found, {
        "recovered": recovered,
        "above_0.8": above(truth, found.inputs, LOW),
        "null": above(truth, null, HIGH),
        "null_above_0.8": above(truth, null, LOW),
        "share": recovered / len(truth),
        "agreed": found.figures.get("agreed"),
        "misclassified": found.figures.get("misclassified"),
        "imbalance": found.figures.get("imbalance"),
        "status": str(found.status),
        "cpu_seconds": round(seconds, 3),
    }


def stationarity(victim: Victim) -> Row:
    """How far the weights are from what their own records explain; needs the truth.

    residual: |W_l + grad_l / decay| / |W_l| per layer (None without decay). cosine: of W_l and
    -grad_l. kinks: the share of (record, neuron) pairs of the first hidden layer within 1% of a
    deviation of zero, where ReLU has no slope. errors: records on the wrong side.
    """
    model = victim.target.model
    inputs = victim.target.scaling.to_model(victim.truth.inputs)
    loss = loss_named(victim.loss)(model(inputs), victim.truth.labels)
    weights = [p for p in model.parameters() if p.ndim > 1]
    slopes = torch.autograd.grad(loss, weights)
    pairs = [(w.detach().double(), g.double()) for w, g in zip(weights, slopes, strict=True)]
    decay = victim.weight_decay
    layers = read_network(model)
    assert not isinstance(layers, str), layers
    return {
        "residual": [float((w + g / decay).norm() / w.norm()) for w, g in pairs] if decay else None,
        "cosine": [
            float(-(w * g).sum() / (w.norm() * g.norm()).clamp(min=1e-30)) for w, g in pairs
        ],
        "kinks": _kinks(layers[0], inputs),
        "errors": None if victim.loss not in ("ce", "bce") else int((hardness(victim) <= 0).sum()),
    }


def _kinks(layer: Layer, inputs: Tensor) -> float | None:
    if layer.conv:
        return None
    z = inputs.flatten(1).double() @ layer.weight.T
    z = z if layer.bias is None else z + layer.bias
    return float((z.abs() < 0.01 * z.std()).double().mean())


@dataclass(frozen=True, kw_only=True)
class Grid:
    """Width against number of records, ten classes and two (004, W x N)."""

    widths: tuple[int, ...] = (100, 300)
    records: tuple[int, ...] = (10, 20, 50)
    tasks: tuple[str, ...] = ("ce", "bce")
    starts: int = 2
    steps: int = 600
    repeats: int = 1
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Classes:
    """The same number of records from more or fewer classes."""

    classes: tuple[int, ...] = (2, 3, 5, 10)
    records: int = 30
    width: int = 300
    starts: int = 2
    steps: int = 600
    repeats: int = 2
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Decay:
    """Weight decay, at an equal number of training steps."""

    decays: tuple[float, ...] = (1e-4, 5e-4, 2e-3, 5e-3, 2e-2, 5e-2)
    training_steps: int = 3000
    tasks: tuple[str, ...] = ("ce", "bce")
    records: int = 20
    width: int = 300
    starts: int = 2
    steps: int = 600
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Exposure:
    """Each record's score against its distance to the margin, or its loss."""

    tasks: tuple[str, ...] = ("ce", "bce", "mse", "power2.5", "huber1")
    records: int = 50
    width: int = 300
    starts: int = 2
    steps: int = 600
    repeats: int = 1
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Assumptions:
    """One assumption broken at a time, and what the attack says of it without the truth."""

    cases: tuple[str, ...] = tuple(CASES)
    records: int = 20
    width: int = 300
    starts: int = 3
    steps: int = 600
    data: tuple[str, ...] = ("mnist",)


QUICK_GRID = Grid(widths=(100,), records=(10, 20), steps=300)
QUICK_CLASSES = Classes(classes=(2, 10), records=20, steps=300, repeats=1)
QUICK_DECAY = Decay(decays=(5e-4, 5e-3, 5e-2), tasks=("ce",), width=100, steps=300)
QUICK_EXPOSURE = Exposure(tasks=("ce", "mse"), records=20, width=100, steps=300)
QUICK_ASSUMPTIONS = Assumptions(records=10, width=100, starts=2, steps=300)


def grid_cells(settings: Grid, seed: int) -> list[Row]:
    return [
        {"task": task, "width": width, "records": n, "seed": seed + k}
        for task in settings.tasks
        for width in settings.widths
        for n in settings.records
        for k in range(settings.repeats)
    ]


def measure_grid(settings: Grid, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    victim = make_victim(data[settings.data[0]], **cell)
    _, row = measured(victim, KKT(starts=settings.starts, steps=settings.steps), cell["seed"])
    return [cell | row]


def plot_grid(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return _shares(rows, "task", "width", x="records", across="records")


def classes_cells(settings: Classes, seed: int) -> list[Row]:
    return [
        {"classes": c, "records": settings.records, "seed": seed + k}
        for c in settings.classes
        for k in range(settings.repeats)
    ]


def measure_classes(settings: Classes, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    examples = data[settings.data[0]]
    few = examples.take((examples.labels < cell["classes"]).nonzero().flatten())
    victim = make_victim(few, records=cell["records"], width=settings.width, seed=cell["seed"])
    _, row = measured(victim, KKT(starts=settings.starts, steps=settings.steps), cell["seed"])
    return [cell | row]


def plot_classes(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return _shares(rows, "records", None, x="classes", across="classes")


def decay_cells(settings: Decay, seed: int) -> list[Row]:
    return [
        {"task": task, "weight_decay": decay, "records": settings.records, "seed": seed}
        for task in settings.tasks
        for decay in settings.decays
    ]


def measure_decay(settings: Decay, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    time_ = settings.training_steps * cell["weight_decay"] * 0.5
    victim = make_victim(data[settings.data[0]], width=settings.width, decay_time=time_, **cell)
    _, row = measured(victim, KKT(starts=settings.starts, steps=settings.steps), cell["seed"])
    return [cell | {"decay_time": time_} | stationarity(victim) | row]


def plot_decay(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return _shares(rows, "records", "task", x="weight_decay", across="weight decay", log_x=True)


def exposure_cells(settings: Exposure, seed: int) -> list[Row]:
    return [
        {"task": task, "records": settings.records, "seed": seed + k}
        for task in settings.tasks
        for k in range(settings.repeats)
    ]


def measure_exposure(settings: Exposure, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """One row a record; the CPU time is the attack's, shared out among them."""
    victim = make_victim(data[settings.data[0]], width=settings.width, **cell)
    how = KKT(starts=settings.starts, steps=settings.steps)
    found, row = measured(victim, how, cell["seed"])
    truth = victim.truth
    distance = hardness(victim)
    ranks = distance.argsort().argsort() * len(FIFTHS) // len(truth)
    correlation = score(truth, found.inputs).correlation
    papers = papers_ssim(truth, found.inputs, mean=victim.target.scaling.mean)
    return [
        cell
        | {
            "id": truth.ids[i],
            "hardness": float(distance[i]),
            "fifth": FIFTHS[int(ranks[i])],
            "correlation": float(correlation[i].nan_to_num(0.0)),
            "ssim": float(papers[i]),
            "cpu_seconds": row["cpu_seconds"] / len(truth),
        }
        for i in distance.argsort().tolist()
    ]


def hardness(victim: Victim) -> Tensor:
    """n: the margin to the nearest boundary (classes), or the negative loss (regression)."""
    with torch.no_grad():
        outputs = victim.target.model(victim.target.scaling.to_model(victim.truth.inputs)).double()
    labels = victim.truth.labels
    if victim.loss == "ce":
        mine = nn.functional.one_hot(labels, outputs.shape[1]).bool()
        margin: Tensor = outputs[mine] - outputs.masked_fill(mine, -torch.inf).max(1).values
        return margin
    signed: Tensor = outputs[:, 0] * (2 * labels - 1)
    return signed if victim.loss == "bce" else -(1 - signed).abs()


def plot_exposure(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel="task",
        line=lambda row: "median of a fifth",
        x="fifth",
        y="correlation",
        across="records by margin, or by falling loss",
        up="correlation",
        log_x=False,
        log_y=False,
    )


def assumptions_cells(settings: Assumptions, seed: int) -> list[Row]:
    return [{"case": case, "records": settings.records, "seed": seed} for case in settings.cases]


def measure_assumptions(
    settings: Assumptions, cell: Row, data: Mapping[str, Examples]
) -> list[Row]:
    victim = make_victim(
        data[settings.data[0]],
        records=cell["records"],
        width=settings.width,
        seed=cell["seed"],
        **CASES[cell["case"]],
    )
    how = KKT(starts=settings.starts, steps=settings.steps)
    found, row = measured(victim, how, cell["seed"])
    return [cell | stationarity(victim) | row | {"reason": found.reason}]


def plot_assumptions(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return _shares(rows, "records", None, x="case", across="what is broken")


def _shares(
    rows: Sequence[Row], panel: str, line: str | None, *, x: str, across: str, log_x: bool = False
) -> tuple[Panel, ...]:
    """Shares of records above .9, and the null's."""
    doubled = [
        row | {"what": what, "height": row[key] / row["records"]}
        for key, what in (("recovered", "attack"), ("null", "held-out"))
        for row in rows
    ]
    return line_panels(
        doubled,
        panel=lambda row: f"{panel} {row[panel]}",
        line=lambda row: row["what"] if line is None else f"{row['what']}, {line} {row[line]}",
        x=x,
        y="height",
        across=across,
        up="share of records above .9",
        log_x=log_x,
        log_y=False,
    )
