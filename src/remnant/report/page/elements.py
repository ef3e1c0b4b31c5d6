"""HTML and SVG elements. The standard library's serialiser escapes every string that is put in."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import TypeAlias
from xml.etree.ElementTree import Element, tostring

Child: TypeAlias = "Element | str | Iterable[Child] | None"
CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]")


def element(tag: str, *children: Child, **attributes: str | float | bool | None) -> Element:
    """`element("p", "text", class_="note")`. None and False leave an attribute or a child out.

    In attribute names an underscore stands for a dash, and one at the end is dropped.
    """
    made = Element(tag)
    for name, value in attributes.items():
        if value is not None and value is not False:
            key = name.removesuffix("_").replace("_", "-")
            made.set(key, "" if value is True else clean(f"{value}"))
    for child in children:
        _append(made, child)
    return made


def render(made: Element) -> str:
    return tostring(made, encoding="unicode", method="html")


def clean(text: str) -> str:
    """The text without what no HTML file can hold: lone surrogates and control characters."""
    return CONTROL.sub("\ufffd", text.encode("utf-8", "replace").decode())


def _append(parent: Element, child: Child) -> None:
    if child is None:
        return
    if isinstance(child, Element):
        parent.append(child)
    elif isinstance(child, str):
        if len(parent):
            parent[-1].tail = (parent[-1].tail or "") + clean(child)
        else:
            parent.text = (parent.text or "") + clean(child)
    else:
        for one in child:
            _append(parent, one)
