"""Training recipes: frozen values whose fields are the hyperparameters.

Every loss is a mean over records. Weight decay is the term weight_decay / 2 |theta|^2 of the
objective, on all parameters (coupled, as in torch.optim.SGD). `stop_loss` looks at the loss
without that term: of the whole set for full batches, the mean over an epoch's batches otherwise.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import MISSING, asdict, fields
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, Strict, StrictBool
from pydantic.dataclasses import dataclass

from remnant.errors import InputError, brief, expected, in_one_line
from remnant.training.losses import loss_named


def _known(loss: str) -> str:
    loss_named(loss)
    return loss


# Steps, epochs and records of a batch: a hundred times the longest training of the papers. What
# takes longer cannot be replayed, and a number beyond it is a slip or an attempt.
Count = Annotated[int, Strict(), Field(ge=1, le=10**8)]
Warmup = Annotated[int, Strict(), Field(ge=0)]
Size = Annotated[float, Strict(), Field(gt=0, allow_inf_nan=False)]
Amount = Annotated[float, Strict(), Field(ge=0, allow_inf_nan=False)]
Share = Annotated[float, Strict(), Field(ge=0, lt=1)]
LossName = Annotated[str, AfterValidator(_known)]
Schedule = Literal["constant", "linear", "cosine"]


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class GradientDescent:
    """Full-batch gradient descent with heavy-ball momentum."""

    lr: Size
    steps: Count
    momentum: Share = 0.0
    weight_decay: Amount = 0.0
    loss: LossName = "ce"
    stop_loss: Size | None = None


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class SGD:
    """Mini-batches, shuffled anew each epoch; the last batch may be smaller.

    schedule: how `lr` goes on after `warmup` steps of linear growth: constant, or to 0 at the last
    step, linear or cosine, as the schedulers of transformers have it (and, without warm-up,
    CosineAnnealingLR of PyTorch, stepped with each batch).
    """

    lr: Size
    epochs: Count
    batch_size: Count
    momentum: Share = 0.0
    weight_decay: Amount = 0.0
    loss: LossName = "ce"
    stop_loss: Size | None = None
    schedule: Schedule = "constant"
    warmup: Warmup = 0


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class Adam:
    """Adam; `batch_size` None = full batch. Either steps or epochs; the schedule is as SGD's."""

    steps: Count | None = None
    epochs: Count | None = None
    lr: Size = 1e-3
    betas: tuple[Share, Share] = (0.9, 0.999)
    eps: Size = 1e-8
    batch_size: Count | None = None
    weight_decay: Amount = 0.0
    loss: LossName = "ce"
    stop_loss: Size | None = None
    schedule: Schedule = "constant"
    warmup: Warmup = 0

    def __post_init__(self) -> None:
        if (self.steps is None) == (self.epochs is None):
            got = "neither" if self.steps is None else "both"
            raise InputError(expected(f"{type(self).__name__}: steps or epochs", "one", got))


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class AdamW(Adam):
    """Adam with decoupled decay: weights shrink by lr * weight_decay a step, whatever the gradient;
    the default is PyTorch's."""

    weight_decay: Amount = 1e-2


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class DecayTime:
    """Full-batch descent towards stationarity of the penalised loss (papers 003, 004).

    Steps until sum(lr * weight_decay) reaches `decay_time`: 7.5 is what 1e6 epochs come to in the
    papers. The step grows linearly over `warmup` steps and shrinks by 0.7 whenever the penalised
    loss has risen over `check_every` steps. `steps` is the most that it takes.
    """

    lr: Size = 0.5
    weight_decay: Size = 5e-3
    decay_time: Size = 7.5
    warmup: Warmup = 300
    check_every: Count = 200
    loss: LossName = "ce"
    steps: Count = 1_000_000


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class LossProportional:
    """Full-batch descent far past separation, for a small first layer and no decay (paper 003).

    The gradient of a separated classifier shrinks with its loss, so that the step may grow as
    1 / loss: `lr` while the loss is `threshold` or more, lr / loss below. A step that would raise
    the loss by more than 2% is taken back and halved, and so are the next, until 70 good ones have
    doubled them again. `steps` is the most that it takes.
    """

    lr: Size = 0.02
    stop_loss: Size = 1e-6
    threshold: Size = 0.3
    loss: LossName = "bce"
    steps: Count = 100_000


@in_one_line()
@dataclass(frozen=True, kw_only=True)
class PrivateDescent:
    """Noisy gradient descent: DP-GD at a `sampling` of 1, DP-SGD below.

    A step samples each record with probability `sampling`, scales its gradient down to a norm of
    `clip`, adds N(0, (noise clip)^2) to the sum and divides by the expected number of records.
    Momentum and weight decay work on that and cost no privacy. Two controls have no guarantee:
    noise 0 clips only; `clipping` False leaves gradients as they are and adds the same noise.
    """

    lr: Size
    steps: Count
    noise: Amount
    clip: Size = 1.0
    sampling: Annotated[float, Strict(), Field(gt=0, le=1)] = 1.0
    clipping: StrictBool = True
    momentum: Share = 0.0
    weight_decay: Amount = 0.0
    loss: LossName = "ce"


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
    return RECIPES[name](**values)


def rate_share(recipe: Recipe, step: int, total: int) -> float:
    """By what the recipe's schedule multiplies `lr` in that step, from 0, of so many."""
    if not isinstance(recipe, SGD | Adam):
        return 1.0
    if step < recipe.warmup:
        return step / recipe.warmup
    along = (step - recipe.warmup) / max(1, total - recipe.warmup)
    falls = {"linear": 1 - along, "cosine": (1 + math.cos(math.pi * along)) / 2}
    return max(0.0, falls.get(recipe.schedule, 1.0))
