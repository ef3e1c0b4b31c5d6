"""`remnant init`: a commented audit.yaml for a model and its data, to be looked through."""

from __future__ import annotations

import argparse
import math
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from remnant.cli.common import Answer, add_verb, say
from remnant.cli.flags import add_spec, given
from remnant.cli.spec import AuditSpec, TargetSpec, checked, is_linear
from remnant.cli.texts import directory_of
from remnant.errors import InputError, StoreError, expected

if TYPE_CHECKING:
    from remnant.types import Examples

FILE = "audit.yaml"
# Headings, and the fields below each with an example where none is given. Those of networks alone
# are left out for a linear model, whose file says the rest.
NETWORK = {
    "\n# What else an adversary may hold: give all that is true of your release.": {
        "model": "net.py:factory",
        "initial": "before.pt",
        "gradient": "gradient.safetensors",
        "recipe": "recipe.json",
    },
    "\n# How a record became the model's input: (x - mean) / std": {
        "mean": "0.5",
        "std": "0.25",
        "loss": "ce",
    },
}
TEXTS = {"tokenizer": "tokenizer.json", "text_field": "text"}
ALL = {
    "\n# How the audit is done": {
        "attacks": "[ntk, kkt]",
        "targets": "3",
        "threshold": "0.9",
        "seed": "0",
        "budget": "10m",
    },
}


def add(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "init",
        "remnant init --weights model.pt --data train.npz --holdout test.npz",
        shared=("out", "quiet"),
        run=run,
    )
    taken = ("holdout", "initial", "model", "mean", "std", "data_dir")
    add_spec(parser, AuditSpec, taken, needs=("weights", "data"))
    words = "take --mean and --std from the data: of each column, or of an image's channels"
    parser.add_argument("--fit", action="store_true", help=words)
    parser.set_defaults(**dict.fromkeys(taken))


def run(arguments: argparse.Namespace) -> Answer:
    target = (arguments.out or Path()) / FILE
    if target.exists():
        raise StoreError(expected(f"{target}", "no file yet", "one", "remove it, or give --out"))
    text = spec_text(arguments)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise InputError(expected(f"{target}", "a place to write", error.strerror)) from None
    fitted = "; its mean and std are those of the data, as fitted here" if arguments.fit else ""
    words = f"wrote {target}{fitted}; look it through, then: remnant audit {target}"
    return Answer(show=lambda: say(words))


def linear_words(arguments: argparse.Namespace) -> str:
    from remnant.models.linear_files import read_linear

    if arguments.model is not None or arguments.initial is not None:
        do = "leave --model and --initial out"
        raise InputError(expected("a linear model", "its file alone", "more", do))
    model = read_linear(arguments.weights)
    outputs, features = model.dense.weight.shape
    said = f"{model.family} regression, {features} features, {outputs} row(s) of coefficients"
    return f"{said}, penalty {model.penalty:g} on the sum of losses"


def network_words(arguments: argparse.Namespace) -> str:
    from remnant.cli.target import read_released

    model, _ = read_released(target_of(arguments))
    layers = [type(m).__name__ for m in model.modules() if not list(m.children())]
    return f"{sum(p.numel() for p in model.parameters())} parameters: {', '.join(layers[:12])}"


def target_of(arguments: argparse.Namespace) -> TargetSpec:
    return checked(TargetSpec, given(arguments, ("weights", "model", "data_dir")), "--")


def read_examples(arguments: argparse.Namespace) -> Examples:
    """The records trained on, texts where the model takes tokens."""
    from remnant.cli.target import read_records, read_released
    from remnant.data import load
    from remnant.data.texts import ENDINGS

    spec = target_of(arguments)
    texts = directory_of(spec) is not None or arguments.data.lower().endswith(ENDINGS)
    if is_linear(arguments.weights) or not texts:
        return load(arguments.data, data_dir=arguments.data_dir)
    return read_records(spec, read_released(spec)[0], arguments.data)


def fit_scaling(arguments: argparse.Namespace, examples: Examples) -> None:
    """Mean and deviation of each column, or of each channel, as scikit-learn's scaler has them; a
    column that never changes is divided by 1."""
    for flag in ("mean", "std"):
        if getattr(arguments, flag) is not None:
            raise InputError(expected("--fit", "no --mean and --std beside it", f"--{flag}"))
    if examples.are_texts or is_linear(arguments.weights):
        raise InputError(expected("--fit", "a network's records of numbers", "others"))
    rows = examples.inputs.double()
    every = [0, *range(2, rows.ndim)]
    mean, std = rows.mean(every), rows.std(every, correction=0)
    std[std == 0] = 1.0
    arguments.mean, arguments.std = mean.tolist(), std.tolist()


def spec_text(arguments: argparse.Namespace) -> str:
    """The spec, each field with a word on what it is for; unset ones are commented out."""
    linear = is_linear(arguments.weights)
    words = linear_words(arguments) if linear else network_words(arguments)
    examples = read_examples(arguments)
    shape = "x".join(map(str, examples.shape))
    if arguments.fit:
        fit_scaling(arguments, examples)
    kind = f"of shape {shape}"
    network = NETWORK
    if examples.are_texts:
        kind = f"texts of up to {shape} tokens"
        network = {heading: TEXTS | below for heading, below in list(NETWORK.items())[:1]}
    fields = {
        f"\n# The released model: {' '.join(words.split())}": {"weights": ""},
        f"\n# The records trained on: {len(examples)} {kind}": {
            "data": "",
            "holdout": "test.npz",
            "public": "other.npz",
            "canaries": "canaries.npz",
        },
    } | ({} if linear else network) | ALL  # fmt: skip
    lines = ["# What remnant audits. Relative paths are relative to this file."]
    for heading, below in fields.items():
        lines.append(heading)
        for name, example in below.items():
            value = placed(getattr(arguments, name, None))
            text = f"# {name}: {example}" if value is None else f"{name}: {_quoted(value)}"
            about = AuditSpec.model_fields[name].description or "of every random draw"
            lines.append(f"{text:<40}  # {about}")
    return "\n".join(lines) + "\n"


def placed(value: Any) -> Any:
    """The absolute path of a file that exists; names of data, and all else, as they are."""
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).exists()):
        return str(Path(value).resolve())
    return value


def _quoted(value: Any) -> str:
    """A value as YAML reads it back, whatever a path holds."""
    style = '"' if isinstance(value, str) else None
    text: str = yaml.safe_dump(value, default_style=style, width=math.inf, default_flow_style=True)
    return text.removesuffix("...\n").strip()
