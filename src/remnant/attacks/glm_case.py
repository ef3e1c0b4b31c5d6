"""The equations that `glm` solves: known records in the model's scale, and all that weighs them."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.models.linear_model import LinearModel
from remnant.solvers.glm.closed_form import Fit, objective_gradient, rounding
from remnant.types import Target


@dataclass(frozen=True, eq=False)
class Found:
    """One explanation of the coefficients: a record and how far to trust it.

    input: d entries in the model's scale. label: its class, None where it is a number. target: c
    numbers that the outputs' means were compared with, None if not told. error: relative error to
    expect. misfit: by how much the record's residual contradicts its label. through: which way it
    was found, in words.
    """

    input: Tensor
    label: int | None
    target: Tensor | None  # None where the label could not be told
    error: float
    misfit: float
    through: str


@dataclass(frozen=True, kw_only=True, eq=False)
class Case:
    """The equations of a fit with one record missing: the known records and everything that weighs
    them.

    inputs: n x d in the model's scale. targets: n x c, what the outputs' means are compared with.
    precision, rounding: of the released coefficients, relative and in the gradient. missing: how
    many records are unknown.
    """

    model: LinearModel
    inputs: Tensor  # n x d
    known_labels: Tensor  # n, or n x c
    targets: Tensor  # n x c
    sample_weights: Tensor | None  # n + 1, the missing record's last
    missing_label: Tensor | None  # where the adversary knows it
    precision: float
    missing: int = 1
    rounding: float = 0.0

    @property
    def bias(self) -> Tensor | None:
        return cast(Tensor | None, self.model.dense.bias)

    def labels(self) -> list[int | None]:
        """What the missing record's label may be; None where it is a number to be solved for."""
        if not self.model.classes:
            return [None]
        if self.missing_label is not None:
            return [int(self.missing_label)]
        return [*codes(self.model)]

    def encode(self, label: int) -> Tensor:
        """A class as the numbers (c) that the outputs' means are compared with."""
        return encoded(self.model, torch.tensor([label]))[0]

    def middle(self, label: int) -> Tensor:
        """The mean of the known records of this label, or of all if none has it: d."""
        same = self.inputs[self.known_labels == label]
        return (same if len(same) else self.inputs).mean(0)

    def factors(self, label: int | None) -> Tensor:
        """The weight (n) of each known record in the fit, if the missing one has this label:
        sample weights times class weights, which under "balanced" depend on all labels."""
        return self._all_factors(label)[: len(self.inputs)]

    def weight(self, label: int | None) -> float:
        """The missing record's own weight in the fit, if it has this label."""
        return float(self._all_factors(label)[-1])

    def _all_factors(self, label: int | None) -> Tensor:
        count = len(self.inputs) + max(1, self.missing)
        each = torch.ones(count, dtype=torch.float64)
        if self.sample_weights is not None:
            each = self.sample_weights
        by_class = self.model.class_weight
        if by_class is None or label is None:
            return each
        classes = torch.tensor(codes(self.model))
        labels = torch.cat([self.known_labels, torch.full((self.missing,), label)])
        index = (labels[:, None] == classes).long().argmax(1)
        if by_class == "balanced":
            held = torch.bincount(index, weights=each, minlength=len(classes))
            table = each.sum() / (len(classes) * held)
        else:
            table = torch.tensor(by_class, dtype=torch.float64)
        return each * table[index]

    def fit(self, label: int | None) -> Fit:
        """The optimisation problem whose solution the coefficients are, if the missing record
        has this label."""
        model = self.model
        total = float(self._all_factors(label).sum()) if model.penalty_per == "record" else 1.0
        penalty = model.penalty * total
        return Fit(
            family=model.family,
            weight=model.dense.weight.detach(),
            bias=self.bias,
            penalty=penalty,
            bias_penalty=penalty if model.penalise_intercept else 0.0,
            reference=model.reference,
        )

    def gradient(self, label: int | None) -> Tensor:
        """The gradient of that problem over the known records at the released coefficients; the
        missing record's cancels it."""
        return objective_gradient(self.fit(label), self.inputs, self.targets, self.factors(label))

    def stated(self, label: int | None) -> float | None:
        """The largest entry of the gradient at which the solver says that it stops; None where
        it says nothing."""
        if self.model.tolerance is None:
            return None
        return self.model.tolerance * float(self._all_factors(label).sum())

    def decode(self, found: list[Found]) -> Tensor:
        """Labels of the records found, in the coding of the known records' labels."""
        if self.model.classes:
            return torch.tensor([cast(int, f.label) for f in found])
        values = torch.stack([f.target for f in found if f.target is not None])
        values = -values if self.model.family == "gamma" else values
        if not self.known_labels.is_floating_point():
            return values[:, 0].round().long()
        return values if self.known_labels.ndim == 2 else values[:, 0]


