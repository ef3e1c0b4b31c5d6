"""Flags made from fields, and a parser that says in one line what is wrong and what was meant."""

from __future__ import annotations

import argparse
from collections.abc import Callable, Iterable
from dataclasses import fields
from pathlib import Path
from types import NoneType, UnionType
from typing import (  # fmt: skip
    TYPE_CHECKING,
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

from remnant.errors import InputError, did_you_mean

if TYPE_CHECKING:
    from pydantic import BaseModel


class Parser(argparse.ArgumentParser):
    """argparse, but a fault is one line like every other error, with the name that was meant.

    What takes long to import is added by `later`: only once this parser is asked to parse.
    """

    _later: Callable[[], None] | None = None
    _words: Iterable[str] = ()

    def later(self, fill: Callable[[], None]) -> None:
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


class Help(argparse.ArgumentDefaultsHelpFormatter):
    """Defaults beside the words, where there are any."""

    def _get_help_string(self, action: argparse.Action) -> str | None:
        if action.default is None or action.default is False:
            return action.help
        return super()._get_help_string(action)


def add_flag(
    group: Any,
    name: str,
    kind: Any,
    words: str,
    *,
    flag: str = "",
    required: bool = False,
    default: Any = argparse.SUPPRESS,
) -> None:
    """A flag for a value of this type; without it there is no such attribute unless `default`.

    kind: a type, also in Annotated or beside None; Literal is a choice, a tuple a list such as a,b.
    A type that no flag can tell (a mapping, settings of settings) gets none.
    """
    optional = get_origin(kind) in (Union, UnionType)
    kinds = [part for part in get_args(kind) if part is not NoneType] if optional else [kind]
    kind = kinds[0]
    if get_origin(kind) is Annotated:
        kind, *about = get_args(kind)
        if any(hasattr(part, "func") for part in about):  # a validator that reads words, as of 10m
            kind = str
    more: dict[str, Any] = {"dest": name, "help": words, "default": default}
    if kind is bool and optional:
        more["action"] = argparse.BooleanOptionalAction
    elif kind is bool:
        more["action"] = "store_false" if flag.startswith("no-") else "store_true"
    else:
        more |= {"required": required}
        if get_origin(kind) is Literal:
            more["choices"] = get_args(kind)
        elif get_origin(kind) is tuple:
            more["type"] = commas
        elif kind in (int, float, str, Path):
            more["type"] = kind
        else:
            return
    group.add_argument(f"--{flag or name.replace('_', '-')}", **more)


def commas(text: str) -> tuple[str, ...]:
    return tuple(word.strip() for word in text.split(","))


def add_spec(
    group: Any, spec: type[BaseModel], names: Iterable[str], *, needs: Iterable[str] = ()
) -> None:
    """A flag for each of these fields of a spec; `needs` are required."""
    for name in (*needs, *names):
        field = spec.model_fields[name]
        flag = f"no-{name}" if field.annotation is bool and field.default else ""
        kind, words = field.annotation, field.description or ""
        add_flag(group, name, kind, words, flag=flag, required=name in needs)


def add_settings(group: Any, kind: type[Any], but: Iterable[str] = ()) -> list[str]:
    """A flag for each field of a dataclass that `setting` describes, but for some; their names."""
    types, told = get_type_hints(kind, include_extras=True), []
    for field in fields(kind):
        flag, words = field.metadata.get("flag", False), field.metadata.get("help", "")
        if flag is False or field.name in but:
            continue
        if not isinstance(field.default, bool | None):
            words += f" (default: {field.default})"
        # What is so by default can be taken back: --no-page beside --page.
        both = field.default is True and flag is True
        type_of = bool | None if both else types[field.name]
        add_flag(group, field.name, type_of, words, flag="" if flag is True else flag)
        told.append(field.name)
    return told


def given(arguments: argparse.Namespace, names: Iterable[str]) -> dict[str, Any]:
    """What was given of these flags."""
    held = vars(arguments)
    return {name: held[name] for name in names if held.get(name) is not None}
