"""The studies by name, and how one is run: cell after cell, each kept as soon as it is measured."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import Any

from remnant.data import BUNDLED, load
from remnant.errors import DataError
from remnant.experiments import defences
from remnant.experiments import fine_tuning as tuning
from remnant.experiments import gradient_batches as batches
from remnant.experiments import gradient_studies as pairs
from remnant.experiments import informed_scenes as scenes
from remnant.experiments import informed_studies as informed
from remnant.experiments import kkt_studies as kkt
from remnant.experiments import ntk_exposure as exposure
from remnant.experiments import ntk_studies as ntk
from remnant.experiments import private_study as private
from remnant.progress import task
from remnant.report.lines import Panel, draw_lines
from remnant.store import (
    Run,
    finish,
    forget_states,
    hash_tensors,
    keeping_states,
    write_bytes,
    write_text,
)
from remnant.sweep.executors import run_tasks
from remnant.sweep.table import FIGURE_FILE, TABLE_FILE, Row, as_csv, read_rows, write_rows
from remnant.types import Examples


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
    "mse", "median_mse", "oracle", "success", "exact", "kl", "lpips", "game", "loss_auc",
    "certified", "wrongly_certified", "labels_right", "cpu_seconds",
)  # fmt: skip
KKT = (
    "recovered", "above_0.8", "null", "null_above_0.8", "agreed", "imbalance", "status",
    "cpu_seconds",
)  # fmt: skip
ERRORS = ("mean_error", "median_error", "near", "null_error", "cpu_seconds")

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
        settings=exposure.LeakFactors(),
        quick=exposure.QUICK_FACTORS,
        cells=exposure.factor_cells,
        measure=exposure.measure_factors,
        plot=exposure.plot_factors,
        columns=(
            "part", "classes", "id", "error", "null", "dual", "error_integral", "influence",
            *ERRORS,
        ),
    ),
    "onion": Study(
        title="Remove the most exposed records, train again, attack again",
        settings=exposure.Onion(),
        quick=exposure.QUICK_ONION,
        cells=exposure.onion_cells,
        measure=exposure.measure_onion,
        plot=exposure.plot_onion,
        columns=(
            "removed", "balanced", "attack", "round", "records", "top_error", "top_before",
            "test_accuracy", *ERRORS,
        ),
    ),
    "ntk-grid": Study(
        title="Weight differences and the exact attack: width against the number of records",
        settings=ntk.ExactGrid(),
        quick=ntk.QUICK_GRID,
        cells=ntk.grid_cells,
        measure=ntk.measure_grid,
        plot=ntk.plot_grid,
        columns=(
            "task", "width", "records", "near", "certified", "status", "mean_error",
            "kernel_distance", "null_near", "cpu_seconds",
        ),
    ),
    "fine-tuning": Study(
        title="A few images fine-tuned on, or a few steps: what comes back",
        settings=tuning.FineTuning(),
        quick=tuning.QUICK_TUNING,
        cells=tuning.tuning_cells,
        measure=tuning.measure_tuning,
        plot=tuning.plot_tuning,
        columns=(
            "case", "attack", "records", "recovered", "null_recovered", "correlation",
            "null_correlation", "mean_error", "null_error", "features", "certified", "status",
            "cpu_seconds",
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
    "informed-cnn": Study(
        title="One unknown record of a convolutional network, factor by factor",
        settings=informed.Convolutions(),
        quick=informed.QUICK_CONVOLUTIONS,
        cells=informed.factor_cells,
        measure=informed.measure_convolutions,
        plot=partial(informed.plot_factors, panel="CIFAR-10"),
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
        columns=("lr", "order", "batch_size", "method", *INFORMED),
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
    "defences": Study(
        title="Defences against every attack: records back, beside the accuracy",
        settings=defences.DefenceTable(),
        quick=defences.QUICK_TABLE,
        cells=defences.table_cells,
        measure=defences.measure_table,
        plot=defences.plot_table,
        columns=(
            "defence", "strength", *defences.ATTACKS, *(f"{a}_accuracy" for a in defences.ATTACKS),
            "cpu_seconds",
        ),
    ),
    "private-descent": Study(
        title="Private descent over epsilon: accuracy, what comes back, and the bounds",
        settings=private.PrivateStudy(),
        quick=private.QUICK_PRIVATE,
        cells=private.private_cells,
        measure=private.measure_private,
        plot=private.plot_private,
        columns=(
            "budget", "noise", "accuracy", "replay", "ridge", "oracle", "near", "gamma",
            "gamma_of_k", "violated", "cpu_seconds",
        ),
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
    name: str,
    settings: Any,
    data: Mapping[str, Examples],
    run: Run,
    *,
    seed: int = 0,
    on: str = "jobs:1",
) -> StudyResult:
    """Measure every cell that the run does not hold yet; writes rows, table, figure, run.json.

    on: where cells are measured (`remnant.sweep.executors`).
    """
    study = STUDIES[name]
    cells = [c for c in study.cells(settings, seed) if c.get("data") in (None, *data)]
    held = read_rows(run)
    todo = [cell for cell in cells if not _of(cell, held)]
    with task(name, len(cells)) as step, keeping_states(run):
        step(len(cells) - len(todo))
        for at, mine in run_tasks(_measure, todo, on=on, shared=(name, settings, data)):
            held += mine
            write_rows(run, held)
            forget_states(run)
            step(note=" ".join(str(value) for value in todo[at].values()))
    rows = [row for cell in cells for row in _of(cell, held)]
    write_rows(run, rows)
    write_text(run, TABLE_FILE, as_csv(rows))
    write_bytes(run, FIGURE_FILE, draw_lines(study.plot(rows), title=study.title))
    total = sum(row["cpu_seconds"] for row in rows)
    finish(run, seeds={"seed": seed}, timings={"attacks": round(total, 3)})
    return StudyResult(name=name, rows=tuple(rows))


def _of(cell: Row, rows: Sequence[Row]) -> list[Row]:
    return [row for row in rows if all(row.get(k) == v for k, v in cell.items())]


def _measure(cell: Mapping[str, Any], shared: tuple[str, Any, Mapping[str, Examples]]) -> list[Row]:
    """One cell; in a worker or here."""
    name, settings, data = shared
    return STUDIES[name].measure(settings, dict(cell), data)
