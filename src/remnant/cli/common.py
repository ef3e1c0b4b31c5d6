"""What verbs share: flags, tables, places, progress bars."""

from __future__ import annotations

import argparse
import json
import os
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, nullcontext, suppress
from dataclasses import dataclass, field
from enum import IntEnum
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.flags import Help, Parser
from remnant.errors import InputError, expected, printable, text_of
from remnant.progress import Step, listening

if TYPE_CHECKING:
    from rich.console import Console
    from rich.text import Text

    from remnant.store import Run


class Exit(IntEnum):
    """What a command ends with; EXPOSED and INCONCLUSIVE only where `--gate` asks for a verdict,
    NOT_APPLICABLE of an attack that there is none of here."""

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
    with prepared(arguments) if "threads" in arguments else nullcontext():
        answer: Answer = arguments.run(arguments)
    if getattr(arguments, "json", False):
        figures = answer.figures
        whole = isinstance(figures, str)
        print(figures if whole else json.dumps(figures, indent=2, allow_nan=False) + "\n", end="")
    elif not getattr(arguments, "quiet", False):
        answer.show()
    return answer.code


SHARED: dict[str, dict[str, Any]] = {
    "seed": {"type": int, "default": 0, "help": "the seed of all random draws"},
    "out": {"metavar": "DIR", "type": Path, "help": "the directory that receives the results"},
    "quiet": {"action": "store_true", "help": "print nothing but errors"},
    "json": {"action": "store_true", "help": "print the figures as JSON"},
    "threads": {"type": int, "default": 1, "help": "how many CPU threads torch may use"},
    "device": {"choices": ("cpu", "cuda", "mps"), "default": "cpu", "help": "where to train"},
}
COMMON = ("seed", "out", "quiet", "json", "threads")


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
    parser: Parser = verbs.add_parser(
        name,
        help=summary,
        description=summary[0].upper() + summary[1:] + ".",
        epilog=f"example: {example}",
        formatter_class=Help,
    )
    group = parser.add_argument_group("as in other verbs")
    for flag in shared:
        group.add_argument(f"--{flag}", **SHARED[flag])
    parser.set_defaults(run=run)
    return parser


def add_data_dir(parser: argparse.ArgumentParser) -> None:
    words = "where data files are looked for (or REMNANT_DATA)"
    parser.add_argument("--data-dir", type=Path, help=words)


@contextmanager
def prepared(arguments: argparse.Namespace) -> Iterator[None]:
    """Seed, threads and device are checked and set, and progress is shown."""
    import torch

    check_seed(arguments)
    cores = os.cpu_count() or 1
    if not 1 <= arguments.threads <= cores:
        raise InputError(expected("--threads", f"1 to {cores}", arguments.threads))
    torch.set_num_threads(arguments.threads)
    torch.set_flush_denormal(True)  # saturated activations would otherwise slow everything down
    device = getattr(arguments, "device", "cpu")
    there = {
        "cpu": True,
        "cuda": torch.cuda.is_available(),
        "mps": torch.backends.mps.is_available(),
    }
    if not there[device]:
        here = ", ".join(name for name, is_here in there.items() if is_here)
        raise InputError(expected("--device", f"one that is here ({here})", device))
    with bars(arguments.quiet):
        yield


def check_seed(arguments: argparse.Namespace) -> None:
    """Refuse a seed out of range; that of an audit or a sweep may stand in its file, which is
    checked as it is read."""
    seed = getattr(arguments, "seed", None)
    if seed is not None and not 0 <= seed < 2**31:
        raise InputError(expected("--seed", "0 to 2**31 - 1", seed))


def default_directory(spec: Mapping[str, Any]) -> Path:
    """The directory of a run without --out: one for each spec, named by its hash."""
    from remnant.store import spec_hash

    return Path("remnant-runs") / f"{spec['verb']}-{spec_hash(spec)[:8]}"


def add_place(parser: argparse.ArgumentParser, default: str) -> None:
    """Where tasks run; `default` says how many processes without a flag."""
    where = parser.add_argument_group("where").add_mutually_exclusive_group()
    where.add_argument("--jobs", type=int, help=f"processes on this machine (default: {default})")
    where.add_argument("--on", help="dask://HOST:PORT, ray://auto, ray://local or ray://HOST:PORT")


