"""An audit's page: one HTML file, drawn from the bundle alone and never computed again.

`files` reads and writes the bundle, `facts` says what is on the page, `templates` lay it out and
escape whatever is put into them: only our own style, script and drawings are markup. No network, no
inline handlers, and a policy that forbids both.
"""

from __future__ import annotations

import base64
import hashlib
import io
import math
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from statistics import median
from urllib.parse import quote

from jinja2 import Environment, PackageLoader, StrictUndefined, UndefinedError
from markupsafe import Markup
from PIL import Image
from torch import Tensor

from remnant.bundle import Audit
from remnant.report import charts, figures
from remnant.report.page import facts
from remnant.report.page.files import Pictures, as_run
from remnant.report.sheet import picture_of, short_number
from remnant.store import write_text

PAGE_FILE = "report.html"
SECTIONS = {  # a template each, in the page's order: its name in the navigation
    "records": "Records",
    "next": "What to do",
    "adversaries": "Adversaries",
    "evidence": "Evidence",
    "exposed": "Exposed ids",
    "membership": "Membership",
    "preflight": "Preflight",
    "reproduce": "Reproduce",
}
FILTERS = (
    *(figures.bound_data, figures.curve_data, figures.exposure_data, figures.rates),
    *(charts.curve_chart, charts.exposure_chart, charts.spectrum_chart, figures.spectrum_data),
    *(charts.at, charts.percent, short_number, median),
    *(facts.beyond, facts.choices, facts.exact, facts.headline, facts.indented, facts.keys),
    *(facts.own_code, facts.verdict_of, facts.words),
)


def page(audit: Audit, pictures: Pictures) -> str:
    """The audit's page. The same audit and pictures give the same bytes."""
    style = charts.own_file("charts.css") + charts.own_file("page/style.css")
    script = charts.own_file("page/script.js")
    attacked = any(row.finding is not None for row in audit.attacks)
    exposed = facts.exposed_ids(audit)
    present = {"records": attacked, "evidence": attacked, "next": audit.advice}
    present |= {"membership": audit.membership, "exposed": exposed, "preflight": audit.preflight}
    # Records of a table take more room than pictures do.
    most = pictures.most if pictures.are_images else 100 if pictures.are_texts else 24
    cards, total = facts.cards(audit, pictures, most)
    side = picture_side(len(cards), pictures.shape or ())

    def shown(inputs: Tensor | None, row: int | None) -> str | None:
        if inputs is None or row is None:
            return None
        return data_uri(inputs[row], pictures.bounds, side)

    def images_of(card: facts.Card) -> tuple[str | None, str | None]:
        found = pictures.candidates.get(audit.attacks[card.attack].candidates or "")
        return shown(pictures.originals, card.original), shown(found, card.candidate)

    try:
        text = _templates().get_template("page.html").render(
            audit=audit, pictures=pictures, cards=cards, total=total, exposed=exposed,
            sections=[(k, words) for k, words in SECTIONS.items() if present.get(k, True)],
            images_of=images_of,
            texts_of=lambda card: facts.text_pair(card, audit, pictures),
            features_of=lambda card: facts.feature_table(card, audit, pictures),
            exposed_file=quote("\n".join([*exposed, ""]), errors="replace"),
            style=Markup(style), script=Markup(script), policy=_policy(style, script),
        )  # fmt: skip
    except UndefinedError as error:  # the bundle was edited by hand
        raise ValueError(f"{error}") from None
    return charts.clean(text)


def write_page(directory: str | Path, audit: Audit, pictures: Pictures) -> Path:
    """`report.html` in the directory, whole or not at all, readable by its owner alone."""
    return write_text(as_run(directory), PAGE_FILE, page(audit, pictures))


def picture_side(count: int, shape: Sequence[int], room: int = 6_000_000) -> int:
    """The longer side in pixels, 160 at most, of `count` pairs of pictures that fit into `room`
    bytes: the more pictures, the smaller."""
    channels = 3 if len(shape) == 3 and shape[0] == 3 else 1
    fits = math.isqrt(room // max(1, 2 * count * channels))
    return max(8, min(160, fits, max(shape[-2:]) if len(shape) > 1 else 160))


def data_uri(image: Tensor, bounds: tuple[float, float] | None, side: int) -> str:
    """One image (h x w or channels x h x w), no longer than `side`, as a PNG inside the page."""
    picture = picture_of(image, bounds or (0.0, 1.0))
    picture.thumbnail((side, side), Image.Resampling.BOX)
    stream = io.BytesIO()
    picture.save(stream, "PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(stream.getvalue()).decode()


@cache
def _templates() -> Environment:
    made = Environment(
        loader=PackageLoader("remnant.report.page"),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    made.filters |= {function.__name__: function for function in FILTERS}
    return made


def _policy(style: str, script: str) -> str:
    """The content security policy: this style, this script, pictures inside the page, no more."""
    style, script = (
        "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()
        for text in (style, script)
    )
    return (
        f"default-src 'none'; img-src data:; style-src '{style}'; script-src '{script}'; "
        "base-uri 'none'; form-action 'none'"
    )
