"""The contact sheet: its data, its layout, and the pixels that must be there."""

import io

import numpy as np
import pytest
import torch
from PIL import Image

from remnant.errors import InputError
from remnant.report.sheet import (
    EXPOSED,
    LOOK,
    _fit,
    _font,
    candidates_sheet,
    draw_sheet,
    drawable,
    finding_sheet,
    record_caption,
    short_number,
)
from remnant.types import Candidates, Examples, Finding, Status


def pixels(png):
    image = Image.open(io.BytesIO(png))
    assert image.format == "PNG"
    return np.asarray(image.convert("RGB"))


def images(n, *shape, seed=0):
    return torch.rand(n, *shape, generator=torch.Generator().manual_seed(seed))


def row(name, candidate, correlation, distance, recovered):
    return {
        "id": name, "label": 0, "candidate": candidate, "correlation": correlation,
        "squared_l2": distance, "recovered": recovered,
    }  # fmt: skip


def finding(rows, **changes):
    values = {
        "attack": "kkt", "status": "partial", "reason": "", "records": len(rows), "counted": None,
        "recovered": 1, "threshold": 0.9, "per_record": rows,
        "nulls": {"held_out": {"recovered": 2}}, "summary": {},
    }  # fmt: skip
    return Finding(**values | changes)


def places(shape, k=0, originals=True):
    """Corners of the k-th pair's pictures in the first band, original first."""
    w, h = LOOK.drawn(shape)
    wide = max(w, LOOK.narrowest) + LOOK.gap
    x = LOOK.margin + LOOK.labels + k * wide + (wide - w) // 2
    return [(x, LOOK.top), (x, LOOK.top + h + LOOK.between)][: 2 if originals else 1]


@pytest.mark.parametrize("count", [1, 9, 11, 100])
@pytest.mark.parametrize("shape", [(8, 8), (3, 32, 32), (3, 40, 300), (1, 2, 2)])
@pytest.mark.parametrize("originals", [True, False])
def test_every_picture_is_on_the_page_whole(count, shape, originals):
    """Red pictures on a page without any other red: none is covered or cut."""
    red = torch.zeros(count, *((3, *shape[-2:]) if len(shape) > 2 else shape))
    red[..., 0, :, :] = 1.0
    red = red if red.ndim == 4 else torch.ones(count, *shape) * 0.5
    colour = [255, 0, 0] if red.ndim == 4 else [128] * 3
    mine = red if originals else None
    page = pixels(draw_sheet(mine, red, [("name", "0.9", "1")] * count, title="t", footer="f"))
    w, h = LOOK.drawn(shape)
    area = int((page == colour).all(2).sum())
    whole = count * (2 if originals else 1) * w * h
    assert whole <= area < 1.02 * whole + 200


@pytest.mark.parametrize(
    ("side", "drawn"), [(2, 76), (8, 72), (25, 75), (28, 84), (32, 64), (64, 64), (224, 128)]
)
def test_small_images_grow_by_whole_pixels_and_large_ones_shrink(side, drawn):
    assert LOOK.drawn((1, side, side)) == (drawn, drawn)


def test_every_pixel_of_an_image_is_shown_as_it_is():
    originals, found = images(3, 1, 25, 25), images(3, 1, 25, 25, seed=1)
    page = pixels(draw_sheet(originals, found, [("a",)] * 3, title="t", footer="f"))
    for k, pair in enumerate(zip(originals, found, strict=True)):
        for (x, y), image in zip(places((1, 25, 25), k), pair, strict=True):
            shown = page[y : y + 75, x : x + 75]
            expected = np.kron((image[0].double() * 255).round().numpy(), np.ones((3, 3)))
            for channel in range(3):
                assert np.array_equal(shown[:, :, channel], expected)


def test_colours_bounds_and_values_outside_them():
    red = torch.zeros(1, 3, 64, 64)
    red[:, 0] = 2.0  # clipped
    red[:, 2] = -1.0
    (x, y), (u, v) = places((3, 64, 64))
    page = pixels(draw_sheet(red, red, [("a",)], title="", footer=""))
    assert page[y + 5, x + 5].tolist() == [255, 0, 0]
    page = pixels(draw_sheet(red, red, [("a",)], title="", footer="", bounds=(-2.0, 2.0)))
    assert page[v + 5, u + 5].tolist() == [255, 128, 64]


