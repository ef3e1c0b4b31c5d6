"""Batches from one gradient of a dense ReLU network: how many, under which noise and defences.

Two hidden layers with biases, cross-entropy, random weights as PyTorch draws them. The attack gets
a `Target` and a generator; the truth is used afterwards, to score. Errors are squared L2 in the
data's own scale, records and candidates matched one to one, the closest first.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks import Gradient
from remnant.capturing import capture
from remnant.data import mean_image, split
from remnant.experiments.gradient_studies import finite
from remnant.models import build
from remnant.report.lines import Panel, line_panels
from remnant.scoring import greedy, squared_l2
from remnant.seeds import generator_for
from remnant.training import defences as defend
from remnant.types import Candidates, Examples, Knowledge, Scaling, Target, Weights

Row = dict[str, Any]
RECOVERED = 1e-6  # squared L2 below which a record is back
NEAR = 0.1  # of what the mean image is off by: below, a candidate shows its record, above not
LOSS = "ce"


@dataclass(frozen=True, kw_only=True)
class Batches:
    """How many records come back at which width, beside matching given the same CPU time."""

    # (width, batch sizes up to the limit of half the width)
    grid: tuple[tuple[int, tuple[int, ...]], ...] = (
        (256, (1, 10, 50, 100, 112, 120, 127)),
        (512, (1, 20, 100, 200, 230, 240)),
        (1024, (1, 50, 200, 300, 400)),
        (2048, (1, 100, 400, 500)),
    )
    least_steps: int = 20  # of matching
    most_seconds: float = 60.0  # of matching
    patience: int = 5  # of the exact search
    data: tuple[str, ...] = ("mnist", "cifar10")


@dataclass(frozen=True, kw_only=True)
class Noise:
    """Gaussian noise on the gradient, as a share of each tensor's standard deviation."""

    shares: tuple[float, ...] = (0.0, 0.001, 0.01, 0.05, 0.1)
    sizes: tuple[tuple[int, int], ...] = ((1024, 20), (1024, 100))  # (width, records)
    patience: int = 5  # of the exact search
    repeats: int = 3
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class Defences:
    """What a client may do to its gradient before sending it, at several strengths."""

    width: int = 512
    records: int = 20
    noise: tuple[float, ...] = (0.0, 0.001, 0.01, 0.1, 1.0)  # share of each tensor's deviation
    clip: tuple[float, ...] = (1.0, 0.1, 0.01)  # most L2 norm of the batch's gradient
    clip_each: tuple[float, ...] = (10.0, 1.0, 0.1)  # most L2 norm of each record's gradient
    keep: tuple[float, ...] = (1.0, 0.5, 0.1, 0.01)  # largest entries that are sent, as a share
    formats: tuple[str, ...] = ("float32", "float16", "bfloat16", "sign")
    batch: tuple[int, ...] = (20, 50, 100, 200, 240, 300)
    clients: tuple[int, ...] = (1, 2, 5, 10, 12, 15)  # whose gradients are only seen summed
    patience: int = 5  # of the exact search
    repeats: int = 3
    data: tuple[str, ...] = ("mnist",)


QUICK_BATCHES = Batches(grid=((256, (1, 10, 50)),), most_seconds=5.0, data=("mnist",))
QUICK_NOISE = Noise(sizes=((256, 10),), repeats=1)
QUICK_DEFENCES = Defences(
    width=256, records=10, batch=(10, 50, 100, 140), clients=(1, 5, 10, 14), repeats=1
)


@dataclass(frozen=True, kw_only=True, eq=False)
class Clients:
    """A model that was sent out, and the records of those who answer."""

    model: nn.Module
    scaling: Scaling
    truth: Examples

    def gradient(self, rows: slice = slice(None)) -> dict[str, Tensor]:
        """Of the mean loss over these records."""
        inputs = self.scaling.to_model(self.truth.inputs[rows])
        return capture(self.model, LOSS, (inputs, self.truth.labels[rows]))

    def target(self, gradient: Weights, *, tell_count: bool) -> Target:
        known = Knowledge(
            gradient=gradient, records=len(self.truth) if tell_count else None, loss=LOSS
        )
        return Target(
            model=self.model,
            input_shape=self.truth.shape,
            bounds=self.truth.bounds,
            scaling=self.scaling,
            knowledge=known,
        )


