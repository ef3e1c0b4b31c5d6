"""`remnant demo`: train, attack, look."""

from __future__ import annotations

import argparse
import dataclasses
from pathlib import Path
from typing import Any

from remnant.cli.common import COMMON, DONE, add_verb, bars, prepare, run_of
from remnant.cli.flags import add_flags, given

# Fields of `experiments.demo.Demo`, whose defaults live there; here, so that --help needs no torch.
FLAGS: dict[str, tuple[Any, str]] = {
    "data": (str, "a bundled name, a file or a folder (default: faces)"),
    "task": (str, "a binary task: odd-even or animal-vehicle"),
    "records": (int, "how many records to train on (default: 50)"),
    "width": (int, "of the hidden layers (default: 1024)"),
    "depth": (int, "how many hidden layers (default: 2)"),
    "loss": (str, "ce, mse, bce, power2.5 or huber (default: ce)"),
    "lr": (float, "learning rate (default: 0.05)"),
    "momentum": (float, "(default: 0.9)"),
    "weight_decay": (float, "(default: 0)"),
    "batch_size": (int, "mini-batches of this size (default: full batch)"),
    "stop_loss": (float, "stop training at this loss (default: 0.02)"),
    "epochs": (int, "stop training at the latest then (default: 5000)"),
    "balanced": (bool | None, "as many records of each class (default: balanced)"),
    "page": (bool | None, "end in a page: four adversaries against a small model (default: yes)"),
}


def add(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "demo",
        "train a small model and take its training data back out of the weights",
        "remnant demo --data mnist --records 100 --width 1024 --seed 1",
        shared=(*COMMON, "device"),
    )
    add_flags(parser, FLAGS)
    parser.add_argument(
        "--data-dir", type=Path, help="where data files are looked for (or REMNANT_DATA)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    prepare(arguments)
    from remnant.cli.show import show_finding
    from remnant.experiments.demo import Demo, data_hash, divide, run_demo

    demo = Demo(seed=arguments.seed, **given(arguments, FLAGS))
    with bars(arguments.quiet):
        sides = divide(demo, arguments.data_dir)
        spec = {"verb": "demo", **dataclasses.asdict(demo), "data_hash": data_hash(sides)}
        stored = run_of(
            arguments, spec, lambda run: run_demo(demo, sides, run, device=arguments.device)
        )
    show_finding(stored, arguments)
    return DONE
