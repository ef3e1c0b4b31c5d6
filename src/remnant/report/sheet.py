"""The contact sheet: each original over its reconstruction, most exposed first.

`finding_sheet` and `candidates_sheet` say what is on it, `sheet_layout` where everything goes, and
`draw_sheet` draws that and nothing else.
"""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import matplotlib
import numpy as np
import torch
from PIL import Image, ImageDraw, ImageFont
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.types import Candidates, Examples, Finding

INK, GREY, PALE, EXPOSED = "#1a1a1a", "#6b6b6b", "#d4d4d4", "#d55e00"


@dataclass(frozen=True, kw_only=True)
class Look:
    """A sheet's measures in pixels. limit: pairs on one sheet. Images smaller than `small` grow by
    a whole factor towards it, those larger than `large` shrink. labels: the column at the left."""

    limit: int = 100
    small: int = 75
    large: int = 128
    margin: int = 24
    gap: int = 14
    between: int = 7
    labels: int = 116
    text: int = 11
    heading: int = 19
    line: int = 15


LOOK = Look()

Corner = tuple[int, int]


@dataclass(frozen=True, kw_only=True)
class SheetLayout:
    """Where things go, in pixels: upper left corners of images and captions, one per pair."""

    width: int
    height: int
    side: tuple[int, int]  # width and height of a drawn image
    cell: int  # width of a column, without the gap
    originals: tuple[Corner, ...]  # empty where the truth is not known
    reconstructions: tuple[Corner, ...]
    captions: tuple[Corner, ...]
    footer: Corner


def finding_sheet(finding: Finding, truth: Examples, candidates: Tensor) -> dict[str, Any]:
    """What `draw_sheet` needs to show a finding: records in its order, each with its candidate."""
    row_of = {name: i for i, name in enumerate(truth.ids)}
    records = list(finding.per_record)
    shown = torch.full((len(records), *truth.shape), torch.nan, dtype=torch.float64)
    for i, record in enumerate(records):
        if record.get("candidate") is not None:
            shown[i] = candidates[int(record["candidate"])].detach().cpu().double()
    mark = f"framed: correlation above {finding.threshold:g}"
    held_out = finding.nulls.get("held_out", {}).get("recovered")
    null = "" if held_out is None else f"  ·  held-out data scored alike: {held_out} recovered"
    return {
        "originals": truth.inputs[[row_of[record["id"]] for record in records]],
        "reconstructions": shown,
        "captions": [record_caption(record) for record in records],
        "rows": ("record", "correlation", "squared L2"),
        "marked": [bool(record.get("recovered")) for record in records],
        "title": f"{finding.recovered} of {finding.records} records recovered",
        "footer": f"attack: {finding.attack}  ·  {mark}{null}",
        "bounds": truth.bounds or (0.0, 1.0),
    }


def candidates_sheet(candidates: Candidates, *, attack: str) -> dict[str, Any]:
    """What `draw_sheet` needs where there is no truth: candidates and their confidence."""
    certified = candidates.stated.certified
    title = f"{len(candidates)} candidates, none certified"
    if certified is not None:
        title = f"{certified} certified of {len(candidates)} candidates"
    return {
        "originals": None,
        "reconstructions": candidates.inputs,
        "captions": [(f"{i + 1}", f"{float(c):.3f}") for i, c in enumerate(candidates.confidence)],
        "rows": ("candidate", "confidence"),
        "title": title,
        "footer": f"attack: {attack}  ·  {candidates.status}: {candidates.reason}",
    }


def record_caption(record: Mapping[str, Any]) -> tuple[str, str, str]:
    """The id, the correlation and the squared distance of one record, as short lines."""
    correlation, distance = record.get("correlation"), record.get("squared_l2")
    return (
        str(record["id"]),
        "–" if correlation is None else f"{correlation:.3f}",
        "–" if distance is None else short_number(distance),
    )


