"""The studies by name, and how one is run: cell after cell, each kept as soon as it is measured."""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from remnant.data import BUNDLED, load
from remnant.errors import DataError
from remnant.experiments import gradient_batches as batches
from remnant.experiments import gradient_studies as pairs
from remnant.experiments import informed_scenes as scenes
from remnant.experiments import informed_studies as informed
from remnant.experiments import kkt_studies as kkt
from remnant.experiments import ntk_studies as ntk
from remnant.progress import task
from remnant.report.lines import Panel, draw_lines
from remnant.store import Run, finish, hash_tensors, write_bytes, write_text
from remnant.types import Examples

Row = dict[str, Any]
ROWS_FILE, TABLE_FILE, FIGURE_FILE = "rows.jsonl", "table.csv", "figure.png"


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is varied, how a cell of it is measured, and how the rows are drawn.

    settings and quick: frozen values with a field `data`, names of datasets. cells(settings, seed):
    what is varied, as JSON values. measure(settings, cell, data): one row or more that repeat the
    cell. columns: those of a row that are shown.
    """

    title: str
    settings: Any
    quick: Any
    cells: Callable[[Any, int], list[Row]]
    measure: Callable[[Any, Row, Mapping[str, Examples]], list[Row]]
    plot: Callable[[Sequence[Row]], tuple[Panel, ...]]
    columns: tuple[str, ...]


SCORES = (
    "recovered",
    "near",
    "records",
    "median_error",
    "max_error",
    "certified",
    "wrongly_certified",
    "status",
    "cpu_seconds",
)

INFORMED = (
    "mse", "median_mse", "oracle", "success", "exact", "certified", "wrongly_certified",
    "labels_right", "cpu_seconds",
)  # fmt: skip
KKT = (
    "recovered", "above_0.8", "null", "null_above_0.8", "agreed", "imbalance", "status",
    "cpu_seconds",
)  # fmt: skip
ERRORS = ("mean_error", "median_error", "cpu_seconds")

STUDIES: Mapping[str, Study] = {
    "gradient-dimension": Study(
        title="Two records from one gradient of a two-layer network, m = 5000",
        settings=pairs.Dimension(),
        quick=pairs.QUICK_DIMENSION,
        cells=pairs.dimension_cells,
        measure=pairs.measure_dimension,
        plot=pairs.plot_dimension,
        columns=(
            "activation", "method", "seen", "d", "seed", "l2_error", "max_l2_error", "certified",
            "cpu_seconds",
        ),
    ),
    "gradient-pairs": Study(
        title="Two MNIST digits from one gradient of a two-layer network, x² + x³",
        settings=pairs.Pairs(),
        quick=pairs.QUICK_PAIRS,
        cells=pairs.pairs_cells,
        measure=pairs.measure_pairs,
        plot=pairs.plot_pairs,
        columns=(
            "labels", "method", "m", "seed", "l2_error", "max_l2_error", "certified", "cpu_seconds",
        ),
    ),
    "gradient-batch": Study(
        title="Records back from one gradient of a dense network, against the batch",
        settings=batches.Batches(),
        quick=batches.QUICK_BATCHES,
        cells=batches.batch_cells,
        measure=batches.measure_batches,
        plot=batches.plot_batches,
        columns=("data", "width", "method", "steps", *SCORES),
    ),
    "gradient-noise": Study(
        title="Noise on the gradient",
        settings=batches.Noise(),
        quick=batches.QUICK_NOISE,
        cells=batches.noise_cells,
        measure=batches.measure_noise,
        plot=batches.plot_noise,
        columns=("width", "noise", "seed", *SCORES),
    ),
    "gradient-defences": Study(
        title="What a client does to its gradient before sending it",
        settings=batches.Defences(),
        quick=batches.QUICK_DEFENCES,
        cells=batches.defence_cells,
        measure=batches.measure_defence,
        plot=batches.plot_defences,
        columns=("defence", "strength", "seed", "counted", *SCORES),
    ),
    "kernel-distance": Study(
        title="Mean error of reconstructions against how far training moved the kernel",
        settings=ntk.KernelDistance(),
        quick=ntk.QUICK_KERNEL,
        cells=ntk.kernel_cells,
        measure=ntk.measure_kernel,
        plot=ntk.plot_kernel,
        columns=("dynamics", "width", "records", "seed", "kernel_distance", *ERRORS),
    ),
    "early-stopping": Study(
        title="What comes back when training stops early",
        settings=ntk.EarlyStopping(),
        quick=ntk.QUICK_STOPPING,
        cells=ntk.stopping_cells,
        measure=ntk.measure_stopping,
        plot=ntk.plot_stopping,
        columns=("attack", "stop_loss", "seed", "kernel_distance", *ERRORS),
    ),
    "leak-factors": Study(
        title="Which records leak, and how the number of classes matters",
        settings=ntk.LeakFactors(),
        quick=ntk.QUICK_FACTORS,
        cells=ntk.factor_cells,
        measure=ntk.measure_factors,
        plot=ntk.plot_factors,
        columns=("part", "classes", "id", "error", "dual", "error_integral", "influence", *ERRORS),
    ),
    "onion": Study(
        title="Remove the most exposed records, train again, attack again",
        settings=ntk.Onion(),
        quick=ntk.QUICK_ONION,
        cells=ntk.onion_cells,
        measure=ntk.measure_onion,
        plot=ntk.plot_onion,
        columns=(
            "removed", "balanced", "round", "records", "top_error", "top_before", "test_accuracy",
            *ERRORS,
        ),
    ),
    "informed-factors": Study(
        title="One unknown record: replay, ridge and reconstructor network, factor by factor",
        settings=scenes.Factors(),
        quick=informed.QUICK_FACTORS,
        cells=informed.factor_cells,
        measure=informed.measure_factors,
        plot=informed.plot_factors,
        columns=("factor", "method", "shadows", *INFORMED),
    ),
    "informed-shadows": Study(
        title="One unknown record: error against the number of shadow models",
        settings=informed.Shadows(),
        quick=informed.QUICK_SHADOWS,
        cells=informed.shadow_cells,
        measure=informed.measure_shadows,
        plot=informed.plot_shadows,
        columns=("method", "shadows", *INFORMED),
    ),
    "informed-batch": Study(
        title="One unknown record: error against the batch size",
        settings=informed.Batches(),
        quick=informed.QUICK_BATCHES,
        cells=informed.batch_cells,
        measure=informed.measure_batches,
        plot=informed.plot_batches,
        columns=("batch_size", "method", "shadows", *INFORMED),
    ),
    "kkt-grid": Study(
        title="Final weights alone: width against the number of records",
        settings=kkt.Grid(),
        quick=kkt.QUICK_GRID,
        cells=kkt.grid_cells,
        measure=kkt.measure_grid,
        plot=kkt.plot_grid,
        columns=("task", "width", "records", "seed", *KKT),
    ),
    "kkt-classes": Study(
        title="Final weights alone: more classes leak more",
        settings=kkt.Classes(),
        quick=kkt.QUICK_CLASSES,
        cells=kkt.classes_cells,
        measure=kkt.measure_classes,
        plot=kkt.plot_classes,
        columns=("classes", "records", "seed", *KKT),
    ),
    "kkt-decay": Study(
        title="Final weights alone: weight decay in a middle range leaks most",
        settings=kkt.Decay(),
        quick=kkt.QUICK_DECAY,
        cells=kkt.decay_cells,
        measure=kkt.measure_decay,
        plot=kkt.plot_decay,
        columns=("task", "weight_decay", "records", "seed", *KKT),
    ),
    "kkt-assumptions": Study(
        title="Final weights alone: one assumption broken at a time",
        settings=kkt.Assumptions(),
        quick=kkt.QUICK_ASSUMPTIONS,
        cells=kkt.assumptions_cells,
        measure=kkt.measure_assumptions,
        plot=kkt.plot_assumptions,
        columns=("case", "records", "seed", *KKT),
    ),
    "kkt-exposure": Study(
        title="Final weights alone: which records leak, by margin or loss",
        settings=kkt.Exposure(),
        quick=kkt.QUICK_EXPOSURE,
        cells=kkt.exposure_cells,
        measure=kkt.measure_exposure,
        plot=kkt.plot_exposure,
        columns=("task", "seed", "id", "hardness", "fifth", "correlation", "ssim"),
    ),
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class StudyResult:
    """The rows of a study, in the order of its cells, and the datasets that were not there."""

    name: str
    rows: tuple[Row, ...]
    missing: tuple[str, ...] = ()


def study_data(settings: Any, data_dir: Path | None) -> tuple[dict[str, Examples], tuple[str, ...]]:
    """The datasets of a study, and the names of those that are neither bundled nor found."""
    data, missing = {}, []
    with task("reading data"):
        for name in settings.data:
            try:
                data[name] = load(name, data_dir=data_dir)
            except DataError:
                if name in BUNDLED or len(settings.data) == 1:
                    raise
                missing.append(name)
    return data, tuple(missing)


def study_spec(name: str, settings: Any, data: Mapping[str, Examples], seed: int) -> Row:
    """All that decides the rows. A dataset that is not there is no part of it."""
    hashes = {key: hash_tensors({"x": e.inputs, "y": e.labels}) for key, e in data.items()}
    return {
        "verb": f"study-{name}",
        "seed": seed,
        "settings": asdict(settings) | {"data": list(data)},
        "data_hashes": hashes,
    }


def run_study(
    name: str, settings: Any, data: Mapping[str, Examples], run: Run, *, seed: int = 0
) -> StudyResult:
    """Measure every cell that the run does not hold yet; writes rows, table, figure, run.json."""
    study = STUDIES[name]
    cells = [c for c in study.cells(settings, seed) if c.get("data") in (None, *data)]
    held = read_rows(run)
    rows: list[Row] = []
    with task(name, len(cells)) as step:
        for cell in cells:
            mine = [row for row in held if all(row.get(k) == v for k, v in cell.items())]
            if not mine:
                mine = study.measure(settings, cell, data)
                held += mine
                write_rows(run, held)
            rows += mine
            step(note=" ".join(str(value) for value in cell.values()))
    write_rows(run, rows)
    write_text(run, TABLE_FILE, as_csv(rows))
    write_bytes(run, FIGURE_FILE, draw_lines(study.plot(rows), title=study.title))
    total = sum(row["cpu_seconds"] for row in rows)
    finish(run, seeds={"seed": seed}, timings={"attacks": round(total, 3)})
    return StudyResult(name=name, rows=tuple(rows))


def read_rows(run: Run) -> list[Row]:
    """The rows that the run holds. A line that is damaged is as good as missing."""
    path = run.path / ROWS_FILE
    rows = []
    for line in path.read_text(errors="replace").splitlines() if path.exists() else ():
        try:
            row = json.loads(line)
        except ValueError:
            continue
        if isinstance(row, dict):
            rows.append(row)
    return rows


def write_rows(run: Run, rows: Sequence[Row]) -> None:
    write_text(run, ROWS_FILE, "".join(json.dumps(row, allow_nan=False) + "\n" for row in rows))


def as_csv(rows: Sequence[Row]) -> str:
    """One line a row, all its fields; empty where there is nothing."""
    stream = io.StringIO()
    names = list(dict.fromkeys(key for row in rows for key in row))
    writer = csv.DictWriter(stream, names, lineterminator="\n")
    writer.writeheader()
    writer.writerows(rows)
    return stream.getvalue()
