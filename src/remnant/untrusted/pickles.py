"""What a pickle would make, without making it: values, and calls that are only written down.

A pickle is a program for a small stack machine. Python's own (the one in Python) runs here, with
only the instructions in the tables below: a name and its arguments become a `Call`, and nothing
that a file names is imported or called. Every instruction leaves at most one small value behind, so
what comes out is no larger than what went in (parts may be shared, and must not be walked through
again and again).
"""

from __future__ import annotations

import pickle
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from remnant.untrusted.files import shown

ENCODE = "_codecs.encode"  # how protocol 2 spells bytes: the one call that is made here


class Foreign(Exception):
    """A name in the pickle that no file of this kind needs."""


@dataclass(eq=False)
class Name:
    """A function or class that the program names, `module.name`."""

    name: str


@dataclass(eq=False)
class Call:
    """What a call would have made; `state` is what it would have been given afterwards."""

    name: str
    arguments: Any
    state: Any = None
    items: list[Any] = field(default_factory=list)  # put into it, if it is a container


@dataclass(eq=False)
class Reference:
    """A persistent reference: something that is stored outside the pickle, by its key."""

    key: Any


def pickled(
    stream: IO[bytes],
    known: Callable[[str], bool],
    most: int,
    seen: list[Call | Reference] | None = None,
) -> Any:
    """The value of one pickle; names that are not `known` are a `Foreign`.

    most: how many bytes there are; no more are made by encoding texts.
    seen: is given all calls and references, wherever they stand.
    """
    return _Machine(stream, known, most, [] if seen is None else seen).load()


class _Machine(pickle._Unpickler):
    """Python's machine, with every instruction that would import, call, hash or change what a file
    says replaced."""

    stack: list[Any]
    pop_mark: Callable[[], list[Any]]

    def __init__(
        self,
        stream: IO[bytes],
        known: Callable[[str], bool],
        most: int,
        seen: list[Call | Reference],
    ) -> None:
        super().__init__(stream, encoding="bytes")  # texts of Python 2 are bytes
        self.known, self.left, self.seen = known, most, seen

    def find_class(self, module: Any, name: Any) -> Name:
        if not self.known(f"{module}.{name}"):
            raise Foreign(f"{module}.{name}")
        return Name(f"{module}.{name}")

    def persistent_load(self, key: Any) -> Reference:
        reference: Reference = self.noted(Reference(key))
        return reference

    def noted(self, value: Any) -> Any:
        self.seen.append(value)
        return value

    def empty_set(self) -> None:
        self.stack.append(self.noted(Call("builtins.set", ())))

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of no function")
        encodes = function.name == ENCODE
        made = self.encode(*arguments) if encodes else self.noted(Call(function.name, arguments))
        self.stack.append(made)

    def encode(self, text: Any, encoding: Any = None) -> bytes:
        """A text as bytes; a text that is kept could be encoded without end, so they count."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise ValueError("an encoding that is not used for bytes")
        self.left -= len(text)
        if self.left < 0:
            raise ValueError("more bytes than the file holds")
        return text.encode("latin1")

    def extend(self, items: list[Any]) -> None:
        held = self.stack[-1]
        if not isinstance(held, list | Call):
            raise ValueError("items for what is no list")
        (held if isinstance(held, list) else held.items).extend(items)

    def set_items(self, pairs: list[Any]) -> None:
        """Only plain keys: a tuple of tuples that are shared takes forever to hash."""
        held = self.stack[-1]
        if len(pairs) % 2 or not isinstance(held, dict | Call):
            raise ValueError("items for what is no table")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not isinstance(key, str | bytes | int | float | None):
                raise ValueError(f"{shown(key)} as a key")
            if isinstance(held, dict):
                held[key] = value
            else:
                held.items.append((key, value))

    def dict_of_items(self) -> None:
        pairs = self.pop_mark()
        self.stack.append({})
        self.set_items(pairs)

    def build(self) -> None:
        state = self.stack.pop()
        if not isinstance(self.stack[-1], Call):
            raise ValueError("a state for what has none")
        self.stack[-1].state = state


_AS_THEY_ARE = """
    PROTO FRAME STOP MARK NONE NEWTRUE NEWFALSE EMPTY_LIST EMPTY_DICT EMPTY_TUPLE LIST TUPLE TUPLE1
    TUPLE2 TUPLE3 INT BININT BININT1 BININT2 LONG LONG1 LONG4 FLOAT BINFLOAT STRING BINSTRING
    SHORT_BINSTRING BINBYTES SHORT_BINBYTES BINBYTES8 UNICODE BINUNICODE SHORT_BINUNICODE
    BINUNICODE8 PUT BINPUT LONG_BINPUT GET BINGET LONG_BINGET MEMOIZE GLOBAL STACK_GLOBAL BINPERSID
"""
_REPLACED: dict[str, Callable[[_Machine], None]] = {
    "REDUCE": _Machine.reduce,
    "NEWOBJ": _Machine.reduce,
    "BUILD": _Machine.build,
    "DICT": _Machine.dict_of_items,
    "SETITEM": lambda m: m.set_items([m.stack.pop(-2), m.stack.pop()]),
    "SETITEMS": lambda m: m.set_items(m.pop_mark()),
    "EMPTY_SET": _Machine.empty_set,
    "APPEND": lambda m: m.extend([m.stack.pop()]),
    "APPENDS": lambda m: m.extend(m.pop_mark()),
    "ADDITEMS": lambda m: m.extend(m.pop_mark()),
}
_STEPS: dict[int, Any] = {
    code: pickle._Unpickler.dispatch[code]
    for code in (getattr(pickle, name)[0] for name in _AS_THEY_ARE.split())
}
_Machine.dispatch = _STEPS | {getattr(pickle, name)[0]: step for name, step in _REPLACED.items()}
