"""`remnant reconstruct ATTACK`: what an adversary gets, without the truth anywhere."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remnant.cli.common import VERBS, Exit, add_place, add_verb, bars, place, prepare, run_of
from remnant.cli.flags import Parser, add_settings, add_spec, given
from remnant.cli.spec import AttackSpec, checked
from remnant.cli.target import read_linear_target, read_target

if TYPE_CHECKING:
    from remnant.attacks import Attack
    from remnant.store import Run
    from remnant.types import Candidates, Target

# Fields of the target's spec that decide the result; hashes stand for the files, and for the
# others what was made of them.
DECIDE = ("model", "records", "loss", "label", "labels", "refit")


def add(verbs: Any) -> None:
    group = verbs.add_parser("reconstruct", help=VERBS["reconstruct"])
    group.later(lambda: add_attacks(group))


def add_attacks(group: Parser) -> None:
    """A verb for each attack: the flags are what its file says that it holds, and its fields."""
    from remnant.attacks import ATTACKS

    attacks = group.add_subparsers(dest="attack", metavar="ATTACK", required=True)
    for name, kind in ATTACKS.items():
        about = kind.about
        example = f"remnant reconstruct {name} {about.example} --out found"
        summary = f"reconstruct {about.summary}"
        parser = add_verb(attacks, name, example, summary=summary, run=run)
        held = parser.add_argument_group("what the adversary holds")
        needs, takes = list(about.needs), [*about.takes, "data_dir"]
        if "tokenizer" in takes:  # --model hf:DIR has the weights; else the spec asks for them
            needs.remove("weights")
            takes.insert(0, "weights")
        add_spec(held, AttackSpec, takes, needs=needs)
        how = parser.add_argument_group("how")
        settings = add_settings(how, kind)
        if about.shadows:
            words = "where shadow models are kept for other runs (default: in --out, until done)"
            how.add_argument("--fleets", type=Path, help=words)
            add_place(parser, "1, for shadow models")
        parser.set_defaults(settings=settings)


def run(arguments: argparse.Namespace) -> int:
    prepare(arguments)
    import torch

    from remnant.attacks.made import make_attack
    from remnant.auditing import without_truth
    from remnant.cli.show import show_finding, show_record, show_texts
    from remnant.cli.texts import words_of, write_texts
    from remnant.store import finish, keeping_states, write_candidates, write_finding

    with bars(arguments.quiet):
        attack = make_attack(arguments.attack, given(arguments, arguments.settings))
        fields = [*attack.about.needs, *attack.about.takes, "data_dir"]
        told = checked(AttackSpec, given(arguments, fields), "--")
        linear = "coefficients" in fields
        target, hashes = (read_linear_target if linear else read_target)(told)
        spec = run_spec(arguments, attack, told, target) | hashes
        words = words_of(told, target.model)

        def work(stored: Run) -> None:
            generator = torch.Generator().manual_seed(arguments.seed)
            with keeping_states(stored), spreading_shadows(stored, arguments):
                found = attack(target, generator=generator)
                write_candidates(stored, found)
                if words is None:
                    write_sheet(stored, found, arguments.attack)
                else:
                    write_texts(stored, found, words)
                write_finding(stored, without_truth(found, attack=arguments.attack))
                finish(stored, seeds={"seed": arguments.seed}, hashes=hashes)

        stored = run_of(arguments, spec, work)
    show_finding(stored, arguments)
    if linear:
        show_record(target, stored, arguments)
    if words is not None:
        show_texts(stored, arguments)
    return Exit.DONE


def run_spec(
    arguments: argparse.Namespace, attack: Attack, told: AttackSpec, target: Target
) -> dict[str, Any]:
    """All that decides the result, but for the files read."""
    return {
        "verb": f"reconstruct-{arguments.attack}",
        "seed": arguments.seed,
        "attack": dataclasses.asdict(cast(Any, attack)),
        **{name: getattr(told, name) for name in DECIDE},
        "shape": list(target.input_shape),
        "bounds": target.bounds,
    }


@contextmanager
def spreading_shadows(run: Run, arguments: argparse.Namespace) -> Iterator[None]:
    """Where the flags say; an attack that trains no shadow models has none of them."""
    if not hasattr(arguments, "fleets"):
        yield
        return
    from remnant.sweep.fleets import spreading

    with spreading(arguments.fleets or run.path, place(arguments) or "jobs:1"):
        yield
    if arguments.fleets is None:
        for done in run.path.glob("fleet-*"):
            shutil.rmtree(done)


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
