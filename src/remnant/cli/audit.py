"""`remnant audit`, `preflight` and `init`: one's own model, every adversary that applies."""

from __future__ import annotations

import argparse
import json
import math
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.common import DONE, add_verb, bars, default_directory, prepare
from remnant.cli.target import read_target
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from torch import Tensor

    from remnant.auditing.case import Case
    from remnant.auditing.spec import AuditSpec
    from remnant.bundle import Audit
    from remnant.types import Examples, Target

EXPOSED, INCONCLUSIVE = 3, 4  # exit codes with --gate
FLAGS = {
    "model": "mlp:..., cnn:... or file.py:factory (only that file is imported)",
    "weights": "the released weights: safetensors, a state dict or a Lightning checkpoint",
    "initial": "the weights before training",
    "gradient": "a captured gradient: one tensor per parameter, named alike",
    "data": "the records trained on: a name, file or folder",
    "holdout": "records like them that were not trained on",
    "public": "others that were not trained on either",
    "loss": "the training loss: ce, bce, mse, ... (default: by the labels)",
    "mean": "subtracted from the data: numbers, a safetensors file, or 'public'",
    "std": "by which the data was divided after that",
    "bounds": "smallest and largest value of the data, such as 0,1",
    "shape": "of one record, such as 1x28x28",
    "data_dir": "where data is looked for",
    "budget": "the most time for attacks, such as 10m",
}


def add(verbs: Any) -> None:
    for name, summary, example in (
        ("audit", "play every adversary that applies, and say what comes back", "audit.yaml"),
        ("preflight", "which attacks apply to a model, why not, and what they cost", "audit.yaml"),
    ):
        parser = add_verb(verbs, name, summary, f"remnant {name} {example} --out found")
        parser.set_defaults(run=run if name == "audit" else run_preflight, seed=None)
        parser.add_argument("spec", nargs="?", type=Path, help="audit.yaml; flags go before it")
        parser.add_argument("--attacks", help="some of ntk,gradient,kkt (default: all)")
        parser.add_argument("--threshold", type=float, help="correlation of a recovered record")
        for flag, text in FLAGS.items():
            parser.add_argument(f"--{flag.replace('_', '-')}", dest=flag, help=text)
        if name == "audit":
            parser.add_argument(
                "--gate", action="store_true", help="exit 3 if exposed, 4 if inconclusive"
            )
            parser.add_argument(
                "--no-images", dest="images", action="store_false", default=None,
                help="leave originals and reconstructions out of the results",
            )  # fmt: skip
            parser.add_argument(
                "--redact", action="store_true", default=None, help="blur the originals"
            )


def run(arguments: argparse.Namespace) -> int:
    spec = read(arguments)
    prepare(arguments)
    from remnant.auditing.run import Plan, run_audit
    from remnant.store import open_run

    with bars(arguments.quiet):
        case, hashes = read_case(spec)
        record = {"verb": "audit", "spec": spec.model_dump(mode="json"), **hashes}
        stored = open_run(arguments.out or default_directory(record), record)
        if stored.finished:
            from remnant.report.page import read_bundle

            result, _ = read_bundle(stored.path, images=False)
        else:
            plan = Plan(
                attacks=spec.attacks,
                settings={str(name): value for name, value in spec.settings.items()},
                threshold=spec.threshold,
                seed=spec.seed,
                budget=spec.budget,
                images=spec.images,
                redacted=spec.redact,
                command=arguments.command,
            )
            result = run_audit(case, plan, stored)
    show(result, stored.path, arguments)
    codes = {"exposed": EXPOSED, "inconclusive": INCONCLUSIVE}
    return codes.get(result.verdict, DONE) if arguments.gate else DONE


def run_preflight(arguments: argparse.Namespace) -> int:
    spec = read(arguments)
    prepare(arguments)
    from remnant.auditing.preflight import preflight

    with bars(arguments.quiet):
        case, _ = read_case(spec)
        rows = preflight(case, attacks=spec.attacks)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif not arguments.quiet:
        for row in rows:
            print(f"{row['attack']:9} {row['title']}")
            if row["applies"]:
                cost = f"about {row['seconds']:g} s with its control, {row['megabytes']:g} MB"
                print(f"{'':9} applies; {cost}")
            else:
                print(f"{'':9} does not apply: {row['why']}")
            if row["stronger"]:
                print(f"{'':9} stronger: {row['stronger']}")
    return DONE


