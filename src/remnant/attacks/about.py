"""What an attack's own file says of it besides how it runs; verbs, audits and searches read it.

`About` holds the words and the flags, `Scene` is what an attack may know of an audit before it is
played. Neither ever holds a record that the attack is to find.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field, FiniteFloat, StrictBool, StrictInt
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.models.linear_model import LinearModel
from remnant.solvers.layers import Pair, first_pair
from remnant.types import Candidates, Examples, Target

Scalar = float | int | str | bool | None


@checked_dataclass(frozen=True, kw_only=True)
class Range:
    """Numbers from low to high, both included; `log`: every factor is as likely as another."""

    low: StrictInt | FiniteFloat
    high: StrictInt | FiniteFloat
    log: StrictBool = False
    integer: StrictBool = False

    def __post_init__(self) -> None:
        if not self.low < self.high or (self.log and self.low <= 0):
            wanted = "low below high" + (", both positive" if self.log else "")
            raise InputError(expected("range", wanted, f"{self.low} and {self.high}"))
        if self.integer and (self.low != int(self.low) or self.high != int(self.high)):
            raise InputError(expected("range", "whole numbers", f"{self.low} and {self.high}"))

    @property
    def ends(self) -> tuple[Scalar, ...]:
        whole = int if self.integer else float
        return whole(self.low), whole(self.high)


@checked_dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: Annotated[tuple[Scalar, ...], Field(min_length=1)]

    @property
    def ends(self) -> tuple[Scalar, ...]:
        return self.values


Axis = Range | Choice


@dataclass(frozen=True, kw_only=True)
class Space:
    """axes: what is varied. fixed: fields that the axes only make sense with."""

    axes: Mapping[str, Axis]
    fixed: Mapping[str, Scalar] = field(default_factory=dict)


HELD = ("model", "records", "public", "mean", "std", "bounds", "shape")  # what most may hold
LINEAR = "it is a linear model, without hidden layers"


def setting(default: Any, words: str, *, flag: str | bool = True) -> Any:
    """A field of an attack: its default and what `--help` says of it.

    flag: another name on the command line; False where only a file can set it.
    """
    return dataclasses.field(default=default, metadata={"help": words, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of an attack is expected to take: billions of multiply-adds, and bytes."""

    work: float
    memory: float


def in_steps(work: float, least: float = 0.03) -> float:
    """The work of one step, in billions of multiply-adds; `least`: those in the time that any step
    takes, however small."""
    return max(work, least)


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """What an audit tells an attack beforehand: the target, how many records were trained on, by
    which loss, whether their labels are numbers rather than classes, and of texts how many tokens
    all of them have to predict."""

    target: Target
    records: int
    loss: str
    regression: bool = False
    tokens: int | None = None

    @property
    def linear(self) -> bool:
        return isinstance(self.target.model, LinearModel)

    @property
    def batch_norm(self) -> bool:
        kinds = nn.modules.batchnorm._BatchNorm
        return any(isinstance(module, kinds) for module in self.target.model.modules())

    @property
    def parameters(self) -> int:
        return sum(p.numel() for p in self.target.model.parameters())


@dataclass(frozen=True, kw_only=True)
class LeaveOne:
    """For an adversary who knows every record but one: an audit leaves records out in turn.

    most: how many of them unless told otherwise. target: what the adversary holds, given the
    audited target, the known records, the label of the one left out, and its number in the turn.
    last_alone: whether only the last record of the training data can be left out.
    """

    most: int
    target: Callable[[Target, Examples, Tensor, int], Target]
    last_alone: Callable[[Target], bool] = lambda target: False


@dataclass(frozen=True, kw_only=True)
class About:
    """An adversary in words, and what of the target's description it is given.

    summary, example: of `remnant reconstruct`. needs, takes: fields of `AttackSpec` that it must or
    may be given. title, holds, defence: for the report.
    missing: the part of Knowledge without which it does not begin, and stronger: what an audit
    without it is advised. counting: settings with which it reads off the number of records.
    leave_one: how an audit plays who knows all records but one. shadows: whether it trains shadow
    models, which may be kept and spread. spaces: what `sweep` may vary, by name.
    limit: where the adversary applies, why it will get little all the same, if that is known.
    """

    summary: str
    example: str
    title: str
    holds: str
    defence: str
    needs: tuple[str, ...] = ("weights",)
    takes: tuple[str, ...] = HELD
    missing: str = ""
    stronger: str = ""
    counting: Mapping[str, Any] | None = None
    leave_one: LeaveOne | None = None
    shadows: bool = False
    spaces: Mapping[str, Space] = field(default_factory=dict)
    limit: Callable[[Scene], str | None] = lambda scene: None


class Attack(Protocol):
    """A frozen dataclass of hyperparameters. It sees the target and a generator, nothing else."""

    about: ClassVar[About]

    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates: ...

    def why_not(self, scene: Scene) -> str | None:
        """Why there is no such adversary here, in a sentence; None where it applies."""
        ...

    def cost(self, scene: Scene) -> Cost:
        """Of one run."""
        ...

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """A target as hard as the scene's that must leak these records, none of them audited."""
        ...


def graph_cost(scene: Scene, factor: float) -> Cost:
    """Of a search through the first two dense layers, d inputs and w neurons: fitted by eye to
    measured runs, which take some `factor` N^2 w multiply-adds."""
    pair, n = first_pair(scene.target.model, after_convolutions=True), scene.records
    w, d = 1, math.prod(scene.target.input_shape)
    if isinstance(pair, Pair):
        w, d = scene.target.weights[pair.first.weight].shape
    return Cost(work=factor * n * n * w * 1e-9, memory=8.0 * (6 * d * w + 40 * n * w + 4 * w * w))
