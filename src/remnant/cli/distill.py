"""`remnant distill METHOD`: a few images that do for training what all records do (000)."""

from __future__ import annotations

import argparse
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any

from remnant.cli.common import (
    HEAVY,
    VERBS,
    Answer,
    add_data_dir,
    add_verb,
    print_line,
    print_place,
    print_table,
    run_of,
)
from remnant.cli.flags import Parser, add_fields, given, whole

if TYPE_CHECKING:
    from remnant.store import Run

SUMMARIES = {
    "kip": "images on which the infinite-width network fits all records (KIP)",
    "rkip": "images that reconstruct what all records do to an infinite-width network (RKIP)",
    "rkip-finite": "images out of one trained network's weights (RKIP-finite)",
    "table": "000, Table 1: all records, KIP, RKIP, RKIP-finite, random images by three networks",
}
# Fields of a distillation that decide nothing for these methods.
IDLE = {
    "kip": ("trained",),
    "rkip": ("trained",),
    "rkip-finite": ("start", "learn_labels"),
    "table": ("steps", "lr", "start", "learn_labels", "trained"),
}
SHOWN = ("standard", "linearised", "infinite")


def add(verbs: Any) -> None:
    group = verbs.add_parser("distill", help=VERBS["distill"])
    methods = group.add_subparsers(dest="method", metavar="METHOD", required=True)
    for name, summary in SUMMARIES.items():
        example = f"remnant distill {name} --data mnist --task odd-even --records 500 --images 20"
        parser = add_verb(
            methods, name, f"{example} --out distilled", summary=summary, shared=HEAVY, run=run
        )
        parser.later(partial(fill, parser, name))
        if name == "table":
            words = "how many, from --seed on (default: 3)"
            parser.add_argument("--seeds", type=whole(1, 10**6), default=3, help=words)
        add_data_dir(parser)


def fill(parser: Parser, method: str) -> None:
    """A flag for each field of a distillation; later, since reading them takes torch."""
    from remnant.experiments.distill_table import Distilling

    parser.set_defaults(settings=add_fields(parser, Distilling, but=IDLE[method]))


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.experiments.distill_table import (
        RESULT_FILE,
        Distilling,
        divide,
        read,
        run_scene,
        run_table,
        scene_spec,
    )
    from remnant.store import read_json

    told = given(arguments, arguments.settings)
    if told.get("task") == "none":
        told["task"] = None
    table = arguments.method == "table"
    scene = Distilling(method="full" if table else arguments.method, seed=arguments.seed, **told)
    examples = read(scene, arguments.data_dir)
    spec = scene_spec(scene, examples)
    if table:
        spec |= {"verb": "distill-table", "seeds": arguments.seeds}

    def work(run: Run) -> None:
        if table:
            run_table(scene, examples, run, seeds=arguments.seeds)
        else:
            run_scene(scene, divide(scene, examples), run)

    stored = run_of(arguments, spec, work)
    result = read_json(stored, RESULT_FILE)
    return Answer(figures=result, show=lambda: show(result, scene.records, stored))


def show(result: dict[str, Any], records: int, stored: Run) -> None:
    """Test accuracies, and how near the images are to the records."""
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