def read(arguments: argparse.Namespace) -> AuditSpec:
    """The spec of the file, changed by flags; or of flags alone."""
    from remnant.auditing.spec import AuditSpec, check_spec, read_spec

    values: dict[str, Any] = {}
    if arguments.spec is not None:
        values = read_spec(arguments.spec).model_dump(exclude_unset=True)
    given = vars(arguments)
    for name in AuditSpec.model_fields:
        if given.get(name) is not None:
            values[name] = given[name]
    if isinstance(values.get("attacks"), str):
        values["attacks"] = tuple(values["attacks"].split(","))
    spec = check_spec(values, str(arguments.spec or "audit"))
    arguments.seed = spec.seed
    return spec


def read_case(spec: AuditSpec) -> tuple[Case, dict[str, str]]:
    """The case that the spec describes, and hashes of all that was read."""
    from remnant.auditing.case import Case
    from remnant.data import load
    from remnant.store import hash_tensors

    truth = load(spec.data, data_dir=spec.data_dir)
    others = {
        name: load(source, data_dir=spec.data_dir)
        for name in ("holdout", "public")
        if (source := getattr(spec, name)) is not None
    }
    if not others:
        do = "a verdict needs a null; give --holdout or --public"
        raise InputError(expected("audit", "records that were not trained on", "none", do))
    if len(others) == 1:  # one set serves as both, half each
        (only,) = others.values()
        middle = len(only) // 2
        if middle < 1:
            raise InputError(expected("--holdout", "two records or more", len(only)))
        others = {
            "holdout": only.take(range(middle)),
            "public": only.take(range(middle, len(only))),
        }
    settings = argparse.Namespace(**{**spec.model_dump(), "shape": spec.shape or _shape(truth)})
    target, hashes = read_target(settings)
    outputs = _outputs(target)
    loss = spec.loss or _loss_by(truth.labels.is_floating_point(), outputs.shape[1])
    truth = replace(truth, inputs=truth.inputs.reshape(-1, *target.input_shape))
    others = {
        name: replace(part, inputs=part.inputs.reshape(-1, *target.input_shape))
        for name, part in others.items()
        if _fits(part, target)
    }
    for name, part in (("data", truth), *others.items()):
        _check_labels(loss, outputs, part, name)
    case = Case(
        target=target,
        truth=truth,
        holdout=others["holdout"],
        public=others["public"],
        loss=loss,
        ledger=_ledger(spec),
        delta=spec.privacy.delta if spec.privacy else 1e-5,
    )
    hashes |= {
        name: hash_tensors({"x": part.inputs, "y": part.labels})
        for name, part in (("data", truth), *others.items())
    }
    return case, hashes


def _ledger(spec: AuditSpec) -> Any:
    from remnant.bounds import Ledger

    if spec.privacy is None:
        return None
    return Ledger(
        noise_multiplier=spec.privacy.noise,
        steps=spec.privacy.steps,
        sampling_rate=spec.privacy.sampling,
        clip=spec.privacy.clip,
        adjacency=spec.privacy.adjacency,
    )


def _shape(examples: Any) -> str:
    return "x".join(map(str, examples.shape))


def _fits(examples: Examples, target: Target) -> bool:
    if math.prod(examples.shape) != math.prod(target.input_shape):
        wanted = f"records of shape {target.input_shape}"
        raise InputError(expected(examples.name, wanted, examples.shape))
    return True


def _check_labels(loss: str, outputs: Tensor, examples: Examples, name: str) -> None:
    from remnant.training import check_labels

    try:
        check_labels(loss, outputs.expand(len(examples), -1), examples.labels)
    except InputError as error:
        raise InputError(f"--{name}: {error}") from None


def _outputs(target: Target) -> Tensor:
    """The model's outputs for one input of zeros, 1 x c."""
    import torch

    parameter = next(target.model.parameters())
    with torch.no_grad():
        try:
            outputs: Tensor = target.model.eval()(
                torch.zeros(1, *target.input_shape, dtype=parameter.dtype)
            )
        except RuntimeError as error:
            got = str(error).splitlines()[0]
            raise InputError(
                expected("--model", f"a model of inputs {target.input_shape}", got)
            ) from None
    return outputs if outputs.ndim > 1 else outputs.reshape(1, -1)


def _loss_by(real: bool, outputs: int) -> str:
    if real:
        return "mse"
    return "bce" if outputs == 1 else "ce"


def show(result: Audit, path: Path, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(result.to_json(), end="")
        return
    if arguments.quiet:
        return
    from rich.console import Console
    from rich.text import Text

    console = Console(highlight=False)
    console.print(Text(f"{result.verdict}: {result.sentence}", style="bold"))
    for row in result.attacks:
        console.print(Text(f"  {row.title}: {row.verdict}; {row.reason}"))
    console.print(Text(f"in {path}: report.html, finding.json"), soft_wrap=True)
