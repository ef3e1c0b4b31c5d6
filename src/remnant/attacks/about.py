"""What each attack's file tells the rest of the program about the attack, besides running it.

`About` is the attack in words, the flags that it takes and what a search may vary; the command
line, reports, audits and sweeps are made from it. `Scene` is the reverse: what an audit tells an
attack before it is played. Neither ever holds a record that the attack is to find.
"""

from __future__ import annotations

import copy
import dataclasses
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache, partial
from typing import Annotated, Any, ClassVar, Protocol

import torch
from pydantic import Field, FiniteFloat, StrictBool, StrictInt
from pydantic.dataclasses import dataclass as checked_dataclass
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.models.folding import fold
from remnant.models.linear_model import LinearModel
from remnant.solvers.layers import Pair, first_pair
from remnant.training.recipes import DecayTime, GradientDescent
from remnant.training.run import train
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
        """The lowest and the highest value, of the type that the field takes."""
        whole = int if self.integer else float
        return whole(self.low), whole(self.high)


@checked_dataclass(frozen=True)
class Choice:
    """One of these values."""

    values: Annotated[tuple[Scalar, ...], Field(min_length=1)]

    @property
    def ends(self) -> tuple[Scalar, ...]:
        """All the values."""
        return self.values


Axis = Range | Choice


@dataclass(frozen=True, kw_only=True)
class Space:
    """What a search may vary of an attack's settings.

    axes: setting -> the values it may take. fixed: settings that hold in every trial because the
    axes only make sense with them, such as the preset that reads them.
    """

    axes: Mapping[str, Axis]
    fixed: Mapping[str, Scalar] = field(default_factory=dict)


HELD = ("model", "records", "public", "mean", "std", "bounds", "shape")  # what most may hold
LINEAR = "it is a linear model, without hidden layers"


def setting(default: Any, words: str, *, flag: str | bool = True) -> Any:
    """A field of an attack's dataclass: its default, and the words that `--help` shows for it.

    flag: another name for it on the command line; False where only a file or Python can set it.
    """
    return dataclasses.field(default=default, metadata={"help": words, "flag": flag})


@dataclass(frozen=True, kw_only=True)
class Cost:
    """What one run of an attack is expected to take, in CPU seconds and bytes.

    most: after so many seconds it has given up, None where it ends in about the time expected.
    twin: seconds to make the control's target.
    """

    seconds: float
    memory: float
    most: float | None = None
    twin: float = 0.0


@cache
def billions_a_second() -> float:
    """Billions of multiply-adds that this machine does in a second, by a probe of some 50 ms."""
    a = torch.rand(512, 512)
    a @ a
    begun, done = time.process_time(), 0  # as a budget counts, whatever else is running
    while done < 4 or time.process_time() - begun < 0.05:
        a @ a
        done += 1
    return done * 512**3 * 1e-9 / (time.process_time() - begun)


def seconds_of(work: float, least: float = 0.0) -> float:
    """CPU seconds that so many billions of multiply-adds take here; least: those in the time that
    any step takes, however small."""
    return max(work, least) / billions_a_second()


STEP = 0.03  # `least` of a step of training or of a search


def measured(run: Callable[[], object], slow: float = 2.0) -> float:
    """CPU seconds that it takes, once. The first call also loads and sets up what later ones find
    there, so that one which took less than `slow` seconds is made again."""
    taken = slow
    for _ in range(2):
        begun = time.process_time()
        run()
        taken = time.process_time() - begun
        if taken >= slow:
            break
    return taken


@dataclass(frozen=True, kw_only=True, eq=False)
class Scene:
    """What an audit tells an attack before it is played.

    records: how many were trained on. loss: by which loss. regression: labels are numbers, not
    classes. tokens: of texts, how many tokens all of them together have to predict; None for other
    data.
    """

    target: Target
    records: int
    loss: str
    regression: bool = False
    tokens: int | None = None

    @property
    def linear(self) -> bool:
        """Whether the target is a linear model, without hidden layers."""
        return isinstance(self.target.model, LinearModel)

    @property
    def batch_norm(self) -> bool:
        """Whether batch norm stands anywhere in the network."""
        kinds = nn.modules.batchnorm._BatchNorm
        return any(isinstance(module, kinds) for module in self.target.model.modules())

    @property
    def parameters(self) -> int:
        """How many numbers the model has."""
        return sum(p.numel() for p in self.target.model.parameters())


