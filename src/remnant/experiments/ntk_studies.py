"""Why weight differences leak (paper 000, section 4, Appendix I): kernel, early stops, width.

Errors are squared L2 in pixels between a record and its candidate, greedy one-to-one matching (the
reconstruction curve), beside the null: as many images that were not trained on, taken for
candidates. Attacks: `paper`, 000's descent with settings for these networks (`GRADUAL`; told the
number of records), and `exact`, that preset of `ntk`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean, mode
from typing import Any

from scipy.stats import spearmanr

from remnant.data import Split, binary_task, split
from remnant.experiments.ntk_targets import Row, attacked, finish_training, scored
from remnant.report.lines import Panel, line_panels
from remnant.types import Examples


@dataclass(frozen=True, kw_only=True)
class KernelDistance:
    """000, Figures 2 and 3: mean error against how far training moved the kernel."""

    widths: tuple[int, ...] = (64, 128, 256)
    dynamics: tuple[str, ...] = ("standard", "lazy 3", "lazy 10", "linearised")
    records: int = 16  # the same for all of these, since more records are harder by themselves
    others: tuple[int, ...] = (8, 32)  # of standard dynamics
    attack: str = "paper"
    steps: int = 6000
    stop_loss: float = 1e-6
    repeats: int = 2  # networks and sets of records a target, averaged; the paper's are 3
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class EarlyStopping:
    """000, Figure 15: the loss at which training stops, and what comes back."""

    stops: tuple[float, ...] = (0.3, 1e-1, 1e-2, 1e-3, 1e-4, 1e-6)
    attacks: tuple[str, ...] = ("paper", "exact")
    records: int = 20
    width: int = 512
    steps: int = 6000
    repeats: int = 1
    task: str = "odd-even"
    data: tuple[str, ...] = ("mnist",)


@dataclass(frozen=True, kw_only=True)
class ExactGrid:
    """000, Figures 2 and 5 for the exact attack: width x records, one output or ten."""

    widths: tuple[int, ...] = (64, 128, 256, 512)
    records: tuple[int, ...] = (5, 10, 20, 40, 80)
    tasks: tuple[str, ...] = ("odd-even", "")  # the second: ten classes
    data: tuple[str, ...] = ("mnist",)


QUICK_KERNEL = KernelDistance(widths=(32, 64, 128), records=8, others=(4,), steps=1500, repeats=1)
QUICK_STOPPING = EarlyStopping(stops=(1e-1, 1e-3, 1e-5), records=8, width=128, steps=2000)
QUICK_GRID = ExactGrid(widths=(64, 128), records=(5, 10, 20))


def sides_of(
    settings: Any, data: Mapping[str, Examples], records: int, seed: int, task: str | None = None
) -> Split:
    """Records to train on and 2000 others, of the settings' task or of another."""
    examples, task = data[settings.data[0]], settings.task if task is None else task
    if task:
        examples = binary_task(examples, task)
    sides = split(examples, train=records, public=None, holdout=records, seed=seed)
    return replace(sides, public=sides.public.take(range(min(2000, len(sides.public)))))


def rank_correlation(rows: Sequence[Row], x: str, y: str) -> float | None:
    """Spearman's, over rows that have both; None where fewer than three do, or one is constant."""
    pairs = [(row[x], row[y]) for row in rows if row.get(x) is not None and row.get(y) is not None]
    if len(pairs) < 3 or any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return None
    return float(spearmanr(*zip(*pairs, strict=True)).statistic)


def words(rho: float | None) -> str:
    return "unknown" if rho is None else f"{rho:.2f}"


# kernel distance


def kernel_cells(settings: KernelDistance, seed: int) -> list[Row]:
    return [
        {"dynamics": dynamics, "width": width, "records": n, "seed": seed + k}
        for dynamics, n in (
            *((dynamics, settings.records) for dynamics in settings.dynamics),
            *(("standard", n) for n in settings.others),
        )
        for width in settings.widths
        for k in range(settings.repeats)
    ]


