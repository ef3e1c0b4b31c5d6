"""A study as data: a grid of targets and attacks beside a paper's figure; one engine runs them all.

A `Study` says what is varied, which function measures one cell of the grid, and how the rows are
shown. Everything else (flags, resuming, workers, table, picture) is the same for every study.
"""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy.stats import spearmanr

import remnant.store as store
from remnant.data import BUNDLED, load
from remnant.errors import DataError, InputError, expected
from remnant.progress import task
from remnant.report.lines import Panel, Point, draw_lines, line_panels
from remnant.store import Run
from remnant.sweep.executors import run_tasks
from remnant.sweep.fleets import spreading
from remnant.sweep.grid import expand
from remnant.sweep.table import FIGURE_FILE, TABLE_FILE, Row, as_csv, read_rows, write_rows
from remnant.types import Examples

Rows = list[Row]
SHEET_FILE = "sheet.png"


@dataclass(frozen=True, kw_only=True)
class Figure:
    """Panels of lines over `x`, medians over rows of equal x.

    lines: the columns that are drawn, each with the name of its line. Names and `panel` are
    templates that a row fills in (`"width {width}"`). only: rows without these values, or without
    the column, are not drawn. across: the label below, by the panel's title where it is a mapping.
    rank: a column whose rank correlation with those drawn is told below.
    """

    x: str
    lines: Mapping[str, str]
    across: str | Mapping[str, str]
    up: str
    panel: str
    only: Mapping[str, Any] | None = None
    log_x: bool = True
    log_y: bool = True
    rank: str = ""

    def panels(self, rows: Sequence[Row]) -> tuple[Panel, ...]:
        wanted = (self.only or {}).items()
        mine = [row for row in rows if all(row.get(k) == v for k, v in wanted)]
        points = [
            Point(self.panel.format(**row), name.format(**row), row[self.x], row[column])
            for column, name in self.lines.items()
            for row in mine
            if column in row and self.x in row
        ]
        across = self.across
        for column in self.lines if self.rank else ():
            told = rank_correlation(mine, self.rank, column)
            across = f"{across}\nrank correlation with {column.replace('_', ' ')} {told}"
        axes = {"log_x": self.log_x, "log_y": self.log_y}
        return line_panels(points, across=across, up=self.up, **axes)


@dataclass(frozen=True, kw_only=True)
class Study:
    """What is varied, how a cell of it is measured, and how the rows are shown.

    settings: arguments of `measure` by name. A list is varied; a name of several words holds
    tuples, a value for each word, that are varied together. `data` names datasets; the seed is
    varied last, over `seeds` seeds. quick: settings that replace these in a grid of one seed that
    takes about a minute. measure: called with the records (where there is `data`) and the settings
    of one cell; returns rows, to which the engine adds those settings; `files` of a row, bytes by
    name, are written into the run. columns: those of a row that are printed. condense: turns the
    rows that were measured into those that are drawn. sheet: draws originals beside
    reconstructions, found again, from the data and the settings.
    """

    title: str
    measure: Callable[..., Rows]
    settings: Mapping[str, Any]
    quick: Mapping[str, Any]
    columns: tuple[str, ...]
    figures: tuple[Figure, ...]
    seeds: int = 1
    condense: Callable[[Rows], Rows] = list
    sheet: Callable[[Mapping[str, Examples], Mapping[str, Any]], bytes] | None = None


def adjusted(
    study: Study,
    changed: Mapping[str, Sequence[Any] | None],
    seed: int,
    seeds: int | None = None,
    *,
    quick: bool = False,
) -> Row:
    """The study's settings with those that the user changed (None: as declared): lists are varied,
    the seed last of all, over `seeds` seeds from `seed` on."""
    values = dict(study.settings) | (dict(study.quick) if quick else {})
    for name, asked in changed.items():
        if asked is None:
            continue
        key = next((key for key in values if name in key.split()), None)
        if key is None:
            flag = f"--{name.replace('_', '-')}"
            raise InputError(expected(flag, "none: this study has no such setting", asked))
        values[key] = _replaced(values[key], key.split(), name, asked)
    count = seeds or (1 if quick else study.seeds)
    return values | {"seed": [seed + k for k in range(count)]}


def _replaced(old: Any, words: list[str], name: str, asked: Sequence[Any]) -> Any:
    """A setting with other values of one of its words, each combination once."""
    if isinstance(old, tuple):  # names that go into one cell together
        return tuple(asked)
    if len(words) == 1:
        return list(asked) if len(asked) > 1 else asked[0]
    at = words.index(name)
    return list(dict.fromkeys((*one[:at], new, *one[at + 1 :]) for new in asked for one in old))


def listed(strengths: Mapping[str, Sequence[Any]]) -> list[tuple[str, Any]]:
    """Pairs of a name and each of its values, to be varied together."""
    return [(name, value) for name, some in strengths.items() for value in some]


