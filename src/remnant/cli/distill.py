"""`remnant distill METHOD`: a few images that do for training what all records do (000)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from remnant.cli.common import (
    DONE,
    add_verb,
    bars,
    prepare,
    print_json,
    print_line,
    print_place,
    print_table,
    run_of,
)
from remnant.cli.flags import add_flags, given
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from remnant.store import Run

# Here and not beside the experiment, since --help must not wait for torch.
SUMMARIES = {
    "kip": "images on which the infinite-width network fits all records (KIP)",
    "rkip": "images that reconstruct what all records do to an infinite-width network (RKIP)",
    "rkip-finite": "images out of one trained network's weights (RKIP-finite)",
    "table": "000, Table 1: all records, KIP, RKIP, RKIP-finite, random images by three networks",
}
# Fields of `experiments.distill_table.Scene`, whose defaults live there alone.
FLAGS: dict[str, tuple[Any, str]] = {
    "data": (str, "a bundled name, a file or a folder (default: mnist)"),
    "task": (str, "a binary task, odd-even or animal-vehicle; none: the data's own classes"),
    "records": (int, "how many records to distil (default: 500)"),
    "images": (int, "how many images to distil them to (default: 20)"),
    "test": (int, "records to test on, at most (default: 4000)"),
    "width": (int, "of the networks that are trained (default: 1024)"),
    "depth": (int, "how many hidden layers (default: 2)"),
    "kernel": (
        Literal["ntk", "matched"],
        "ntk: every layer alike, no biases; matched: the trained networks' own limit "
        "(default: ntk)",
    ),
}
SEARCH: dict[str, tuple[Any, str]] = {
    "steps": (int, "of the search (default: kip 5000, rkip 1000, rkip-finite 2000)"),
    "lr": (float, "of the search (default: kip 0.003, others 0.02)"),
}
INFINITE: dict[str, tuple[Any, str]] = {
    "start": (Literal["noise", "data"], "what the search starts from (default: noise)"),
    "learn_labels": (bool, "labels that fit best in place of the classes'"),
}
OWN: dict[str, dict[str, tuple[Any, str]]] = {
    "kip": SEARCH | INFINITE,
    "rkip": SEARCH | INFINITE,
    "rkip-finite": SEARCH
    | {
        "trained": (
            Literal["linearised", "standard"],
            "the network that the images come from (default: linearised)",
        )
    },
    "table": {},
}
SHOWN = ("standard", "linearised", "infinite")


def add(verbs: Any) -> None:
    group = verbs.add_parser("distill", help="a few images that do for training what all do")
    methods = group.add_subparsers(dest="method", metavar="METHOD", required=True)
    for name, summary in SUMMARIES.items():
        example = f"remnant distill {name} --data mnist --task odd-even --records 500 --images 20"
        parser = add_verb(methods, name, summary, f"{example} --out distilled")
        add_flags(parser, FLAGS | OWN[name])
        if name == "table":
            parser.add_argument("--seeds", type=int, default=3, help="how many, from --seed on")
        parser.add_argument(
            "--data-dir", type=Path, help="where data files are looked for (or REMNANT_DATA)"
        )
        parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    prepare(arguments)
    from remnant.experiments.distill_table import (
        RESULT_FILE,
        Scene,
        divide,
        read,
        run_scene,
        run_table,
        scene_spec,
    )
    from remnant.store import read_json

    told = given(arguments, FLAGS | OWN[arguments.method])
    if told.get("task") == "none":
        told["task"] = None
    table = arguments.method == "table"
    if table and arguments.seeds < 1:
        raise InputError(expected("--seeds", "1 or more", arguments.seeds))
    scene = Scene(method="full" if table else arguments.method, seed=arguments.seed, **told)
    with bars(arguments.quiet):
        examples = read(scene, arguments.data_dir)
        spec = scene_spec(scene, examples)
        if table:
            spec |= {"verb": "distill-table", "seeds": arguments.seeds}
            stored = run_of(
                arguments, spec, lambda run: run_table(scene, examples, run, seeds=arguments.seeds)
            )
        else:
            stored = run_of(
                arguments, spec, lambda run: run_scene(scene, divide(scene, examples), run)
            )
    show(read_json(stored, RESULT_FILE), scene.records, stored, arguments)
    return DONE


def show(result: dict[str, Any], records: int, stored: Run, arguments: argparse.Namespace) -> None:
    """Test accuracies, and how near the images are to the records; or all of it as JSON."""
    if arguments.json:
        print_json(result)
    if arguments.json or arguments.quiet:
        return
    if "table" in result:
        lines = result["table"]
    else:
        lines = [row | {name: 100 * row[name] for name in SHOWN} for row in result["rows"].values()]
    print_line("Test accuracy in %, of networks that saw these images alone", style="bold")
    print_table(("trained on", *SHOWN, "record", "held out", "copies"), cells(lines))
    print_line(
        f"record, held out: correlation of an image with the nearest of {records} records, or of "
        f"{records} held out (medians); copies: images above 0.9 with a record",
        style="dim",
    )
    print_place(stored, sorted(p.name for p in stored.path.iterdir() if p.name[0] != "."))


def cells(lines: Iterable[Mapping[str, Any]]) -> Iterable[list[str]]:
    for line in lines:
        spread = [line.get(f"{name}_std") for name in SHOWN]
        scores = [
            f"{line[name]:.1f}" + (f" ± {std:.1f}" if std is not None else "")
            for name, std in zip(SHOWN, spread, strict=True)
        ]
        near = [f"{line['near_records']:.3f}", f"{line['near_held_out']:.3f}"]
        yield [line["method"], *scores, *near, f"{line['copies_records']:g}"]
