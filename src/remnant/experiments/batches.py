"""What more one gradient gives away than paper 002's pairs: batches, noise, defences.

Batches are of dense ReLU networks: two hidden layers with biases, cross-entropy, random weights as
PyTorch draws them. Errors are squared L2 in the data's own scale.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remnant.attacks import Gradient
from remnant.capturing import capture
from remnant.experiments.study import Figure, Rows, Study, listed
from remnant.experiments.targets import (
    CRITERIA,
    Scene,
    attack,
    dense,
    draw_sides,
    place,
    squared_scores,
)
from remnant.models import build
from remnant.seeds import generator_for
from remnant.sweep.table import Row
from remnant.training import defences as defend
from remnant.types import Examples, Knowledge, Target, Weights


def meet_clients(examples: Examples, width: int, records: int, seed: int) -> Scene:
    """A model that was sent out, and the records of those who answer."""
    sides, scaling = draw_sides(examples, records, seed, holdout=1)
    text = dense(examples, width, width)
    return place(build(text, generator=generator_for(seed, f"weights {width}")), sides, scaling)


def gradient_of(clients: Scene, rows: slice = slice(None)) -> dict[str, Tensor]:
    """Of the mean loss over these records."""
    inputs = clients.target.scaling.to_model(clients.truth.inputs[rows])
    return capture(clients.target.model, "ce", (inputs, clients.truth.labels[rows]))


def sees(clients: Scene, gradient: Weights, *, tell_count: bool) -> Target:
    """The adversary's view of a gradient. Noise hides where the spectrum ends: then the number of
    records, which may be known, is told."""
    records = len(clients.truth) if tell_count else None
    known = Knowledge(gradient=gradient, records=records, loss="ce")
    return replace(clients.target, knowledge=known)


def measure_batch(
    examples: Examples, *, width: int, records: int, seed: int, least_steps: int,
    most_seconds: float, patience: int,
) -> Rows:  # fmt: skip
    """The exact row, then matching's: it is told the number of records, and gets equal time."""
    clients = meet_clients(examples, width, records, seed)
    gradient = gradient_of(clients)
    alone = sees(clients, gradient, tell_count=False)
    found, seconds = attack(Gradient(patience=patience), alone, seed)
    exact: Row = {"method": "exact", "steps": None} | squared_scores(clients, found, seconds)
    told = sees(clients, gradient, tell_count=True)
    steps = affordable(told, min(seconds, most_seconds), least_steps, seed)
    found, seconds = attack(Gradient(preset="matching", steps=steps), told, seed)
    matching: Row = {"method": "matching", "steps": steps}
    matching |= squared_scores(clients, found, seconds)
    return [row | {"share": row["recovered"] / records} for row in (exact, matching)]


def affordable(target: Target, seconds: float, least: int, seed: int) -> int:
    """How many steps of matching fit into the time, from two short runs after one to warm up."""
    short, long = 1, 4
    runs = [Gradient(preset="matching", steps=n) for n in (short, short, long)]
    _, one, some = (attack(run, target, seed)[1] for run in runs)
    # A clock that stumbles must not buy many steps: at most twice those of the longer run's rate.
    step = max((some - one) / (long - short), some / long / 2)
    start = max(some - long * step, 0.0)
    return max(least, int((seconds - start) / step))


def measure_defence(
    examples: Examples, *, width: int, records: int, defence: str, strength: Any, patience: int,
    seed: int,
) -> Rows:  # fmt: skip
    """What a client does to its gradient before sending it. records: of one client."""
    total = strength if defence == "batch" else records
    if defence == "clients":
        total = records * strength
    clients = meet_clients(examples, width, total, seed)
    told = bool(strength == "sign" or strength != HARMLESS.get(defence, strength))
    seen = sees(clients, sent(defence, strength, clients, records, seed), tell_count=told)
    found, seconds = attack(Gradient(patience=patience), seen, seed)
    about = {"records": len(clients.truth), "count_told": told}
    return [about | squared_scores(clients, found, seconds)]


def measure_noise(examples: Examples, *, noise: float, **settings: Any) -> Rows:
    """Gaussian noise on the gradient, as a share of each tensor's standard deviation."""
    return measure_defence(examples, defence="noise", strength=noise, **settings)


