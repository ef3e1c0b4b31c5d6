"""Figures as inline SVG. Each draws the data that it is given and says in words what it shows.

Colours and strokes are classes, so that the page's style decides them for light, dark and print.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from xml.etree.ElementTree import Element

from remnant.bundle import Verdict
from remnant.report.curve import LOOKS, ROUNDING, Series, Spectrum, spread
from remnant.report.page.elements import element
from remnant.report.page.facts import CANDIDATES, Bound, Exposure, Rate
from remnant.report.sheet import short_number

WIDE, HIGH = 420, 280
LEFT, TOP, BOTTOM = 42, 30, 40
LABELS = 108  # room for names at the right
DECADES = 6  # gridlines at most
SUPERSCRIPT = str.maketrans("-0123456789", "⁻⁰¹²³⁴⁵⁶⁷⁸⁹")
Scale = Callable[[float], float]

# One shape per verdict, so that nothing hangs on its colour.
MARKS = {
    Verdict.EXPOSED: ("M12 2 22 21H2Z", "M12 9v6M12 18v.01"),
    Verdict.NOT_EXPOSED: ("M12 2a10 10 0 1 0 .01 0Z", "M7.5 12.5l3 3 6-7"),
    Verdict.INCONCLUSIVE: (
        "M12 2a10 10 0 1 0 .01 0Z",
        "M9 9.5a3 3 0 1 1 4.2 2.8c-.8.4-1.2.9-1.2 1.9M12 17.5v.01",
    ),
    Verdict.NOT_APPLICABLE: ("M12 2a10 10 0 1 0 .01 0Z", "M7.5 12h9"),
}


@dataclass(frozen=True, kw_only=True)
class Frame:
    """A pair of axes: where numbers go, in the picture's own units."""

    x: Scale
    y: Scale
    right: float
    parts: list[Element]


def mark(verdict: Verdict) -> Element:
    """The verdict's sign; the words beside it say the same."""
    outline, sign = MARKS[verdict]
    return element(
        "svg",
        element("path", d=outline, class_="shape"),
        element("path", d=sign, class_="sign"),
        viewBox="0 0 24 24",
        class_="mark",
        aria_hidden="true",
    )


def curve_chart(data: Sequence[Series]) -> Element:
    """Sorted squared distances on a log axis, one line each, named at its end."""
    drawn = [series for series in data if series.distances]
    positive = [value for series in drawn for value in series.distances if value > 0.0]
    floor = max(min(positive, default=1.0) / 10.0, ROUNDING)
    widest = max((len(series.distances) + series.unmatched for series in data), default=1)
    frame = _frame(
        (1, max(widest, 2)), (floor, max(positive, default=1.0)), labels=LABELS,
        across="records, closest first", up="squared L2 distance",
    )  # fmt: skip
    ends = []
    for series in drawn:
        heights = [frame.y(max(value, floor)) for value in series.distances]
        points = [(frame.x(k + 1), height) for k, height in enumerate(heights)]
        frame.parts.append(element("path", d=_line(points), class_=f"line {series.name}"))
        words = LOOKS.get(series.name, (series.name.replace("_", " "), "", ""))[0]
        words = words.removesuffix(" records").removesuffix(" record")  # the axis says it
        ends.append((points[-1], words, series.name))
    _label_ends(frame, ends)
    return _svg(frame.parts, "Reconstruction curve: sorted squared distances of records and nulls")


def spectrum_chart(data: Spectrum, shown: int) -> Element:
    """The first `shown` singular values on a log axis, with the count marked in their gap."""
    values = data.values[:shown]
    positive = [value for value in values if value > 0.0]
    floor = min(positive, default=1.0)
    frame = _frame(
        (1, max(len(values), 2)), (floor, max(positive, default=1.0)),
        across="index", up="singular value",
    )  # fmt: skip
    count = data.counted or 0
    for name, start, part in (("inside", 0, values[:count]), ("outside", count, values[count:])):
        dots = "".join(
            f"M{_at(frame.x(start + k + 1))} {_at(frame.y(max(value, floor)))}h0"
            for k, value in enumerate(part)
        )
        if dots:
            frame.parts.append(element("path", d=dots, class_=f"dots {name}"))
    if 0 < count <= len(values):
        _mark_count(frame, data, len(values))
    counted = "no" if data.counted is None else f"{data.counted}"
    return _svg(frame.parts, f"Singular values of the evidence, {counted} records counted")


