"""A linear model as a target: its coefficients, and the objective that they are the optimum of."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Annotated, Any, Literal

import torch
from pydantic import ConfigDict, Field, PlainValidator, StrictBool, validate_call
from torch import Tensor, nn

from remnant.errors import InputError, expected, one_fault
from remnant.types import Scaling
from remnant.untrusted.files import shown

FORMAT = "remnant.linear/1"
Recipe = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Fits again: inputs n x d, labels n, weights n or None -> coefficients c x d, bias last if any."""
CLASSES: Mapping[str, Callable[[int], tuple[int, ...]]] = {
    "linear": lambda rows: (0,),
    "poisson": lambda rows: (0,),
    "gamma": lambda rows: (0,),
    "logistic": lambda rows: (2,) if rows == 1 else (rows,),
    "multinomial": lambda rows: (rows, rows + 1),  # the first class may have no row of its own
}
"""Families, and how many classes go with so many rows of coefficients."""


def _numbers(value: object) -> Tensor:
    try:
        found = torch.as_tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
        found = torch.full((), torch.nan)
    if not bool(torch.isfinite(found).all()):
        raise ValueError("finite numbers in even rows")
    return found


def _class_weight(value: object) -> object:
    known = value is None or (isinstance(value, str) and value == "balanced")
    return value if known else tuple(_numbers(value).reshape(-1).tolist())


def _names(value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(v, str) or (isinstance(v, int) and abs(v) < 2**63) for v in value
    ):
        raise ValueError("a list of names or whole numbers")
    if len(set(value)) != len(value):
        raise ValueError("different ones")
    return tuple(value)


def _scaling(value: object) -> Scaling | None:
    if value is None or isinstance(value, Scaling):
        return value
    if not isinstance(value, Mapping) or set(value) != {"mean", "scale"}:
        raise ValueError("mean and scale")
    mean, scale = (_numbers(value[name]) for name in ("mean", "scale"))
    if max(mean.ndim, scale.ndim) > 1:
        raise ValueError("one number each, or one a feature")
    return Scaling(mean=mean, std=scale)


def _solver(value: object, *, most: int = 10**7) -> object:
    """How the model was fitted: plain values, as they are given to an estimator again.

    most: iterations of a solver; no fit of a linear model takes more.
    """
    if not isinstance(value, Mapping | None):
        raise ValueError("an object")
    told = value or {}
    settings, iterations = told.get("parameters", {}), told.get("iterations", 0)
    plain = (bool, int, float, str, type(None))
    if not isinstance(settings, Mapping) or not all(
        isinstance(v, plain) for v in settings.values()
    ):
        raise ValueError("plain values as parameters")
    if type(iterations) is not int or not 0 <= iterations < most:
        raise ValueError(f"0 to {most} iterations")
    return value


Numbers = Annotated[Tensor, PlainValidator(_numbers)]
Size = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Names = Annotated[tuple[Any, ...], PlainValidator(_names)]


class LinearModel(nn.Module):
    """A dense layer c x d in float64, with what its coefficients are the optimum of.

    The arguments are the fields of a file (`remnant.models.linear_files`), and are checked here.
    """

    @one_fault(show=shown)
    @validate_call(config=ConfigDict(arbitrary_types_allowed=True))
    def __init__(
        self,
        family: Literal["linear", "logistic", "poisson", "gamma", "multinomial"],
        coef: Numbers,
        intercept: Numbers | None = None,
        *,
        penalty: Size = 0.0,
        penalty_per: Literal["total", "record"] = "total",
        penalise_intercept: StrictBool = False,
        tolerance: Size | None = None,
        classes: Names = (),
        class_weight: Annotated[Any, PlainValidator(_class_weight)] = None,
        features: Names = (),
        scaling: Annotated[Scaling | None, PlainValidator(_scaling)] = None,
        solver: Annotated[Any, PlainValidator(_solver)] = None,
        precision: float = 2.0**-53,
    ) -> None:
        super().__init__()
        scaling = scaling or Scaling()
        coef = coef[None] if coef.ndim == 1 else coef
        if coef.ndim != 2 or not coef.numel():
            shape = tuple(coef.shape[:8])
            raise InputError(expected("coef", "d numbers or c x d", f"shape {shape}"))
        rows, inputs = coef.shape
        biases = 0 if intercept is None else intercept.numel()
        counts = {
            "intercept": (biases, (0, rows) if intercept is None else (rows,), "numbers"),
            f"classes of a {family} model with {rows} rows of coefficients": (
                len(classes), CLASSES[family](rows), "names"),
            "features": (len(features), (0, inputs), "names"),
            "class_weight": (
                len(class_weight) if isinstance(class_weight, tuple) else 0,
                (0, len(classes)), "numbers"),
            "scaling: mean": (scaling.mean.numel(), (1, inputs), "numbers"),
            "scaling: scale": (scaling.std.numel(), (1, inputs), "numbers"),
        }  # fmt: skip
        for what, (got, right, of) in counts.items():
            if got not in right:
                raise InputError(expected(what, f"{' or '.join(map(str, right))} {of}", got))
        self.dense = nn.Linear(inputs, rows, bias=intercept is not None, dtype=torch.float64)
        with torch.no_grad():
            self.dense.weight.copy_(coef)
            if intercept is not None:
                self.dense.bias.copy_(intercept.reshape(-1))
        self.requires_grad_(False)
        self.family, self.penalty, self.penalty_per = family, penalty, penalty_per
        self.penalise_intercept, self.tolerance = penalise_intercept, tolerance
        self.classes, self.class_weight = classes, class_weight
        self.features = tuple(map(str, features))
        self.scaling, self.solver, self.precision = scaling, solver, precision

    @property
    def reference(self) -> bool:
        """Whether the first class has no coefficients of its own (statsmodels)."""
        return self.family == "multinomial" and len(self.classes) == len(self.dense.weight) + 1

    def forward(self, inputs: Tensor) -> Tensor:
        """The linear outputs n x c, before any link."""
        outputs: Tensor = self.dense(inputs.flatten(1).double())
        return outputs
