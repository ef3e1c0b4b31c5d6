"""`remnant init`: a commented audit.yaml for a model and its data, to be looked through."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.common import Answer, add_verb, check_new, in_yaml, print_line, write_new
from remnant.cli.flags import add_fields, given
from remnant.cli.spec import AuditSpec, checked, is_linear
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from torch import nn

    from remnant.types import Examples

FILE = "audit.yaml"
TAKEN = ("holdout", "initial", "model", "mean", "std", "data_dir")
# Headings, and the fields below each with an example where none is given.
RECORDS = {"data": "", "holdout": "test.npz", "public": "other.npz", "canaries": "canaries.npz"}
HELD = {
    "model": "net.py:factory",
    "initial": "before.pt",
    "gradient": "gradient.safetensors",
    "recipe": "recipe.json",
}
HELD_WORDS = "What else an adversary may hold: give all that is true of your release."
TEXTS = {"tokenizer": "tokenizer.json", "text_field": "text"}
SCALING = {"mean": "0.5", "std": "0.25", "loss": "ce"}
AUDIT = {
    "attacks": "[ntk, kkt]",
    "targets": "3",
    "threshold": "0.9",
    "seed": "0",
    "budget": "10m",
}


def add(verbs: Any) -> None:
    example = "remnant init --weights model.pt --data train.npz --holdout test.npz"
    parser = add_verb(verbs, "init", example, shared=("out", "quiet"), run=run)
    add_fields(parser, AuditSpec, TAKEN, needs=("weights", "data"))
    words = "take --mean and --std from the data: of each column, or of an image's channels"
    parser.add_argument("--fit", action="store_true", help=words)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.cli.target import read_linear_target, read_records, read_released

    path = (arguments.out or Path()) / FILE
    check_new(path)
    spec = checked(AuditSpec, given(arguments, ("weights", "data", *TAKEN)))
    linear = is_linear(spec.weights)
    model = read_linear_target(spec)[0].model if linear else read_released(spec)[0]
    examples = read_records(spec, model, spec.data)
    values = {name: placed(value) for name, value in spec.model_dump(exclude_unset=True).items()}
    if arguments.fit:
        values |= fitted(spec, examples)
    kind = f"of shape {'x'.join(map(str, examples.shape))}"
    network: dict[str, dict[str, str]] = {HELD_WORDS: HELD}
    if examples.are_texts:
        kind = f"texts of up to {examples.shape[0]} tokens"
        network[HELD_WORDS] = TEXTS | HELD
    else:
        network["How a record became the model's input: (x - mean) / std"] = SCALING
    sections: dict[str, dict[str, str]] = {
        f"The released model: {' '.join(described(model).split())}": {"weights": ""},
        f"The records trained on: {len(examples)} {kind}": RECORDS,
        **({} if linear else network),  # a linear model's file says it all
        "How the audit is done": AUDIT,
    }
    write_new(path, commented(sections, values))
    said = "; its mean and std are those of the data, as fitted here" if arguments.fit else ""
    words = f"wrote {path}{said}; look it through, then: remnant audit {path}"
    return Answer(show=lambda: print_line(words))


def described(model: nn.Module) -> str:
    from remnant.models.linear_model import LinearModel

    if isinstance(model, LinearModel):
        outputs, features = model.dense.weight.shape
        said = f"{model.family} regression, {features} features, {outputs} row(s) of coefficients"
        return f"{said}, penalty {model.penalty:g} on the sum of losses"
    layers = [type(m).__name__ for m in model.modules() if not list(m.children())]
    return f"{sum(p.numel() for p in model.parameters())} parameters: {', '.join(layers[:12])}"


def fitted(spec: AuditSpec, examples: Examples) -> dict[str, list[float]]:
    """Mean and deviation of each column, or of each channel, as scikit-learn's scaler has them; a
    column that never changes is divided by 1."""
    for flag in ("mean", "std"):
        if getattr(spec, flag) is not None:
            raise InputError(expected("--fit", "no --mean and --std beside it", f"--{flag}"))
    if examples.are_texts or is_linear(spec.weights):
        raise InputError(expected("--fit", "a network's records of numbers", "others"))
    rows = examples.inputs.double()
    every = [0, *range(2, rows.ndim)]
    mean, std = rows.mean(every), rows.std(every, correction=0)
    std[std == 0] = 1.0
    return {"mean": mean.tolist(), "std": std.tolist()}


def commented(sections: dict[str, dict[str, str]], values: dict[str, Any]) -> str:
    """The spec, each field with a word on what it is for; unset ones are commented out."""
    lines = ["# What remnant audits. Relative paths are relative to this file."]
    for heading, fields in sections.items():
        lines.append(f"\n# {heading}")
        for name, example in fields.items():
            given = name in values
            text = f"{name}: {in_yaml(values[name])}" if given else f"# {name}: {example}"
            about = AuditSpec.model_fields[name].description or "of every random draw"
            lines.append(f"{text:<40}  # {about}")
    return "\n".join(lines) + "\n"


def placed(value: Any) -> Any:
    """The absolute path of a file that exists; names of data, and all else, as they are."""
    if isinstance(value, Path) or (isinstance(value, str) and Path(value).exists()):
        return str(Path(value).resolve())
    return value
