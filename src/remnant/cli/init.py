"""`remnant init`: a commented audit.yaml for a model and its data, to be looked through."""

from __future__ import annotations

import argparse
import os
from pathlib import Path
from typing import Any

from remnant.cli.cases import is_linear, read_linear_model
from remnant.cli.common import DONE, add_verb, say
from remnant.errors import InputError, StoreError, expected

FILE = "audit.yaml"


def add(verbs: Any) -> None:
    parser = add_verb(
        verbs,
        "init",
        "write a commented audit.yaml for a model and its data",
        "remnant init --weights model.pt --data train.npz --holdout test.npz",
    )
    parser.add_argument("--weights", type=Path, required=True, help="the released weights")
    parser.add_argument("--data", required=True, help="the records trained on")
    parser.add_argument("--holdout", help="records like them that were not trained on")
    parser.add_argument("--initial", type=Path, help="the weights before training")
    parser.add_argument("--model", help="mlp:..., cnn:... or file.py:factory")
    parser.add_argument("--data-dir", type=Path, help="where data is looked for")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    from remnant.data import load

    target = (arguments.out or Path()) / FILE
    if target.exists():
        raise StoreError(expected(f"{target}", "no file yet", "one", "remove it, or give --out"))
    linear = is_linear(arguments.weights)
    model = _linear_words(arguments) if linear else _network_words(arguments)
    examples = load(arguments.data, data_dir=arguments.data_dir)
    text = spec_text(arguments, len(examples), examples.shape, model, linear=linear)
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "wb") as file:
            file.write(text.encode())
    except OSError as error:
        raise InputError(expected(f"{target}", "a place to write", error.strerror)) from None
    if not arguments.quiet:
        say(f"wrote {target}; look it through, then: remnant audit {target}")
    return DONE


def _linear_words(arguments: argparse.Namespace) -> str:
    if arguments.model is not None or arguments.initial is not None:
        do = "leave --model and --initial out"
        raise InputError(expected("a linear model", "its file alone", "more", do))
    model = read_linear_model(arguments.weights)
    outputs, features = model.dense.weight.shape
    said = f"{model.family} regression, {features} features, {outputs} row(s) of coefficients"
    return f"{said}, penalty {model.penalty:g} on the sum of losses"


def _network_words(arguments: argparse.Namespace) -> str:
    from remnant.cli.target import read_model
    from remnant.models import load_weights, read_weights

    weights = read_weights(arguments.weights)
    model, _ = read_model(arguments.model, weights)
    load_weights(model, weights, what=f"--weights {arguments.weights}")
    layers = [type(m).__name__ for m in model.modules() if not list(m.children())]
    return f"{sum(p.numel() for p in model.parameters())} parameters: {', '.join(layers[:12])}"


def spec_text(
    arguments: argparse.Namespace,
    records: int,
    shape: tuple[int, ...],
    model: str,
    *,
    linear: bool = False,
) -> str:
    """The spec, each field with a word on what it is for; unset ones are commented out."""

    def line(key: str, value: Any, words: str, example: str = "") -> str:
        text = f"{key}: {_quoted(value)}" if value is not None else f"# {key}: {example}"
        return f"{text:<40}  # {words}\n"

    def place(path: Path | None) -> str | None:
        return None if path is None else str(path.resolve())

    network = (
        line("model", arguments.model, "needed unless a plain dense stack", "net.py:factory")
        + line("weights", place(arguments.weights), "safetensors, state dict, Lightning")
        + "\n# What else an adversary may hold: give all that is true of your release.\n"
        + line("initial", place(arguments.initial), "the weights before training", "before.pt")
        + line("gradient", None, "what a federated client sends", "gradient.safetensors")
        + line("recipe", None, "how it was trained, as JSON", "recipe.json")
    )
    scaled = (
        "\n# How a record became the model's input: (x - mean) / std\n"
        + line("mean", None, "a number, one per channel, a safetensors file, or public", "0.5")
        + line("std", None, "alike", "0.25")
        + line("loss", None, "found by the labels if left out", "ce")
    )
    data = arguments.data
    return (
        "# What remnant audits. Relative paths are relative to this file.\n\n"
        f"# The released model: {' '.join(model.split())}\n"
        + (line("weights", place(arguments.weights), "JSON, npz or skops") if linear else network)
        + f"\n# The records trained on: {records} of shape {'x'.join(map(str, shape))}\n"
        + line("data", _data_place(data), "npz with x and y, a folder, a bundled name")
        + line("holdout", _data_place(arguments.holdout), "like them, not trained on", "test.npz")
        + line("public", None, "others that were not trained on", "other.npz")
        + ("" if linear else scaled)
        + "\n# How the audit is done\n"
        + line("attacks", None, "all that apply if left out", "[glm]" if linear else "[ntk, kkt]")
        + line("targets", None, "records left out in turn, where all others are known", "3")
        + line("threshold", 0.9, "correlation above which a record counts as recovered")
        + line("seed", arguments.seed, "of every random draw")
        + line("budget", None, "the most time for attacks", "10m")
    )


def _data_place(source: str | None) -> str | None:
    return str(Path(source).resolve()) if source is not None and Path(source).exists() else source


def _quoted(value: Any) -> str:
    """A value as YAML reads it back, whatever a path holds."""
    if not isinstance(value, str):
        return str(value)
    plain = (c if c.isprintable() and c not in '"\\' else f"\\U{ord(c):08x}" for c in value)
    return f'"{"".join(plain)}"'
