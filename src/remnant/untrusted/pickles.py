"""What a pickle would make, without making it: values, and calls that are only written down.

A pickle is a program for a small stack machine, and Python's own machine calls what the program
names. This one calls nothing that a file names: a name and its arguments become a `Call`.
Every instruction leaves at most one small value behind, so what comes out is no larger than what
went in (parts may be shared, and must not be walked through again and again).
"""

from __future__ import annotations

import pickletools
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import IO, Any

from remnant.untrusted.files import shown

ENCODE = "_codecs.encode"  # how protocol 2 spells bytes: the one call that is made here
_MARK = object()


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

    most: how many bytes there are; the memo has no more places than that.
    seen: is given all calls and references, wherever they stand.
    """
    machine = _Machine(known, most)
    for opcode, argument, _ in pickletools.genops(stream):
        if opcode.name == "STOP":
            if seen is not None:
                seen.extend(machine.seen)
            return machine.pop()
        step = _STEPS.get(opcode.name)
        if step is None:
            raise ValueError(f"the instruction {opcode.name}")
        step(machine, argument)
    raise ValueError("no end")


class _Machine:
    def __init__(self, known: Callable[[str], bool], most: int) -> None:
        self.known, self.most, self.encoded, self.given = known, most, 0, 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}
        self.seen: list[Call | Reference] = []

    def pop(self) -> Any:
        value = self.stack.pop()
        if value is _MARK:
            raise ValueError("a mark in place of a value")
        return value

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def note(self, value: Call | Reference) -> None:
        self.seen.append(value)
        self.push(value)

    def since_mark(self) -> list[Any]:
        items: list[Any] = []
        while (value := self.stack.pop()) is not _MARK:
            items.append(value)
        return items[::-1]

    def put(self, place: int) -> None:
        if not 0 <= place <= self.most:
            raise ValueError("a memo larger than the file")
        self.memo[place] = self.stack[-1]

    def name(self, name: str) -> None:
        if not self.known(name):
            raise Foreign(name)
        self.push(Name(name))

    def call(self, function: Any, arguments: Any) -> None:
        if not isinstance(function, Name) or not isinstance(arguments, tuple):
            raise ValueError("a call of no function")
        self.give(arguments)
        if function.name == ENCODE:
            self.push(self.encode(*arguments))
        else:
            self.note(Call(function.name, arguments))

    def give(self, value: Any, *, deep: int = 3) -> None:
        """Count what is given to a call: whoever makes it copies that, and a list that is kept
        could be given to calls without end."""
        if not isinstance(value, list | tuple | dict):
            return
        self.given += len(value)
        if self.given > self.most:
            raise ValueError("more given to calls than the file holds")
        for part in (value.values() if isinstance(value, dict) else value) if deep else ():
            self.give(part, deep=deep - 1)

    def encode(self, text: Any, encoding: Any = None) -> bytes:
        """A text as bytes; a text that is kept could be encoded without end, so they count."""
        if not isinstance(text, str) or encoding not in ("latin1", b"latin1"):
            raise ValueError("an encoding that is not used for bytes")
        self.encoded += len(text)
        if self.encoded > self.most:
            raise ValueError("more bytes than the file holds")
        return text.encode("latin1")

    def extend(self, items: list[Any]) -> None:
        held = self.stack[-1]
        if not isinstance(held, list | Call):
            raise ValueError("items for what is no list")
        (held if isinstance(held, list) else held.items).extend(items)

    def set_items(self, pairs: list[Any]) -> None:
        held = self.stack[-1]
        if len(pairs) % 2 or not isinstance(held, dict | Call):
            raise ValueError("items for what is no table")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            if not plain_key(key):
                raise ValueError(f"{shown(key)} as a key")
            if isinstance(held, dict):
                held[key] = value
            else:
                held.items.append((key, value))

    def build(self, state: Any) -> None:
        if not isinstance(self.stack[-1], Call):
            raise ValueError("a state for what has none")
        self.give(state)
        self.stack[-1].state = state


def plain_key(key: Any) -> bool:
    """Whether a key is hashed at once: a tuple of tuples that are shared takes forever, and a whole
    number as long as it is, each time."""
    if isinstance(key, int):
        return abs(key) < 2**64
    return isinstance(key, str | bytes | float | None)


Step = Callable[[_Machine, Any], None]


def _made(machine: _Machine, kind: Callable[[list[Any]], Any]) -> None:
    machine.push(kind(machine.since_mark()))


def _dict(machine: _Machine, _: Any) -> None:
    pairs = machine.since_mark()
    machine.push({})
    machine.set_items(pairs)


def _tuple(count: int) -> Step:
    def step(machine: _Machine, _: Any) -> None:
        items = [machine.pop() for _ in range(count)]
        machine.push(tuple(items[::-1]))

    return step


def _stack_global(machine: _Machine, _: Any) -> None:
    name, module = machine.pop(), machine.pop()
    if not isinstance(name, str) or not isinstance(module, str):
        raise ValueError("a name that is no text")
    machine.name(f"{module}.{name}")


def _reduce(machine: _Machine, _: Any) -> None:
    arguments = machine.pop()
    machine.call(machine.pop(), arguments)


def _set_item(machine: _Machine, _: Any) -> None:
    value, key = machine.pop(), machine.pop()
    machine.set_items([key, value])


_TEXTS = (
    "BINBYTES", "SHORT_BINBYTES", "BINBYTES8",
    "UNICODE", "BINUNICODE", "SHORT_BINUNICODE", "BINUNICODE8",
)  # fmt: skip
_BYTES = ("STRING", "BINSTRING", "SHORT_BINSTRING")  # of Python 2, which pickletools decodes
_NUMBERS = ("INT", "BININT", "BININT1", "BININT2", "LONG", "LONG1", "LONG4", "FLOAT", "BINFLOAT")
_STEPS: dict[str, Step] = {
    **dict.fromkeys((*_TEXTS, *_NUMBERS), lambda m, a: m.push(a)),
    **dict.fromkeys(_BYTES, lambda m, a: m.push(a.encode("latin1"))),
    **dict.fromkeys(("PROTO", "FRAME"), lambda m, a: None),
    **dict.fromkeys(("PUT", "BINPUT", "LONG_BINPUT"), lambda m, a: m.put(int(a))),
    **dict.fromkeys(("GET", "BINGET", "LONG_BINGET"), lambda m, a: m.push(m.memo[int(a)])),
    "MEMOIZE": lambda m, a: m.put(len(m.memo)),
    "NONE": lambda m, a: m.push(None),
    "NEWTRUE": lambda m, a: m.push(True),
    "NEWFALSE": lambda m, a: m.push(False),
    "MARK": lambda m, a: m.push(_MARK),
    "EMPTY_LIST": lambda m, a: m.push([]),
    "EMPTY_DICT": lambda m, a: m.push({}),
    "EMPTY_TUPLE": lambda m, a: m.push(()),
    "EMPTY_SET": lambda m, a: m.note(Call("builtins.set", ())),
    "LIST": lambda m, a: _made(m, list),
    "TUPLE": lambda m, a: _made(m, tuple),
    "TUPLE1": _tuple(1),
    "TUPLE2": _tuple(2),
    "TUPLE3": _tuple(3),
    "DICT": _dict,
    "APPEND": lambda m, a: m.extend([m.pop()]),
    "APPENDS": lambda m, a: m.extend(m.since_mark()),
    "ADDITEMS": lambda m, a: m.extend(m.since_mark()),
    "SETITEM": _set_item,
    "SETITEMS": lambda m, a: m.set_items(m.since_mark()),
    "GLOBAL": lambda m, a: m.name(str(a).replace(" ", ".", 1)),
    "STACK_GLOBAL": _stack_global,
    "REDUCE": _reduce,
    "NEWOBJ": _reduce,
    "BUILD": lambda m, a: m.build(m.pop()),
    "BINPERSID": lambda m, a: m.note(Reference(m.pop())),
}
