"""What comes back, beside what was trained on: pictures, or features of a table."""

from __future__ import annotations

import base64
import io
import math
from collections.abc import Sequence
from xml.etree.ElementTree import Element

import numpy as np
import torch
from PIL import Image
from torch import Tensor

from remnant.bundle import Audit
from remnant.report.page.elements import Child, element
from remnant.report.page.facts import TABLES, Card, cards, classes, feature_table
from remnant.report.page.files import CARDS, Pictures
from remnant.report.page.sections import definitions, section, table
from remnant.report.sheet import short_number

BYTES = 6_000_000  # of pixels on one page: more pictures are smaller ones
FEATURES = 100  # of one record of a table
SIDE = 160  # pixels of a picture's longer side at most


def gallery(audit: Audit, pictures: Pictures) -> Element | None:
    """Every shown record in a card, with filters above and a viewer to compare closely."""
    if not any(row.finding is not None for row in audit.attacks):
        return None
    shown, total = cards(audit, pictures, CARDS if pictures.are_images else TABLES)
    if not shown or pictures.shape is None:
        why = "No attack returned a reconstruction."
        if not audit.images:
            why = "Reconstructions and originals were left out of this page."
        return section("records", "What comes back", element("p", why, class_="note"))
    side = picture_side(len(shown), pictures.shape)
    made = [
        _picture_card(card, audit, pictures, side)
        if pictures.are_images
        else _table_card(card, audit, pictures, first=k == 0)
        for k, card in enumerate(shown)
    ]
    kind = "cards" if pictures.are_images else "rows"
    return section(
        "records",
        "What comes back",
        _filters(audit, shown),
        element("p", _shown_words(len(shown), total), id="shown", class_="note", role="status"),
        element("ul", *made, class_=kind, id="cards"),
        element("button", "Show all", type="button", id="all", hidden=True),
        _viewer(pictures.originals is not None) if pictures.are_images else None,
        note=_lead(audit, pictures),
    )


