"""What an audit is about: the released target, its records, and data that was never trained on."""

from __future__ import annotations

import copy
import math
from dataclasses import dataclass, replace

import torch
from torch import nn

from remnant.attacks import Attack
from remnant.bounds import Ledger
from remnant.capturing import capture
from remnant.data import draw
from remnant.errors import DataError, InputError, expected
from remnant.models import load_weights
from remnant.training import DecayTime, GradientDescent, loss_named, train
from remnant.types import Examples, Knowledge, Target


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """`truth`: the records trained on. `holdout`, `public`: never trained on, disjoint.

    `loss` is the training loss by name.
    `ledger`: of a differentially private training, and the `delta` at which epsilon is told.
    """

    target: Target
    truth: Examples
    holdout: Examples
    public: Examples
    loss: str
    ledger: Ledger | None = None
    delta: float = 1e-5
    assumed: tuple[str, ...] = ()  # what was guessed for want of being told, in sentences

    def __post_init__(self) -> None:
        loss_named(self.loss)
        for name in ("truth", "holdout", "public"):
            examples: Examples = getattr(self, name)
            if math.prod(examples.shape) != math.prod(self.target.input_shape):
                wanted = f"records of shape {self.target.input_shape}"
                raise InputError(expected(f"audit: {name}", wanted, examples.shape))
            if not len(examples):
                raise InputError(expected(f"audit: {name}", "records", "none"))
            empty = [i for i, one in enumerate(examples.ids) if not one.strip()]
            if empty:
                do = "name it, or leave ids out for all"
                got = f"an empty one in row {empty[0]}"
                raise InputError(expected(f"audit: ids of {name}", "a text each", got, do))
        shared: set[bytes] = set()
        for examples in (self.holdout, self.public):
            prints = _prints(examples)
            # Whole numbers and categories coincide, within the set itself too.
            if len(set(prints)) == len(prints):
                shared |= set(prints)
        if shared := shared & set(_prints(self.truth)):
            do = "leave them out: a null must not have been trained on"
            got = f"{len(shared)} of the training set's"
            raise InputError(expected("audit: holdout or public", "other records", got, do))

    @property
    def others(self) -> Examples:
        """Held-out and public records together; ids say which set each is from."""
        twice = torch.equal(self.holdout.inputs.flatten(1), self.public.inputs.flatten(1))
        sets = [self.holdout] if twice else [self.holdout, self.public]
        shape = self.truth.shape
        labels = [part.labels.reshape(len(part), -1).to(self.truth.labels) for part in sets]
        flat = torch.cat(labels)
        return Examples(
            inputs=torch.cat([part.inputs.reshape(-1, *shape) for part in sets]),
            labels=flat[:, 0] if self.truth.labels.ndim == 1 else flat,
            ids=tuple(f"{k} {one}" for k, part in enumerate(sets) for one in part.ids),
            bounds=self.truth.bounds,
            name="strangers",
        )

    @property
    def strangers(self) -> Examples:
        """As many records as were trained on, or all that there are, none of them trained on."""
        both = self.others
        n = min(len(self.truth), len(both))
        seeded = torch.Generator().manual_seed(0)
        try:
            return draw(both, n, generator=seeded, balanced=both.classes > 0)
        except DataError:  # too few of some class: then as they come
            return draw(both, n, generator=seeded, balanced=False)


def halves(examples: Examples) -> tuple[Examples, Examples]:
    """Shuffled first, since files are often sorted by class."""
    order = torch.randperm(len(examples), generator=torch.Generator().manual_seed(0))
    middle = len(examples) // 2
    return examples.take(order[:middle]), examples.take(order[middle:])


def _prints(examples: Examples) -> list[bytes]:
    """Each record in bytes; of images to half a grey level, so that near copies are equal."""
    rows = examples.inputs.flatten(1).double()
    if examples.bounds is not None:
        low, high = examples.bounds
        rows = ((rows - low) / (high - low) * 127).round()
    return [row.tobytes() for row in rows.numpy()]


def fresh_model(model: nn.Module, generator: torch.Generator) -> nn.Module:
    """A copy with new weights: uniform in +-1/sqrt(fan in), PyTorch's own law; norms as made."""
    twin = copy.deepcopy(model)
    for module in twin.modules():
        if isinstance(module, nn.Linear | nn.Conv2d):
            bound = 1 / math.sqrt(module.weight[0].numel())
            for parameter in module.parameters(recurse=False):
                draws = torch.rand(parameter.shape, generator=generator, dtype=torch.float64)
                with torch.no_grad():
                    parameter.copy_((2 * draws - 1) * bound)
    return twin


def twin_of_checkpoints(
    case: Case, attack: Attack, generator: torch.Generator
) -> tuple[Target, Examples]:
    """Trained by us from the same initial weights on other records, so that it must leak."""
    others = case.strangers
    model = copy.deepcopy(case.target.model)
    assert case.target.knowledge.initial is not None
    load_weights(model, dict(case.target.knowledge.initial))
    recipe = GradientDescent(lr=0.05, momentum=0.9, steps=3000, loss=case.loss, stop_loss=0.02)
    trained = train(model, others, recipe, scaling=case.target.scaling, generator=generator)
    knowledge = Knowledge(initial=trained.initial, records=len(others), loss=case.loss)
    return replace(case.target, model=trained.model, knowledge=knowledge), others


def twin_of_gradient(
    case: Case, attack: Attack, generator: torch.Generator
) -> tuple[Target, Examples]:
    """The gradient of as many other records at the same weights."""
    others = case.strangers
    inputs = case.target.scaling.to_model(others.inputs.reshape(-1, *case.target.input_shape))
    inputs = inputs.to(next(case.target.model.parameters()))  # tables may be in double precision
    gradient = capture(case.target.model, case.loss, (inputs, others.labels))
    known = replace(case.target.knowledge, gradient=gradient, labels=None, records=len(others))
    return replace(case.target, knowledge=known), others


def twin_of_weights(
    case: Case, attack: Attack, generator: torch.Generator
) -> tuple[Target, Examples]:
    """Trained by us from fresh weights to stationarity with weight decay, the way that leaks."""
    others = case.strangers
    model = fresh_model(case.target.model, generator)
    recipe = DecayTime(loss=case.loss, lr=0.5 if case.loss in ("ce", "bce") else 0.2)
    trained = train(model, others, recipe, scaling=case.target.scaling, generator=generator)
    told = case.target.knowledge.labels is not None and not others.labels.is_floating_point()
    known = Knowledge(records=len(others), loss=case.loss, labels=others.labels if told else None)
    return replace(case.target, model=trained.model, knowledge=known), others