def meet_clients(examples: Examples, width: int, records: int, seed: int) -> Clients:
    """Records drawn evenly from the classes; the mean image is that of other records."""
    sides = split(examples, train=records, public=None, holdout=1, seed=seed)
    sizes = [math.prod(examples.shape), width, width, examples.classes]
    model = build(
        "mlp:" + "-".join(map(str, sizes)), generator=generator_for(seed, f"weights {width}")
    )
    return Clients(model=model, scaling=Scaling(mean=mean_image(sides.public)), truth=sides.train)


def attack(target: Target, how: Gradient, seed: int) -> tuple[Candidates, float]:
    """What comes back and the CPU seconds it took."""
    begun = time.process_time()
    found = how(target, generator=generator_for(seed, "attack"))
    return found, time.process_time() - begun


def scores(clients: Clients, found: Candidates, seconds: float) -> Row:
    """The truth beside the candidates. A certified one without a record of its own is wrong."""
    truth = clients.truth.inputs
    matches = greedy(squared_l2(truth, found.inputs))
    error = matches.distance
    mine = torch.full((len(found),), torch.inf, dtype=torch.float64)  # each candidate's error
    matched = matches.candidate >= 0
    mine[matches.candidate[matched]] = error[matched]
    passed = torch.tensor(found.figures.get("passed", []), dtype=torch.bool)
    certified = mine[passed] if len(passed) else mine[:0]
    guess = float((truth - clients.scaling.mean).double().flatten(1).square().sum(1).mean())
    worst = float(certified.max()) if len(certified) else None
    return {
        "counted": found.figures.get("counted"),
        "found": len(found),
        "recovered": int((error < RECOVERED).sum()),
        "near": int((error < NEAR * guess).sum()),
        "median_error": finite(float(error.median())),
        "max_error": finite(float(error.max())),
        "certified": len(certified),
        "wrongly_certified": int((certified > NEAR * guess).sum()),
        "worst_certified": None if worst is None else finite(worst),
        "status": str(found.status),
        "cpu_seconds": round(seconds, 3),
        "reason": found.reason,
    }


def batch_cells(settings: Batches, seed: int) -> list[Row]:
    return [
        {"data": name, "width": width, "records": records, "seed": seed}
        for name in settings.data
        for width, batches in settings.grid
        for records in batches
    ]