def _mark_count(frame: Frame, data: Spectrum, shown: int) -> None:
    count = data.counted or 0
    x = (frame.x(count) + frame.x(min(count + 1, shown))) / 2
    frame.parts.append(_rule(x, TOP, x, HIGH - BOTTOM, "cut"))
    left = count > 0.6 * shown
    words = [f"{count} counted"]
    if data.gap is not None:
        words.append(f"gap {short_number(data.gap)}×")
    for k, line in enumerate(words):
        anchor = "end" if left else "start"
        place = x - 6 if left else x + 6
        frame.parts.append(_text(place, TOP + 12 + 15 * k, line, "strong halo", anchor))


def exposure_chart(data: Exposure) -> Element:
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
        ticks=_decades(low, high) if log else _numbered(_steps(low, high)),
    )  # fmt: skip
    if data.threshold is not None:
        y = frame.y(data.threshold)
        frame.parts.append(_rule(LEFT, y, frame.right, y, "cut"))
        words = f"recovered above {data.threshold:g}"
        frame.parts.append(_text(frame.right, y - 6, words, "halo", "end"))
    for x, y, recovered in data.points:
        kind = "point inside" if recovered else "point outside"
        place = {"cx": _at(frame.x(x)), "cy": _at(frame.y(y))}
        frame.parts.append(element("circle", r=3.2 if recovered else 2.6, class_=kind, **place))
    return _svg(frame.parts, f"Correlation of each record against its {data.across}")


def bound_chart(data: Bound) -> Element:
    """The measured share with its interval, above a bar for each bound."""
    rows = 1 + len(data.bounds)
    step, left, right, top = 44, 0, WIDE - 60, 26
    parts: list[Element] = []

    def x(share: float) -> float:
        return left + max(0.0, min(1.0, share)) * (right - left)

    named = [("measured", data.measured.share), *data.bounds]
    for k, (name, share) in enumerate(named):
        y = top + k * step
        mine = k == 0
        parts.append(_text(left, y - 8, name, "strong" if mine else "", "start"))
        parts.append(_bar(left, y - 2, right - left, 8, "track"))
        parts.append(_bar(left, y - 2, x(share) - left, 8, "bar" if mine else "bar allowed"))
        if mine:
            parts.append(
                _rule(x(data.measured.low), y + 2, x(data.measured.high), y + 2, "whisker")
            )
        parts.append(_text(right + 8, y + 6, percent(share), "strong" if mine else "", "start"))
    words = f"Measured share {percent(data.measured.share)} beside the bounds"
    return _svg(parts, words, height=top + rows * step - 26)


def rate_chart(rate: Rate) -> Element:
    """One row's share and its interval, small enough for a table's cell."""
    wide, y = 120, 9
    parts = [
        _bar(0, y - 3, wide, 6, "track"),
        _bar(0, y - 3, rate.share * wide, 6, f"bar {rate.name}"),
        _rule(rate.low * wide, y, rate.high * wide, y, "whisker"),
    ]
    words = f"{percent(rate.share)}, 95% interval {percent(rate.low)} to {percent(rate.high)}"
    return _svg(parts, words, width=wide, height=18, kind="rate")


def percent(share: float) -> str:
    """Whole percents, with a digit more where little is left or little is there."""
    value = 100.0 * share
    near = value in (0.0, 100.0) or 10.0 <= value <= 90.0
    return f"{value:.0f}%" if near else f"{value:.1f}%"


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
    """Axes with a light grid; up is logarithmic and across counts records unless said otherwise."""
    right = WIDE - labels
    if log:
        low, high = math.floor(math.log10(up_span[0])), math.ceil(math.log10(up_span[1]))
        up_span = 10.0**low, 10.0 ** max(high, low + 1)
    y = _scale(up_span, (HIGH - BOTTOM, TOP), log=log)
    x = _scale(across_span, (LEFT + 6, right - 6), log=log_across)
    parts = []
    for value, words in _decades(*up_span) if log else _numbered(_steps(*up_span)):
        parts.append(_rule(LEFT, y(value), right, y(value), "grid"))
        parts.append(_text(LEFT - 7, y(value) + 4, words, "tick", "end"))
    for value, words in ticks or _numbered(_steps(*across_span, whole=True)):
        parts.append(_text(x(value), HIGH - BOTTOM + 17, words, "tick", "middle"))
    parts.append(_rule(LEFT, HIGH - BOTTOM, right, HIGH - BOTTOM, "axis"))
    parts.append(_text((LEFT + right) / 2, HIGH - 6, across, "name", "middle"))
    parts.append(_text(0, 12, up, "name", "start"))
    return Frame(x=x, y=y, right=right, parts=parts)


