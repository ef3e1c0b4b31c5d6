"""`remnant reconstruct ATTACK`: what an adversary gets, without the truth anywhere."""

from __future__ import annotations

import argparse
import dataclasses
import math
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remnant.cli.common import DONE, add_verb, bars, default_directory, prepare
from remnant.cli.target import add_held, read_target
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from remnant.store import Run
    from remnant.types import Candidates


def add(verbs: Any) -> None:
    group = verbs.add_parser("reconstruct", help="run one attack on a model, no truth needed")
    attacks = group.add_subparsers(dest="attack", metavar="ATTACK", required=True)
    for name, (summary, example, flags) in ADVERSARIES.items():
        text = f"remnant reconstruct {name} {example} --shape 1x28x28 --out found"
        parser = add_verb(attacks, name, f"reconstruct {summary}", text)
        flags(add_held(parser), parser.add_argument_group("how"))
        parser.set_defaults(run=run)


def ntk_flags(held: Any, how: Any) -> None:
    held.add_argument("--initial", type=Path, required=True, help="weights before training")


def gradient_flags(held: Any, how: Any) -> None:
    held.add_argument(
        "--gradient", type=Path, required=True, help="one tensor per parameter, named alike"
    )
    held.add_argument("--loss", help="the training loss, if it is known: ce, mse, bce, ...")
    how.add_argument("--preset", choices=("exact", "paper", "matching"), default="exact")
    optional(how, "--norm", float, "of paper: the inputs' common norm")
    optional(how, "--source", str, "of paper: dL/dW or dL/da", choices=("layer", "head"))
    optional(how, "--steps", int, "of matching (default: 1000)")
    optional(how, "--restarts", int, "of matching (default: 1)")


def optional(group: Any, flag: str, kind: type, text: str, **more: Any) -> None:
    """A field of the attack that keeps its own default unless the flag is given."""
    group.add_argument(flag, type=kind, help=text, default=argparse.SUPPRESS, **more)


# name: what comes back from what, an example's flags, the attack's own flags
ADVERSARIES: dict[str, tuple[str, str, Callable[[Any, Any], None]]] = {
    "ntk": (
        "records from final and initial weights",
        "--model mlp:784-1024-1024-10 --initial before.safetensors --weights after.safetensors",
        ntk_flags,
    ),
    "gradient": (
        "a batch from one gradient",
        "--model mlp:784-256-256-10 --weights sent.safetensors --gradient update.safetensors",
        gradient_flags,
    ),
}


def run(arguments: argparse.Namespace) -> int:
    prepare(arguments)
    if arguments.device != "cpu":
        raise InputError(expected("--device", "cpu, where the solvers run", arguments.device))
    import torch

    from remnant.attacks import ATTACKS
    from remnant.auditing import without_truth
    from remnant.cli.show import show_finding
    from remnant.store import finish, open_run, read_finding, write_candidates, write_finding

    with bars(arguments.quiet):
        target, hashes = read_target(arguments)
        kind = ATTACKS[arguments.attack]
        fields = {field.name for field in dataclasses.fields(cast(Any, kind))}
        attack = kind(**{k: v for k, v in vars(arguments).items() if k in fields})
        spec = {
            "verb": f"reconstruct-{arguments.attack}",
            "seed": arguments.seed,
            "attack": dict(vars(attack)),
            "model": arguments.model,
            "records": arguments.records,
            "loss": getattr(arguments, "loss", None),
            "shape": list(target.input_shape),
            "bounds": target.bounds,
            **hashes,
        }
        stored = open_run(arguments.out or default_directory(spec), spec)
        if stored.finished:
            finding = read_finding(stored)
        else:
            generator = torch.Generator().manual_seed(arguments.seed)
            candidates = attack(target, generator=generator)
            finding = without_truth(candidates, attack=arguments.attack)
            write_candidates(stored, candidates)
            write_sheet(stored, candidates, arguments.attack)
            write_finding(stored, finding)
            finish(stored, seeds={"seed": arguments.seed}, hashes=hashes)
    show_finding(finding, stored, arguments)
    return DONE


def write_sheet(run: Run, candidates: Candidates, attack: str) -> None:
    """The contact sheet, where records look like images: also d numbers that fill a square."""
    from remnant.report import candidates_sheet, draw_sheet, drawable
    from remnant.store import write_bytes

    shape = as_image(tuple(candidates.inputs.shape[1:]))
    if len(candidates) and drawable(shape):
        pictures = candidates.inputs.reshape(-1, *shape)
        shown = dataclasses.replace(candidates, inputs=pictures)
        write_bytes(run, "sheet.png", draw_sheet(**candidates_sheet(shown, attack=attack)))


def as_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    if len(shape) != 1:
        return shape
    for channels in (1, 3):
        side = math.isqrt(shape[0] // channels)
        if side >= 8 and channels * side * side == shape[0]:
            return channels, side, side
    return shape
