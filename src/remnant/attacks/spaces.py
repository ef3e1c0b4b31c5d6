"""What a search may vary of an attack's settings: each a range or a choice."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field

from remnant.errors import InputError, brief, expected

Scalar = float | int | str | bool | None


@dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from low to high, both included; `log`: every factor is as likely as another."""

    low: float
    high: float
    log: bool = False
    integer: bool = False

    def __post_init__(self) -> None:
        for name in ("low", "high"):
            value = getattr(self, name)
            if isinstance(value, bool) or not isinstance(value, int | float):
                raise InputError(expected(f"range: {name}", "a number", brief(value)))
            if not abs(value) < math.inf:
                raise InputError(expected(f"range: {name}", "a finite number", value))
        if type(self.log) is not bool or type(self.integer) is not bool:
            got = f"{brief(self.log)} and {brief(self.integer)}"
            raise InputError(expected("range: log and integer", "true or false", got))
        if not self.low < self.high or (self.log and self.low <= 0):
            wanted = "low below high" + (", both positive" if self.log else "")
            raise InputError(expected("range", wanted, f"{self.low} and {self.high}"))
        if self.integer and (self.low != int(self.low) or self.high != int(self.high)):
            raise InputError(expected("range", "whole numbers", f"{self.low} and {self.high}"))

    @property
    def ends(self) -> tuple[Scalar, ...]:
        whole = int if self.integer else float
        return whole(self.low), whole(self.high)


@dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: tuple[Scalar, ...]

    def __post_init__(self) -> None:
        if not self.values or not all(isinstance(v, Scalar) for v in self.values):
            raise InputError(
                expected("choice", "numbers, words, true, false or null", brief(self.values))
            )

    @property
    def ends(self) -> tuple[Scalar, ...]:
        return self.values


Axis = Range | Choice


@dataclass(frozen=True, kw_only=True)
class Space:
    """axes: what is varied. fixed: fields that the axes only make sense with."""

    axes: Mapping[str, Axis]
    fixed: Mapping[str, Scalar] = field(default_factory=dict)
