"""What verbs share: their table, flags, answers, places and what they print."""

from __future__ import annotations

import argparse
import json
import math
import os
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.flags import Parser, whole
from remnant.errors import InputError, StoreError, expected, printable, text_of
from remnant.progress import bars

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from remnant.store import Run


class Exit(IntEnum):
    """What a command ends with. EXPOSED and INCONCLUSIVE: only where `--gate` asks for a verdict.
    NOT_APPLICABLE: of `reconstruct`, where the attack's adversary does not exist here."""

    DONE = 0
    BAD_INPUT = 2
    EXPOSED = 3
    INCONCLUSIVE = 4
    NOT_APPLICABLE = 5
    INTERRUPTED = 130
    TERMINATED = 143


VERBS = {
    "demo": "train a small model and take its training data back out of the weights",
    "init": "write a commented audit.yaml for a model and its data",
    "recipe": "write a commented recipe of how a model was trained",
    "canaries": "make records to add to training, for the audit to ask for them",
    "audit": "play every adversary that applies, and say what comes back",
    "preflight": "which attacks apply to a model, why not, and what they cost",
    "reconstruct": "run one attack on a model, no truth needed",
    "bound": "how often any attack can reconstruct a record of a private run",
    "trap": "the network that a malicious server sends to read a batch off one gradient",
    "distill": "a few images that do for training what all do",
    "report": "draw the page of an audit again, from its directory alone",
    "study": "measure a paper's figure or a table of our own",
    "sweep": "every combination of a spec's lists, or a search over an attack's settings",
    "runs": "list, compare and remove runs",
    "completion": "print what makes a shell complete verbs and flags",
}
"""Every verb and its line of help, so that a command enters no other verb's file."""


@dataclass(frozen=True, kw_only=True)
class Answer:
    """What a verb ends with. figures: what --json prints, a text being JSON already. show: prints
    it in words, unless --quiet."""

    figures: Any = None
    show: Callable[[], object]
    code: Exit = Exit.DONE


def carry_out(arguments: argparse.Namespace) -> Exit:
    """Do what the verb does, print its answer, return its exit code."""
    shown = "threads" in arguments and not arguments.quiet
    where = prepare_torch(arguments) if "threads" in arguments else nullcontext()
    with where, bars() if shown else nullcontext():
        answer: Answer = arguments.run(arguments)
    if getattr(arguments, "json", False):
        figures = answer.figures
        ready = isinstance(figures, str)
        print(figures if ready else json.dumps(figures, indent=2, allow_nan=False) + "\n", end="")
    elif not getattr(arguments, "quiet", False):
        answer.show()
    return answer.code


SEED = whole(0, 2**31 - 1)
DEVICES = ("cpu", "cuda")
SHARED: dict[str, dict[str, Any]] = {
    "seed": {"type": SEED, "default": 0, "help": "the seed of all random draws (default: 0)"},
    "out": {"metavar": "DIR", "type": Path, "help": "the directory that receives the results"},
    "quiet": {"action": "store_true", "help": "print nothing but errors"},
    "json": {"action": "store_true", "help": "print the figures as JSON"},
    "threads": {
        "type": whole(1, os.cpu_count() or 1),
        "default": 1,
        "help": "how many CPU threads torch may use (default: 1)",
    },
    "device": {
        "choices": DEVICES,
        "default": "cpu",
        "help": "where attacks and training compute (default: cpu)",
    },
}
COMMON = ("seed", "out", "quiet", "json", "threads")
HEAVY = (*COMMON, "device")  # of verbs that run attacks or train


def add_verb(
    verbs: Any,
    name: str,
    example: str,
    *,
    summary: str = "",
    shared: Iterable[str] = COMMON,
    run: Callable[[argparse.Namespace], Answer],
) -> Parser:
    """A verb's parser with its example and the flags of `SHARED` that do something there.

    summary: its line of help, where it is not a verb of `VERBS`. run: what the verb does.
    """
    summary = summary or VERBS[name]
    said = f"{summary[0].upper()}{summary[1:]}."
    parser: Parser = verbs.add_parser(
        name, help=summary, description=said, epilog=f"example: {example}"
    )
    group = parser.add_argument_group("as in other verbs")
    for flag in shared:
        group.add_argument(f"--{flag}", **SHARED[flag])
    parser.set_defaults(run=run)
    return parser


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    words = "where data files are looked for (or REMNANT_DATA)"
    parser.add_argument("--data-dir", type=Path, help=words)