def measure_batches(settings: Batches, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    """The exact row, then matching's: it is told the number of records, and gets equal time."""
    examples, seed = data[cell["data"]], cell["seed"]
    clients = meet_clients(examples, cell["width"], cell["records"], seed)
    gradient = clients.gradient()
    alone = clients.target(gradient, tell_count=False)
    found, seconds = attack(alone, Gradient(patience=settings.patience), seed)
    exact = cell | {"method": "exact", "steps": None} | scores(clients, found, seconds)
    told = clients.target(gradient, tell_count=True)
    steps = affordable(told, min(seconds, settings.most_seconds), settings.least_steps, seed)
    found, seconds = attack(told, Gradient(preset="matching", steps=steps), seed)
    return [exact, cell | {"method": "matching", "steps": steps} | scores(clients, found, seconds)]


def affordable(target: Target, seconds: float, least: int, seed: int) -> int:
    """How many steps of matching fit into the time, from two short runs after one to warm up."""
    short, long = 1, 4
    runs = [Gradient(preset="matching", steps=n) for n in (short, short, long)]
    _, one, some = (attack(target, run, seed)[1] for run in runs)
    # A clock that stumbles must not buy many steps: at most twice those of the longer run's rate.
    step = max((some - one) / (long - short), some / long / 2)
    start = max(some - long * step, 0.0)
    return max(least, int((seconds - start) / step))


def plot_batches(rows: Sequence[Row]) -> tuple[Panel, ...]:
    shares = [row | {"share": row["recovered"] / row["records"]} for row in rows]
    return line_panels(
        shares,
        panel=lambda row: f"{row['data']}, width {row['width']}",
        line="method",
        x="records",
        y="share",
        across="records in the batch",
        up=f"share of records back (sq. L2 < {RECOVERED:g})",
        log_x=False,
        log_y=False,
    )


def noise_cells(settings: Noise, seed: int) -> list[Row]:
    return [
        {"width": width, "records": records, "noise": share, "seed": seed + k}
        for width, records in settings.sizes
        for share in settings.shares
        for k in range(settings.repeats)
    ]


def measure_noise(settings: Noise, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    seed = cell["seed"]
    clients = meet_clients(data[settings.data[0]], cell["width"], cell["records"], seed)
    gradient = defend.noisy(
        clients.gradient(), cell["noise"], generator=generator_for(seed, "noise")
    )
    # Noise hides where the spectrum ends, so the adversary is told how many records there are.
    target = clients.target(gradient, tell_count=cell["noise"] > 0)
    found, seconds = attack(target, Gradient(patience=settings.patience), seed)
    return [cell | {"data": settings.data[0]} | scores(clients, found, seconds)]


def plot_noise(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        both_errors(rows),
        panel=lambda row: f"{row['records']} records, width {row['width']}",
        line="error_kind",
        x="noise",
        y="error",
        across="noise / standard deviation of the gradient",
        up="squared L2 error (× nothing found)",
    )


def both_errors(rows: Sequence[Row]) -> list[Row]:
    """Each row twice, for the median and the worst record."""
    kinds = {"median record": "median_error", "worst record": "max_error"}
    return [row | {"error_kind": k, "error": row[v]} for row in rows for k, v in kinds.items()]


def summed(gradients: Sequence[Weights]) -> dict[str, Tensor]:
    return {name: torch.stack([g[name] for g in gradients]).sum(0) for name in gradients[0]}


def sent(kind: str, strength: Any, clients: Clients, size: int, seed: int) -> dict[str, Tensor]:
    """What an adversary sees of the gradients under one defence. size: records of one client."""
    if kind == "clients":
        starts = range(0, len(clients.truth), size)
        return summed([clients.gradient(slice(i, i + size)) for i in starts])
    if kind == "clip each":
        each = [clients.gradient(slice(i, i + 1)) for i in range(size)]
        return summed([defend.clipped(gradient, strength) for gradient in each])
    gradient = clients.gradient()
    ways: dict[str, Callable[[], dict[str, Tensor]]] = {
        "noise": lambda: defend.noisy(gradient, strength, generator=generator_for(seed, "noise")),
        "clip": lambda: defend.clipped(gradient, strength),
        "keep": lambda: defend.pruned(gradient, strength),
        "format": lambda: defend.rounded(gradient, strength),
        "batch": lambda: gradient,
    }
    return ways[kind]()


def hides_count(kind: str, strength: Any) -> bool:
    """Where the spectrum no longer ends, the adversary is told the number: it may be known."""
    harmless = {"noise": 0.0, "keep": 1.0}
    return bool(strength == "sign" or strength != harmless.get(kind, strength))


AXES = {
    "noise": "noise / standard deviation",
    "clip": "largest norm of the batch's gradient",
    "clip each": "largest norm of a record's gradient",
    "keep": "share of entries sent, the largest",
    "format": "",
    "batch": "records in the batch",
    "clients": "clients summed",
}


def defence_cells(settings: Defences, seed: int) -> list[Row]:
    return [
        {"defence": kind, "strength": strength, "seed": seed + k}
        for kind in AXES
        for strength in _strengths(settings, kind)
        for k in range(settings.repeats)
    ]


def _strengths(settings: Defences, kind: str) -> Sequence[Any]:
    name = {"format": "formats", "clip each": "clip_each"}.get(kind, kind)
    strengths: Sequence[Any] = getattr(settings, name)
    return strengths


def measure_defence(settings: Defences, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    kind, strength, seed = cell["defence"], cell["strength"], cell["seed"]
    size = settings.records
    records = strength if kind == "batch" else size
    if kind == "clients":
        records = size * strength
    clients = meet_clients(data[settings.data[0]], settings.width, records, seed)
    told = hides_count(kind, strength)
    target = clients.target(sent(kind, strength, clients, size, seed), tell_count=told)
    found, seconds = attack(target, Gradient(patience=settings.patience), seed)
    about = {
        "data": settings.data[0],
        "width": settings.width,
        "records": len(clients.truth),
        "count_told": told,
    }
    return [cell | about | scores(clients, found, seconds)]


def plot_defences(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        both_errors(rows),
        panel="defence",
        line="error_kind",
        x="strength",
        y="error",
        across=lambda title: AXES[title],
        up="squared L2 error (× nothing found)",
    )
