"""What a search varies: a space that the attack's file names (`About.spaces`), or one's own.

A space of one's own is a mapping of any of the attack's fields: a list is a choice, `{low, high}` a
range, with `log: true` or `integer: true`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from remnant.attacks import ATTACKS
from remnant.attacks.made import check_names, kind_of
from remnant.attacks.spaces import Axis, Choice, Range, Space
from remnant.errors import InputError, brief, expected


def read_space(attack: str, given: str | Mapping[str, Any]) -> Space:
    """A space that the attack's file names, or one's own."""
    spaces = kind_of(attack).about.spaces
    if isinstance(given, str):
        if given not in spaces:
            having = [name for name, kind in ATTACKS.items() if given in kind.about.spaces]
            named = dict.fromkeys(name for kind in ATTACKS.values() for name in kind.about.spaces)
            wanted = f"one for {', '.join(having)}" if having else f"one of {', '.join(named)}"
            do = "or give a range or a list for some of its fields"
            raise InputError(expected(f"space {given}", wanted, attack, do))
        return spaces[given]
    if not isinstance(given, Mapping) or not given:
        raise InputError(expected("space", "a name, or at least one field", brief(given)))
    check_names(attack, given)
    return Space(axes={name: _axis(name, value) for name, value in given.items()})


def _axis(name: str, value: Any) -> Axis:
    if isinstance(value, list | tuple):
        return Choice(tuple(value))
    if isinstance(value, Mapping):
        try:
            return Range(**value)
        except TypeError:
            pass
    raise InputError(expected(f"space of {name}", "a list, or {low, high}", brief(value)))
