"""`remnant reconstruct ATTACK`: what an adversary gets, without the truth anywhere.

Also how a finding is printed, by the demo and by a search as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import math
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remnant.cli.common import (
    VERBS,
    Answer,
    Exit,
    add_place,
    add_verb,
    place,
    print_line,
    print_place,
    print_table,
    run_of,
)
from remnant.cli.flags import Parser, add_settings, add_spec, given
from remnant.cli.spec import AttackSpec, checked
from remnant.cli.texts import TEXTS_FILE

if TYPE_CHECKING:
    from remnant.attacks import Attack
    from remnant.store import Run
    from remnant.types import Candidates, Finding, Target

FILES = (
    TEXTS_FILE,
    "sheet.png",
    "curve.svg",
    "spectrum.svg",
    "finding.json",
    "candidates.safetensors",
)
# Fields of the target's spec that decide the result; hashes stand for the files, and for the
# others what was made of them.
NOT_APPLICABLE = "not applicable"  # `types.Status`, which would import torch for --help
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


def run(arguments: argparse.Namespace) -> Answer:
    import torch

    from remnant.attacks.made import make_attack
    from remnant.auditing import without_truth
    from remnant.cli.target import read_linear_target, read_target
    from remnant.cli.texts import words_of, write_texts
    from remnant.store import finish, keeping_states, write_candidates, write_finding

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

    return found_by(run_of(arguments, spec, work), table=target if linear else None)


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
    from remnant.report.sheet import candidates_sheet, draw_sheet, drawable
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


# how a finding is printed


def found_by(run: Run, *, before: Sequence[str] = (), table: Target | None = None) -> Answer:
    """What the run found. before: lines that are printed first. table: a target whose records are
    rows of a table, of which the best one is printed feature by feature."""
    from remnant.store import read_finding

    finding = read_finding(run)

    def show() -> None:
        for line in before:
            print_line(line)
        print_finding(run, finding)
        if table is not None:
            print_record(table, run)
        print_texts(run)

    code = Exit.NOT_APPLICABLE if finding.status == NOT_APPLICABLE else Exit.DONE
    return Answer(figures=finding.to_json(), show=show, code=code)


def print_finding(run: Run, finding: Finding) -> None:
    print_line(headline(finding), style="bold")
    print_line(finding.reason)
    if finding.records is not None:
        print_scores(finding)
    seconds = read_seconds(run)
    if seconds:
        print_line(seconds, style="dim")
    print_place(run, [name for name in FILES if (run.path / name).exists()])
    page = run.path / "audit" / "report.html"
    if page.exists():
        print_line(f"the page: {page}", style="bold")


def print_record(target: Target, run: Run) -> None:
    """The best candidate of a table, feature by feature."""
    from remnant.report.table import record_table
    from remnant.store import read_candidates

    found = read_candidates(run)
    known = target.knowledge.known
    if not len(found) or known is None:
        return
    rows = record_table(
        found.inputs[0].flatten().tolist(),
        features=getattr(target.model, "features", ()),
        known=known.inputs.flatten(1),
    )
    lines = [(one.feature, one.recovered + " (unclear)" * (not one.clear)) for one in rows]
    print_line("recovered record", style="bold")
    print_table(("feature", "recovered"), lines)
    if found.labels is not None:
        print_line(f"label: {found.labels[0].item():g}")


def print_texts(run: Run, most: int = 20) -> None:
    """The first recovered texts, where records are texts."""
    path = run.path / TEXTS_FILE
    lines = path.read_text("utf-8").splitlines() if path.exists() else []
    for line in lines[:most]:
        held = json.loads(line)
        print_line(f"{'certified' if held['certified'] else 'not certified'}: {held['text']}")
    if len(lines) > most:
        print_line(f"and {len(lines) - most} more in {path}")


def headline(finding: Finding) -> str:
    counted = "unknown" if finding.counted is None else f"{finding.counted}"
    if finding.records is None:
        certified = finding.stated.certified or 0
        return (
            f"{finding.attack}: {finding.status}; records counted {counted}, certified {certified}"
        )
    recovered = f"{finding.recovered} of {finding.records} records recovered"
    return f"{finding.attack}: {finding.status}; {recovered}, counted {counted}"


def print_scores(finding: Finding) -> None:
    """How near the reconstructions are to the records, beside the nulls."""
    from remnant.bundle import NULLS

    of, threshold = finding.records, finding.threshold
    columns = [f"corr > {threshold or 0:g}", "median sq. L2", "max sq. L2", "SSIM > 0.4"]
    keys = ["median_squared_l2", "max_squared_l2", "good_ssim"]
    if finding.summary.get("protocol") == "texts":
        columns, keys = (
            ["word for word", "tokens right", "longest run"],
            ["mean_tokens", "mean_run"],
        )
    held = {f"null: {words}": finding.nulls.get(name) for name, (words, _) in NULLS.items()}
    rows = [
        (words, f"{scores['recovered']}/{of}", *(_score(scores, key, of) for key in keys))
        for words, scores in ({"reconstructions": finding.summary} | held).items()
        if scores is not None
    ]
    print_table(("", *columns), rows, numbers=True)


def _score(scores: Mapping[str, Any], key: str, records: int | None) -> Any:
    value = scores[key]
    return value if value is None or key != "good_ssim" else f"{value}/{records}"


def read_seconds(run: Run) -> str:
    """CPU seconds of each stage, from run.json as it is now."""
    from remnant.store import read_run

    timings = read_run(run.path).record.get("timings", {})
    parts = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in timings.items())
    return f"CPU time: {parts}" if parts else ""
