"""Figures as SVG: each function lays out the data that it is given, and one template draws it.

The page holds the drawings as they are, `svg_file` makes one a file of its own. Colours and strokes
are classes (charts.css), so that the page's style decides them for light, dark and print. Names
come from the user's files: the template escapes whatever is put into it.
"""

from __future__ import annotations

import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files

import numpy as np
from jinja2 import Environment, Template
from markupsafe import Markup
from matplotlib.ticker import MaxNLocator
from scipy.optimize import isotonic_regression

from remnant.bundle import null_words
from remnant.report.figures import CANDIDATES, Exposure, Series, Spectrum
from remnant.report.sheet import short_number

SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
CONTROL_CHARACTERS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")
WIDE, HIGH, LEFT, TOP, BOTTOM = 420, 280, 42, 30, 240  # a chart, and its axes in it
Tick = tuple[float, str]


@dataclass(frozen=True, kw_only=True)
class Axis:
    """Called with a number it says where that lies. ends: where the axis does; inset: how far from
    them its span begins and ends."""

    words: str
    span: tuple[float, float]
    ends: tuple[float, float]
    log: bool
    ticks: Sequence[Tick]
    inset: float = 0.0

    def __call__(self, value: float) -> float:
        through = math.log10 if self.log else float
        low, high = map(through, self.span)
        start, end = self.ends[0] + self.inset, self.ends[1] - self.inset
        return start + (through(value) - low) / (high - low) * (end - start)


@dataclass(frozen=True, kw_only=True)
class Chart:
    """What is drawn, in the picture's own units; the last of each is a class, of texts an anchor.
    words: for those who do not see it."""

    x: Axis
    y: Axis
    words: str
    paths: list[tuple[str, str]] = field(default_factory=list)
    rules: list[tuple[float, float, float, float, str]] = field(default_factory=list)
    circles: list[tuple[float, float, float, str]] = field(default_factory=list)
    texts: list[tuple[float, float, str, str, str]] = field(default_factory=list)

    def drawn(self) -> Markup:
        return Markup(_template().render(chart=self, wide=WIDE, high=HIGH).strip())


@cache
def _template() -> Template:
    made = Environment(autoescape=True)
    made.filters["at"] = at
    return made.from_string(own_file("page/templates/chart.html"))


def svg_file(chart: Markup) -> bytes:
    """The chart as an SVG file: light colours are spelt out, for viewers without CSS variables."""
    light = own_file("page/style.css").partition("}")[0]
    palette = dict(re.findall(r"--([\w-]+): (.*);", light))
    style = re.sub(r"var\(--([\w-]+)\)", lambda found: palette[found[1]], own_file("charts.css"))
    width, height = WIDE + 48, HIGH + 32  # names at the right may be longer than their room
    whole = Markup(
        '<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {0} {1}" width="{2}" height="{3}">'
        '<style>{4}</style><rect width="{0}" height="{1}" fill="{5}"/>'
        '<svg x="16" y="16" width="{6}" height="{7}" overflow="visible">{8}</svg></svg>\n'
    )
    around = (width, height, 2 * width, 2 * height, Markup(style), palette["paper"])
    return clean(whole.format(*around, WIDE, HIGH, chart)).encode()


def own_file(name: str) -> str:
    """A style, script or template of the report's own, as text."""
    return files("remnant.report").joinpath(name).read_text("utf-8")


def clean(text: str) -> str:
    """The text without what no HTML or SVG file can hold: lone surrogates, control characters."""
    return CONTROL_CHARACTERS.sub("\ufffd", text.encode("utf-8", "replace").decode())


def curve_chart(data: Sequence[Series]) -> Markup:
    """Sorted squared distances on a log axis, one line each, named at its end."""
    series = [one for one in data if one.distances]
    positive = [value for one in series for value in one.distances if value > 0.0]
    # A distance of zero is drawn a decade below the others, but not below float64's rounding.
    floor = max(min(positive, default=1.0) / 10.0, 1e-34)
    widest = max((len(one.distances) + one.unmatched for one in data), default=1)
    chart = Chart(
        x=_along("records, closest first", (1, max(widest, 2)), labels=108),
        y=_decades_up("squared L2 distance", floor, max(positive, default=1.0)),
        words="Reconstruction curve: sorted squared distances of records and nulls",
    )
    ends = []
    for one in series:
        points = [
            (chart.x(k + 1), chart.y(max(value, floor))) for k, value in enumerate(one.distances)
        ]
        line = "L".join(f"{at(x)} {at(y)}" for x, y in points)
        chart.paths.append((f"M{line}{'h.1' * (len(points) == 1)}", f"line {one.name}"))
        words, _ = ("reconstructions", "") if one.name == CANDIDATES else null_words(one.name)
        words = words.removesuffix(" records").removesuffix(" record")  # the axis says it
        ends.append((*points[-1], words, "strong end" if one.name == CANDIDATES else "end"))
    places = moved_apart([y for _, y, _, _ in ends], 15.0)
    lift = min(0.0, BOTTOM - max(places, default=0.0))
    right = chart.x.ends[1]
    for (x, y, words, kind), place in zip(ends, places, strict=True):
        chart.rules.append((x + 2, y, right + 2, place + lift, "leader"))
        chart.texts.append((right + 6, place + lift + 4, words, kind, "start"))
    if not series:
        chart.texts.append((WIDE / 2, HIGH / 2, "no record has a candidate", "name", "middle"))
    return chart.drawn()