def _scale(span: tuple[float, float], places: tuple[float, float], *, log: bool) -> Scale:
    through: Scale = math.log10 if log else float
    (low, high), (start, end) = map(through, span), places
    return lambda value: start + (through(value) - low) / (high - low) * (end - start)


def _numbered(values: Sequence[float]) -> list[tuple[float, str]]:
    return [(value, f"{value:g}") for value in values]


def _decades(low: float, high: float) -> list[tuple[float, str]]:
    """Powers of ten within the span, DECADES or so."""
    first, last = math.ceil(math.log10(low) - 1e-9), math.floor(math.log10(high) + 1e-9)
    every = max(1, -(-(last - first) // DECADES))
    return [(10.0**k, power(k)) for k in range(first, last + 1, every)]


def _steps(low: float, high: float, *, whole: bool = False) -> list[float]:
    """About four round numbers within the span."""
    if high <= low:
        return [low]
    rough = (high - low) / 4
    size = 10.0 ** math.floor(math.log10(rough))
    step = min((m * size for m in (1, 2, 5, 10)), key=lambda s: abs(s - rough))
    step = max(1.0, round(step)) if whole else step
    first = math.ceil(low / step)
    ticks = [round(k * step, 12) for k in range(first, math.floor(high / step) + 1)]
    return [low, *(t for t in ticks if t > low)] if whole and low == 1 else ticks


def power(exponent: int) -> str:
    """10⁻⁷; 1 and 10 as they are."""
    return {0: "1", 1: "10"}.get(exponent, f"10{str(exponent).translate(SUPERSCRIPT)}")


def _label_ends(frame: Frame, ends: Sequence[tuple[tuple[float, float], str, str]]) -> None:
    """Each line's name beside its end; names that would meet are moved apart."""
    places = spread([y for (_, y), _, _ in ends], 15.0)
    lowest = HIGH - BOTTOM - max(places, default=0.0)
    for ((x, y), words, name), place in zip(ends, places, strict=True):
        height = place + min(0.0, lowest)
        leader = f"M{_at(x + 2)} {_at(y)}L{_at(frame.right + 2)} {_at(height)}"
        frame.parts.append(element("path", d=leader, class_="leader"))
        kind = "strong end" if name == CANDIDATES else "end"
        frame.parts.append(_text(frame.right + 6, height + 4, words, kind, "start"))


def _line(points: Sequence[tuple[float, float]]) -> str:
    return "M" + "L".join(f"{_at(x)} {_at(y)}" for x, y in points) + ("h.1" * (len(points) == 1))


def _at(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")


def _rule(x1: float, y1: float, x2: float, y2: float, kind: str) -> Element:
    return element("path", d=f"M{_at(x1)} {_at(y1)}L{_at(x2)} {_at(y2)}", class_=kind)


def _bar(x: float, y: float, width: float, height: float, kind: str) -> Element:
    return element(
        "rect", x=_at(x), y=_at(y), width=_at(width), height=_at(height), rx=2, class_=kind
    )


def _text(x: float, y: float, words: str, kind: str, anchor: str) -> Element:
    return element("text", words, x=_at(x), y=_at(y), class_=kind, text_anchor=anchor)


def _svg(
    parts: Sequence[Element], words: str, *, width: int = WIDE, height: int = HIGH,
    kind: str = "chart",
) -> Element:  # fmt: skip
    box = f"0 0 {width} {height}"
    return element("svg", *parts, viewBox=box, class_=kind, role="img", aria_label=words)
