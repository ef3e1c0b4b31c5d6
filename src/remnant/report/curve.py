"""The two curves of a finding: how close each record came back, and what the evidence counts.

`curve_data` and `spectrum_data` compute, `draw_curve` and `draw_spectrum` draw what they are given.
"""

from __future__ import annotations

import io
import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from remnant.report.sheet import short_number
from remnant.types import Finding

ROUNDING = 1e-34  # what a squared distance in float64 means nothing below
HIGH = 4.2  # inches
INK, GREY, PALE = "#1a1a1a", "#6b6b6b", "#d4d4d4"
# Okabe and Ito's colours, which the colour-blind can tell apart; dashes say it a second time.
CANDIDATES = "candidates"
LOOKS: dict[str, tuple[str, str, Any]] = {
    CANDIDATES: ("reconstructions", "#d55e00", "-"),
    "held_out": ("held-out records", "#0072b2", "--"),
    "blends": ("blends of two records", "#009e73", "-."),
    "span_noise": ("noise in the span", "#cc79a7", ":"),
    "nearest_public": ("nearest public record", "#1a1a1a", (0, (5, 1))),
    "public_mean": ("mean of a class", "#6b6b6b", (0, (1, 2))),
}


@dataclass(frozen=True, kw_only=True)
class Series:
    """Squared distances in ascending order, and how many records had none."""

    name: str
    distances: tuple[float, ...]
    unmatched: int


@dataclass(frozen=True, kw_only=True)
class Spectrum:
    """Singular values in falling order, the number counted, and the gap s_n / s_n+1 after it."""

    values: tuple[float, ...]
    counted: int | None
    gap: float | None


def curve_data(finding: Finding) -> tuple[Series, ...]:
    """The reconstruction curve of the candidates, then of each null."""
    series = [_series(CANDIDATES, [record.get("squared_l2") for record in finding.per_record])]
    for name, null in finding.nulls.items():
        series.append(_series(name, null.get("squared_l2") or []))
    return tuple(series)


def draw_curve(data: Sequence[Series]) -> bytes:
    """Distance against rank on a log axis, one line each, named at its end; PNG bytes."""
    figure, axes = _axes("records, closest first", "squared L2 distance")
    floor = _floor(data)
    ends = []
    for series in data:
        if not series.distances:
            continue
        words, colour, dashes = LOOKS.get(series.name, (series.name.replace("_", " "), GREY, "-"))
        heights = [max(value, floor) for value in series.distances]
        thick = 2.6 if series.name == CANDIDATES else 1.5
        ranks = range(1, len(heights) + 1)
        marker = "o" if len(heights) == 1 else ""
        axes.plot(ranks, heights, color=colour, linestyle=dashes, linewidth=thick, marker=marker)
        if series.name == CANDIDATES and series.unmatched:
            words += f", {len(heights)} of {len(heights) + series.unmatched}"
        ends.append((float(len(heights)), heights[-1], words, colour))
    axes.set_yscale("log")
    widest = max((len(series.distances) + series.unmatched for series in data), default=1)
    axes.set_xlim(0, max(widest, 1) * 1.01)
    if not ends:
        _say_nothing(axes, "no record has a candidate")
    name_ends(axes, ends, height=0.8 * HIGH, size=9.0)
    return png(figure)


def spectrum_data(finding: Finding) -> Spectrum | None:
    """The singular values of the evidence, or None where the attack did not look at them."""
    values = [value for value in finding.trace.get("singular_values", ()) if value is not None]
    if not values:
        return None
    falling = tuple(sorted((float(value) for value in values), reverse=True))
    n = finding.counted
    gap = None
    if n is not None and 0 < n < len(falling) and falling[n] > 0.0:
        gap = falling[n - 1] / falling[n]
    return Spectrum(values=falling, counted=n, gap=gap)