def codes(model: LinearModel) -> list[int]:
    """The classes as integers: themselves where all are whole numbers, else their positions in
    the model's list."""
    whole = [c for c in model.classes if isinstance(c, int)]
    return whole if len(whole) == len(model.classes) else list(range(len(model.classes)))


def encoded(model: LinearModel, labels: Tensor) -> Tensor:
    """Labels as n x c numbers that the outputs' means are compared with: one-hot, 0 and 1, or
    the labels themselves."""
    outputs = len(model.dense.weight)
    if not model.classes:
        values = labels.double().reshape(len(labels), outputs)
        return -values if model.family == "gamma" else values
    table = (labels[:, None] == torch.tensor(codes(model))).double()
    return table[:, table.shape[1] - outputs :]  # without a first class that is the reference


def pose(target: Target, weights: tuple[float, ...] | None) -> Case | str:
    """The equations, or the assumption that is not met."""
    model, known = target.model, target.knowledge.known
    if not isinstance(model, LinearModel):
        return f"the model has to be a LinearModel, it is a {type(model).__name__}"
    if known is None or not len(known):
        return "the other training records are unknown; give --known"
    if known.shape != target.input_shape:
        raise InputError(expected("known records", f"n x {target.input_shape}", known.shape))
    check_labels(model, known.labels)
    count = max(target.knowledge.records or 0, len(known) + 1)
    if weights is not None and (len(weights) != count or min(weights) < 0):
        wanted = f"{count} numbers from 0 on, the missing record's last"
        raise InputError(expected("weights", wanted, len(weights)))
    labels, given = known.labels, target.knowledge.labels
    case = Case(
        model=model,
        inputs=target.scaling.to_model(known.inputs.double()).flatten(1),
        known_labels=labels,
        targets=encoded(model, labels),
        sample_weights=None if weights is None else torch.tensor(weights, dtype=torch.float64),
        missing_label=None if given is None else given.reshape(-1, *labels.shape[1:])[0],
        precision=2.0**-24 if known.inputs.dtype == torch.float32 else 2.0**-53,
        missing=(target.knowledge.records or len(known) + 1) - len(known),
    )
    if case.missing != 1:
        return case
    label = case.labels()[0]
    size = rounding(
        case.fit(label),
        case.inputs,
        case.targets,
        case.factors(label),
        data_precision=case.precision,
        coefficient_precision=model.precision,
    )
    return replace(case, rounding=size)


def check_labels(model: LinearModel, labels: Tensor) -> None:
    outputs = len(model.dense.weight)
    if model.classes:
        strange = sorted(set(labels.long().tolist()) - {*codes(model)})
        if strange or labels.is_floating_point():
            wanted = f"integers among {sorted(codes(model))}"
            raise InputError(expected("known labels", wanted, strange or labels.dtype))
    elif labels.numel() != len(labels) * outputs:
        got = f"shape {tuple(labels.shape)}"
        raise InputError(expected("known labels", f"n x {outputs} numbers", got))
