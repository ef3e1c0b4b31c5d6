"""The informed adversary (001): 784-10-10 on MNIST, 1000 known records, 100 epochs of descent at
0.2 with momentum 0.9.

    python benchmarks/informed.py replay [--targets 100] [--evaluations 80]
    python benchmarks/informed.py relu --targets 20
    python benchmarks/informed.py adam --targets 20
    python benchmarks/informed.py batches --targets 10
    python benchmarks/informed.py learned --shadows 3500 [--data mnist-full.npz]
    python benchmarks/informed.py cifar --data cifar10.npz --fixed 500 --epochs 15 --targets 1
    python benchmarks/informed.py cifar-learned --data cifar10.npz --fixed 500 --epochs 15 \\
        --shadows 300 --targets 20

Times are CPU seconds of one thread. A target counts as flagged if its residual is above the
tolerance: then nothing is claimed of it. Replay prints a line
for every five targets, with the totals so far, so that a run cut short is not lost.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from remnant.data import load
from remnant.experiments.informed_targets import (
    CNN_FACTORS,
    FACTORS,
    Factor,
    InformedSizes,
    Released,
    by_reconn,
    by_ridge,
    make_released,
    replayed,
    some_of,
    train_shadows,
)
from remnant.scoring.criteria import mse_each, oracle, order_statistics
from remnant.solvers.replay.problem import ReplaySettings
from remnant.types import Examples

AT_ONCE = 5  # targets whose runs are replayed together


@dataclass(frozen=True, kw_only=True, eq=False)
class Ends:
    """How replay ended for k targets; k each, and the CPU seconds of all."""

    error: Tensor
    label_right: Tensor
    certified: Tensor
    residual: Tensor
    evaluations: int
    seconds: float


def replay_lines(name: str, scene: Released, settings: ReplaySettings) -> Iterator[str]:
    """A line for every `AT_ONCE` targets with the totals so far; the last is the whole."""
    done: list[Ends] = []
    for rows in torch.arange(len(scene.targets)).split(AT_ONCE):
        done.append(ends_of(some_of(scene, rows), settings))
        yield f"{name}: {total_of(done)}"


def ends_of(scene: Released, settings: ReplaySettings) -> Ends:
    began = time.process_time()
    found = replayed(scene, settings)
    return Ends(
        error=mse_each(found.records[:, 0].clamp(0, 1), scene.targets.inputs),
        label_right=found.labels[:, 0] == scene.targets.labels,
        certified=found.matched & found.determined,
        residual=found.residual.double(),
        evaluations=found.evaluations,
        seconds=time.process_time() - began,
    )


def total_of(done: Sequence[Ends]) -> str:
    error, right, told, residual = (
        torch.cat([getattr(part, field) for part in done])
        for field in ("error", "label_right", "certified", "residual")
    )
    good = error < 1e-4
    return (
        f"labels {int(right.sum())} of {len(error)}; {int(good.sum())} below 1e-4, median "
        f"{float(error.median()):.1e}, largest {float(error.max()):.1e}; {int(told.sum())} "
        f"certified, {int((told & ~good).sum())} of them above 1e-4; {int((~good & ~told).sum())} "
        f"of {int((~good).sum())} failures flagged; residuals of the good up to "
        f"{float(residual[good].max()) if good.any() else 0:.1e}, of the others from "
        f"{float(residual[~good].min()) if (~good).any() else 1:.1e}; up to "
        f"{max(part.evaluations for part in done)} evaluations, "
        f"{sum(part.seconds for part in done) / len(error):.1f} s a target"
    )


def learned_lines(scene: Released, settings: InformedSizes) -> Iterator[str]:
    began = time.process_time()
    shadows = train_shadows(scene)
    spent = time.process_time() - began
    pool = torch.cat([scene.fixed.inputs, scene.public.inputs])
    nearest = oracle(scene.targets.inputs, pool)
    figures = order_statistics(scene.targets.inputs, pool)
    yield f"{len(scene.public)} shadows in {spent:.0f} s, {len(scene.public) / spent:.1f} a second"
    yield "oracle: " + ", ".join(f"{name} {value:.4f}" for name, value in figures.items())
    for name, method in (("ridge", by_ridge), ("reconn", by_reconn)):
        began = time.process_time()
        guess, more = method(scene, shadows, len(scene.public), settings)
        yield learned_line(name, guess, scene, nearest, time.process_time() - began, more)


def learned_line(
    name: str,
    guess: Tensor,
    scene: Released,
    nearest: Tensor,
    seconds: float,
    more: dict[str, float],
) -> str:
    error = mse_each(guess, scene.targets.inputs)
    said = ", ".join(f"{key} {value:.3g}" for key, value in more.items())
    return (
        f"{name}: MSE {float(error.mean()):.4f} (oracle {float(nearest.mean()):.4f}), closer than "
        f"the oracle {int((error < nearest).sum())} of {len(error)}; {said}; {seconds:.0f} s"
    )


def lines(asked: argparse.Namespace, data: Examples) -> Iterator[str]:
    learned = asked.what.endswith("learned")
    replaying = ReplaySettings(evaluations=asked.evaluations)
    settings = InformedSizes(
        records=asked.fixed,
        shadows=asked.shadows if learned else 0,
        targets=asked.targets,
        epochs=asked.epochs,
        reconn_epochs=asked.reconn_epochs,
    )
    if learned:
        cifar = asked.what.startswith("cifar")
        factor = CNN_FACTORS["default"] if cifar else Factor()
        yield from learned_lines(make_released(settings, factor, data, asked.seed), settings)
    elif asked.what == "cifar":
        scene = make_released(settings, CNN_FACTORS["default"], data, asked.seed)
        yield from replay_lines("CIFAR CNN", scene, replaying)
        near = oracle(scene.targets.inputs, scene.fixed.inputs)
        yield f"oracle over the known records: {float(near.mean()):.4f}"
    else:
        name = {"replay": "default", "relu": "ReLU", "adam": "Adam"}.get(asked.what)
        names = (name,) if name else ("batches, known order", "batches, unknown order")
        for name in names:
            scene = make_released(settings, FACTORS[name], data, asked.seed)
            yield from replay_lines(name, scene, replaying)


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    kinds = ("replay", "relu", "adam", "batches", "learned", "cifar", "cifar-learned")
    parser.add_argument("what", choices=kinds)
    parser.add_argument("--data", type=Path, help="npz of records, instead of the bundled MNIST")
    parser.add_argument("--targets", type=int, default=100)
    parser.add_argument("--fixed", type=int, default=1000)
    parser.add_argument("--shadows", type=int, default=3500)
    parser.add_argument("--epochs", type=int, default=100)
    parser.add_argument("--evaluations", type=int, default=80)
    parser.add_argument("--reconn-epochs", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    asked = parser.parse_args()
    torch.set_num_threads(1)
    data = load(asked.data or "mnist")
    for line in lines(asked, data):
        print(line, flush=True)


if __name__ == "__main__":
    main()
