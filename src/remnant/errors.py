"""One tree of errors. Each message is one line: what was expected, what came, what to do."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from difflib import get_close_matches
from typing import Any, TypeVar

LONGEST = 480  # letters of a message: a few lines of a terminal, whatever a file put into it
GOT = 60  # letters of a value that is shown: enough to know it by
SHORTER = {
    "greater than or equal to": "at least", "less than or equal to": "at most",
    "greater than": "more than", "less than": "below",
    ", unable to parse string as an integer": "", ", unable to parse string as a number": "",
}  # fmt: skip
"""What pydantic says of a number, and how it is said here."""


class RemnantError(Exception):
    """Base of every error that a user can cause and mend. The command exits with 2 on it.

    The message stays one line, printable and short whatever a user's file or flag put into it.
    """

    def __init__(self, message: str) -> None:
        super().__init__(cut(printable(cut(message, 2 * LONGEST)), LONGEST))


class InputError(RemnantError):
    """A flag, a value or a shape is not what it has to be."""


class DataError(RemnantError):
    """A dataset is missing, malformed or too small."""


class WeightsError(RemnantError):
    """A weights file is missing, malformed, unsafe or does not fit the model."""


class StoreError(RemnantError):
    """A run's directory cannot be written, read or resumed."""


def expected(what: str, wanted: object, got: object, do: str = "") -> str:
    """The house sentence: `what: expected wanted, got got; do`.

    If it would be too long each of its parts is cut, so that all of them can still be read.
    """
    parts = [text_of(part) for part in (what, wanted, got, do)]
    if sum(map(len, parts)) > LONGEST - 30:
        parts = [cut(part, LONGEST // 4 - 10) for part in parts]
    sentence = f"{parts[0]}: expected {parts[1]}, got {parts[2]}"
    return f"{sentence}; {parts[3]}" if parts[3] else sentence


def did_you_mean(got: object, known: Iterable[str]) -> str:
    """What to do about a name that is none of those known: the nearest one, if any is near."""
    near = get_close_matches(text_of(got)[:GOT], list(known), n=1)
    return f"did you mean {near[0]}?" if near else ""


def text_of(value: object) -> str:
    """`str` of anything: a whole number too long to be written out in time is told by its size."""
    try:
        return str(value)
    except Exception:  # Python's limit on the digits of an int, alone or inside a list
        return _sized(value)


def brief(value: Any) -> str:
    """`repr` of a value that came from a file or a flag, cut so that it can be shown."""
    if isinstance(value, int) and abs(value) >= 2**64:
        return _sized(value)
    try:
        return cut(repr(value), GOT)
    except Exception:
        return _sized(value)


def fault_line(fault: Mapping[str, Any], what: str = "", show: Callable[[Any], str] = brief) -> str:
    """One of pydantic's faults as the house sentence. what: the place, where it is not the fault's
    own; show: how the value is told."""
    place = cut(what or ".".join(map(str, fault["loc"])) or "value", 100)
    if fault["type"] == "missing":
        return f"{place}: expected a value, got none"
    said = fault["msg"].removeprefix("Input should be ").removeprefix("Value error, ")
    for long, short in SHORTER.items():
        said = said.replace(long, short)
    hint = fault.get("ctx", {}).get("hint", "")
    return expected(place, said[0].lower() + said[1:], show(fault["input"]), hint)


@contextmanager
def one_fault(where: str = "", show: Callable[[Any], str] = brief) -> Iterator[None]:
    """Turn what pydantic finds wrong into one line, of the first fault; where: its beginning."""
    from pydantic import ValidationError  # slow to import, and not every verb's need

    try:
        yield
    except ValidationError as error:
        raise InputError(f"{where}{fault_line(error.errors()[0], show=show)}") from None


Checked = TypeVar("Checked", bound=type)


def in_one_line(where: str = "") -> Callable[[Checked], Checked]:
    """For a class whose fields pydantic checks: its first fault is said in one line, which begins
    with `where`, or the name of the class."""

    def said(kind: Checked) -> Checked:
        checked = one_fault(where or f"{kind.__name__}: ")(vars(kind)["__init__"])
        setattr(kind, "__init__", checked)  # noqa: B010  mypy takes a plain one for a slip
        return kind

    return said


def _sized(value: object) -> str:
    if isinstance(value, int):
        return f"a whole number of {value.bit_length()} bits"
    return f"a {type(value).__name__} that cannot be written out"


def printable(text: str) -> str:
    """Line breaks, escape sequences and other control characters made visible."""
    return "".join(c if c.isprintable() else ascii(c)[1:-1] for c in text)


def cut(text: str, most: int) -> str:
    """At most so many letters: the beginning, which is longer, and the end."""
    if len(text) <= most:
        return text
    tail = most // 3
    return f"{text[: most - tail - 5]} ... {text[-tail:]}"
