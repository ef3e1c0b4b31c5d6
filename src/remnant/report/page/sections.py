"""The parts of the page that are words, lists and tables, top to bottom."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from statistics import median
from typing import Any
from urllib.parse import quote
from xml.etree.ElementTree import Element

from remnant.bundle import Attacked, Audit, Control, Verdict
from remnant.report.curve import Series, Spectrum, curve_data, spectrum_data
from remnant.report.page import charts
from remnant.report.page.elements import Child, element
from remnant.report.page.facts import (
    CANDIDATES,
    CONTROL,
    NULLS,
    Bound,
    Rate,
    bound_data,
    exposure_data,
    headline,
    number,
    rates,
    verdict_of,
)
from remnant.report.sheet import short_number
from remnant.types import Finding

GAP = 2.0  # between singular values, from which on it is one
IDS = 400  # on the page; the download has all
TITLES = {
    Verdict.EXPOSED: "Exposed",
    Verdict.NOT_EXPOSED: "Not exposed",
    Verdict.INCONCLUSIVE: "Inconclusive",
    Verdict.NOT_APPLICABLE: "Not applicable",
}
MEANING = {
    Verdict.EXPOSED: "Records came back, and chance does not explain it.",
    Verdict.NOT_EXPOSED: "Attacks that pass their control, a twin that leaks, got nothing here.",
    Verdict.INCONCLUSIVE: "Nothing was proved. That is not the same as safe.",
    Verdict.NOT_APPLICABLE: "None of the adversaries exists here.",
}
TARGET = ("model", "parameters", "data", "records", "shape", "layers")


def section(name: str, title: str, *children: Child, note: str | None = None) -> Element:
    heading = element("h2", title, id=f"{name}-title")
    lead = None if note is None else element("p", note, class_="note")
    return element("section", heading, lead, *children, id=name, aria_labelledby=f"{name}-title")


def badge(text: str) -> Element:
    """A verdict as a sign and a word."""
    verdict = verdict_of(text)
    kind = f"badge {verdict.replace(' ', '-')}"
    return element("span", charts.mark(verdict), TITLES[verdict], class_=kind)


def header(audit: Audit) -> Element:
    """The verdict in a sentence, the numbers behind it, what was audited."""
    told = [(name, words(audit.target.get(name))) for name in TARGET if name in audit.target]
    numbers = [
        element("li", element("b", figure), element("span", text))
        for figure, text in headline(audit)
    ]
    return element(
        "header",
        element("p", "Remnant audit", class_="eyebrow"),
        element("p", badge(audit.verdict), class_="verdict"),
        element("h1", audit.sentence),
        element("p", MEANING[verdict_of(audit.verdict)], class_="note"),
        _notes(audit.notes),
        element("ul", *numbers, class_="numbers"),
        element("dl", *definitions(told), class_="told"),
    )


def _notes(notes: Sequence[str]) -> Element | None:
    """What is to be known of the data before any result."""
    if not notes:
        return None
    return element("ul", *(element("li", line) for line in notes), class_="notes")


def adversaries(audit: Audit) -> Element:
    """The threat model: who could do this, what they hold, how it went."""
    articles = [_adversary(row) for row in audit.attacks]
    note = "Each that applies was played against the model, with no more than it holds."
    return section("adversaries", "Who could do this", *articles, note=note)


def _adversary(row: Attacked) -> Element:
    finding = row.finding
    facts: list[tuple[str, Child]] = [("Holds", row.holds), ("Result", row.reason)]
    spectrum = None if finding is None else spectrum_data(finding)
    if finding is not None and spectrum is not None and told_by(spectrum):
        facts.append(("Counted", f"{finding.counted} records, without seeing the data"))
    if row.control is not None:
        facts.append(("Control", control_words(row.control)))
    return element(
        "article",
        element("h3", row.title, " ", element("code", row.attack)),
        element("p", badge(row.verdict)),
        element("dl", *definitions(facts), class_="told"),
        exactly("Settings", row.settings),
        class_="adversary",
    )


def control_words(control: Control) -> str:
    """How the attack did on a twin that must leak, and what follows for its silence here."""
    told = f"{control.recovered} of {control.records} records of a twin that must leak"
    sign = "passed" if control.passed else "not passed, so finding nothing here proves nothing"
    return f"{sign}: {told}; {control.reason}"


def evidence(audit: Audit) -> Element | None:
    """How sure it is: nulls and control with intervals, and the figures of each attack."""
    parts = [_proof(row, row.finding) for row in audit.attacks if row.finding is not None]
    if not parts:
        return None
    note = "A score says nothing until sets that cannot leak are scored in the same way."
    return section("evidence", "How sure this is", *parts, note=note)


def _proof(row: Attacked, finding: Finding) -> Element:
    figures = [_curve(curve_data(finding))] if finding.records is not None else []
    spectrum, exposure, bound = spectrum_data(finding), exposure_data(finding), bound_data(row)
    if spectrum is not None:
        figures.append(_spectrum(spectrum))
    if exposure is not None:
        caption = f"Does a small {exposure.across} expose a record? Each point is one record."
        title = f"Exposure against {exposure.across}"
        figures.append(drawing(title, caption, charts.exposure_chart(exposure)))
    if bound is not None:
        figures.append(_bound(bound))
    return element(
        "article",
        element("h3", row.title),
        _rates_table(rates(row), finding.threshold),
        element("div", *figures, class_="figures") if figures else None,
    )


def _rates_table(rows: Sequence[Rate], threshold: float | None) -> Child:
    if not rows:
        return element("p", "Without the truth at hand there is nothing to score.", class_="note")
    body: list[tuple[str, Sequence[Child]]] = []
    for rate in rows:
        kind = rate.name if rate.name in (CANDIDATES, CONTROL) else "null"
        meaning = NULLS.get(rate.name, ("", ""))[1]
        share = f"{charts.percent(rate.low)} to {charts.percent(rate.high)}"
        cells: list[Child] = [
            [rate.words, element("small", meaning) if meaning else None],
            f"{rate.count} of {rate.records}",
            [charts.rate_chart(rate), share],
            "" if rate.excess is None else beyond(*rate.excess),
            "" if rate.median is None else short_number(rate.median),
        ]
        body.append((kind, cells))
    heads = ("", "recovered", "share, 95% interval", "found beyond it", "median squared L2")
    made = table(heads, body, label="Reconstructions beside nulls and control")
    if threshold is None:
        return made
    note = f"Recovered: a centred correlation above {threshold:g} with the record itself."
    return [made, element("p", note, class_="note small")]


def beyond(records: float, low: float, high: float) -> str:
    """Records found beyond a null, with the interval: +50 (45 to 50)."""
    return f"{records:+.0f} ({low:.0f} to {high:.0f})".replace("-", "−")


def _curve(data: Sequence[Series]) -> Element:
    mine = next(series for series in data if series.name == CANDIDATES)
    held = [series for series in data if series.name == "held_out" and series.distances]
    if not mine.distances:
        caption = "No record has a candidate."
    else:
        middle = short_number(median(mine.distances))
        caption = f"The median reconstruction lies at {middle} from its record"
        nearest = [short_number(series.distances[0]) for series in held]
        caption += f"; no held-out record comes closer than {nearest[0]}." if nearest else "."
    return drawing("Reconstruction curve", caption, charts.curve_chart(data))


def _spectrum(data: Spectrum) -> Element:
    shown = min(len(data.values), max(40, 3 * (data.counted or 0)), 1500)
    if not told_by(data):
        caption = "No gap: the number of records cannot be read off."
        if data.counted is not None:
            caption += f" The attack took it for {data.counted}, as it was told."
    else:
        caption = f"The evidence alone gives away that {data.counted} records were trained on."
    if shown < len(data.values):
        caption += f" The first {shown} of {len(data.values)} values."
    marked = data if told_by(data) else replace(data, counted=None)
    return drawing("Singular values", caption, charts.spectrum_chart(marked, shown))


def told_by(data: Spectrum) -> bool:
    """Whether a gap tells the number of records: an attack may have been told it."""
    return data.counted is not None and data.gap is not None and data.gap >= GAP


def _bound(data: Bound) -> Element:
    caption = f"What differential privacy allows at most ({data.words})." if data.words else ""
    if data.text:
        caption += f" {data.text[0].upper()}{data.text[1:]}."
    if data.broken:
        caption += " Measured above the bound: one of the two is wrong, do not rely on either."
    return drawing("Bound beside measurement", caption, charts.bound_chart(data))


def exposed(audit: Audit) -> Element | None:
    """The ids of exposed records, to drop or to protect."""
    ids = list(dict.fromkeys(str(row.get("id")) for row in audit.exposed))
    if not ids:
        return None
    link = element(
        "a",
        f"Save all {len(ids)} ids as a text file",
        href="data:text/plain;charset=utf-8," + quote("\n".join(ids) + "\n", errors="replace"),
        download="exposed-ids.txt",
    )
    listed = [element("li", element("code", name)) for name in ids[:IDS]]
    more = f"The {IDS} most exposed of {len(ids)}." if len(ids) > IDS else None
    return section(
        "exposed",
        "Exposed records",
        element("p", link),
        element("ul", *listed, class_="ids"),
        element("p", more, class_="note") if more else None,
        note="Worst first. Drop them, or protect them, and train again.",
    )


def advice(audit: Audit) -> Element | None:
    if not audit.advice:
        return None
    items = [element("li", line) for line in audit.advice]
    return section("next", "What to do next", element("ol", *items))


def preflight(audit: Audit) -> Element | None:
    """Which attacks apply to this model, and why the others do not."""
    if not audit.preflight:
        return None
    known = ("attack", "title", "applies", "why")
    others = [k for k in dict.fromkeys(k for row in audit.preflight for k in row) if k not in known]
    body: list[tuple[str, Sequence[Child]]] = []
    for row in audit.preflight:
        title = words(row.get("title")) if row.get("title") else None
        name = [title, " ", element("code", words(row.get("attack")))]
        applies = {"yes": "✓ applies", "no": "✕ does not"}.get(words(row.get("applies")))
        rest = [words(row.get(key)) for key in others]
        body.append(("", [name, applies or "? not known", words(row.get("why")), *rest]))
    heads = ("adversary", "applies", "why", *(key.replace("_", " ") for key in others))
    return section("preflight", "Which attacks apply", table(heads, body, label="Preflight"))


def reproduce(audit: Audit) -> Element:
    """The command, and all that its result depends on."""
    hashes = {**audit.hashes, **(audit.target.get("hashes") or {})}
    tables = [("Versions", audit.versions), ("Hashes", hashes), ("Seeds", audit.seeds)]
    spec = element("pre", json.dumps(audit.spec, indent=2, ensure_ascii=False))
    described = audit.spec.get("spec")
    model = described.get("model") if isinstance(described, Mapping) else None
    own = isinstance(model, str) and model.rpartition(":")[0].endswith(".py")
    said = f"Of your own code one file was imported, and no other: {model}." if own else None
    return section(
        "reproduce",
        "Run it again",
        element("pre", element("code", audit.command), class_="command"),
        element("p", said, class_="note") if said else None,
        [exactly(title, values) for title, values in tables],
        folded("Specification", spec) if audit.spec else None,
        _trials(audit.trials),
    )


def _trials(trials: Sequence[Mapping[str, Any]]) -> Child:
    if not trials:
        return None
    heads = list(dict.fromkeys(key for row in trials for key in row))
    body = [("", [words(row.get(key)) for key in heads]) for row in trials]
    label = f"Trials: {len(trials)} tried, with those that failed"
    return folded(label, table([key.replace("_", " ") for key in heads], body, label="Trials"))


def definitions(pairs: Iterable[tuple[str, Child]]) -> list[Element]:
    """Pairs of a term and its text, each in a group of its own."""
    return [element("div", element("dt", term), element("dd", text)) for term, text in pairs]


def drawing(title: str, caption: str, chart: Element) -> Element:
    said = element("figcaption", element("b", title), element("span", caption))
    return element("figure", said, chart)


def folded(title: str, *children: Child) -> Element:
    return element("details", element("summary", title), *children)


def exactly(title: str, values: Mapping[str, Any]) -> Element | None:
    """Values to type in again: texts as they are, all else as JSON."""
    if not values:
        return None
    said = [(k, v if isinstance(v, str) else json.dumps(v)) for k, v in values.items()]
    return folded(title, element("dl", *definitions(said)))


def table(
    heads: Sequence[str],
    body: Sequence[tuple[str, Sequence[Child]]],
    *,
    label: str,
    narrow: bool = False,
) -> Element:
    """A table: rows are a class and cells. Unless it is narrow, rows are blocks on a phone."""
    top = [element("th", head, scope="col") for head in heads]
    rows = []
    for kind, cells in body:
        first = element("th", cells[0], scope="row")
        rest = [
            element("td", cell, data_head=head)
            for head, cell in zip(heads[1:], cells[1:], strict=True)
        ]
        rows.append(element("tr", first, *rest, class_=kind or None))
    return element(
        "table",
        element("caption", label, class_="unseen"),
        element("thead", element("tr", *top)),
        element("tbody", *rows),
        class_=None if narrow else "tall",
    )


def words(value: Any) -> str:
    """A JSON value in a table: numbers short, lists joined, nothing as a dash."""
    if value is None or value == "":
        return "–"
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:,}".replace(",", "\u202f")
    if isinstance(value, float):
        return "–" if number(value) is None else f"{value:.4g}"
    if isinstance(value, list | tuple):
        plain = all(isinstance(item, int) for item in value)
        return (" × " if plain else ", ").join(words(item) for item in value)
    return json.dumps(value, ensure_ascii=False) if isinstance(value, Mapping) else str(value)
