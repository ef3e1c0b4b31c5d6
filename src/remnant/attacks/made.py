"""An attack from settings of a file or of flags: names, types and ranges, checked in one place."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass, replace
from typing import Any, cast

from pydantic import TypeAdapter

from remnant.attacks import ATTACKS, Attack
from remnant.errors import InputError, brief, did_you_mean, expected, one_fault

FROM_0 = ("probes", "attempts", "order_seed", "components")  # counts of which none is a choice
LARGE = ("order_seed", "memory")  # whole numbers that are no counts


def kind_of(name: Any) -> type[Attack]:
    """The attack of that name, or an error that names those that there are."""
    if not isinstance(name, str) or name not in ATTACKS:
        wanted = f"one of {', '.join(ATTACKS)}"
        raise InputError(expected("attack", wanted, brief(name), did_you_mean(name, ATTACKS)))
    return ATTACKS[name]


def check_names(name: str, settings: Iterable[Any]) -> None:
    """Raises where a name is no field of the attack; the message suggests the nearest field."""
    known = [field.name for field in fields(cast(Any, kind_of(name)))]
    for one in settings:
        if one not in known:
            what, wanted = f"settings of {name}", f"some of {', '.join(known)}"
            raise InputError(expected(what, wanted, brief(one), did_you_mean(one, known)))


def make_attack(name: str, settings: Mapping[str, Any]) -> Attack:
    """The attack with these fields, or an error that names the fields that it has.

    A field that holds settings of its own is changed by a mapping: {replaying: {evaluations: 40}}.
    """
    kind = kind_of(name)
    check_names(name, settings)
    try:
        made = kind()
        inner = {
            key: replace(getattr(made, key), **value)
            for key, value in settings.items()
            if isinstance(value, Mapping) and is_dataclass(getattr(made, key, None))
        }
        values = {**settings, **{key: vars(value) for key, value in inner.items()}}
        with one_fault(f"settings of {name}: "):
            attack: Attack = TypeAdapter(kind).validate_python(values)
    except TypeError:  # a name that settings inside the settings do not have
        wanted = "fields that it has"
        raise InputError(expected(f"settings of {name}", wanted, brief(dict(settings)))) from None
    check_ranges(name, attack)
    return attack


def check_ranges(name: str, settings: object, most: int = 10**6) -> None:
    """Raises where a number in a dataclass of settings, or in settings that it holds, is out of its
    range.

    most: the largest number of steps, starts or candidates that is taken; more would run for
    months, or out of memory.
    """
    for field in fields(cast(Any, settings)):
        value = getattr(settings, field.name)
        if is_dataclass(value):
            check_ranges(f"{name}.{field.name}", value)
        for one in value if isinstance(value, tuple) else (value,):
            if isinstance(one, int) and not isinstance(one, bool):
                low = 0 if field.name in FROM_0 else 1
                high = 2**63 - 1 if field.name in LARGE else most
                good, wanted = low <= one <= high, f"{low} to {high}"
            else:
                good = not isinstance(one, float) or 0 <= one < math.inf
                wanted = "a number from 0 on"
            if not good:
                what = f"settings of {name}: {field.name}"
                raise InputError(expected(what, wanted, brief(one)))
