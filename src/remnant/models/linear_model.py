"""A linear model as a target: its coefficients, and the objective that they are the optimum of."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

import torch
from torch import Tensor, nn

from remnant.errors import InputError, brief, expected
from remnant.types import Scaling

FAMILIES = ("linear", "logistic", "poisson", "gamma", "multinomial")
ClassWeight = Literal["balanced"] | tuple[float, ...] | None


class LinearModel(nn.Module):
    """A dense layer c x d in float64, with what its coefficients are the optimum of."""

    def __init__(
        self,
        family: str,
        coef: Tensor,
        intercept: Tensor | None = None,
        *,
        penalty: float = 0.0,
        penalty_per: str = "total",
        penalise_intercept: bool = False,
        tolerance: float | None = None,
        classes: tuple[int | str, ...] = (),
        class_weight: ClassWeight = None,
        features: tuple[str, ...] = (),
        scaling: Scaling | None = None,
        solver: Mapping[str, Any] | None = None,
        precision: float = 2.0**-53,
    ) -> None:
        super().__init__()
        outputs, inputs = coef.shape
        if intercept is not None and len(intercept) != outputs:
            raise InputError(expected("intercept", f"{outputs} numbers", len(intercept)))
        self.dense = nn.Linear(inputs, outputs, bias=intercept is not None, dtype=torch.float64)
        with torch.no_grad():
            self.dense.weight.copy_(coef)
            if intercept is not None:
                self.dense.bias.copy_(intercept)
        self.requires_grad_(False)
        self.family, self.penalty, self.penalty_per = family, penalty, penalty_per
        self.penalise_intercept, self.tolerance = penalise_intercept, tolerance
        self.classes, self.class_weight, self.features = classes, class_weight, features
        self.scaling, self.solver, self.precision = scaling or Scaling(), solver, precision
        self.check()

    @property
    def reference(self) -> bool:
        """Whether the first class has no coefficients of its own (statsmodels)."""
        return self.family == "multinomial" and len(self.classes) == len(self.dense.weight) + 1

    def forward(self, inputs: Tensor) -> Tensor:
        """The linear outputs n x c, before any link."""
        outputs: Tensor = self.dense(inputs.flatten(1).double())
        return outputs

    def check(self) -> None:
        outputs, inputs = self.dense.weight.shape
        if self.family not in FAMILIES:
            raise InputError(expected("family", " or ".join(FAMILIES), brief(self.family)))
        if self.penalty_per not in ("total", "record"):
            raise InputError(expected("penalty_per", "total or record", brief(self.penalty_per)))
        for name, value in (("penalty", self.penalty), ("tolerance", self.tolerance or 0.0)):
            if not 0 <= value < float("inf"):
                raise InputError(expected(name, "a number from 0 on", value))
        if not all(bool(torch.isfinite(part).all()) for part in self.parameters()):
            raise InputError(expected("coefficients", "finite numbers", "NaN or infinity"))
        sensible = {
            "linear": (0,),
            "poisson": (0,),
            "gamma": (0,),
            "logistic": (2,) if outputs == 1 else (outputs,),
            "multinomial": (outputs, outputs + 1),
        }[self.family]
        if len(self.classes) not in sensible:
            wanted = " or ".join(map(str, sensible))
            what = f"classes of a {self.family} model with {outputs} rows of coefficients"
            raise InputError(expected(what, wanted, len(self.classes)))
        if self.features and len(self.features) != inputs:
            raise InputError(expected("features", f"{inputs} names", len(self.features)))
        if isinstance(self.class_weight, tuple) and len(self.class_weight) != len(self.classes):
            got = len(self.class_weight)
            raise InputError(expected("class_weight", f"{len(self.classes)} numbers", got))