def picture_side(count: int, shape: Sequence[int]) -> int:
    """The longer side of `count` pairs of pictures that fit into BYTES."""
    channels = 3 if len(shape) == 3 and shape[0] == 3 else 1
    fits = math.isqrt(BYTES // max(1, 2 * count * channels))
    return max(8, min(SIDE, fits, max(shape[-2:]) if len(shape) > 1 else SIDE))


def data_uri(image: Tensor, bounds: tuple[float, float], side: int) -> str:
    """One image (h x w or channels x h x w) as a PNG inside the page."""
    low, high = bounds
    values = ((image.double() - low) / (high - low)).nan_to_num().clamp(0.0, 1.0)
    if values.ndim == 3 and len(values) != 3:
        values = values.mean(0)  # one channel, or a number of them that has no colours
    pixels = (values * 255.0).round().to(torch.uint8).numpy()
    picture = Image.fromarray(pixels if pixels.ndim == 2 else np.moveaxis(pixels, 0, 2))
    picture.thumbnail((side, side), Image.Resampling.BOX)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


def _lead(audit: Audit, pictures: Pictures) -> str:
    if pictures.originals is None:
        words, hidden = "What the adversary makes of the model.", "left out"
    elif pictures.are_images:
        words, hidden = "Left what was trained on, right what came back.", "blurred"
        words += " Press a pair to compare closely."
    else:
        words, hidden = "What was trained on beside what came back, feature by feature.", "left out"
    if audit.redacted:
        words += f" Originals are {hidden}; a reconstruction of a recovered record still shows it."
    return words


def _shown_words(shown: int, total: int) -> str:
    whole = f"All {total}" if shown == total else f"The {shown} most exposed of {total}"
    return f"{whole} are on this page, most exposed first."


def _filters(audit: Audit, shown: Sequence[Card]) -> Element:
    """Choices that narrow the cards; they need the script, so they are hidden until it runs."""
    present = dict.fromkeys(card.attack for card in sorted(shown, key=lambda card: card.attack))
    by_attack = [(f"{i}", audit.attacks[i].title) for i in present]
    by_class = [(label, label) for label in classes(shown)]
    by_outcome = [("yes", "recovered"), ("no", "not recovered")]
    chosen = [
        _select("attack", "Adversary", "every adversary", by_attack),
        _select("label", "Class", "every class", by_class),
        _select("recovered", "Outcome", "every outcome", by_outcome)
        if {card.recovered for card in shown} >= {True, False}
        else None,
    ]
    return element("form", *chosen, id="filters", hidden=True, aria_label="Filter the records")


def _select(
    name: str, title: str, every: str, options: Sequence[tuple[str, str]]
) -> Element | None:
    if len(options) < 2:
        return None
    listed = [element("option", text, value=value) for value, text in options]
    box = element("select", element("option", every, value=""), *listed, name=name)
    return element("label", element("span", title), box)


def _item(card: Card, *children: Child) -> Element:
    outcome = {True: "yes", False: "no", None: None}[card.recovered]
    return element(
        "li",
        *children,
        class_="card recovered" if card.recovered else "card",
        data_attack=str(card.attack),
        data_label=card.label,
        data_recovered=outcome,
    )


def _picture_card(card: Card, audit: Audit, pictures: Pictures, side: int) -> Element:
    bounds = pictures.bounds or (0.0, 1.0)
    file = audit.attacks[card.attack].candidates
    blurred = "blurred original" if audit.redacted else "original"
    pair: list[Element] = []
    if card.original is not None and pictures.originals is not None:
        source = data_uri(pictures.originals[card.original], bounds, side)
        pair.append(element("img", src=source, alt=f"{blurred} of {card.name}"))
    if card.candidate is not None and file is not None:
        source = data_uri(pictures.candidates[file][card.candidate], bounds, side)
        said = f"reconstruction of {card.name}, {exposure_words(card)}"
        pair.append(element("img", src=source, alt=said))
    elif pair:
        pair.append(element("span", "not found", class_="missing"))
    whole = len(pair) == 2 and card.candidate is not None
    holder = (
        element("button", *pair, type="button", class_="pair", title="Compare closely")
        if whole
        else element("div", *pair, class_="pair")
    )
    scores = definitions((name, _score(name, value)) for name, value in card.scores)
    return _item(
        card,
        holder,
        _caption(card, audit),
        element("dl", *scores, class_="scores", hidden=True),
    )


def _caption(card: Card, audit: Audit) -> Element:
    several = sum(row.finding is not None for row in audit.attacks) > 1
    kind = "class" if (card.label or "").isdigit() else "label"
    label = None if card.label is None else f"{kind} {card.label}"
    if label and card.found_label is not None:
        label += f", found as {card.found_label}"
    attack = audit.attacks[card.attack].attack if several else None
    small = " · ".join(part for part in (label, attack) if part)
    state = {True: "recovered", False: "not recovered", None: None}[card.recovered]
    return element(
        "span",
        element("code", card.name, title=card.name),
        element("b", exposure_words(card)),
        element("span", small) if small else None,
        element("span", state, class_="state") if state else None,
        class_="caption",
    )


def exposure_words(card: Card) -> str:
    if card.exposure is None:
        return "no candidate"
    kind = "confidence" if card.recovered is None else "correlation"
    return f"{kind} {card.exposure:.3f}"


def _table_card(card: Card, audit: Audit, pictures: Pictures, *, first: bool) -> Element:
    told = feature_table(card, audit, pictures)
    wide = told.agreeing is not None
    rows: list[tuple[str, list[Child]]] = []
    for row in told.rows[:FEATURES]:
        found = row.recovered if card.candidate is not None else "–"
        truth: list[Child] = [row.true, "✓" if row.agrees else "✕"] if wide else []
        kind = "agrees" if row.agrees else ""
        rows.append((kind, [row.feature, found if row.clear else f"{found} (unclear)", *truth]))
    heads = ["feature", "recovered", *(["true", "agrees"] if wide else [])]
    count = len(told.rows)
    said = [f"{told.agreeing} of {count} features agree."] if wide else []
    said += [f"The first {FEATURES} of {count} features."] if count > FEATURES else []
    return _item(
        card,
        element(
            "details",
            element("summary", _caption(card, audit)),
            table(heads, rows, label=f"Features of {card.name}", narrow=True),
            element("p", " ".join(said), class_="note small") if said else None,
            open=first,
        ),
    )


def _score(name: str, value: float) -> str:
    return f"{value:.4f}" if name in ("correlation", "SSIM", "confidence") else short_number(value)


def _viewer(with_originals: bool) -> Element | None:
    """One large picture with a slider between original and reconstruction; filled by the script."""
    if not with_originals:
        return None
    slider = element(
        "input", type="range", min=0, max=100, value=50, id="cut",
        aria_label="How much of the original is shown",
    )  # fmt: skip
    ends = [element("span", "original"), element("span", "reconstruction")]
    buttons = [
        element("button", words, type="button", id=name)
        for name, words in (("previous", "Previous"), ("following", "Next"), ("close", "Close"))
    ]
    return element(
        "dialog",
        element("h3", id="viewer-title"),
        element(
            "div",
            element("img", id="below", alt=""),
            element("img", id="above", alt=""),
            class_="wipe",
        ),
        slider,
        element("p", *ends, class_="ends"),
        element("dl", id="viewer-scores", class_="told"),
        element("p", *buttons, class_="buttons"),
        id="viewer",
        aria_labelledby="viewer-title",
    )
