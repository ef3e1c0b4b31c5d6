"""`remnant demo`: train, attack, look."""

from __future__ import annotations

import argparse
import dataclasses
from typing import TYPE_CHECKING, Any

from remnant.cli.common import HEAVY, Answer, add_data_dir, add_verb, run_of
from remnant.cli.flags import Parser, add_fields, given
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from remnant.store import Run

TEXT = "text"  # sentences, in place of images or tables


def add(verbs: Any) -> None:
    example = "remnant demo --data mnist --records 100 --width 1024 --seed 1"
    parser = add_verb(verbs, "demo", example, shared=HEAVY, run=run)
    parser.later(lambda: fill(parser))


def fill(parser: Parser) -> None:
    """A flag for each field of a demo; later, since reading them takes torch."""
    from remnant.experiments.demo import Demo

    parser.set_defaults(settings=add_fields(parser, Demo))
    add_data_dir(parser)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.cli.reconstruct import found_by
    from remnant.experiments.demo import Demo, data_hash, divide, run_demo

    told = given(arguments, arguments.settings)
    if told.get("data") == TEXT:
        return run_text(arguments, told)
    demo = Demo(seed=arguments.seed, **told)
    sides = divide(demo, arguments.data_dir)
    spec = {"verb": "demo", **dataclasses.asdict(demo), "data_hash": data_hash(sides)}
    return found_by(run_of(arguments, spec, lambda run: run_demo(demo, sides, run)))


def run_text(arguments: argparse.Namespace, told: dict[str, Any]) -> Answer:
    """Sentences out of a language model's gradient."""
    from remnant.cli.reconstruct import found_by, write_texts
    from remnant.experiments.demo_text import TextDemo, run_text_demo, text_data
    from remnant.store import read_candidates

    known = [field.name for field in dataclasses.fields(TextDemo)]
    for name in told:
        if name not in known:
            wanted = f"of --data text only {', '.join(f'--{name}' for name in known[1:])}"
            raise InputError(expected(f"--{name.replace('_', '-')}", wanted, "a value"))
    demo = TextDemo(seed=arguments.seed, **told)
    data = text_data(demo)
    spec = {"verb": "demo", **dataclasses.asdict(demo), "data_hash": data.hash}

    def work(run: Run) -> None:
        run_text_demo(demo, data, run)
        write_texts(run, read_candidates(run), data.tokenizer.pieces)

    return found_by(run_of(arguments, spec, work))
