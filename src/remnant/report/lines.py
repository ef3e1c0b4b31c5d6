"""Small multiples of lines: what a study measured, against what it varied.

`line_panels` sorts points into panels and lines, `multiples` makes points of a grid's rows, and
`draw_lines` draws what it is given.
"""

from __future__ import annotations

import io
import math
import textwrap
import warnings
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from statistics import median
from typing import Any, NamedTuple

from matplotlib import rc_context
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from remnant.errors import cut, printable

INK, GREY, PALE = "#1a1a1a", "#6b6b6b", "#d4d4d4"
STYLE: Any = {
    "axes.spines.top": False, "axes.spines.right": False, "axes.edgecolor": GREY,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": PALE, "grid.linewidth": 0.6,
    "axes.axisbelow": True, "axes.titlelocation": "left", "axes.titlesize": 10,
    "axes.labelsize": 9, "axes.labelcolor": INK, "text.color": INK,
    "xtick.color": GREY, "ytick.color": GREY, "xtick.labelsize": 8, "ytick.labelsize": 8,
    "legend.frameon": False, "legend.fontsize": 8,
}  # fmt: skip
# Okabe and Ito's colours, which the colour-blind can tell apart; markers and dashes say it again.
LOOKS: tuple[tuple[str, Any, str], ...] = (
    ("#d55e00", "-", "o"),
    ("#0072b2", "--", "s"),
    ("#009e73", "-.", "^"),
    ("#cc79a7", ":", "D"),
    ("#1a1a1a", (0, (5, 1)), "v"),
    ("#e69f00", (0, (3, 1, 1, 1)), "P"),
)
MEASURED = {"share": "share of records recovered", "consensus": "agreement without truth"}
Row = Mapping[str, Any]
Place = float | str  # a number, or the name of a step that has no size


class Point(NamedTuple):
    """One measurement: in which panel and line it is drawn, where along, and how high."""

    panel: str
    line: str
    x: Place
    y: float | None


@dataclass(frozen=True, kw_only=True)
class Line:
    """Heights at places along the axis, in the panel's order; None where nothing was measured."""

    name: str
    x: tuple[Place, ...]
    y: tuple[float | None, ...]


@dataclass(frozen=True, kw_only=True)
class Panel:
    """Lines over one pair of axes. places: those of all lines, in order; words at equal steps."""

    title: str
    across: str
    up: str
    places: tuple[Place, ...]
    lines: tuple[Line, ...]
    log_x: bool = False
    log_y: bool = True


def line_panels(
    points: Sequence[Point],
    *,
    across: str | Mapping[str, str],
    up: str,
    log_x: bool = True,
    log_y: bool = True,
) -> tuple[Panel, ...]:
    """The points sorted into panels and lines; medians of those at one place.

    Panels and lines come in the order of the points, and so do places that are words; numbers are
    sorted. A log axis has no zero: a panel that needs one has its numbers as words. across: the
    label below, by the panel's title where it is a mapping.
    """
    panels = []
    for title in dict.fromkeys(point.panel for point in points):
        mine = [point for point in points if point.panel == title]
        places: list[Any] = list(dict.fromkeys(point.x for point in mine))
        words = any(isinstance(place, str) for place in places)
        if not words:
            places.sort()
        words = words or (log_x and places[0] <= 0)
        spell = _word if words else float
        panels.append(
            Panel(
                title=title,
                across=across if isinstance(across, str) else across[title],
                up=up,
                places=tuple(map(spell, places)),
                lines=tuple(
                    _line(name, [point for point in mine if point.line == name], places, spell)
                    for name in dict.fromkeys(point.line for point in mine)
                ),
                log_x=log_x and not words,
                log_y=log_y,
            )
        )
    return tuple(panels)


def _line(
    name: str, points: Sequence[Point], places: Sequence[Any], spell: Callable[[Any], Place]
) -> Line:
    there = {place: [p.y for p in points if p.x == place] for place in places}
    found = {place: [y for y in ys if y is not None] for place, ys in there.items() if ys}
    heights = tuple(float(median(ys)) if ys else None for ys in found.values())
    return Line(name=name, x=tuple(map(spell, found)), y=heights)


def _word(place: Place) -> str:
    return place if isinstance(place, str) else f"{place:g}"


def roles(rows: Sequence[Row], axes: Sequence[str]) -> tuple[str, list[str]]:
    """Which axis is drawn along, and which tell lines and panels apart.

    The axis of numbers with the most values is drawn along. Seeds are no axis: their rows become
    medians.
    """
    varied = {axis: {str(row[axis]) for row in rows} for axis in axes if axis != "seed"}
    varied = {axis: seen for axis, seen in varied.items() if len(seen) > 1}
    numbers = [a for a in varied if all(_number(row[a]) for row in rows)]
    along = max(numbers or varied or axes, key=lambda a: len(varied.get(a, ())))
    return along, [axis for axis in varied if axis != along]


