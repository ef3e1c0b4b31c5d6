"""`remnant reconstruct ATTACK`: what an adversary gets, without the truth anywhere."""

from __future__ import annotations

import argparse
import dataclasses
import math
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remnant.cli.common import (
    DONE,
    add_place,
    add_verb,
    bars,
    default_directory,
    place,
    prepare,
    taking_back,
)
from remnant.cli.target import add_held, read_linear_target, read_target
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from remnant.attacks import Attack
    from remnant.store import Run
    from remnant.types import Candidates, Target

SPEC = ("model", "records", "loss", "label", "labels", "refit")  # flags that decide the result


@dataclass(frozen=True, kw_only=True)
class Adversary:
    """A verb below `reconstruct`: its flags, and what reads the target that they describe."""

    summary: str
    example: str
    flags: Callable[[argparse.ArgumentParser], None]
    read: Callable[[argparse.Namespace], tuple[Target, dict[str, str]]] = read_target


def add(verbs: Any) -> None:
    group = verbs.add_parser("reconstruct", help="run one attack on a model, no truth needed")
    attacks = group.add_subparsers(dest="attack", metavar="ATTACK", required=True)
    for name, adversary in ADVERSARIES.items():
        text = f"remnant reconstruct {name} {adversary.example} --out found"
        parser = add_verb(attacks, name, f"reconstruct {adversary.summary}", text)
        adversary.flags(parser)
        parser.set_defaults(run=run)


def ntk_flags(parser: argparse.ArgumentParser) -> None:
    held = add_held(parser)
    held.add_argument("--initial", type=Path, required=True, help="weights before training")
    held.add_argument("--recipe", type=Path, help="how it was trained, as JSON, if it is known")
    held.add_argument("--labels", help="of all records, in any order, such as 3,1,1 (classes)")
    held.add_argument("--loss", help="the training loss, if it is known: ce, mse, bce, ...")
    how = parser.add_argument_group("how")
    how.add_argument("--preset", choices=("auto", "exact", "paper", "projected"), default="auto")
    optional(how, "--steps", int, "of paper (default: 80000) or projected (default: 400)")
    words = "of paper (default: final) and projected (default: initial)"
    optional(how, "--features", str, words, choices=("initial", "final", "hybrid"))
    optional(how, "--runs", int, "of projected: independent starts (default: 4)")
    how.add_argument("--double", action="store_true", help="of paper: float64")


def kkt_flags(parser: argparse.ArgumentParser) -> None:
    held, how = add_held(parser), parser.add_argument_group("how")
    held.add_argument("--loss", help="the training loss, if it is known: ce, mse, bce, ...")
    how.add_argument("--preset", choices=("default", "paper"), default="default")
    words = "margin, soft or free (default: by the loss and the outputs)"
    optional(how, "--objective", str, words, choices=("margin", "soft", "free"))
    optional(how, "--candidates", int, "in each start (default: twice the records)")
    optional(how, "--starts", int, "independent ones (default: 4)")
    optional(how, "--steps", int, "of each (default: 1000; paper: 50000)")
    optional(how, "--rank", int, "of the first dense layer (default: the records)")
    optional(how, "--tv-weight", float, "prior on neighbouring pixels (default: 0)")
    optional(how, "--lambda-min", float, "smallest dual (default: 0; paper: drawn)")
    optional(how, "--trials", int, "of paper: random draws of what follows (default: 1)")
    optional(how, "--lr", float, "of paper (default: drawn)")
    optional(how, "--sigma", float, "of paper: deviation of the first pixels (default: drawn)")
    optional(how, "--alpha", float, "of paper: sharpness of the smoothed ReLU (default: drawn)")


def gradient_flags(parser: argparse.ArgumentParser) -> None:
    held, how = add_held(parser), parser.add_argument_group("how")
    held.add_argument(
        "--gradient", type=Path, required=True, help="one tensor per parameter, named alike"
    )
    held.add_argument("--loss", help="the training loss, if it is known: ce, mse, bce, ...")
    how.add_argument("--preset", choices=("exact", "paper", "matching"), default="exact")
    optional(how, "--norm", float, "of paper: the inputs' common norm")
    optional(how, "--source", str, "of paper: dL/dW or dL/da", choices=("layer", "head"))
    optional(how, "--steps", int, "of matching (default: 1000)")
    optional(how, "--restarts", int, "of matching (default: 1)")


def informed_flags(parser: argparse.ArgumentParser) -> None:
    held, how = add_held(parser), parser.add_argument_group("how")
    held.add_argument("--initial", type=Path, required=True, help="weights before training")
    held.add_argument("--recipe", type=Path, required=True, help="how it was trained, as JSON")
    held.add_argument("--known", help="all records but the last ones: a name, file or folder")
    held.add_argument("--labels", help="of the unknown records, such as 3,1 (classes)")
    how.add_argument("--method", choices=("replay", "ridge", "reconn"), default="replay")
    optional(how, "--order-seed", int, "of the generator that shuffled mini-batches")
    optional(how, "--layers", names, "what is seen: beginnings of parameter names, such as 3.")
    optional(how, "--probes", int, "black box: logits on so many public inputs (default: 0)")
    optional(how, "--shadows", int, "of ridge and reconn: models to train (default: 3500)")
    words = "where shadow models are kept for other runs (default: in --out, until it is done)"
    how.add_argument("--fleets", type=Path, help=words)
    add_place(parser, "1, for shadow models")


