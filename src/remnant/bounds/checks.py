"""What the functions of this room ask of their numbers, each refusal in one line."""

from __future__ import annotations

import math
from collections.abc import Callable

from remnant.errors import InputError, expected


def _number(wanted: str, right: Callable[[float], bool]) -> Callable[[str, float], float]:
    """A check that returns the number, or refuses it by the name that it is given."""

    def check(what: str, value: float) -> float:
        if not right(value):
            raise InputError(expected(what, wanted, value))
        return value

    return check


positive = _number("a number above 0", lambda x: 0 < x < math.inf)
not_negative = _number("a number, 0 or more", lambda x: 0 <= x < math.inf)
inside = _number("a number between 0 and 1", lambda x: 0 < x < 1)
log_probability = _number("the logarithm of a number between 0 and 1", lambda x: -math.inf < x < 0)


def count(what: str, value: int, least: int = 1) -> int:
    if not isinstance(value, int) or value < least:
        raise InputError(expected(what, f"a whole number, {least} or more", value))
    return value