def spectrum_chart(data: Spectrum, shown: int | None = None) -> Markup:
    """The first `shown` singular values (None = all) on a log axis, with the count marked in their
    gap. A count without a gap was told to the attack and is not marked."""
    values = data.values[:shown]
    positive = [value for value in values if value > 0.0]
    floor = min(positive, default=1.0)
    count = data.counted if data.counted is not None and data.tells else 0
    chart = Chart(
        x=_along("index", (1, max(len(values), 2))),
        y=_decades_up("singular value", floor, max(positive, default=1.0)),
        words=f"Singular values of the evidence, {count or 'no'} records counted",
    )
    dots = [f"M{at(chart.x(k + 1))} {at(chart.y(max(v, floor)))}h0" for k, v in enumerate(values)]
    for kind, part in (("inside", dots[:count]), ("outside", dots[count:])):
        if part:
            chart.paths.append(("".join(part), f"dots {kind}"))
    if 0 < count <= len(values):
        x = (chart.x(count) + chart.x(min(count + 1, len(values)))) / 2
        chart.rules.append((x, TOP, x, BOTTOM, "cut"))
        anchor, place = ("end", x - 6) if count > 0.6 * len(values) else ("start", x + 6)
        for k, line in enumerate((f"{count} counted", f"gap {short_number(data.gap or 0.0)}×")):
            chart.texts.append((place, TOP + 12 + 15 * k, line, "strong halo", anchor))
    return chart.drawn()


def exposure_chart(data: Exposure) -> Markup:
    """Each record's correlation against its margin or loss, with the threshold."""
    across = [x for x, _, _ in data.points]
    low, high = min(across), max(across)
    log = low > 0.0 and high > 100.0 * low  # losses lie decades apart
    room = (high / low) ** 0.04 if log else (high - low) * 0.04 or 1.0
    span = (low / room, high * room) if log else (low - room, high + room)
    ticks = _decades(low, high) if log else _steps(low, high)
    up = math.floor(min(0.0, *(y for _, y, _ in data.points)) * 2) / 2, 1.0
    chart = Chart(
        x=_along(data.across, span, ticks, log=log),
        y=Axis(words="correlation", span=up, ends=(BOTTOM, TOP), log=False, ticks=_steps(*up)),
        words=f"Correlation of each record against its {data.across}",
    )
    if data.threshold is not None:
        y, (left, right) = chart.y(data.threshold), chart.x.ends
        chart.rules.append((left, y, right, y, "cut"))
        words = f"recovered above {data.threshold:g}"
        chart.texts.append((right, y - 6, words, "halo", "end"))
    for x, y, recovered in data.points:
        look = (3.2, "inside") if recovered else (2.6, "outside")
        chart.circles.append((chart.x(x), chart.y(y), *look))
    return chart.drawn()


def _along(
    words: str,
    span: tuple[float, float],
    ticks: Sequence[Tick] | None = None,
    *,
    labels: int = 14,
    log: bool = False,
) -> Axis:
    """The axis below, which counts records or the like unless ticks are given. labels: room at its
    right."""
    ticks = _steps(*span, whole=True) if ticks is None else ticks
    return Axis(words=words, span=span, ends=(LEFT, WIDE - labels), log=log, ticks=ticks, inset=6)


def _decades_up(words: str, low: float, high: float) -> Axis:
    first, last = math.floor(math.log10(low)), math.ceil(math.log10(high))
    span = 10.0**first, 10.0 ** max(last, first + 1)
    return Axis(words=words, span=span, ends=(BOTTOM, TOP), log=True, ticks=_decades(*span))


def _decades(low: float, high: float) -> list[Tick]:
    """Powers of ten within the span, six or so."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first) // 6))
    return [(10.0**k, power(k)) for k in range(first, last + 1, every)]


def _steps(low: float, high: float, *, whole: bool = False) -> list[Tick]:
    """About four round numbers within the span, which begins with 1 where records are counted."""
    found = MaxNLocator(4, integer=whole, steps=[1, 2, 5, 10]).tick_values(low, high)
    ticks = {round(float(tick), 12) for tick in found if low <= tick <= high}
    return [(tick, f"{tick:g}") for tick in sorted(ticks | ({low} if whole else set()))]


def moved_apart(places: Sequence[float], room: float) -> list[float]:
    """The places, in their order, moved apart until neighbours are `room` from each other."""
    order = np.argsort(places, kind="stable")
    steps = room * np.arange(len(places))
    # What is left of each place after the least steps must not fall: the nearest such sequence.
    moved = np.empty(len(places))
    if len(places):
        moved[order] = isotonic_regression(np.asarray(places)[order] - steps).x + steps
    return [float(place) for place in moved]


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