def multiples(rows: Sequence[Row], axes: Sequence[str], up: str) -> tuple[Panel, ...]:
    """A panel for each attack and all axes but two, a line for each value of the second."""
    along, others = roles(rows, axes)
    lines, panels = others[:1], others[1:]

    def words(row: Row, names: Sequence[str]) -> str:
        return ", ".join(f"{_last_name(name)} {row[name]}" for name in names)

    points = [
        Point(
            panel=", ".join(filter(None, [row.get("attack", ""), words(row, panels)])),
            line=words(row, lines),
            x=row[along] if _number(row[along]) else str(row[along]),
            y=row.get(up),
        )
        for row in rows
    ]
    label = MEASURED.get(up, up)
    return line_panels(points, across=_last_name(along), up=label, log_x=False, log_y=False)


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _last_name(place: str) -> str:
    return place.rsplit(".", 1)[-1].replace("_", " ")


def draw_lines(
    panels: Sequence[Panel],
    *,
    title: str = "",
    across: int = 3,
    wide: float = 4.6,
    tall: float = 3.0,
) -> bytes:
    """The panels as PNG, `wide` by `tall` inches each, `across` of them in a row."""
    columns = max(1, min(across, len(panels)))
    rows = max(1, math.ceil(len(panels) / columns))
    size = (wide * columns, tall * rows + 0.4)
    names = list(dict.fromkeys(line.name for panel in panels for line in panel.lines))
    looks = {name: LOOKS[i % len(LOOKS)] for i, name in enumerate(names)}
    low, high = _range(panels)
    with rc_context(STYLE), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)  # letters that the font lacks are boxes
        figure = Figure(figsize=size, dpi=150, layout="constrained")
        if title:
            lines = textwrap.fill(title, int(13 * size[0]))  # characters of this size in an inch
            figure.suptitle(lines, fontsize=11, x=0.01, ha="left")
        for i, panel in enumerate(panels):
            axes = figure.add_subplot(rows, columns, i + 1)
            _draw(axes, panel, looks, low)
            axes.set(ylim=(low, high), ylabel=_label(panel.up) if i % columns == 0 else "")
        stream = io.BytesIO()
        figure.savefig(stream, format="png", metadata={"Software": None})
        return stream.getvalue()


def _label(words: str) -> str:
    """Names from files as they are, neither formulas nor commands, and not too long to draw."""
    return cut(printable(words), 60).replace("$", r"\$")


def _range(panels: Sequence[Panel]) -> tuple[float, float]:
    """One vertical axis for all panels, so that they can be compared; zero is put below."""
    heights = [y for p in panels for line in p.lines for y in line.y if y is not None]
    if not panels or not panels[0].log_y:
        return 0.0, 1.08 * max([*heights, 1e-300])
    positive = [y for y in heights if y > 0.0]
    return min(positive, default=0.1) / 5.0, 5.0 * max(positive, default=1.0)


def _draw(axes: Axes, panel: Panel, looks: Mapping[str, tuple[str, Any, str]], low: float) -> None:
    """Lines and labels of one panel; heights below `low` are drawn there."""
    at = {p: float(i) if isinstance(p, str) else p for i, p in enumerate(panel.places)}
    for line in panel.lines:
        colour, dashes, marker = looks[line.name]
        pairs = [(at[x], y) for x, y in zip(line.x, line.y, strict=True)]
        points = [(x, max(y, low)) for x, y in pairs if y is not None]
        xs, ys = zip(*points, strict=True) if points else ((), ())
        look = {"color": colour, "linestyle": dashes, "marker": marker}
        axes.plot(xs, ys, markersize=4, lw=1.6, label=_label(line.name), **look)
        missing = [x for x, y in pairs if y is None]  # nothing to measure: a cross at the top
        top = axes.get_xaxis_transform()
        tops = [0.985] * len(missing)
        axes.scatter(missing, tops, marker="x", color=colour, s=22, transform=top)
    axes.set(
        title=_label(panel.title),
        xlabel=_label(panel.across),
        xscale="log" if panel.log_x else "linear",
        yscale="log" if panel.log_y else "linear",
    )
    # What was measured, no more.
    axes.set_xticks(list(at.values()), [_label(_word(place)) for place in panel.places])
    axes.set_xticks([], minor=True)
    if len(panel.places) > 5:
        axes.tick_params(axis="x", labelrotation=45, labelsize=7)
    if len(looks) > 1:
        axes.legend(labelcolor="linecolor")
