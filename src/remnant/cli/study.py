"""`remnant study NAME`: a paper's figure, or a table of our own, measured again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import fields
from typing import TYPE_CHECKING, Any

from remnant.cli.common import (
    VERBS,
    Answer,
    add_data_dir,
    add_place,
    add_verb,
    place,
    print_line,
    print_place,
    print_table,
    run_of,
)
from remnant.cli.flags import commas

if TYPE_CHECKING:
    from remnant.experiments.study import Rows, Study
    from remnant.store import Run

# Here and not beside the studies, since --help must not wait for torch.
SUMMARIES = {
    "gradient-dimension": "002, Figure 2: two records from one gradient, error against d",
    "gradient-pairs": "002, Figure 3: pairs of MNIST digits from one gradient, error against width",
    "gradient-batch": "how large a batch comes back at which width, beside gradient matching",
    "gradient-noise": "what noise on the gradient leaves of the batch",
    "gradient-defences": "noise, clipping, pruning, few bits, larger batches, secure aggregation",
    "kernel-distance": "000, Figure 3: error against how far training moved the kernel",
    "early-stopping": "000, Figure 15: error against the loss at which training stops",
    "leak-factors": "000, Figures 5, 7, 11: which records leak; the number of classes",
    "fine-tuning": "000, Figure 4: a pretrained residual network tuned on a few images",
    "informed-factors": "001, Tables II and V: one unknown record, factor by factor",
    "informed-cnn": "001, Table II for the convolutional network on cifar10",
    "informed-shadows": "001, Figure 5c: error against the number of shadow models",
    "informed-batch": "001, Figure 7: error against the batch size",
    "kkt-headline": "003, 004: 500 images, ten and two classes, with the best fifty",
    "kkt-convolutions": "004, Figures 6, 15, 16: kernel size and channels of a convolution",
    "kkt-grid": "004: records back from final weights, width against their number",
    "kkt-classes": "004: more classes leak more",
    "kkt-decay": "004: weight decay in a middle range leaks most",
    "kkt-exposure": "004: which records leak, by margin or loss",
    "kkt-assumptions": "which assumption of the attack fails, and what it says of that",
    "defences": "which defence stops which attack, and what it costs in accuracy",
    "private-descent": "001, Figure 9: accuracy, reconstruction and the bounds over epsilon",
    "ntk-grid": "000, Figures 2 and 5: width against records, the exact attack",
    "onion": "000, Figure 6: remove the most exposed records, train again, attack again",
}
FILES = ("table.csv", "figure.png", "rows.jsonl", "run.json")


def add(verbs: Any) -> None:
    group = verbs.add_parser("study", help=VERBS["study"])
    studies = group.add_subparsers(dest="study", metavar="NAME", required=True)
    for name, summary in SUMMARIES.items():
        example = f"remnant study {name} --quick --out found"
        parser = add_verb(studies, name, example, summary=summary, run=run)
        parser.add_argument("--quick", action="store_true", help="a smaller grid, within a minute")
        changed = parser.add_argument_group("in place of the study's own (several by commas)")
        changed.add_argument("--data", metavar="NAME", type=commas, help="datasets, as for `audit`")
        changed.add_argument("--records", metavar="N", type=numbers, help="records trained on")
        changed.add_argument("--width", metavar="W", type=numbers, help="of hidden layers")
        if name.startswith("kkt-"):
            add_targets(changed)
        changed.add_argument("--seeds", metavar="K", type=int, help="how many, from --seed on")
        add_data_dir(parser)
        add_place(parser, "1")


def add_targets(changed: argparse._ArgumentGroup) -> None:
    """What else may be changed of 004's targets."""
    for name, text in (
        ("task", "auto, classes, odd-even or animal-vehicle"),
        ("loss", "ce, bce, mse, power2.5, huber1"),
    ):
        changed.add_argument(f"--{name}", metavar="NAME", type=commas, help=text)
    for name, text in (
        ("weight-decay", "of the training"),
        ("init", "first layer's scale; below 1: small, and no decay"),
    ):
        changed.add_argument(f"--{name}", metavar="X", type=decimals, help=text)


def decimals(text: str) -> tuple[float, ...]:
    return tuple(float(word) for word in text.split(","))


def numbers(text: str) -> tuple[int, ...]:
    return tuple(int(word) for word in text.split(","))


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.experiments.studies import STUDIES
    from remnant.experiments.study import Flags, adjusted, run_study, study_data, study_spec
    from remnant.sweep.table import read_rows

    study = STUDIES[arguments.study]
    asked: dict[str, Any] = {
        field.name: getattr(arguments, field.name, None) for field in fields(Flags)
    }
    values = adjusted(study, Flags(**asked), arguments.seed)
    on = place(arguments) or "jobs:1"
    data, missing = study_data(values, arguments.data_dir)
    spec = study_spec(arguments.study, values, data)
    stored = run_of(arguments, spec, lambda run: run_study(study, values, data, run, on=on))
    rows = read_rows(stored)
    return Answer(figures=rows, show=lambda: show_study(study, values, rows, missing, stored))


def show_study(
    study: Study, values: Mapping[str, Any], rows: Rows, missing: tuple[str, ...], stored: Run
) -> None:
    """A table of the rows."""
    from remnant.experiments.study import shown_columns

    columns = shown_columns(study, values)
    print_line(study.title, style="bold")
    names = [column.replace("_", " ") for column in columns]
    print_table(names, [[row.get(column) for column in columns] for row in rows])
    for name in missing:
        print_line(f"{name} is not in --data-dir: left out", style="dim")
    seconds = sum(row["cpu_seconds"] for row in rows)
    print_line(f"attacks: {seconds:.1f} CPU seconds", style="dim")
    print_place(stored, FILES)
