"""Training recipes: frozen values whose fields are the hyperparameters.

Every loss is a mean over records. Weight decay is the term weight_decay / 2 |theta|^2 of the
objective, on all parameters (coupled, as in torch.optim.SGD). `stop_loss` looks at the loss
without that term: of the whole set for full batches, the mean over an epoch's batches otherwise.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Mapping
from dataclasses import MISSING, asdict, dataclass, fields
from typing import Any

from remnant.errors import InputError, brief, expected
from remnant.training.losses import loss_named


@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Full-batch gradient descent with heavy-ball momentum."""

    lr: float
    steps: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    loss: str = "ce"
    stop_loss: float | None = None

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class SGD:
    """Mini-batches, shuffled anew each epoch; the last batch may be smaller.

    schedule: how `lr` goes on after `warmup` steps of linear growth: constant, or to 0 at the last
    step, linear or cosine, as the schedulers of transformers have it (and, without warm-up,
    CosineAnnealingLR of PyTorch, stepped with each batch).
    """

    lr: float
    epochs: int
    batch_size: int
    momentum: float = 0.0
    weight_decay: float = 0.0
    loss: str = "ce"
    stop_loss: float | None = None
    schedule: str = "constant"
    warmup: int = 0

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; `batch_size` None = full batch. Either steps or epochs; the schedule is as SGD's."""

    steps: int | None = None
    epochs: int | None = None
    lr: float = 1e-3
    betas: tuple[float, float] = (0.9, 0.999)
    eps: float = 1e-8
    batch_size: int | None = None
    weight_decay: float = 0.0
    loss: str = "ce"
    stop_loss: float | None = None
    schedule: str = "constant"
    warmup: int = 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "betas", tuple(self.betas))  # JSON brings a list
        _check(self)
        if (self.steps is None) == (self.epochs is None):
            got = "neither" if self.steps is None else "both"
            raise InputError(expected(f"{type(self).__name__}: steps or epochs", "one", got))


@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled decay: weights shrink by lr * weight_decay a step, whatever the gradient;
    the default is PyTorch's."""

    weight_decay: float = 1e-2


@dataclass(frozen=True, kw_only=True)
class DecayTime:
    """Full-batch descent towards stationarity of the penalised loss (papers 003, 004).

    Steps until sum(lr * weight_decay) reaches `decay_time`: 7.5 is what 1e6 epochs come to in the
    papers. The step grows linearly over `warmup` steps and shrinks by 0.7 whenever the penalised
    loss has risen over `check_every` steps. `steps` is the most that it takes.
    """

    lr: float = 0.5
    weight_decay: float = 5e-3
    decay_time: float = 7.5
    warmup: int = 300
    check_every: int = 200
    loss: str = "ce"
    steps: int = 1_000_000

    def __post_init__(self) -> None:
        _check(self)
        if self.weight_decay == 0:
            raise InputError(expected("DecayTime: weight_decay", "more than 0", 0))


@dataclass(frozen=True, kw_only=True)
class LossProportional:
    """Full-batch descent far past separation, for a small first layer and no decay (paper 003).

    The gradient of a separated classifier shrinks with its loss, so that the step may grow as
    1 / loss: `lr` while the loss is `threshold` or more, lr / loss below. A step that would raise
    the loss by more than 2% is taken back and halved, and so are the next, until 70 good ones have
    doubled them again. `steps` is the most that it takes.
    """

    lr: float = 0.02
    stop_loss: float = 1e-6
    threshold: float = 0.3
    loss: str = "bce"
    steps: int = 100_000

    def __post_init__(self) -> None:
        _check(self)


@dataclass(frozen=True, kw_only=True)
class PrivateDescent:
    """Noisy gradient descent: DP-GD at a `sampling` of 1, DP-SGD below.

    A step samples each record with probability `sampling`, scales its gradient down to a norm of
    `clip`, adds N(0, (noise clip)^2) to the sum and divides by the expected number of records.
    Momentum and weight decay work on that and cost no privacy. Two controls have no guarantee:
    noise 0 clips only; `clipping` False leaves gradients as they are and adds the same noise.
    """

    lr: float
    steps: int
    noise: float
    clip: float = 1.0
    sampling: float = 1.0
    clipping: bool = True
    momentum: float = 0.0
    weight_decay: float = 0.0
    loss: str = "ce"

    def __post_init__(self) -> None:
        _check(self)


FixedStep = GradientDescent | SGD | Adam | PrivateDescent
"""Recipes whose steps do not depend on the losses seen."""

