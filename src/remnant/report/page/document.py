"""The page as one HTML string: no network, no inline handlers, a policy that forbids both."""

from __future__ import annotations

import base64
import hashlib
from importlib.resources import files
from pathlib import Path
from xml.etree.ElementTree import Element

from remnant.bundle import Audit
from remnant.report.page import sections
from remnant.report.page.elements import element, render
from remnant.report.page.files import Pictures, place
from remnant.report.page.gallery import gallery
from remnant.store import write_text

PAGE_FILE = "report.html"
NAVIGATION = (
    ("records", "Records"),
    ("next", "What to do"),
    ("adversaries", "Adversaries"),
    ("evidence", "Evidence"),
    ("exposed", "Exposed ids"),
    ("preflight", "Preflight"),
    ("reproduce", "Reproduce"),
)


def page(audit: Audit, pictures: Pictures) -> str:
    """The audit's page. The same audit and pictures give the same bytes."""
    style, script = (
        files("remnant.report.page").joinpath(name).read_text("utf-8")
        for name in ("style.css", "script.js")
    )
    parts = [
        gallery(audit, pictures),
        sections.advice(audit),
        sections.adversaries(audit),
        sections.evidence(audit),
        sections.exposed(audit),
        sections.preflight(audit),
        sections.reproduce(audit),
    ]
    present = [part for part in parts if part is not None]
    body = element(
        "body",
        element("a", "Skip to the verdict", href="#main", class_="skip"),
        _navigation(present),
        element("main", sections.header(audit), *present, id="main"),
        _footer(audit),
        element("script", script),
    )
    return "<!doctype html>\n" + render(
        element("html", _head(audit, style, script), body, lang="en")
    )


def _head(audit: Audit, style: str, script: str) -> Element:
    policy = "; ".join(
        (
            "default-src 'none'",
            "img-src data:",
            f"style-src '{fingerprint(style)}'",
            f"script-src '{fingerprint(script)}'",
            "base-uri 'none'",
            "form-action 'none'",
        )
    )
    return element(
        "head",
        element("meta", charset="utf-8"),
        element("meta", http_equiv="Content-Security-Policy", content=policy),
        element("meta", name="viewport", content="width=device-width, initial-scale=1"),
        element("meta", name="color-scheme", content="light dark"),
        element("meta", name="robots", content="noindex"),
        element("meta", name="referrer", content="no-referrer"),
        element("title", f"Remnant audit: {audit.verdict}"),
        element("style", style),
    )


def fingerprint(text: str) -> str:
    """A source of the content security policy: this text and no other."""
    return "sha256-" + base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()


def _navigation(present: list[Element]) -> Element:
    there = {part.get("id") for part in present}
    links = [
        element("li", element("a", words, href=f"#{name}"))
        for name, words in NAVIGATION
        if name in there
    ]
    return element("nav", element("ul", *links), aria_label="On this page")


def _footer(audit: Audit) -> Element:
    version = audit.versions.get("remnant")
    by = f"Remnant {version}" if version else "Remnant"
    private = (
        "This page holds reconstructed training data. Keep it as private as the data."
        if audit.images
        else "This page names records and holds no picture of them."
    )
    return element("footer", element("p", private), element("p", f"{by} · {audit.schema}"))


def write_page(directory: str | Path, audit: Audit, pictures: Pictures) -> Path:
    """`report.html` in the directory, whole or not at all, readable by its owner alone."""
    return write_text(place(directory), PAGE_FILE, page(audit, pictures))
