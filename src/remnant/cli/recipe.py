"""`remnant recipe`: how a model was trained, as a commented file to fill in."""

from __future__ import annotations

import argparse
from dataclasses import MISSING, fields
from pathlib import Path
from typing import Any

from remnant.cli.common import Answer, add_verb, check_new, in_yaml, print_line, write_new
from remnant.errors import InputError, expected

NAMES = ("gradient-descent", "sgd", "adam", "adamw", "decay-time", "loss-proportional")
WORDS = {
    "lr": "step size",
    "steps": "how many in all, each on one batch",
    "epochs": "how often all records are seen, in place of steps",
    "batch_size": "records of a step; left out: all of them",
    "momentum": "heavy-ball, as torch.optim.SGD has it",
    "weight_decay": "of all parameters",
    "loss": "its mean over records: ce, bce, mse, ...",
    "stop_loss": "training ended once the loss was at or below this",
    "schedule": "constant, linear or cosine (to 0 at the last step)",
    "warmup": "steps in which the rate grows linearly",
    "betas": "of the running means",
    "eps": "in the denominator",
    "decay_time": "sum of lr * weight_decay at which training ended",
    "check_every": "steps between looks at the loss",
    "threshold": "loss below which steps grow",
}
EXAMPLES = {"lr": 0.1, "steps": 100, "epochs": 10, "batch_size": 32, "stop_loss": 0.01}


def add(verbs: Any) -> None:
    example = "remnant recipe adamw --out recipe.yaml"
    parser = add_verb(verbs, "recipe", example, shared=("quiet",), run=run)
    parser.add_argument("name", choices=NAMES, help="the optimiser")
    words = "a new file (default: recipe.yaml)"
    parser.add_argument("--out", metavar="FILE", type=Path, default=Path("recipe.yaml"), help=words)


def run(arguments: argparse.Namespace) -> Answer:
    path: Path = arguments.out
    check_new(path)
    if path.suffix.lower() not in (".yaml", ".yml"):
        raise InputError(expected("--out", "a name that ends in .yaml", path.name))
    write_new(path, commented(arguments.name))
    words = (
        f"wrote {path}; fill it in as the model was trained, then: remnant audit --recipe {path}"
    )
    return Answer(show=lambda: print_line(words))


def commented(name: str) -> str:
    """The recipe's fields with their defaults; what has none has an example, to be changed."""
    from remnant.training import RECIPES

    lines = [
        "# How the model was trained: every line has to be as it was. Lines with # are left out.",
        f"{'name: ' + name:<32}  # one of {', '.join(NAMES)}",
    ]
    for field in fields(RECIPES[name]):
        needed = field.default is MISSING or field.name == "epochs"
        off = field.default is None and not needed
        value = EXAMPLES[field.name] if needed or off else field.default
        text = f"{'# ' if off else ''}{field.name}: {in_yaml(value)}"
        lines.append(f"{text:<32}  # {WORDS[field.name]}")
    return "\n".join(lines) + "\n"