def short_number(value: float) -> str:
    """Two or three digits in a narrow column: 0.0021, 13.4, 6.7e-10."""
    size = abs(value)
    if value == 0.0 or 1e-3 <= size < 1e5:
        return f"{value:.2g}" if size < 1.0 else f"{value:.3g}" if size < 100 else f"{value:.0f}"
    mantissa, exponent = f"{value:.1e}".split("e")
    return f"{mantissa}e{int(exponent)}"


def drawable(shape: Sequence[int]) -> bool:
    """Whether one input is an image: h x w or channels x h x w."""
    return len(shape) in (2, 3) and min(shape) >= 1


def sheet_layout(
    count: int, shape: Sequence[int], *, originals: bool = True, lines: int = 3
) -> SheetLayout:
    """Places for `count` pairs of images of `shape`, ten in a row, `lines` of text below each."""
    columns = 10
    side = _drawn_size(shape)
    cell = max(side[0], 76)
    rows = 2 if originals else 1
    band = rows * (side[1] + LOOK.between) + lines * LOOK.line + 24
    used = max(1, min(columns, count))
    width = max(2 * LOOK.margin + LOOK.labels + used * (cell + LOOK.gap) - LOOK.gap, 640)
    top = LOOK.margin + LOOK.heading + 24
    corners = []
    for i in range(count):
        row, column = divmod(i, columns)
        x = LOOK.margin + LOOK.labels + column * (cell + LOOK.gap) + (cell - side[0]) // 2
        corners.append((x, top + row * band))
    bottom = top + -(-count // columns) * band
    below = side[1] + LOOK.between
    return SheetLayout(
        width=width,
        height=bottom + LOOK.line + LOOK.margin,
        side=side,
        cell=cell,
        originals=tuple(corners) if originals else (),
        reconstructions=tuple((x, y + (rows - 1) * below) for x, y in corners),
        captions=tuple((x + side[0] // 2, y + rows * below + 2) for x, y in corners),
        footer=(LOOK.margin, bottom),
    )


def draw_sheet(
    originals: Tensor | None,
    reconstructions: Tensor,
    captions: Sequence[Sequence[str]],
    *,
    rows: Sequence[str] = (),
    marked: Sequence[bool] = (),
    title: str,
    footer: str,
    bounds: tuple[float, float] = (0.0, 1.0),
) -> bytes:
    """The sheet as PNG bytes. Images are n x shape; a reconstruction with NaN was not found.

    `captions` are lines of text per pair and `rows` says what each line is. `marked` pairs are
    framed.
    """
    count, shape = min(len(captions), LOOK.limit), tuple(reconstructions.shape[1:])
    if not drawable(shape):
        raise InputError(expected("sheet", "images, h x w or channels x h x w", shape))
    if len(captions) > LOOK.limit:
        footer += f"  ·  the first {LOOK.limit} of {len(captions)}"
    lines = max((len(caption) for caption in captions), default=1)
    plan = sheet_layout(count, shape, originals=originals is not None, lines=lines)
    page = Image.new("RGB", (plan.width, plan.height), "white")
    draw = ImageDraw.Draw(page)
    nothing = _not_found(plan.side)
    draw.text((LOOK.margin, LOOK.margin - 4), title, INK, _font(LOOK.heading, bold=True))
    for i in range(count):
        if originals is not None:
            page.paste(_picture(originals[i], plan.side, bounds), plan.originals[i])
        flag = i < len(marked) and bool(marked[i])
        found = bool(torch.isfinite(reconstructions[i]).all())
        picture = _picture(reconstructions[i], plan.side, bounds) if found else nothing
        (x, y), (w, h) = plan.reconstructions[i], plan.side
        page.paste(picture, (x, y))
        if flag and found:  # outside the pixels: the picture itself stays as it was found
            draw.rectangle((x - 2, y - 2, x + w + 1, y + h + 1), outline=EXPOSED, width=2)
        _draw_caption(draw, plan, i, captions[i], flag)
    _draw_labels(draw, plan, rows)
    draw.text(
        plan.footer,
        _fit(footer, plan.width - 2 * LOOK.margin, _font(LOOK.text)),
        GREY,
        _font(LOOK.text),
    )
    stream = io.BytesIO()
    page.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _not_found(side: tuple[int, int]) -> Image.Image:
    """A hatched box that says so."""
    w, h = side
    box = Image.new("RGB", side, "white")
    draw, font = ImageDraw.Draw(box), _font(LOOK.text)
    for start in range(-h, w, 8):
        draw.line((start, h, start + h, 0), fill="#dcdcdc")
    draw.rectangle((0, 0, w - 1, h - 1), outline=PALE)
    words = "not found" if font.getlength("not found") < w - 8 else "not\nfound"
    draw.text(
        (w // 2, h // 2), words, GREY, font, "mm", spacing=1, align="center",
        stroke_width=3, stroke_fill="white",
    )  # fmt: skip
    return box


def _draw_caption(
    draw: ImageDraw.ImageDraw, plan: SheetLayout, i: int, lines: Sequence[str], flag: bool
) -> None:
    x, y = plan.captions[i]
    for k, line in enumerate(lines):
        font = _font(LOOK.text, bold=flag and k == 1)
        colour = GREY if k == 0 else EXPOSED if flag and k == 1 else INK
        draw.text(
            (x, y + k * LOOK.line), _fit(line, plan.cell + LOOK.gap - 4, font), colour, font, "ma"
        )


def _draw_labels(draw: ImageDraw.ImageDraw, plan: SheetLayout, rows: Sequence[str]) -> None:
    """Say at the left of every band which row is which."""
    right = LOOK.margin + LOOK.labels - 12
    for words, corners in (("original", plan.originals), ("reconstruction", plan.reconstructions)):
        for y in sorted({y for _, y in corners}):
            draw.text((right, y + plan.side[1] // 2), words, INK, _font(LOOK.text, bold=True), "rm")
    for y in sorted({y for _, y in plan.captions}):
        for k, words in enumerate(rows):
            draw.text((right, y + k * LOOK.line), words, GREY, _font(LOOK.text), "ra")


def _drawn_size(shape: Sequence[int]) -> tuple[int, int]:
    h, w = shape[-2:]
    longest = max(h, w)
    if longest > LOOK.large:
        return max(1, w * LOOK.large // longest), max(1, h * LOOK.large // longest)
    factor = max(1, round(LOOK.small / longest))
    return w * factor, h * factor


def picture_of(image: Tensor, bounds: tuple[float, float]) -> Image.Image:
    """h x w or channels x h x w, grey unless it has three channels; NaN is black."""
    low, high = bounds
    values = ((image.detach().cpu().double() - low) / (high - low)).nan_to_num().clamp(0.0, 1.0)
    if values.ndim == 3 and len(values) != 3:
        values = values.mean(0)  # one channel, or a number of them that has no colours
    pixels = (values * 255.0).round().to(torch.uint8).numpy()
    return Image.fromarray(pixels if pixels.ndim == 2 else np.moveaxis(pixels, 0, 2))


def _picture(image: Tensor, side: tuple[int, int], bounds: tuple[float, float]) -> Image.Image:
    picture = picture_of(image, bounds)
    grows = side[0] >= picture.width
    how = Image.Resampling.NEAREST if grows else Image.Resampling.BOX
    return picture.convert("RGB").resize(side, how)


def _fit(text: str, width: int, font: ImageFont.FreeTypeFont) -> str:
    """The text, or as much of it as fits and an ellipsis."""
    if font.getlength(text) <= width:
        return text
    while text and font.getlength(text + "…") > width:
        text = text[:-1]
    return text + "…"


@cache
def _font(size: int, *, bold: bool = False) -> ImageFont.FreeTypeFont:
    """DejaVu Sans as matplotlib carries it: the same letters on every machine."""
    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    return ImageFont.truetype(str(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name), size)
