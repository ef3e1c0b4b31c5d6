"""`remnant reconstruct ATTACK`: what an adversary gets, without the truth anywhere.

Also how a finding is printed, by the demo and by a search as well.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import shutil
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

from remnant.cli.common import (
    HEAVY,
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
from remnant.cli.flags import Parser, add_fields, given
from remnant.cli.spec import AttackSpec, checked

if TYPE_CHECKING:
    from remnant.store import Run
    from remnant.types import Candidates, Finding, Target

TEXTS_FILE = "texts.jsonl"
FILES = (
    TEXTS_FILE,
    "sheet.png",
    "curve.svg",
    "spectrum.svg",
    "finding.json",
    "candidates.safetensors",
)
NOT_APPLICABLE = "not applicable"  # `types.Status`, which would import torch for --help
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
        parser = add_verb(attacks, name, example, summary=summary, shared=HEAVY, run=run)
        held = parser.add_argument_group("what the adversary holds")
        needs, takes = list(about.needs), [*about.takes, "data_dir"]
        if "tokenizer" in takes:  # --model hf:DIR has the weights; else the spec asks for them
            needs.remove("weights")
            takes.insert(0, "weights")
        told = add_fields(held, AttackSpec, takes, needs=needs)
        how = parser.add_argument_group("how")
        settings = add_fields(how, kind)
        if about.shadows:
            words = "where shadow models are kept for other runs (default: in --out, until done)"
            how.add_argument("--fleets", type=Path, help=words)
            add_place(parser, "1, for shadow models")
        parser.set_defaults(told=told, settings=settings)


def run(arguments: argparse.Namespace) -> Answer:
    import torch

    from remnant.attacks.made import make_attack
    from remnant.auditing import without_truth
    from remnant.cli.target import read_linear_target, read_target, words_of
    from remnant.store import finish, keeping_states, write_candidates, write_finding

    attack = make_attack(arguments.attack, given(arguments, arguments.settings))
    told = checked(AttackSpec, given(arguments, arguments.told))
    linear = "coefficients" in arguments.told
    target, hashes = (read_linear_target if linear else read_target)(told)
    spec = {  # all that decides the result
        "verb": f"reconstruct-{arguments.attack}",
        "seed": arguments.seed,
        "attack": dataclasses.asdict(cast(Any, attack)),
        **{name: getattr(told, name) for name in DECIDE},
        "shape": list(target.input_shape),
        "bounds": target.bounds,
        **hashes,
    }

    def work(stored: Run) -> None:
        generator = torch.Generator().manual_seed(arguments.seed)
        with keeping_states(stored), spreading_shadows(stored, arguments):
            found = attack(target, generator=generator)
            write_candidates(stored, found)
            words = words_of(told, target.model)
            if words is None:
                write_sheet(stored, found, arguments.attack)
            else:
                write_texts(stored, found, words)
            write_finding(stored, without_truth(found, attack=arguments.attack))
            finish(stored, seeds={"seed": arguments.seed}, hashes=hashes)

    return found_by(run_of(arguments, spec, work), table=target if linear else None)


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
    from remnant.report.sheet import as_image, candidates_sheet, draw_sheet, drawable
    from remnant.store import write_bytes

    shape = as_image(tuple(candidates.inputs.shape[1:]))
    if len(candidates) and drawable(shape):
        pictures = candidates.inputs.reshape(-1, *shape)
        shown = dataclasses.replace(candidates, inputs=pictures)
        write_bytes(run, "sheet.png", draw_sheet(**candidates_sheet(shown, attack=attack)))


def write_texts(
    run: Run, candidates: Candidates, words: Callable[[Sequence[int]], list[str]]
) -> None:
    """What came back as texts.jsonl: a text a line, its tokens, and whether it is certified."""
    from remnant.store import write_text
    from remnant.types import token_rows

    passed = list(candidates.stated.passed) or [False] * len(candidates)
    lines = []
    for tokens, certified in zip(token_rows(candidates.inputs), passed, strict=True):
        held = {"text": "".join(words(tokens)), "certified": bool(certified), "tokens": tokens}
        lines.append(json.dumps(held, ensure_ascii=False) + "\n")
    if lines:
        write_text(run, TEXTS_FILE, "".join(lines))


# how a finding is printed


def found_by(run: Run, *, before: Sequence[str] = (), table: Target | None = None) -> Answer:
    """What the run found. before: lines that are printed first. table: a target whose records are
    rows of a table, of which the best one is printed feature by feature."""
    from remnant.store import read_finding

    finding = read_finding(run)

    def show() -> None:
        print_line(*before)
        print_finding(run, finding)
        if table is not None:
            print_record(table, run)
        print_texts(run)

    code = Exit.NOT_APPLICABLE if finding.status == NOT_APPLICABLE else Exit.DONE
    return Answer(figures=finding.to_json(), show=show, code=code)


def print_finding(run: Run, finding: Finding) -> None:
    from remnant.store import read_run

    counted = f"counted {'unknown' if finding.counted is None else finding.counted}"
    said = f"{finding.recovered} of {finding.records} records recovered, {counted}"
    if finding.records is None:
        said = f"records {counted}, certified {finding.stated.certified or 0}"
    print_line(f"{finding.attack}: {finding.status}; {said}", style="bold")
    print_line(finding.reason)
    if finding.records is not None:
        print_scores(finding)
    timings = read_run(run.path).record.get("timings", {})  # as it is now
    if timings:
        parts = ", ".join(f"{stage} {seconds:.1f} s" for stage, seconds in timings.items())
        print_line(f"CPU time: {parts}", style="dim")
    print_place(run, FILES)
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


def print_scores(finding: Finding) -> None:
    """How near the reconstructions are to the records, beside the nulls."""
    from remnant.bundle import NULLS

    of = finding.records
    shown = {
        f"corr > {finding.threshold or 0:g}": "recovered",
        "median sq. L2": "median_squared_l2",
        "max sq. L2": "max_squared_l2",
        "SSIM > 0.4": "good_ssim",
    }
    if finding.summary.get("protocol") == "texts":
        shown = {
            "word for word": "recovered",
            "tokens right": "mean_tokens",
            "longest run": "mean_run",
        }
    held = {f"null: {words}": finding.nulls.get(name) for name, (words, _) in NULLS.items()}
    rows = [
        (words, *(_score(scores, key, of) for key in shown.values()))
        for words, scores in ({"reconstructions": finding.summary} | held).items()
        if scores is not None
    ]
    print_table(("", *shown), rows, numbers=True)


def _score(scores: Mapping[str, Any], key: str, records: int | None) -> Any:
    value = scores[key]
    return (
        f"{value}/{records}" if key in ("recovered", "good_ssim") and value is not None else value
    )