def prepare_torch(arguments: argparse.Namespace) -> AbstractContextManager[None]:
    """Threads as asked, and where to compute: on a device that is here."""
    import torch

    from remnant.devices import computing_on

    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)  # saturated activations would otherwise slow everything down
    here = [name for name in DEVICES if torch.get_device_module(name).is_available()]
    device = getattr(arguments, "device", "cpu")
    if device not in here:
        raise InputError(expected("--device", f"one that is here ({', '.join(here)})", device))
    return computing_on(device)


def add_place(parser: argparse.ArgumentParser, default: str) -> None:
    """Where tasks run; `default` says how many processes without a flag."""
    where = parser.add_argument_group("where").add_mutually_exclusive_group()
    words = f"processes on this machine (default: {default})"
    where.add_argument("--jobs", type=whole(1, 1024), help=words)
    where.add_argument("--on", help="dask://HOST:PORT, ray://auto, ray://local or ray://HOST:PORT")


def place(arguments: argparse.Namespace) -> str | None:
    """What the flags of `add_place` say, None where none was given."""
    from remnant.sweep.executors import read_place

    on = arguments.on if arguments.jobs is None else f"jobs:{arguments.jobs}"
    alone = on is None or read_place(on) == ("jobs", "1")
    if not alone and getattr(arguments, "device", "cpu") != "cpu":
        do = "other processes compute on the CPU"
        raise InputError(expected("--device", "cpu with --jobs or --on", arguments.device, do))
    return on


def run_of(
    arguments: argparse.Namespace, spec: Mapping[str, Any], work: Callable[[Run], object]
) -> Run:
    """The run of this spec, in --out or in a directory named by the spec's hash: one that was done
    before, or by `work` now.

    If it is refused before anything came of it, it leaves no directory behind, so that the mended
    command finds its place free.
    """
    from remnant.store import discard, open_run, spec_hash

    device = getattr(arguments, "device", "cpu")
    if device != "cpu":  # its sums round otherwise
        spec = {**spec, "device": device}
    own = Path("remnant-runs") / f"{spec['verb']}-{spec_hash(spec)[:8]}"
    stored = open_run(arguments.out or own, spec)
    if not stored.finished:
        try:
            work(stored)
        except (Exception, SystemExit):  # a user's module may call sys.exit
            discard(stored)
            raise
    return stored


def check_new(path: Path) -> None:
    if path.exists():
        raise StoreError(expected(f"{path}", "no file yet", "one", "remove it, or give --out"))


def write_new(path: Path, body: str | bytes) -> None:
    """A file that is not there yet, for its owner alone."""
    check_new(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with open(path, "xb", opener=lambda name, how: os.open(name, how, 0o600)) as file:
            file.write(body if isinstance(body, bytes) else body.encode())
    except OSError as error:
        raise InputError(expected(f"{path}", "a place to write", error.strerror)) from None


def in_yaml(value: Any) -> str:
    """A value on a line as YAML reads it back, whatever a path holds."""
    import yaml

    style = '"' if isinstance(value, str) and not value.isalnum() else None
    plain = list(value) if isinstance(value, tuple) else value
    text: str = yaml.safe_dump(plain, default_style=style, width=math.inf, default_flow_style=True)
    return text.removesuffix("...\n").strip()


# what is printed


def plain(value: object, style: str = "") -> Text:
    """A value for a table or a line: no markup, and no escape sequences of whoever named a file."""
    from rich.text import Text

    return Text(printable(text_of(value)), style=style)


def cell(value: Any) -> str:
    """A value in a table."""
    if value is None:
        return "-"
    if isinstance(value, bool):
        return "yes" if value else "no"
    return f"{value:.2g}" if isinstance(value, float) else text_of(value)


def print_table(
    columns: Sequence[str], rows: Iterable[Sequence[Any]], *, numbers: bool = False
) -> None:
    """A table on stdout; without names of columns, no line of them. numbers: all but the first
    column to the right."""
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim", show_header=bool(columns))
    for index, name in enumerate(columns):
        right = numbers and index > 0
        table.add_column(plain(name), justify="right" if right else "left", overflow="fold")
    for row in rows:
        table.add_row(*(plain(cell(value)) for value in row))
    console().print(table)


def print_line(*lines: str, style: str = "") -> None:
    """Lines on stdout that are never broken, whatever a file put into them."""
    for line in lines:
        console().print(plain(line, style=style), soft_wrap=True)


def print_place(run: Run, files: Iterable[str]) -> None:
    """Where results are, and whether they were there before; files: those that there may be."""
    again = " (done before; remove the directory to run it again)" if run.finished else ""
    there = ", ".join(name for name in files if (run.path / name).exists())
    print_line(f"in {run.path}{again}: {there}")


def console(file_width: int = 1000) -> Console:
    """Where tables are printed. On a pipe or in a file, rows may take `file_width` columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else file_width
    return Console(highlight=False, markup=False, emoji=False, width=width)