def test_what_was_not_found_is_hatched_and_what_was_recovered_framed():
    found = images(2, 20, 20)
    found[1] = torch.nan
    page = pixels(
        draw_sheet(
            images(2, 20, 20), found, [("a",)] * 2, marked=[True, False], title="t", footer="f"
        )
    )
    w, h = LOOK.drawn((20, 20))
    colour = [int(EXPOSED[i : i + 2], 16) for i in (1, 3, 5)]
    frames = []
    for k in range(2):
        x, y = places((20, 20), k)[1]
        frames.append(page[y - 1, x - 1].tolist() == page[y + h, x + w].tolist() == colour)
    assert frames == [True, False]
    x, y = places((20, 20), 1)[1]
    inside = page[y : y + h, x : x + w]
    assert inside.min() < 150  # words
    assert np.median(inside) == 255  # on white
    assert not any(page[y - 1, x - 1] - 255)


def test_a_finding_is_shown_in_its_own_order():
    truth = Examples(inputs=images(3, 1, 8, 8), labels=torch.zeros(3), ids=("a", "b", "c"))
    found = images(2, 1, 8, 8, seed=4)
    rows = [
        row("c", 1, 0.99, 3e-7, True),
        row("a", 0, 0.5, 12.0, False),
        row("b", None, None, None, False),
    ]
    sheet = finding_sheet(finding(rows), truth, found)
    assert torch.equal(sheet["originals"], truth.inputs[[2, 0, 1]])
    assert torch.equal(sheet["reconstructions"][:2], found[[1, 0]].double())
    assert bool(sheet["reconstructions"][2].isnan().all())
    assert sheet["captions"] == [("c", "0.990", "3.0e-7"), ("a", "0.500", "12"), ("b", "–", "–")]
    assert sheet["marked"] == [True, False, False]
    assert sheet["title"] == "1 of 3 records recovered"
    assert "above 0.9" in sheet["footer"]
    assert "held-out data scored alike: 2 recovered" in sheet["footer"]
    assert draw_sheet(**sheet) == draw_sheet(**sheet)  # the same bytes
    assert "held-out" not in finding_sheet(finding(rows, nulls={}), truth, found)["footer"]


def test_without_truth_there_are_candidates_and_confidence():
    candidates = Candidates(
        inputs=images(4, 3, 8, 8), confidence=torch.tensor([1.0, 0.75, 0.5, 0.25]),
        status=Status.PARTIAL, reason="four of five",
    )  # fmt: skip
    sheet = candidates_sheet(candidates, attack="gradient")
    assert sheet["captions"][1] == ("2", "0.750")
    assert sheet["title"] == "4 candidates, none certified"
    assert "partial: four of five" in sheet["footer"]
    with_truth = pixels(draw_sheet(**{**sheet, "originals": candidates.inputs}))
    assert pixels(draw_sheet(**sheet)).shape[0] < with_truth.shape[0]


def test_a_sheet_of_nothing_and_of_too_many():
    nothing = pixels(draw_sheet(None, images(0, 8, 8), [], title="none", footer="none"))
    assert nothing.shape[1] >= 640
    many = LOOK.limit + 30
    page = pixels(draw_sheet(None, images(many, 8, 8), [("x",)] * many, title="t", footer="f"))
    least = pixels(
        draw_sheet(None, images(many, 8, 8), [("x",)] * LOOK.limit, title="t", footer="f")
    )
    assert page.shape == least.shape


def test_tables_are_not_drawn():
    assert drawable((28, 28))
    assert drawable((3, 28, 28))
    assert not drawable((30,))
    with pytest.raises(InputError, match=r"expected images, h x w .* got \(30,\)"):
        draw_sheet(images(2, 30), images(2, 30), [("a",)] * 2, title="t", footer="f")


def test_captions_fit_their_column():
    font = _font(11)
    assert _fit("short", 80, font) == "short"
    cut = _fit("a-very-long-identifier-of-a-record", 80, font)
    assert cut.endswith("…")
    assert font.getlength(cut) <= 80
    assert record_caption({"id": 7}) == ("7", "–", "–")


@pytest.mark.parametrize(
    ("value", "text"),
    [(0.0, "0"), (6.71e-10, "6.7e-10"), (0.00214, "0.0021"), (0.5, "0.5"), (13.37, "13.4"),
     (334.2, "334"), (-0.25, "-0.25"), (3.2e5, "3.2e5"), (1e300, "1.0e300")],
)  # fmt: skip
def test_numbers_are_short(value, text):
    assert short_number(value) == text