def place(arguments: argparse.Namespace, most: int = 1024) -> str | None:
    """What the flags of `add_place` say, None where none was given. most: processes to start."""
    from remnant.sweep.executors import read_place

    on: str | None = arguments.on
    if arguments.jobs is not None:
        if not 1 <= arguments.jobs <= most:
            raise InputError(expected("--jobs", f"1 to {most}", arguments.jobs))
        on = f"jobs:{arguments.jobs}"
    read_place(on)
    return on


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


def print_line(line: str, style: str = "") -> None:
    """A line that is never broken, on stdout."""
    console().print(plain(line, style=style), soft_wrap=True)


def print_place(run: Run, files: Iterable[str]) -> None:
    """Where results are, and whether they were there before."""
    again = " (done before; remove the directory to run it again)" if run.finished else ""
    print_line(f"in {run.path}{again}: {', '.join(files)}")


def say(*lines: str) -> None:
    """Lines on stdout, whatever a file put into them."""
    for line in lines:
        print(printable(line))


def console(file_width: int = 1000) -> Console:
    """Where tables are printed. On a pipe or in a file, rows may take `file_width` columns."""
    from rich.console import Console

    width = None if sys.stdout.isatty() else file_width
    return Console(highlight=False, markup=False, emoji=False, width=width)


def run_of(
    arguments: argparse.Namespace, spec: Mapping[str, Any], work: Callable[[Run], object]
) -> Run:
    """The run of this spec, where the flags say: one that was done before, or by `work` now.

    If it is refused before anything came of it, it leaves no directory behind, so that the mended
    command finds its place free.
    """
    from remnant.store import discard, open_run

    stored = open_run(arguments.out or default_directory(spec), spec)
    if not stored.finished:
        try:
            work(stored)
        except (Exception, SystemExit):  # a user's module may call sys.exit
            discard(stored)
            raise
    return stored


@contextmanager
def bars(quiet: bool, *, soon: float = 2.0, every: float = 30.0) -> Iterator[None]:
    """Progress on stderr: bars with the time left, gone when done. Where no terminal is, a line
    once a task has taken `soon` seconds, and another after `every` so many."""
    plain = nullcontext() if quiet else _lines(soon, every)
    with _rich_bars() if sys.stderr.isatty() and not quiet else plain:
        yield


@dataclass(eq=False)
class _Work:
    name: str
    total: float | None
    done: float = 0.0
    began: float = field(default_factory=time.monotonic)

    def __str__(self) -> str:
        if self.total is None:
            return self.name
        return f"{self.name} {round(self.done, 1):g} of {round(self.total, 1):g}"


@contextmanager
def _lines(soon: float, every: float) -> Iterator[None]:
    """Plain lines by a thread, since a step may take minutes."""
    under_way, over = list[_Work](), threading.Event()

    def listener(name: str, total: float | None) -> tuple[Step, Callable[[], None]]:
        work = _Work(name, total)
        under_way.append(work)

        def step(amount: float = 1.0, *, note: str = "") -> None:
            work.done += amount

        return step, lambda: under_way.remove(work)

    teller = threading.Thread(target=_tell, args=(under_way, over, soon, every), daemon=True)
    teller.start()
    try:
        with listening(listener):
            yield
    finally:
        over.set()
        teller.join()


def _tell(under_way: list[_Work], over: threading.Event, soon: float, every: float) -> None:
    """Print the tasks under way, outermost first, from time to time until all is over."""
    told, at = None, 0.0
    while not over.wait(soon / 2):
        works, now = list(under_way), time.monotonic()
        if not works or now < works[0].began + soon:
            continue
        if works[0] is not told or now >= at + every:
            told, at = works[0], now
            with suppress(OSError, ValueError):  # whoever read it has left
                sys.stderr.write(f"remnant: {', '.join(map(str, works))}\n")
                sys.stderr.flush()


@contextmanager
def _rich_bars() -> Iterator[None]:
    from rich.console import Console
    from rich.progress import (
        BarColumn,
        MofNCompleteColumn,
        Progress,
        TextColumn,
        TimeElapsedColumn,
        TimeRemainingColumn,
    )

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TimeElapsedColumn(),
        TextColumn("left"),
        TimeRemainingColumn(),
        TextColumn("[dim]{task.fields[note]}"),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as progress:

        def listener(name: str, total: float | None) -> tuple[Step, Callable[[], None]]:
            bar = progress.add_task(name, total=total, note="")

            def step(amount: float = 1.0, *, note: str = "") -> None:
                progress.update(bar, advance=amount, note=note)

            return step, lambda: progress.remove_task(bar)

        with listening(listener):
            yield