Recipe = FixedStep | DecayTime | LossProportional

RECIPES: Mapping[str, type[Recipe]] = {
    "gradient-descent": GradientDescent,
    "sgd": SGD,
    "adam": Adam,
    "adamw": AdamW,
    "decay-time": DecayTime,
    "loss-proportional": LossProportional,
    "private-descent": PrivateDescent,
}


def describe(recipe: Recipe) -> dict[str, Any]:
    """The recipe as JSON values: its name in `RECIPES` and all its fields."""
    name = next(key for key, kind in RECIPES.items() if kind is type(recipe))
    return {"name": name} | {
        key: list(value) if isinstance(value, tuple) else value
        for key, value in asdict(recipe).items()
    }


def recipe_from(description: Mapping[str, Any]) -> Recipe:
    """The recipe that `describe` described."""
    values = dict(description)
    name = values.pop("name", None)
    if not isinstance(name, str) or name not in RECIPES:
        raise InputError(expected("recipe: name", f"one of {', '.join(RECIPES)}", brief(name)))
    known = {field.name: field.default is MISSING for field in fields(RECIPES[name])}
    if (odd := set(values) - set(known)) or {key for key in known if known[key]} - set(values):
        needed = ", ".join(key for key in known if known[key])
        got = brief(sorted(odd)[0]) if odd else f"only {', '.join(values) or 'none'}"
        wanted = f"{needed}, and some of {', '.join(known)}"
        raise InputError(expected(f"recipe {name}: fields", wanted, got))
    try:
        return RECIPES[name](**values)
    except (TypeError, AttributeError, OverflowError):
        got = ", ".join(f"{key} {brief(value)}" for key, value in values.items())
        raise InputError(
            expected(f"recipe {name}", "numbers as values", got, "see docs/informed.md")
        ) from None


SCHEDULES = ("constant", "linear", "cosine")


def rate_share(recipe: Recipe, step: int, total: int) -> float:
    """By what the recipe's schedule multiplies `lr` in that step, from 0, of so many."""
    if not isinstance(recipe, SGD | Adam):
        return 1.0
    if step < recipe.warmup:
        return step / recipe.warmup
    along = (step - recipe.warmup) / max(1, total - recipe.warmup)
    falls = {"linear": 1 - along, "cosine": (1 + math.cos(math.pi * along)) / 2}
    return max(0.0, falls.get(recipe.schedule, 1.0))


_Rule = tuple[str, Callable[[Any], bool]]
_MORE: _Rule = ("more than 0", lambda value: 0 < value < sys.float_info.max)
_SOME: _Rule = ("0 or more", lambda value: 0 <= value < sys.float_info.max)
_SHARE: _Rule = ("at least 0 and below 1", lambda value: 0 <= value < 1)


def _whole(most: int) -> _Rule:
    """A whole number from 1 to `most`, and no bool."""
    return f"a whole number, 1 to {most}", lambda v: type(v) is int and 1 <= v <= most


# Steps, epochs and records of a batch: a hundred times the longest training of the papers. What
# takes longer cannot be replayed, and a number beyond it is a slip or an attempt.
_COUNT = _whole(10**8)
_BETAS: _Rule = (
    "two numbers from 0 to below 1",
    lambda v: len(v) == 2 and 0 <= min(v) <= max(v) < 1,
)
_RULES: Mapping[str, _Rule] = {
    **dict.fromkeys(("lr", "eps", "decay_time", "stop_loss", "threshold", "clip"), _MORE),
    **dict.fromkeys(("weight_decay", "warmup", "noise"), _SOME),
    "sampling": ("more than 0 and at most 1", lambda value: 0 < value <= 1),
    **dict.fromkeys(("steps", "epochs", "batch_size", "check_every"), _COUNT),
    "momentum": _SHARE,
    "schedule": (", ".join(SCHEDULES), lambda value: value in SCHEDULES),
    "clipping": ("true or false", lambda value: isinstance(value, bool)),
    "betas": _BETAS,
}


def _check(recipe: Any) -> None:
    if not isinstance(recipe.loss, str):
        raise InputError(expected("loss", "a name such as ce", brief(recipe.loss)))
    loss_named(recipe.loss)
    for field in fields(recipe):
        value = getattr(recipe, field.name)
        wanted, fits = _RULES.get(field.name, ("", lambda value: True))
        if value is None and field.default is None:
            continue
        if value is None or not fits(value):
            what = f"{type(recipe).__name__}: {field.name}"
            raise InputError(expected(what, wanted, brief(value)))
