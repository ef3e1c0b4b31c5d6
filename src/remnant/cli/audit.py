"""`remnant audit`, `preflight` and `init`: one's own model, every adversary that applies."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.cases import read_case
from remnant.cli.common import (
    DONE,
    add_verb,
    bars,
    console,
    default_directory,
    plain,
    prepare,
    say,
    taking_back,
)

if TYPE_CHECKING:
    from remnant.auditing.spec import AuditSpec
    from remnant.bundle import Audit

EXPOSED, INCONCLUSIVE = 3, 4  # exit codes with --gate
FLAGS = {
    "model": "mlp:..., cnn:... or file.py:factory (only that file is imported)",
    "weights": "the released weights: safetensors, a state dict or a Lightning checkpoint; of a "
    "linear model its coefficients as JSON or npz, or a skops file",
    "initial": "the weights before training",
    "gradient": "a captured gradient: one tensor per parameter, named alike",
    "recipe": "how it was trained, as JSON: for the adversary who knows all records but one",
    "targets": "records left out in turn for that adversary: a number, or ids such as a,b",
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
        parser.add_argument("spec", nargs="?", type=Path, help="audit.yaml")
        parser.add_argument(
            "--attacks", help="some of ntk,gradient,kkt,informed,glm (default: all)"
        )
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
                targets=spec.targets,
                settings={str(name): value for name, value in spec.settings.items()},
                threshold=spec.threshold,
                seed=spec.seed,
                budget=spec.budget,
                images=spec.images,
                redacted=spec.redact,
                command=arguments.command,
            )
            with taking_back(stored):
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
        settings = {str(name): value for name, value in spec.settings.items()}
        rows = preflight(case, attacks=spec.attacks, settings=settings, targets=spec.targets)
    if arguments.json:
        print(json.dumps(rows, indent=2))
    elif not arguments.quiet:
        for row in rows:
            say(f"{row['attack']:9} {row['title']}")
            if row["applies"]:
                cost = f"about {row['seconds']:g} s with its control, {row['megabytes']:g} MB"
                say(f"{'':9} applies; {cost}")
            else:
                say(f"{'':9} does not apply: {row['why']}")
            if row["stronger"]:
                say(f"{'':9} stronger: {row['stronger']}")
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
    if isinstance(arguments.targets, str):
        text = arguments.targets
        number = text.isdecimal() and len(text) < 19  # a longer one is an id
        values["targets"] = int(text) if number else tuple(text.split(","))
    spec = check_spec(values, str(arguments.spec or "audit"))
    arguments.seed = spec.seed
    return spec


def show(result: Audit, path: Path, arguments: argparse.Namespace) -> None:
    if arguments.json:
        print(result.to_json(), end="")
        return
    if arguments.quiet:
        return

    out = console()
    out.print(plain(f"{result.verdict}: {result.sentence}", style="bold"))
    for row in result.attacks:
        out.print(plain(f"  {row.title}: {row.verdict}; {row.reason}"))
        if row.bound is not None and not row.bound["violated"]:  # else the reason begins with it
            out.print(plain(f"    by the ledger: {row.bound['text']}"))
    out.print(plain(f"in {path}: report.html, finding.json"), soft_wrap=True)