@dataclass(frozen=True, kw_only=True)
class LeaveOne:
    """How an audit plays an adversary who knows every record but one: it leaves records out in
    turn.

    most: how many are left out unless the user says otherwise. target: makes what the adversary
    holds out of the audited target, the known records, the label of the record left out, and its
    number in the turn. last_alone: whether only the last record of the training data can be left
    out, because the order of the others matters.
    """

    most: int
    target: Callable[[Target, Examples, Tensor, int], Target]
    last_alone: Callable[[Target], bool] = lambda target: False


@dataclass(frozen=True, kw_only=True)
class About:
    """An adversary in words, and which parts of a target's description it is given.

    summary, example: shown by `remnant reconstruct --help`. title, holds, defence: shown by the
    report. needs, takes: fields of `AttackSpec` that must or may be given. missing: the field of
    `Knowledge` without which the attack does not apply; stronger: what an audit that lacks it
    advises to add. counting: settings under which it reads off the number of records by itself.
    leave_one: how an audit plays it, if it knows all records but one. shadows: it trains shadow
    models, which may be kept and spread over machines. spaces: name -> what `sweep` may vary.
    limit: for a target on which the attack applies, a sentence on why it will get little all the
    same, or None.
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
    """A frozen dataclass of hyperparameters, called with a target. It sees the target and a
    source of random numbers, nothing else, so that it cannot choose its answer by a score
    against the truth."""

    about: ClassVar[About]

    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        """The candidates found, with a status and a reason; an attack that cannot work here says so
        in these and raises nothing."""
        ...

    def why_not(self, scene: Scene) -> str | None:
        """Why there is no such adversary here, in a sentence; None where it applies."""
        ...

    def cost(self, scene: Scene) -> Cost:
        """What one run is expected to take; an audit shows it beforehand and keeps to its time
        limit with it."""
        ...

    def twin(self, scene: Scene, strangers: Examples, generator: torch.Generator) -> Target:
        """The control: a target of the same kind and size that was trained on these strangers,
        none of them audited, so that it must leak them. An attack that fails on its twin says
        nothing about the audited model."""
        ...


def pass_seconds(scene: Scene, count: int, most: int = 16) -> float:
    """CPU seconds that the model takes for so many records, forward and back, by a pass of no more
    than `most`."""
    model, some = copy.deepcopy(scene.target.model).eval(), min(count, most)
    inputs = next(model.parameters()).new_zeros(some, *scene.target.input_shape)
    inputs.requires_grad_()
    return measured(lambda: model(inputs).sum().backward()) * count / some


def training_seconds(
    scene: Scene, recipe: GradientDescent | DecayTime, steps: int, tried: int = 10
) -> float:
    """CPU seconds that so many steps of the recipe take, of which `tried` are done on noise."""
    shape = (scene.records, *scene.target.input_shape)
    if scene.regression or scene.tokens is not None:
        return steps * pass_seconds(scene, scene.records)
    noise = Examples(
        inputs=torch.rand(shape, generator=torch.Generator().manual_seed(0)),
        labels=torch.arange(scene.records) % 2,
        ids=tuple(map(str, range(scene.records))),
    )
    short = replace(recipe, steps=tried)
    chance = torch.Generator().manual_seed(0)
    scaling = scene.target.scaling
    run = partial(train, scene.target.model, noise, short, scaling=scaling, generator=chance)
    return measured(run) * steps / tried


def graph_cost(
    scene: Scene, factor: float, barren: Callable[[int, int], float] | None = None
) -> Cost:
    """Of a search through the first two dense layers, d inputs and w neurons: fitted by eye to
    measured runs, which take some `factor` N^2 w multiply-adds.

    barren: multiply-adds, by w and N, after which a search that finds nothing gives up.
    """
    model = scene.target.model
    folding = fold(model)
    model = model if folding is None else folding.model
    pair = first_pair(model, after_convolutions=True)
    n, w, d = scene.records, 1, math.prod(scene.target.input_shape)
    if isinstance(pair, Pair):
        w, d = model.get_parameter(pair.first.weight).shape
    seconds = seconds_of(factor * n * n * w * 1e-9)
    most = None
    if barren is not None:
        most = max(2 * seconds, seconds + seconds_of(barren(w, n) * 1e-9))
    return Cost(seconds=seconds, memory=8.0 * (6 * d * w + 40 * n * w + 4 * w * w), most=most)


def reflections(rounds: int, iterations: int = 900) -> Callable[[int, int], float]:
    """Multiply-adds of so many rounds of 32 points that find no record among two checkpoints: their
    reflections, after which the points are refined, which takes as long again."""
    return lambda w, n: 2.0 * rounds * iterations * 32 * (w * w + 6 * n * w)