def sent(kind: str, strength: Any, clients: Scene, size: int, seed: int) -> dict[str, Tensor]:
    """What an adversary sees of the gradients under one defence. size: records of one client."""
    if kind == "clients":
        starts = range(0, len(clients.truth), size)
        return summed([gradient_of(clients, slice(i, i + size)) for i in starts])
    if kind == "clip each":
        each = [gradient_of(clients, slice(i, i + 1)) for i in range(size)]
        return summed([defend.clipped(gradient, strength) for gradient in each])
    gradient = gradient_of(clients)
    ways: dict[str, Callable[[], dict[str, Tensor]]] = {
        "noise": lambda: defend.noisy(gradient, strength, generator=generator_for(seed, "noise")),
        "clip": lambda: defend.clipped(gradient, strength),
        "keep": lambda: defend.pruned(gradient, strength),
        "format": lambda: defend.rounded(gradient, strength),
        "batch": lambda: gradient,
    }
    return ways[kind]()


def summed(gradients: Sequence[Weights]) -> dict[str, Tensor]:
    return {name: torch.stack([g[name] for g in gradients]).sum(0) for name in gradients[0]}


HARMLESS = {"noise": 0.0, "keep": 1.0}  # strengths that leave the spectrum's end to be seen
STRENGTHS: Mapping[str, Sequence[Any]] = {
    "noise": (0.0, 0.001, 0.01, 0.1, 1.0),
    "clip": (1.0, 0.1, 0.01),
    "clip each": (10.0, 1.0, 0.1),
    "keep": (1.0, 0.5, 0.1, 0.01),
    "format": ("float32", "float16", "bfloat16", "sign"),
    "batch": (20, 50, 100, 200, 240, 300),
    "clients": (1, 2, 5, 10, 12, 15),
}
AXES = {
    "noise": "noise / standard deviation",
    "clip": "largest norm of the batch's gradient",
    "clip each": "largest norm of a record's gradient",
    "keep": "share of entries sent, the largest",
    "format": "",
    "batch": "records in the batch",
    "clients": "clients whose gradients are only seen summed",
}


SCORES = (
    "recovered", "near", "null_near", "records", "median_error", "max_error", "certified",
    "wrongly_certified", "status", "cpu_seconds",
)  # fmt: skip
WORST = {"median_error": "median record", "max_error": "worst record"}

STUDIES: Mapping[str, Study] = {
    "gradient-batch": Study(
        title="Records back from one gradient of a dense network, against the batch",
        measure=measure_batch,
        settings={
            "data": ["mnist", "cifar10"],
            "width records": [
                *((256, n) for n in (1, 10, 50, 100, 112, 120, 127)),
                *((512, n) for n in (1, 20, 100, 200, 230, 240)),
                *((1024, n) for n in (1, 50, 200, 300, 400)),
                *((2048, n) for n in (1, 100, 400, 500)),
            ],
            "least_steps": 20,  # of matching, as the next
            "most_seconds": 60.0,
            "patience": 5,  # of the exact search
        },
        quick={
            "data": "mnist",
            "width records": [(256, 1), (256, 10), (256, 50)],
            "most_seconds": 5.0,
        },
        columns=("data", "width", "method", "steps", *SCORES),
        figures=(
            Figure(
                x="records", lines={"share": "{method}"}, across="records in the batch",
                up=f"share of records back (sq. L2 < {CRITERIA.recovered:g})",
                panel="{data}, width {width}", log_x=False, log_y=False,
            ),
        ),
    ),
    "gradient-noise": Study(
        title="Noise on the gradient",
        measure=measure_noise,
        settings={
            "width records": [(1024, 20), (1024, 100)],
            "noise": [0.0, 0.001, 0.01, 0.05, 0.1],
            "patience": 5,
            "data": "mnist",
        },
        quick={"width records": [(256, 10)]},
        columns=("width", "noise", "seed", *SCORES),
        figures=(
            Figure(
                x="noise", lines=WORST, across="noise / standard deviation of the gradient",
                up="squared L2 error (× nothing found)", panel="{records} records, width {width}",
            ),
        ),
        seeds=3,
    ),
    "gradient-defences": Study(
        title="What a client does to its gradient before sending it",
        measure=measure_defence,
        settings={
            "defence strength": listed(STRENGTHS),
            "width": 512,
            "records": 20,
            "patience": 5,
            "data": "mnist",
        },
        quick={
            "defence strength": listed(
                {**STRENGTHS, "batch": (10, 50, 100, 140), "clients": (1, 5, 10, 14)}
            ),
            "width": 256,
            "records": 10,
        },
        columns=("defence", "strength", "seed", "counted", *SCORES),
        figures=(
            Figure(
                x="strength", lines=WORST, across=AXES, up="squared L2 error (× nothing found)",
                panel="{defence}",
            ),
        ),
        seeds=3,
    ),
}  # fmt: skip
