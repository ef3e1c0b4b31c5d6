"""`remnant study NAME`: a paper's figure, or a table of our own, measured again."""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, NoReturn

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from remnant.cli.common import (
    HEAVY,
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
from remnant.cli.flags import add_fields, given, whole
from remnant.cli.spec import checked, flag
from remnant.errors import InputError, expected

if TYPE_CHECKING:
    from remnant.experiments.study import Rows, Study
    from remnant.store import Run

# Here and not beside the studies, since --help must not wait for torch.
SUMMARIES = {
    "gradient-dimension": "002, Figure 2: two records from one gradient, error against d",
    "gradient-pairs": "002, Figure 3: pairs of MNIST digits from one gradient, error against width",
    "gradient-deep": "002, section 4.2: deep networks (server, eavesdropper), ReLU, noise",
    "gradient-batch": "no paper's: how large a batch comes back at which width, beside matching",
    "gradient-noise": "no paper's: what noise on the gradient leaves of the batch",
    "gradient-defences": "no paper's: noise, clipping, pruning, few bits, larger batches, sums",
    "kernel-distance": "000, Figures 3 and 20: error against how far training moved the kernel",
    "early-stopping": "000, Figures 15, 16 and 23: error against the loss at which training stops",
    "leak-factors": "000, Figures 5, 7, 11: which records leak; the number of classes",
    "against-haim": "000, Figure 10: beside the attack on final weights alone",
    "distill-series": "000, Figure 8: N records distilled to 20 images",
    "fine-tuning": "000, Figure 4: a pretrained residual network tuned on a few images",
    "informed-factors": "001, Tables II, V, Figures 6, 13, 18: one unknown record, by factors",
    "informed-cnn": "001, Table II for the convolutional network on cifar10",
    "informed-shadows": "001, Figures 5c and 17: error against the number of shadow models",
    "informed-batch": "001, Figures 7 and 23: error against the batch size",
    "informed-paper": "001, Figure 5c at its own size: 10,000 known records",
    "informed-images": "001, Figures 1, 14, 24: the transposed reconstructor, images drawn",
    "informed-starts": "001, Table III: rate, momentum, the start of training known or not",
    "informed-width": "001, Table IV, Figure 16: width of the released model",
    "informed-optimiser": "001, Table X, Figure 21: optimiser, fixed set, epochs; membership",
    "informed-transfer": "001, Figure 12: a reconstructor tuned for another fixed set",
    "informed-pool": "001, Figure 3: how far targets are from the records that were known",
    "informed-membership": "001, Figure 11: membership where the start is known or not",
    "kkt-headline": "003, Figures 1 and 2; 004, Figure 2: 500 images, and the best fifty",
    "kkt-convolutions": "004, Figures 6, 15, 16: kernel size and channels of a convolution",
    "kkt-grid": "004, Figure 7: records back from final weights, width against their number",
    "kkt-classes": "004, Figures 2, 3 and 9; 003: more classes leak more",
    "kkt-decay": "004, Figure 5; 003, Figure 4: weight decay in a middle range leaks most",
    "kkt-exposure": "004, Figures 4 and 11 to 14: which records leak, by margin or loss",
    "kkt-assumptions": "no paper's: which assumption of 004 fails, and what the attack says",
    "defences": "no paper's: which defence stops which attack, at what cost in accuracy",
    "private-descent": "001, Figures 9, 10, 15: accuracy, reconstruction and bounds over epsilon",
    "ntk-grid": "000, Figures 1, 2, 5, 22, 24 to 40: width against records, exact attack",
    "onion": "000, Figures 6 and 21: remove the most exposed records, train again, attack again",
}
FILES = ("table.csv", "figure.png", "sheet.png", "rows.jsonl", "run.json")


By_commas = BeforeValidator(lambda v: v.split(",") if isinstance(v, str) else v)
Words = Annotated[tuple[str, ...] | None, By_commas]
Counts = Annotated[tuple[Annotated[int, Field(ge=1)], ...] | None, By_commas]
Sizes = Annotated[tuple[Annotated[float, Field(gt=0, allow_inf_nan=False)], ...] | None, By_commas]


class Changed(BaseModel):
    """What stands in place of a study's own settings."""

    model_config = ConfigDict(frozen=True)

    data: Words = flag("datasets, as for `audit`")
    task: Words = flag(
        "two classes (odd-even, animal-vehicle), all classes, or what the study calls so"
    )
    records: Counts = flag("records trained on")
    width: Counts = flag("of hidden layers")
    shadows: Counts = flag("models that the reconstructor learns from")
    targets: Counts = flag("unknown records, each with a released model")
    methods: Words = flag("replay, ridge, reconn, 'reconn of the paper' or transposed")
    loss: Words = flag("ce, bce, mse, power2.5, huber1")
    weight_decay: Sizes = flag("of the training")
    init: Sizes = flag("first layer's scale; below 1: small, and no decay")


# Those that some studies alone have, by how their names begin.
ONLY = {
    **dict.fromkeys(("loss", "weight_decay", "init"), ("kkt-",)),
    **dict.fromkeys(("shadows", "targets"), ("informed-", "private-")),
    "methods": ("informed-",),
}


def add(verbs: Any) -> None:
    group = verbs.add_parser("study", help=VERBS["study"])
    words = "print every study with its paper and figure"
    group.add_argument("--list", action=Listed, nargs=0, help=words)
    studies = group.add_subparsers(dest="study", metavar="NAME", required=True)
    for name, summary in SUMMARIES.items():
        example = f"remnant study {name} --quick --out found"
        parser = add_verb(studies, name, example, summary=summary, shared=HEAVY, run=run)
        parser.add_argument("--quick", action="store_true", help="smaller, in a minute or two")
        changed = parser.add_argument_group("in place of the study's own (several by commas)")
        lacking = [field for field, starts in ONLY.items() if not name.startswith(starts)]
        add_fields(changed, Changed, but=lacking)
        changed.add_argument("--seeds", type=whole(1, 10**6), help="how many, from --seed on")
        add_data_dir(parser)
        add_place(parser, "1")


class Listed(argparse.Action):
    """--list: the studies, then nothing more."""

    def __call__(self, parser: Any, *rest: Any) -> NoReturn:
        print_table(("study", "what it measures"), list(SUMMARIES.items()))
        raise SystemExit(0)


def run(arguments: argparse.Namespace) -> Answer:
    from remnant.experiments.studies import STUDIES
    from remnant.experiments.study import adjusted, run_study, study_data, study_spec
    from remnant.sweep.table import read_rows

    study = STUDIES[arguments.study]
    changed = checked(Changed, given(arguments, Changed.model_fields)).model_dump()
    values = adjusted(study, changed, arguments.seed, arguments.seeds, quick=arguments.quick)
    if arguments.data_dir is not None and not any("data" in key.split() for key in values):
        raise InputError(expected("--data-dir", "none: this study reads no data", "a folder"))
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
    pictures = sorted(path.name for path in stored.path.glob("*.png") if path.name not in FILES)
    print_place(stored, [*FILES, *pictures])
