"""What the functions of this room ask of their numbers, each refusal in one line."""

from __future__ import annotations

import math

from remnant.errors import InputError, expected


def positive(what: str, value: float) -> float:
    if not 0 < value < math.inf:
        raise InputError(expected(what, "a number above 0", value))
    return value


def not_negative(what: str, value: float) -> float:
    if not 0 <= value < math.inf:
        raise InputError(expected(what, "a number, 0 or more", value))
    return value


def inside(what: str, value: float) -> float:
    """A probability that is neither 0 nor 1."""
    if not 0 < value < 1:
        raise InputError(expected(what, "a number between 0 and 1", value))
    return value


def count(what: str, value: int, least: int = 1) -> int:
    if not isinstance(value, int) or value < least:
        raise InputError(expected(what, f"a whole number, {least} or more", value))
    return value


def log_probability(what: str, value: float) -> float:
    """The logarithm of a probability that is neither 0 nor 1."""
    if not -math.inf < value < 0:
        raise InputError(expected(what, "the logarithm of a number between 0 and 1", value))
    return value