def draw_spectrum(data: Spectrum) -> bytes:
    """Singular values on a log axis with the count marked in their gap; PNG bytes."""
    figure, axes = _axes("index", "singular value")
    positive = [value for value in data.values if value > 0.0]
    floor = min(positive, default=1.0)
    heights = np.maximum(data.values, floor)
    ranks = np.arange(1, len(heights) + 1)
    inside = ranks <= (data.counted or 0)
    axes.scatter(ranks[inside], heights[inside], s=16, color=LOOKS[CANDIDATES][1], zorder=3)
    axes.scatter(ranks[~inside], heights[~inside], s=16, color=GREY, zorder=3)
    axes.set_yscale("log")
    if data.counted:
        axes.axvline(data.counted + 0.5, color=INK, linewidth=1.0, linestyle="--")
        words = f"{data.counted} counted"
        if data.gap is not None:
            words += f"\ngap {short_number(data.gap)}×"
        right = data.counted > 0.6 * len(heights)
        axes.annotate(
            words,
            (data.counted + 0.5, 0.97),
            xycoords=axes.get_xaxis_transform(),
            xytext=(-8 if right else 8, 0),
            textcoords="offset points",
            ha="right" if right else "left",
            va="top",
            color=INK,
            bbox={"color": "white", "alpha": 0.8, "pad": 1.0},
        )
    return png(figure)


def _series(name: str, values: Sequence[Any]) -> Series:
    found = sorted(float(v) for v in values if v is not None and math.isfinite(v))
    return Series(name=name, distances=tuple(found), unmatched=len(values) - len(found))


def _floor(data: Sequence[Series]) -> float:
    """Where to draw a distance of zero: a decade below the smallest other one, or rounding."""
    positive = [value for series in data for value in series.distances if value > 0.0]
    return max(min(positive, default=1.0) / 10.0, ROUNDING)


def _axes(across: str, up: str) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(8.0, HIGH), dpi=150, layout="constrained")
    axes = figure.add_subplot()
    plain(axes)
    axes.set_xlabel(across, color=INK)
    axes.set_ylabel(up, color=INK)
    return figure, axes


def plain(axes: Axes) -> None:
    """Two grey axes and pale lines across."""
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines[["left", "bottom"]].set_color(GREY)
    axes.tick_params(colors=GREY, which="both")
    axes.grid(axis="y", color=PALE, linewidth=0.6)
    axes.set_axisbelow(True)


def _say_nothing(axes: Axes, words: str) -> None:
    axes.text(0.5, 0.5, words, transform=axes.transAxes, ha="center", va="center", color=GREY)


def name_ends(
    axes: Axes, ends: Sequence[tuple[float, float, str, str]], *, height: float, size: float
) -> None:
    """Each name (x, y, name, colour) at the right, beside its line's end, moved apart where names
    of that size would meet. height: of the axes in inches, near enough."""
    low, high = axes.get_ylim()
    axes.set_ylim(low, high)  # names must not move it
    scale = math.log10 if axes.get_yscale() == "log" else float
    points = 72.0 * height
    shares = [(scale(y) - scale(low)) / (scale(high) - scale(low)) for _, y, _, _ in ends]
    places = spread([share * points for share in shares], 1.5 * size)
    leader = {"arrowstyle": "-", "linewidth": 0.6, "shrinkB": 2, "relpos": (0.0, 0.5)}
    for (x, y, name, colour), place in zip(ends, places, strict=True):
        axes.annotate(
            name,
            (x, y),
            xytext=(1.03, place / points),
            textcoords="axes fraction",
            color=colour,
            va="center",
            fontsize=size,
            arrowprops=leader | {"color": colour},
            annotation_clip=False,
        )


def spread(places: Sequence[float], room: float) -> list[float]:
    """The places, in their order, moved apart until neighbours are `room` from each other."""
    order = sorted(range(len(places)), key=lambda i: places[i])
    moved = [places[i] for i in order]
    for _ in range(50 * len(moved)):  # neighbours push each other away evenly
        worst = 0.0
        for k in range(len(moved) - 1):
            short = room - (moved[k + 1] - moved[k])
            if short > 1e-6:
                moved[k] -= short / 2.0
                moved[k + 1] += short / 2.0
                worst = max(worst, short)
        if worst <= 1e-6:
            break
    out = [0.0] * len(places)
    for i, place in zip(order, moved, strict=True):
        out[i] = place
    return out


def png(figure: Figure) -> bytes:
    """Its bytes, without the name and version of what drew it."""
    stream = io.BytesIO()
    figure.savefig(stream, format="png", metadata={"Software": None})
    return stream.getvalue()