def cells(values: Mapping[str, Any]) -> list[tuple[Row, Row]]:
    """For every cell of the grid: the varied settings, and all arguments for `measure`."""
    found = []
    for point, whole in expand(values):
        varied: Row = {}
        for key, value in point.items():
            words = key.split()
            varied |= {key: value} if len(words) == 1 else dict(zip(words, value, strict=True))
        found.append((varied, {k: v for k, v in whole.items() if k not in point} | varied))
    return found


def study_data(
    values: Mapping[str, Any], data_dir: Path | None
) -> tuple[dict[str, Examples], tuple[str, ...]]:
    """The datasets of a study, and the names of those that are neither bundled nor found."""
    names = dict.fromkeys(asked["data"] for _, asked in cells(values) if "data" in asked)
    data, missing = {}, []
    with task("reading data"):
        for name in names:
            try:
                data[name] = load(name, data_dir=data_dir)
            except DataError:
                if name in BUNDLED or len(names) == 1:
                    raise
                missing.append(name)
    return data, tuple(missing)


def study_spec(name: str, values: Mapping[str, Any], data: Mapping[str, Examples]) -> Row:
    """All that decides the rows. A dataset that was not found is left out of it."""
    hashes = {key: store.hash_tensors({"x": e.inputs, "y": e.labels}) for key, e in data.items()}
    return {"verb": f"study-{name}", "settings": dict(values), "data_hashes": hashes}


def run_study(
    study: Study,
    values: Mapping[str, Any],
    data: Mapping[str, Examples],
    run: Run,
    *,
    on: str = "jobs:1",
) -> Rows:
    """Measure every cell that the run does not hold yet; writes rows, table, figure, run.json.

    values: `adjusted` settings. on: where cells are measured (`remnant.sweep.executors`). Returns
    the rows in the order of the cells.
    """
    grid = [(v, asked) for v, asked in cells(values) if asked.get("data") in (None, *data)]
    held = read_rows(run)
    todo = [(varied, asked) for varied, asked in grid if not _of(varied, held)]
    shared, specs = (study.measure, data), [asked for _, asked in todo]
    fleets = run.path / "fleets"  # what is trained of them survives a kill
    with task("cells", len(grid)) as step, store.keeping_states(run), spreading(fleets, "jobs:1"):
        step(len(grid) - len(todo))
        for at, mine in run_tasks(_measure, specs, on=on, shared=shared):
            for name, body in (pair for row in mine for pair in row.pop("files", {}).items()):
                store.write_bytes(run, name, body)
            held += mine
            write_rows(run, held)
            store.forget_states(run)
            shutil.rmtree(fleets, ignore_errors=True)
            step(note=" ".join(map(str, todo[at][0].values())))
    rows = [row for varied, _ in grid for row in _of(varied, held)]
    write_rows(run, rows)
    store.write_text(run, TABLE_FILE, as_csv(rows))
    drawn = study.condense(rows)
    panels = [panel for figure in study.figures for panel in figure.panels(drawn)]
    store.write_bytes(run, FIGURE_FILE, draw_lines(panels, title=study.title))
    if study.sheet is not None:
        with task("pictures"):
            store.write_bytes(run, SHEET_FILE, study.sheet(data, values))
    total = sum(row["cpu_seconds"] for row in rows)
    store.finish(run, seeds={"seed": values["seed"][0]}, timings={"attacks": round(total, 3)})
    return rows


def _of(varied: Row, rows: Sequence[Row]) -> Rows:
    return [row for row in rows if all(row.get(k) == v for k, v in varied.items())]


def _measure(asked: Mapping[str, Any], shared: tuple[Callable[..., Rows], Any]) -> Rows:
    """One cell; in a worker or here. Rows say all settings that are single values."""
    measure, data = shared
    about = {k: v for k, v in asked.items() if isinstance(v, str | int | float)}
    rest = {key: value for key, value in asked.items() if key != "data"}
    rows = measure(data[asked["data"]], **rest) if "data" in asked else measure(**rest)
    return [about | row for row in rows]


def shown_columns(study: Study, values: Mapping[str, Any]) -> list[str]:
    """The study's columns, and whatever else the flags made it vary."""
    varied = cells(values)[0][0]
    extra = [name for name in varied if name not in (*study.columns, "seed")]
    return [*extra, *study.columns]


def rank_correlation(rows: Sequence[Row], x: str, y: str) -> str:
    """Spearman's in words, over rows that have both; unknown where fewer than three do."""
    pairs = [(row[x], row[y]) for row in rows if None not in (row.get(x), row.get(y))]
    if len(pairs) < 3 or any(len(set(side)) < 2 for side in zip(*pairs, strict=True)):
        return "unknown"
    return f"{spearmanr(*zip(*pairs, strict=True)).statistic:.2f} over {len(pairs)}"
