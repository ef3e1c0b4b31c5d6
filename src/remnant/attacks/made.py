"""An attack from settings of a file or of flags: names, types and ranges, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from pydantic import TypeAdapter, ValidationError

from remnant.attacks import ATTACKS, Attack
from remnant.errors import InputError, brief, expected

MOST = 10**6  # steps, starts or candidates: more take months, or more memory than there is
FROM_0 = ("probes", "attempts", "order_seed", "components")  # counts of which none is a choice
LARGE = ("order_seed", "memory")  # whole numbers that are no counts


def make_attack(name: str, settings: Mapping[str, Any]) -> Attack:
    """The attack with these fields, or an error that names the fields that it has.

    A field that holds settings of its own is changed by a mapping: {replaying: {evaluations: 40}}.
    """
    kind = ATTACKS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InputError(expected("attack", f"one of {', '.join(ATTACKS)}", brief(name)))
    try:
        made = kind()
        inner = {
            key: replace(getattr(made, key), **value)
            for key, value in settings.items()
            if isinstance(value, Mapping) and is_dataclass(getattr(made, key, None))
        }
        values = {**settings, **{key: vars(value) for key, value in inner.items()}}
        kind(**{**settings, **inner})  # names
        attack: Attack = TypeAdapter(kind).validate_python(values)  # types
    except ValidationError as error:
        fault = error.errors()[0]
        what = f"settings of {name}: {'.'.join(map(str, fault['loc']))}"
        wanted = fault["msg"].removeprefix("Input should be ")
        raise InputError(expected(what, wanted, brief(fault["input"]))) from None
    except TypeError:
        has = ", ".join(f.name for f in fields(cast(Any, kind)))
        raise InputError(
            expected(f"settings of {name}", f"some of {has}", brief(dict(settings)))
        ) from None
    check_ranges(name, attack)
    return attack


def check_ranges(name: str, settings: object) -> None:
    """Every number in a dataclass of settings, also of those that it holds, is in its range."""
    for field in fields(cast(Any, settings)):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            check_ranges(f"{name}.{field.name}", value)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int) and not isinstance(one, bool):
                low = 0 if field.name in FROM_0 else 1
                high = 2**63 - 1 if field.name in LARGE else MOST
                good, wanted = low <= one <= high, f"{low} to {high}"
            else:
                good = not isinstance(one, float) or 0 <= one < math.inf
                wanted = "a number from 0 on"
            if not good:
                what = f"settings of {name}: {field.name}"
                raise InputError(expected(what, wanted, brief(one)))
