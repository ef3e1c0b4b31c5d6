"""Flags made from fields, and a parser that says in one line what is wrong and what was meant."""

from __future__ import annotations

import argparse
import dataclasses
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from types import NoneType, UnionType
from typing import (  # fmt: skip
    Annotated,
    Any,
    Literal,
    NoReturn,
    Self,
    Union,
    get_args,
    get_origin,
    get_type_hints,
)

from remnant.errors import GOT, InputError, cut, did_you_mean


class Parser(argparse.ArgumentParser):
    """argparse, but a fault is one line like every other error, with the name that was meant.

    What takes long to import is added by `later`: only once this parser is asked to parse.
    """

    _later: Callable[[], object] | None = None
    _words: Iterable[str] = ()

    def later(self, fill: Callable[[], object]) -> None:
        self._later = fill

    def filled(self) -> Self:
        """The parser with all its flags."""
        fill, self._later = self._later, None
        if fill is not None:
            fill()
        return self

    def parse_known_args(self, args: Any = None, namespace: Any = None) -> tuple[Any, list[str]]:
        """Unknown words are an error of the verb's own parser, which points to the verb's help."""
        self._words = list(args or ())
        given, unknown = super(Parser, self.filled()).parse_known_args(args, namespace)
        if unknown:
            self.error(f"unrecognized arguments: {' '.join(unknown)}")
        return given, unknown

    def _check_value(self, action: argparse.Action, value: Any) -> None:
        try:
            super()._check_value(action, value)
        except argparse.ArgumentError as error:
            hint = did_you_mean(value, map(str, action.choices or ()))
            raise argparse.ArgumentError(action, f"{error.message}; {hint}".rstrip("; ")) from None

    def _get_values(self, action: argparse.Action, arg_strings: list[str]) -> Any:
        """argparse would make an empty list of `--flag=--`."""
        if action.option_strings and "--" in arg_strings:
            raise argparse.ArgumentError(action, "expected a value, got --")
        return super()._get_values(action, arg_strings)

    def error(self, message: str) -> NoReturn:
        """One line, with the flag that was meant: a missing one may have been misspelt."""
        known = [flag.removeprefix("--") for flag in self._option_string_actions]
        flags = [word[2:].split("=")[0] for word in self._words if word.startswith("--")]
        hints = [did_you_mean(flag, known) for flag in flags if flag not in known]
        hint = next((words.replace("mean ", "mean --") for words in hints if words), "")
        hint = f" {hint}" if hint else ""
        raise InputError(f"{message};{hint} see {self.prog} --help")


def whole(low: int, high: int) -> Callable[[str], int]:
    """What reads a whole number of a flag."""

    def read(text: str) -> int:
        try:
            value = int(text)
        except ValueError:  # also of more digits than Python reads
            value = low - 1
        if low <= value <= high:
            return value
        raise argparse.ArgumentTypeError(f"expected {low} to {high}, got {cut(text, GOT)}")

    return read


def commas(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def add_fields(
    group: Any,
    kind: type[Any],
    names: Iterable[str] | None = None,
    *,
    needs: Iterable[str] = (),
    but: Iterable[str] = (),
) -> list[str]:
    """A flag for each described field of a dataclass or a pydantic model; the fields' names.

    names: some of them, in this order; without it all `but` some. needs: those that must be given,
    before the others. Without its flag a field is no attribute of what was parsed. A type that no
    flag can tell (a mapping, settings of settings) gets none.
    """
    told = {name: (of, words, flag) for name, of, words, flag in described(kind) if words}
    wanted = [*needs, *(names or (name for name in told if name not in but))]
    for name in wanted:
        of, words, flag = told[name]
        more = reading(of, flag)
        if more is not None:
            more |= {"required": True} if name in needs else {}
            flag = f"--{(flag or name).replace('_', '-')}"
            group.add_argument(flag, dest=name, help=words, default=argparse.SUPPRESS, **more)
    return wanted


def described(kind: type[Any]) -> Iterator[tuple[str, Any, str, str]]:
    """Of each field its name, its type, what it means, and its flag if that has another name."""
    if not dataclasses.is_dataclass(kind):
        for name, about in kind.model_fields.items():
            said = not about.is_required() and not isinstance(about.default, bool | None)
            shown = f" (default: {about.default})" if said and not about.default_factory else ""
            worded = any(hasattr(part, "func") for part in about.metadata)  # read by a validator
            of: Any = str if worded else about.annotation
            flag = f"no-{name}" if about.annotation is bool and about.default else ""
            yield name, of, f"{about.description}{shown}" if about.description else "", flag
        return
    types = get_type_hints(kind, include_extras=True)
    for field in dataclasses.fields(kind):
        words, flag = field.metadata.get("help", ""), field.metadata.get("flag", False)
        of = types[field.name]
        if not isinstance(field.default, bool | None):
            words += f" (default: {field.default})"
        if field.default is True and flag is True:  # can be taken back: --no-page beside --page
            of = bool | None
        yield field.name, of, words if flag else "", flag if isinstance(flag, str) else ""


def reading(kind: Any, flag: str) -> dict[str, Any] | None:
    """How argparse reads a value of this type, also in Annotated or beside None."""
    about: tuple[Any, ...] = ()
    optional = False
    while get_origin(kind) in (Annotated, Union, UnionType):
        inner, *rest = get_args(kind)
        if get_origin(kind) is Annotated:
            about += tuple(rest)
        else:
            optional, left = True, [part for part in (inner, *rest) if part is not NoneType]
            inner = left[0]
        kind = inner
    if any(hasattr(part, "func") for part in about):  # read by a validator, as 10m is
        kind = str
    if kind is bool:
        plain = "store_false" if flag.startswith("no-") else "store_true"
        return {"action": argparse.BooleanOptionalAction if optional else plain}
    if get_origin(kind) is Literal:
        return {"choices": get_args(kind)}
    if get_origin(kind) is tuple:
        return {"type": commas}
    return {"type": kind} if kind in (int, float, str, Path) else None


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """What was given of these flags."""
    held = vars(arguments)
    return {name: held[name] for name in names if held.get(name) is not None}
