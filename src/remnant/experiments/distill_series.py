"""Paper 000's Figure 8: more and more records distilled to as many images."""

from __future__ import annotations

from remnant.data import binary_task
from remnant.experiments.distill_table import NETWORKS, Distilling, measure_cell
from remnant.experiments.study import Figure, Rows, Study
from remnant.types import Examples


def measure_series(
    examples: Examples, *, method: str, records: int, images: int, width: int, task: str, seed: int
) -> Rows:
    """So many records distilled to a few images, and what networks learn from these."""
    some = binary_task(examples, task)
    scene = Distilling(
        method=method, task=task, records=records, images=images, width=width, seed=seed
    )
    row = measure_cell(scene, some)
    return [row | {name: 100 * row[name] for name in NETWORKS}]


STUDY = Study(
    title="N records distilled to a few images: test accuracy of networks trained on these",
    measure=measure_series,
    settings={
        "method records": [(m, n) for m in ("kip", "rkip", "rkip-finite", "random")
                           for n in (50, 100, 200, 500)],
        "images": 20,
        "width": 1024,
        "task": "odd-even",
        "data": "mnist",
    },
    quick={
        "method records": [(m, n) for m in ("rkip", "random") for n in (30, 60)],
        "images": 10,
        "width": 128,
    },
    columns=(
        "method", "records", "seed", "standard", "linearised", "infinite", "copies_records",
        "copies_held_out", "cpu_seconds",
    ),
    figures=(
        *(
            Figure(
                x="records", lines={name: "{method}"}, across="records distilled", up="%",
                panel=f"test accuracy, {name}", log_y=False,
            )
            for name in NETWORKS
        ),
    ),
)  # fmt: skip
