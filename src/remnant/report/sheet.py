"""The contact sheet: each original over its reconstruction, most exposed first.

`finding_sheet` and `candidates_sheet` say what is on it, `draw_sheet` draws a tile for each pair
and puts ten in a row.
"""

from __future__ import annotations

import io
import math
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
    columns: int = 10
    small: int = 75
    large: int = 128
    margin: int = 24
    gap: int = 14
    between: int = 7
    narrowest: int = 76  # a column, so that its captions can be read
    labels: int = 116
    top: int = 67  # below the title
    below: int = 24  # a band of pairs
    text: int = 11
    heading: int = 19
    line: int = 15

    def drawn(self, shape: Sequence[int]) -> tuple[int, int]:
        """Width and height of an image as it is drawn."""
        h, w = shape[-2:]
        longest = max(h, w)
        if longest > self.large:
            return max(1, w * self.large // longest), max(1, h * self.large // longest)
        factor = max(1, round(self.small / longest))
        return w * factor, h * factor


LOOK = Look()


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


def as_image(shape: tuple[int, ...]) -> tuple[int, ...]:
    """channels x h x w, where d numbers fill a square of 8 pixels a side or more, of one channel or
    three; any other shape as it is."""
    for channels in (1, 3) if len(shape) == 1 else ():
        side = math.isqrt(shape[0] // channels)
        if side >= 8 and channels * side * side == shape[0]:
            return channels, side, side
    return shape


def drawable(shape: Sequence[int]) -> bool:
    """Whether one input is an image: h x w or channels x h x w."""
    return len(shape) in (2, 3) and min(shape) >= 1


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
    side, lines = LOOK.drawn(shape), max(map(len, captions), default=1)
    words = ("reconstruction",) if originals is None else ("original", "reconstruction")
    wide = max(side[0], LOOK.narrowest) + LOOK.gap
    high = len(words) * (side[1] + LOOK.between) + lines * LOOK.line + LOOK.below
    bands, left = -(-count // LOOK.columns), LOOK.margin + LOOK.labels
    across = min(max(count, 1), LOOK.columns) * wide
    width, bottom = max(LOOK.margin + left + across, 640), LOOK.top + bands * high
    page = Image.new("RGB", (width, bottom + LOOK.line + LOOK.margin), "white")
    draw = ImageDraw.Draw(page)
    draw.text((LOOK.margin, LOOK.margin - 4), title, INK, _font(LOOK.heading, bold=True))
    for band in range(bands):
        _label(draw, LOOK.top + band * high, side[1], words, rows)
    for i in range(count):
        original = None if originals is None else _picture(originals[i], side, bounds)
        there = bool(torch.isfinite(reconstructions[i]).all())
        found = _picture(reconstructions[i], side, bounds) if there else _nothing(side)
        flag = there and i < len(marked) and bool(marked[i])
        tile = _tile((wide, high), original, found, captions[i], flag)
        band, column = divmod(i, LOOK.columns)
        page.paste(tile, (left + column * wide, LOOK.top + band * high - 2))
    room, font = width - 2 * LOOK.margin, _font(LOOK.text)
    draw.text((LOOK.margin, bottom), _fit(footer, room, font), GREY, font)
    stream = io.BytesIO()
    page.save(stream, "PNG", optimize=True)
    return stream.getvalue()


def _tile(
    size: tuple[int, int],
    original: Image.Image | None,
    found: Image.Image,
    caption: Sequence[str],
    flag: bool,
) -> Image.Image:
    """An original, if it is known, over its reconstruction, and lines of text below."""
    tile = Image.new("RGB", size, "white")
    draw, (w, h) = ImageDraw.Draw(tile), found.size
    x, y = (size[0] - w) // 2, 2  # room for a frame
    if original is not None:
        tile.paste(original, (x, y))
        y += h + LOOK.between
    tile.paste(found, (x, y))
    if flag:  # outside the pixels: the picture itself stays as it was found
        draw.rectangle((x - 2, y - 2, x + w + 1, y + h + 1), outline=EXPOSED, width=2)
    y += h + LOOK.between + 2
    for k, line in enumerate(caption):
        font = _font(LOOK.text, bold=flag and k == 1)
        colour = GREY if k == 0 else EXPOSED if flag and k == 1 else INK
        place = size[0] // 2, y + k * LOOK.line
        draw.text(place, _fit(line, size[0] - 4, font), colour, font, "ma")
    return tile


def _nothing(side: tuple[int, int]) -> Image.Image:
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


def _label(
    draw: ImageDraw.ImageDraw, top: int, h: int, pictures: Sequence[str], rows: Sequence[str]
) -> None:
    """Say at the left of a band what each picture of a tile is, and each line below them."""
    right = LOOK.margin + LOOK.labels - 12
    for words in pictures:
        draw.text((right, top + h // 2), words, INK, _font(LOOK.text, bold=True), "rm")
        top += h + LOOK.between
    for k, words in enumerate(rows):
        draw.text((right, top + 2 + k * LOOK.line), words, GREY, _font(LOOK.text), "ra")


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
