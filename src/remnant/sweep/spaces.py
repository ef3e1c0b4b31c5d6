"""What a search varies: fields of an attack, each a range or a choice. Named spaces, or one's own.

`papers` is 004's appendix B (random search over lr, sigma, lambda_min and alpha of the papers' own
descent). `default` is ours, for the attack's default solver. A space of one's own is a mapping of
any of the attack's fields: a list is a choice, `{low, high}` a range, with `log: true` or
`integer: true`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any, cast

from remnant.attacks import ATTACKS, Attack
from remnant.attacks.made import make_attack
from remnant.errors import InputError, brief, expected
from remnant.solvers.kkt.paper import LOGARITHMIC, RANGES

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


PAPERS: Mapping[str, Space] = {
    "kkt": Space(
        axes={
            name: Range(low=low, high=high, log=name in LOGARITHMIC)
            for name, (low, high) in RANGES.items()
        },
        fixed={"preset": "paper"},
    ),
}
DEFAULT: Mapping[str, Space] = {
    "kkt": Space(
        axes={
            "range_weight": Range(low=3.0, high=30.0, log=True),
            "whiten": Range(low=0.2, high=1.1),
            "inner_rank": Choice((20, 40, 80)),
            "lambda_min": Choice((0.0, 1e-3)),
            "tv_weight": Choice((0.0, 1e-5, 1e-4)),
        }
    ),
    "ntk": Space(
        axes={
            "features": Choice(("initial", "final")),
            "steps": Range(low=200, high=1600, log=True, integer=True),
        },
        fixed={"preset": "projected"},
    ),
    "gradient": Space(
        axes={
            "walkers": Range(low=8, high=128, log=True, integer=True),
            "patience": Range(low=2, high=12, integer=True),
        }
    ),
    "glm": Space(axes={"attempts": Range(low=1, high=16, integer=True)}),
    "informed": Space(
        axes={"shadows": Range(low=500, high=8000, log=True, integer=True)},
        fixed={"method": "ridge"},
    ),
}
NAMED: Mapping[str, Mapping[str, Space]] = {"papers": PAPERS, "default": DEFAULT}


def fields_of(name: str) -> list[str]:
    """The names of an attack's hyperparameters."""
    kind = ATTACKS.get(name) if isinstance(name, str) else None
    if kind is None:
        raise InputError(expected("attack", f"one of {', '.join(ATTACKS)}", brief(name)))
    return [one.name for one in fields(cast(Any, kind))]


def check_fields(attack: str, names: Sequence[str]) -> None:
    known = fields_of(attack)
    for name in names:
        if name not in known:
            raise InputError(
                expected(f"field of {attack}", f"one of {', '.join(known)}", brief(name))
            )


def attack_with(name: str, settings: Mapping[str, Any]) -> Attack:
    check_fields(name, list(settings))
    return make_attack(name, settings)


def read_space(attack: str, given: str | Mapping[str, Any]) -> Space:
    """A named space for that attack, or one's own."""
    known = fields_of(attack)
    if isinstance(given, str):
        spaces = NAMED.get(given)
        if spaces is None:
            wanted = f"{', '.join(NAMED)} or fields of the attack"
            raise InputError(expected("space", wanted, brief(given)))
        if attack not in spaces:
            wanted = f"one for {', '.join(spaces)}"
            do = f"or give fields of {attack}: {', '.join(known)}"
            raise InputError(expected(f"space {given}", wanted, f"{attack}", do))
        return spaces[attack]
    if not isinstance(given, Mapping) or not given:
        raise InputError(expected("space", "a name, or at least one field", brief(given)))
    check_fields(attack, list(given))
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