def measure_kernel(settings: KernelDistance, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    sides = sides_of(settings, data, cell["records"], cell["seed"])
    run = finish_training(
        sides.train,
        sides.public,
        width=cell["width"],
        seed=cell["seed"],
        dynamics=cell["dynamics"],
        stop_loss=settings.stop_loss,
    )
    return [cell | scored(run, *attacked(run, settings.attack, settings.steps, cell["seed"]))]


def averaged(rows: Sequence[Row]) -> list[Row]:
    """A row a target: means over its repeats."""
    groups: dict[tuple[Any, ...], list[Row]] = {}
    for row in rows:
        groups.setdefault((row["dynamics"], row["width"], row["records"]), []).append(row)
    return [
        group[0]
        | {key: fmean(row[key] for row in group) for key in ("kernel_distance", "mean_error")}
        for group in groups.values()
    ]


def plot_kernel(rows: Sequence[Row]) -> tuple[Panel, ...]:
    """Error by kernel distance at one number of records, by dynamics, and by that number."""
    rows = averaged(rows)
    count = mode(row["records"] for row in rows)
    same = [row for row in rows if row["records"] == count]
    rho, all_rho = (
        words(rank_correlation(some, "kernel_distance", "mean_error")) for some in (same, rows)
    )
    across = f"d(K0, Kf); rank correlation {rho} over {len(same)} targets"
    if len(rows) > len(same):
        across += f"\n({all_rho} over all {len(rows)})"
    shared: Any = {"y": "mean_error", "up": "mean squared L2", "log_y": False}
    by_width: Any = {"line": lambda row: f"width {row['width']}"} | shared
    return (
        *line_panels(
            [row | {"kernel_distance": round(row["kernel_distance"], 3)} for row in same],
            panel=lambda row: f"{count} records, by kernel distance", x="kernel_distance",
            across=across, log_x=False, **by_width,
        ),
        *line_panels(
            same, panel=lambda row: f"{count} records, by dynamics", x="dynamics",
            across="dynamics", **by_width,
        ),
        *line_panels(
            [row for row in rows if row["dynamics"] == "standard"],
            panel=lambda row: "standard dynamics", x="width", across="width",
            line=lambda row: f"{row['records']} records", **shared,
        ),
    )  # fmt: skip


# early stopping


def stopping_cells(settings: EarlyStopping, seed: int) -> list[Row]:
    return [
        {"stop_loss": stop, "attack": attack, "seed": seed + k}
        for stop in settings.stops
        for attack in settings.attacks
        for k in range(settings.repeats)
    ]


def measure_stopping(settings: EarlyStopping, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    sides = sides_of(settings, data, settings.records, cell["seed"])
    run = finish_training(
        sides.train,
        sides.public,
        width=settings.width,
        seed=cell["seed"],
        stop_loss=cell["stop_loss"],
    )
    return [cell | scored(run, *attacked(run, cell["attack"], settings.steps, cell["seed"]))]


def plot_stopping(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel=lambda row: "standard dynamics",
        line="attack",
        x="stop_loss",
        y="mean_error",
        across="training loss at the end",
        up="mean squared L2",
    )


# the exact attack, width x records


def grid_cells(settings: ExactGrid, seed: int) -> list[Row]:
    return [
        {"task": task, "width": width, "records": n, "seed": seed}
        for task in settings.tasks
        for width in settings.widths
        for n in settings.records
    ]


def measure_grid(settings: ExactGrid, cell: Row, data: Mapping[str, Examples]) -> list[Row]:
    sides = sides_of(settings, data, cell["records"], cell["seed"], cell["task"])
    run = finish_training(sides.train, sides.public, width=cell["width"], seed=cell["seed"])
    row = cell | scored(run, *attacked(run, "exact", 0, cell["seed"]))
    return [row | {"share": row["near"] / row["records"]}]


def plot_grid(rows: Sequence[Row]) -> tuple[Panel, ...]:
    return line_panels(
        rows,
        panel=lambda row: row["task"] or "all classes",
        line=lambda row: f"width {row['width']}",
        x="records",
        y="share",
        across="records",
        up="share recovered",
        log_y=False,
    )