def names(text: str) -> tuple[str, ...]:
    return tuple(text.split(","))


def glm_flags(parser: argparse.ArgumentParser) -> None:
    held, how = (
        parser.add_argument_group("what the adversary holds"),
        parser.add_argument_group("how"),
    )
    held.add_argument("--coefficients", type=Path, required=True, help="JSON or npz, see the docs")
    held.add_argument("--known", required=True, help="all records but one: a name, file or folder")
    held.add_argument("--records", type=int, help="of the training set (default: one more)")
    held.add_argument("--label", type=float, help="the missing record's, if it is known")
    held.add_argument("--bounds", help="smallest and largest value of a feature, such as 0,1")
    how.add_argument("--refit", action="store_true", help="search through the solver, if need be")
    optional(how, "--trusted", float, "largest predicted error of a record (default: 0.01)")
    optional(how, "--attempts", int, "starts of the search through the solver (default: 4)")
    how.add_argument(
        "--no-scaler", dest="use_scaler", action="store_false", help="do not use the scaler's mean"
    )
    parser.add_argument("--data-dir", type=Path, help="where --known is looked for")


def optional(group: Any, flag: str, kind: Callable[[str], Any], text: str, **more: Any) -> None:
    """A field of the attack that keeps its own default unless the flag is given."""
    group.add_argument(flag, type=kind, help=text, default=argparse.SUPPRESS, **more)


ADVERSARIES: dict[str, Adversary] = {
    "ntk": Adversary(
        summary="records from final and initial weights",
        example="--model mlp:784-1024-1024-10 --initial before.safetensors "
        "--weights after.safetensors --shape 1x28x28",
        flags=ntk_flags,
    ),
    "gradient": Adversary(
        summary="a batch from one gradient",
        example="--model mlp:784-256-256-10 --weights sent.safetensors "
        "--gradient update.safetensors --shape 1x28x28",
        flags=gradient_flags,
    ),
    "kkt": Adversary(
        summary="records from the final weights alone",
        example="--model mlp:784-300-300-10 --weights released.safetensors --records 50 "
        "--shape 1x28x28",
        flags=kkt_flags,
    ),
    "informed": Adversary(
        summary="the records that are not known, by replaying the training of those that are",
        example="--model mlp:784-10-10:elu --initial before.safetensors "
        "--weights after.safetensors --recipe recipe.json --known others.npz",
        flags=informed_flags,
    ),
    "glm": Adversary(
        summary="the one record of a linear model's training set that is not known",
        example="--coefficients model.json --known others.npz",
        flags=glm_flags,
        read=read_linear_target,
    ),
}


def run(arguments: argparse.Namespace) -> int:
    prepare(arguments)
    if arguments.device != "cpu":
        raise InputError(expected("--device", "cpu, where the solvers run", arguments.device))
    import torch

    from remnant.attacks import ATTACKS
    from remnant.attacks.made import make_attack
    from remnant.auditing import without_truth
    from remnant.cli.show import show_finding, show_record
    from remnant.store import (
        finish,
        keeping_states,
        open_run,
        read_finding,
        write_candidates,
        write_finding,
    )

    with bars(arguments.quiet):
        kind = ATTACKS[arguments.attack]
        fields = {field.name for field in dataclasses.fields(cast(Any, kind))}
        settings = {k: v for k, v in vars(arguments).items() if k in fields}
        attack = make_attack(arguments.attack, settings)
        target, hashes = ADVERSARIES[arguments.attack].read(arguments)
        spec = run_spec(arguments, attack, target) | hashes
        stored = open_run(arguments.out or default_directory(spec), spec)
        if stored.finished:
            finding = read_finding(stored)
        else:
            generator = torch.Generator().manual_seed(arguments.seed)
            with (
                taking_back(stored),
                keeping_states(stored),
                spreading_shadows(stored, arguments),
            ):
                candidates = attack(target, generator=generator)
                finding = without_truth(candidates, attack=arguments.attack)
                write_candidates(stored, candidates)
                write_sheet(stored, candidates, arguments.attack)
                write_finding(stored, finding)
                finish(stored, seeds={"seed": arguments.seed}, hashes=hashes)
    show_finding(finding, stored, arguments)
    if arguments.attack == "glm":
        show_record(target, stored, arguments)
    return DONE


def run_spec(arguments: argparse.Namespace, attack: Attack, target: Target) -> dict[str, Any]:
    """All that decides the result, but for the files read."""
    return {
        "verb": f"reconstruct-{arguments.attack}",
        "seed": arguments.seed,
        "attack": dataclasses.asdict(cast(Any, attack)),
        **{name: getattr(arguments, name, None) for name in SPEC},
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
