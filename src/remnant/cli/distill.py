"""`remnant distill METHOD`: a few images that do for training what all records do (000)."""

from __future__ import annotations

import argparse
import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from remnant.cli.common import DONE, add_verb, bars, console, default_directory, plain, prepare
from remnant.errors import InputError, RemnantError, expected

if TYPE_CHECKING:
    from rich.console import Console

    from remnant.store import Run

# Here and not beside the experiment, since --help must not wait for torch.
SUMMARIES = {
    "kip": "images on which the infinite-width network fits all records (KIP)",
    "rkip": "images that reconstruct what all records do to an infinite-width network (RKIP)",
    "rkip-finite": "images out of one trained network's weights (RKIP-finite)",
    "table": "000, Table 1: all records, KIP, RKIP, RKIP-finite, random images by three networks",
}
# Every field of `experiments.distill_table.Scene` that a flag sets. Defaults live there alone.
FLAGS: dict[str, tuple[type, str]] = {
    "data": (str, "a bundled name, a file or a folder (default: mnist)"),
    "task": (str, "a binary task, odd-even or animal-vehicle; none: the data's own classes"),
    "records": (int, "how many records to distil (default: 500)"),
    "images": (int, "how many images to distil them to (default: 20)"),
    "test": (int, "records to test on, at most (default: 4000)"),
    "width": (int, "of the networks that are trained (default: 1024)"),
    "depth": (int, "how many hidden layers (default: 2)"),
}
SEARCH: dict[str, tuple[type, str]] = {
    "steps": (int, "of the search (default: kip 5000, rkip 1000, rkip-finite 2000)"),
    "lr": (float, "of the search (default: kip 0.003, others 0.02)"),
}
SHOWN = ("standard", "linearised", "infinite")


def add(verbs: Any) -> None:
    group = verbs.add_parser("distill", help="a few images that do for training what all do")
    methods = group.add_subparsers(dest="method", metavar="METHOD", required=True)
    for name, summary in SUMMARIES.items():
        example = f"remnant distill {name} --data mnist --task odd-even --records 500 --images 20"
        parser = add_verb(methods, name, summary, f"{example} --out distilled")
        for flag, (kind, text) in (FLAGS | (SEARCH if name != "table" else {})).items():
            parser.add_argument(f"--{flag}", type=kind, help=text, default=argparse.SUPPRESS)
        parser.add_argument(
            "--kernel",
            choices=("ntk", "matched"),
            help="ntk: every layer alike, no biases; matched: the trained networks' own limit "
            "(default: ntk)",
            default=argparse.SUPPRESS,
        )
        _add_own(parser, name)
        parser.add_argument(
            "--data-dir", type=Path, help="where data files are looked for (or REMNANT_DATA)"
        )
        parser.set_defaults(run=run)


def _add_own(parser: argparse.ArgumentParser, name: str) -> None:
    if name == "table":
        parser.add_argument("--seeds", type=int, default=3, help="how many, from --seed on")
    elif name == "rkip-finite":
        parser.add_argument(
            "--trained",
            choices=("linearised", "standard"),
            help="the network that the images come from (default: linearised)",
            default=argparse.SUPPRESS,
        )
    else:
        parser.add_argument(
            "--start",
            choices=("noise", "data"),
            help="what the search starts from (default: noise)",
            default=argparse.SUPPRESS,
        )
        parser.add_argument(
            "--learn-labels",
            action="store_true",
            help="labels that fit best in place of the classes'",
            default=argparse.SUPPRESS,
        )


def run(arguments: argparse.Namespace) -> int:
    prepare(arguments)
    from remnant.experiments.distill_table import RESULT_FILE, Scene, read, scene_spec
    from remnant.store import discard, open_run, read_json

    names = {*FLAGS, *SEARCH, "kernel", "trained", "start", "learn_labels"}
    given = {name: value for name, value in vars(arguments).items() if name in names}
    if given.get("task") == "none":
        given["task"] = None
    table = arguments.method == "table"
    if table and arguments.seeds < 1:
        raise InputError(expected("--seeds", "1 or more", arguments.seeds))
    scene = Scene(method="full" if table else arguments.method, seed=arguments.seed, **given)
    with bars(arguments.quiet):
        examples = read(scene, arguments.data_dir)
        spec = scene_spec(scene, examples)
        if table:
            spec |= {"verb": "distill-table", "seeds": arguments.seeds}
        stored = open_run(arguments.out or default_directory(spec), spec)
        if not stored.finished:
            try:
                _work(scene, examples, stored, arguments.seeds if table else None)
            except RemnantError:
                discard(stored)
                raise
    show(read_json(stored, RESULT_FILE), scene.records, stored, arguments)
    return DONE


def _work(scene: Any, examples: Any, stored: Run, seeds: int | None) -> None:
    from remnant.experiments.distill_table import divide, run_scene, run_table

    if seeds is None:
        run_scene(scene, divide(scene, examples), stored)
    else:
        run_table(scene, examples, stored, seeds=seeds)


def show(result: dict[str, Any], records: int, stored: Run, arguments: argparse.Namespace) -> None:
    """Test accuracies, and how near the images are to the records; or all of it as JSON."""
    if arguments.json:
        print(json.dumps(result, indent=2, allow_nan=False))
        return
    if arguments.quiet:
        return

    out = console()
    if "table" in result:
        lines = result["table"]
    else:
        lines = [row | {name: 100 * row[name] for name in SHOWN} for row in result["rows"].values()]
    _print_table(out, lines, records)
    again = " (done before; remove the directory to run it again)" if stored.finished else ""
    files = ", ".join(sorted(p.name for p in stored.path.iterdir() if not p.name.startswith(".")))
    out.print(plain(f"in {stored.path}{again}: {files}"), soft_wrap=True)


def _print_table(out: Console, lines: list[dict[str, Any]], records: int) -> None:
    from rich.table import Table

    table = Table(box=None, pad_edge=False, header_style="dim")
    for column in ("trained on", *SHOWN, "record", "held out", "copies"):
        table.add_column(column, no_wrap=True)
    for line in lines:
        spread = [line.get(f"{name}_std") for name in SHOWN]
        scores = [
            f"{line[name]:.1f}" + (f" ± {std:.1f}" if std is not None else "")
            for name, std in zip(SHOWN, spread, strict=True)
        ]
        near = [f"{line['near_records']:.3f}", f"{line['near_held_out']:.3f}"]
        table.add_row(line["method"], *scores, *near, f"{line['copies_records']:g}")
    out.print(plain("Test accuracy in %, of networks that saw these images alone", style="bold"))
    out.print(table)
    words = (
        "record, held out: correlation of an image with the nearest of {n} records, or of {n} "
        "held out (medians); copies: images above 0.9 with a record"
    )
    out.print(plain(words.format(n=records), style="dim"))
