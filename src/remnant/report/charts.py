"""Figures as SVG: each function draws the data that it is given and says in words what it shows.

The page holds the drawings as they are, `svg_file` makes one a file of its own. Colours and strokes
are classes (charts.css), so that the page's style decides them for light, dark and print. Names
come from the user's files: whatever is put into markup is escaped.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.resources import files
from typing import ClassVar

import numpy as np
from markupsafe import Markup
from scipy.optimize import isotonic_regression

from remnant.bundle import null_words
from remnant.report.figures import CANDIDATES, Exposure, Series, Spectrum
from remnant.report.sheet import short_number

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
Scale = Callable[[float], float]


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A pair of axes: where numbers go in the picture's own units, and what is drawn so far."""

    x: Scale
    y: Scale
    right: float
    parts: list[Markup]
    left: float = 42
    top: float = 30
    bottom: float = 240
    wide: ClassVar[int] = 420
    high: ClassVar[int] = 280

    def add(self, *parts: Markup) -> None:
        self.parts.extend(parts)


def svg_file(chart: Markup) -> bytes:
    """The chart as an SVG file: light colours are spelt out, for viewers without CSS variables."""
    light = own_file("page/style.css").partition("}")[0]
    palette = dict(re.findall(r"--([\w-]+): (.*);", light))
    style = re.sub(r"var\(--([\w-]+)\)", lambda found: palette[found[1]], own_file("charts.css"))
    width, height = (
        Frame.wide + 48,
        Frame.high + 32,
    )  # names at the right may be longer than their room
    whole = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{2}" height="{3}">'
        '<style>{4}</style><rect width="{0}" height="{1}" fill="{5}"/>'
        '<svg x="16" y="16" width="{6}" height="{7}" overflow="visible">{8}</svg></svg>\n'
    )
    around = (width, height, 2 * width, 2 * height, Markup(style), palette["paper"])
    return clean(whole.format(*around, Frame.wide, Frame.high, chart)).encode()


def own_file(name: str) -> str:
    """A style or script of the report's own, as text."""
    return files("remnant.report").joinpath(name).read_text("utf-8")


def clean(text: str) -> str:
    """The text without what no HTML or SVG file can hold: lone surrogates, control characters."""
    return CONTROL_CHARACTERS.sub("\ufffd", text.encode("utf-8", "replace").decode())


def curve_chart(data: Sequence[Series]) -> Markup:
    """Sorted squared distances on a log axis, one line each, named at its end."""
    drawn = [series for series in data if series.distances]
    positive = [value for series in drawn for value in series.distances if value > 0.0]
    # A distance of zero is drawn a decade below the others, but not below float64's rounding.
    floor = max(min(positive, default=1.0) / 10.0, 1e-34)
    widest = max((len(series.distances) + series.unmatched for series in data), default=1)
    frame = _frame(
        (1, max(widest, 2)), (floor, max(positive, default=1.0)), labels=108,
        across="records, closest first", up="squared L2 distance",
    )  # fmt: skip
    ends = []
    for series in drawn:
        heights = [frame.y(max(value, floor)) for value in series.distances]
        points = [(frame.x(k + 1), height) for k, height in enumerate(heights)]
        frame.add(_path(_line(points), f"line {series.name}"))
        mine = series.name == CANDIDATES
        words = "reconstructions" if mine else null_words(series.name)[0]
        words = words.removesuffix(" records").removesuffix(" record")  # the axis says it
        ends.append((points[-1], words, "strong end" if mine else "end"))
    _label_ends(frame, ends)
    if not drawn:
        frame.add(
            _text(Frame.wide / 2, Frame.high / 2, "no record has a candidate", "name", "middle")
        )
    return _svg(frame.parts, "Reconstruction curve: sorted squared distances of records and nulls")


def spectrum_chart(data: Spectrum, shown: int | None = None) -> Markup:
    """The first `shown` singular values (None = all) on a log axis, with the count marked in their
    gap. A count without a gap was told to the attack and is not marked."""
    values = data.values[:shown]
    positive = [value for value in values if value > 0.0]
    floor = min(positive, default=1.0)
    frame = _frame(
        (1, max(len(values), 2)), (floor, max(positive, default=1.0)),
        across="index", up="singular value",
    )  # fmt: skip
    count = data.counted if data.counted is not None and data.tells else 0
    for name, start, part in (("inside", 0, values[:count]), ("outside", count, values[count:])):
        dots = "".join(
            f"M{at(frame.x(start + k + 1))} {at(frame.y(max(value, floor)))}h0"
            for k, value in enumerate(part)
        )
        if dots:
            frame.add(_path(dots, f"dots {name}"))
    if 0 < count <= len(values):
        x = (frame.x(count) + frame.x(min(count + 1, len(values)))) / 2
        frame.add(_rule(x, frame.top, x, frame.bottom, "cut"))
        lines = [f"{count} counted", f"gap {short_number(data.gap or 0.0)}×"]
        anchor, place = ("end", x - 6) if count > 0.6 * len(values) else ("start", x + 6)
        for k, line in enumerate(lines):
            frame.add(_text(place, frame.top + 12 + 15 * k, line, "strong halo", anchor))
    return _svg(frame.parts, f"Singular values of the evidence, {count or 'no'} records counted")


