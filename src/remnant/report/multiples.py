"""Small multiples of a grid: one value against one axis, the other axes as lines and panels."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remnant.report.lines import Panel, line_panels

NAMES = {"share": "share of records recovered", "consensus": "agreement without truth"}


def roles(rows: Sequence[Mapping[str, Any]], axes: Sequence[str]) -> tuple[str, list[str]]:
    """The axis that is drawn along, and those that tell lines apart.

    Along goes the axis of numbers with most values, but for seeds, whose rows become medians.
    """
    varied = {axis: {str(row[axis]) for row in rows} for axis in axes if axis != "seed"}
    varied = {axis: seen for axis, seen in varied.items() if len(seen) > 1}
    numbers = [a for a in varied if all(_number(row[a]) for row in rows)]
    along = max(numbers or varied or axes, key=lambda a: len(varied.get(a, ())))
    return along, [axis for axis in varied if axis != along]


def multiples(rows: Sequence[Mapping[str, Any]], axes: Sequence[str], up: str) -> tuple[Panel, ...]:
    """A panel for each attack and all axes but two, a line for each value of the second."""
    along, others = roles(rows, axes)
    lines, panels = others[:1], others[1:]
    drawn = [
        {**row, along: row[along] if _number(row[along]) else str(row[along]), up: row.get(up)}
        for row in rows
    ]

    def words(row: Mapping[str, Any], names: Sequence[str]) -> str:
        return ", ".join(f"{_short(name)} {row[name]}" for name in names)

    return line_panels(
        drawn,
        panel=lambda row: ", ".join(filter(None, [row.get("attack", ""), words(row, panels)])),
        line=lambda row: words(row, lines),
        x=along,
        y=up,
        across=_short(along),
        up=NAMES.get(up, up),
        log_x=False,
        log_y=False,
    )


def _number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _short(place: str) -> str:
    return place.rsplit(".", 1)[-1].replace("_", " ")