def exposure_chart(data: Exposure) -> Markup:
    """Each record's correlation against its margin or loss, with the threshold."""
    across = [x for x, _, _ in data.points]
    low, high = min(across), max(across)
    log = low > 0.0 and high > 100.0 * low  # losses lie decades apart
    room = (high / low) ** 0.04 if log else (high - low) * 0.04 or 1.0
    lowest = min(0.0, *(y for _, y, _ in data.points))
    frame = _frame(
        (low / room, high * room) if log else (low - room, high + room),
        (math.floor(lowest * 2) / 2, 1.0), log=False, log_across=log,
        across=data.across, up="correlation",
        ticks=_decades(low, high) if log else _steps(low, high),
    )  # fmt: skip
    if data.threshold is not None:
        y = frame.y(data.threshold)
        words = f"recovered above {data.threshold:g}"
        frame.add(_rule(frame.left, y, frame.right, y, "cut"))
        frame.add(_text(frame.right, y - 6, words, "halo", "end"))
    circle = Markup('<circle r="{}" class="point {}" cx="{}" cy="{}"/>')
    for x, y, recovered in data.points:
        look = (3.2, "inside") if recovered else (2.6, "outside")
        frame.add(circle.format(*look, at(frame.x(x)), at(frame.y(y))))
    return _svg(frame.parts, f"Correlation of each record against its {data.across}")


def percent(share: float) -> str:
    """Whole percents, with a digit more where little is left or little is there."""
    value = 100.0 * share
    near = value in (0.0, 100.0) or 10.0 <= value <= 90.0
    return f"{value:.0f}%" if near else f"{value:.1f}%"


def at(value: float) -> str:
    """A place in a drawing, to a tenth."""
    return f"{value:.1f}".removesuffix(".0")


def power(exponent: int) -> str:
    """10⁻⁷; 1 and 10 as they are."""
    return {0: "1", 1: "10"}.get(exponent, f"10{str(exponent).translate(SUPERSCRIPT)}")


def moved_apart(places: Sequence[float], room: float) -> list[float]:
    """The places, in their order, moved apart until neighbours are `room` from each other."""
    order = np.argsort(places, kind="stable")
    steps = room * np.arange(len(places))
    # What is left of each place after the least steps must not fall: the nearest such sequence.
    moved = np.empty(len(places))
    if len(places):
        moved[order] = isotonic_regression(np.asarray(places)[order] - steps).x + steps
    return [float(place) for place in moved]


def _frame(
    across_span: tuple[float, float],
    up_span: tuple[float, float],
    *,
    across: str,
    up: str,
    labels: int = 14,
    log: bool = True,
    log_across: bool = False,
    ticks: Sequence[tuple[float, str]] | None = None,
) -> Frame:
    """Axes with a light grid and room for `labels` at the right; up is logarithmic and across
    counts records unless said otherwise."""
    if log:
        low, high = math.floor(math.log10(up_span[0])), math.ceil(math.log10(up_span[1]))
        up_span = 10.0**low, 10.0 ** max(high, low + 1)
    left, right, top, bottom = Frame.left, Frame.wide - labels, Frame.top, Frame.bottom
    y = _scale(up_span, (bottom, top), log=log)
    x = _scale(across_span, (left + 6, right - 6), log=log_across)
    frame = Frame(x=x, y=y, right=right, parts=[])
    for value, words in _decades(*up_span) if log else _steps(*up_span):
        frame.add(_rule(left, y(value), right, y(value), "grid"))
        frame.add(_text(left - 7, y(value) + 4, words, "tick", "end"))
    for value, words in ticks or _steps(*across_span, whole=True):
        frame.add(_text(x(value), bottom + 17, words, "tick", "middle"))
    frame.add(_rule(left, bottom, right, bottom, "axis"))
    frame.add(_text((left + right) / 2, Frame.high - 6, across, "name", "middle"))
    frame.add(_text(0, 12, up, "name", "start"))
    return frame


def _scale(span: tuple[float, float], places: tuple[float, float], *, log: bool) -> Scale:
    through: Scale = math.log10 if log else float
    (low, high), (start, end) = map(through, span), places
    return lambda value: start + (through(value) - low) / (high - low) * (end - start)


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten within the span, six or so."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first) // 6))
    return [(10.0**k, power(k)) for k in range(first, last + 1, every)]


def _steps(low: float, high: float, *, whole: bool = False) -> list[tuple[float, str]]:
    """About four round numbers within the span."""
    if high <= low:
        return [(low, f"{low:g}")]
    rough = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = min((m * size for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    step = max(1.0, round(step)) if whole else step
    first = math.ceil(low / step)
    ticks = [round(k * step, 12) for k in range(first, math.floor(high / step) + 1)]
    ticks = [low, *(t for t in ticks if t > low)] if whole and low == 1 else ticks
    return [(tick, f"{tick:g}") for tick in ticks]


def _label_ends(frame: Frame, ends: Sequence[tuple[tuple[float, float], str, str]]) -> None:
    """Each line's name (end, words, class) beside its end; names that would meet move apart."""
    places = moved_apart([y for (_, y), _, _ in ends], 15.0)
    lowest = min(0.0, frame.bottom - max(places, default=0.0))
    for ((x, y), words, kind), place in zip(ends, places, strict=True):
        height = place + lowest
        frame.add(_rule(x + 2, y, frame.right + 2, height, "leader"))
        frame.add(_text(frame.right + 6, height + 4, words, kind, "start"))


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{at(x)} {at(y)}" for x, y in points) + ("h.1" * (len(points) == 1))


def _path(d: str, kind: str) -> Markup:
    return Markup('<path d="{}" class="{}"/>').format(d, kind)


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> Markup:
    return _path(f"M{at(x1)} {at(y1)}L{at(x2)} {at(y2)}", kind)


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> Markup:
    shape = Markup('<text x="{}" y="{}" class="{}" text-anchor="{}">{}</text>')
    return shape.format(at(x), at(y), kind, anchor, words)


def _svg(parts: Sequence[Markup], words: str) -> Markup:
    start = Markup('<svg viewBox="0 0 {} {}" class="chart" role="img" aria-label="{}">')
    return start.format(Frame.wide, Frame.high, words) + Markup("").join(parts) + Markup("</svg>")
