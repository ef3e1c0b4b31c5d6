"""The record that is missing from a linear model's training set, in closed form (001, Theorem 1).

At the optimum of sum_i s_i loss(w.x_i + b, y_i) + (penalty |w|^2 + bias_penalty b^2) / 2 the
gradient is zero, and with a canonical link the gradient of one record is s r [x, 1], r being
prediction minus target. So what the known records and the penalty leave over is the missing
record's: with a bias, the record is that remainder divided by its last entry. More outputs
(several targets, classes) give the same record as many times over.

Shapes: n known records, d features, c outputs; `gradient` is c x (d + 1), or c x d without a bias.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Literal

import torch
from scipy.optimize import brentq
from torch import Tensor

from remnant.solvers.numerics import with_one

Family = Literal["linear", "logistic", "poisson", "gamma", "multinomial"]
FAMILIES: tuple[Family, ...] = ("linear", "logistic", "poisson", "gamma", "multinomial")


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    backward: float = 32.0  # a direct solver's rounding over that of storing its result, at most
    # Where no bias tells a record's length: how far around the length at residual one it is looked
    # for, in powers of ten, and at how many points; roots that lie closer together are missed.
    reach: float = 8.0
    points: int = 4000


TOLERANCES = Tolerances()


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """Released coefficients and the objective they minimise: weight c x d, bias c or None.

    `reference`: a multinomial model without coefficients for its first class.
    """

    family: Family
    weight: Tensor
    bias: Tensor | None
    penalty: float = 0.0
    bias_penalty: float = 0.0
    reference: bool = False


@dataclass(frozen=True, kw_only=True, eq=False)
class Record:
    """A record that makes the gradient vanish: input d, target c, residual c.

    misfit: relative disagreement of the residual with the model's own prediction for `target`.
    leftover: the entry of the solver's gradient that the misfits speak of, None without a check.
    amplification: relative error of the input for a gradient that is off by one in each entry.
    """

    input: Tensor
    target: Tensor
    residual: Tensor
    misfit: float
    leftover: float | None
    amplification: float


def means(fit: Fit, inputs: Tensor) -> Tensor:
    """n x c: what the model predicts for inputs n x d.

    Of Gamma regression, whose canonical link is the inverse, the prediction's negative: so its
    residual too is prediction minus target, once targets are negative.
    """
    outputs = inputs @ fit.weight.T + (0.0 if fit.bias is None else fit.bias)
    if fit.family == "multinomial":
        if fit.reference:
            zero = torch.zeros_like(outputs[:, :1])
            return torch.cat([zero, outputs], 1).softmax(1)[:, 1:]
        return outputs.softmax(1)
    if fit.family == "logistic":
        return outputs.sigmoid()
    if fit.family == "gamma":
        return -1 / outputs
    return outputs.exp() if fit.family == "poisson" else outputs


def slopes(fit: Fit, inputs: Tensor) -> Tensor:
    """n x c: the derivative of each prediction by its own output."""
    mean = means(fit, inputs)
    if fit.family == "linear":
        return torch.ones_like(mean)
    if fit.family == "gamma":
        return mean.square()
    return mean if fit.family == "poisson" else mean * (1 - mean)


def widened(fit: Fit, inputs: Tensor) -> Tensor:
    """Inputs with a last column of ones, where the model has a bias."""
    return inputs if fit.bias is None else with_one(inputs)


def coefficients(fit: Fit) -> Tensor:
    return fit.weight if fit.bias is None else torch.cat([fit.weight, fit.bias[:, None]], 1)


def penalties(fit: Fit) -> Tensor:
    """The penalty of each column of the coefficients."""
    each = torch.full((coefficients(fit).shape[1],), fit.penalty, dtype=torch.float64)
    if fit.bias is not None:
        each[-1] = fit.bias_penalty
    return each


def objective_gradient(fit: Fit, inputs: Tensor, targets: Tensor, weights: Tensor) -> Tensor:
    """The objective's gradient over these records: what the missing ones cancel, if any is."""
    residuals = weights[:, None] * (means(fit, inputs) - targets)
    return residuals.T @ widened(fit, inputs) + coefficients(fit) * penalties(fit)


def curvature(fit: Fit, inputs: Tensor, weights: Tensor) -> Tensor:
    """The objective's Hessian in the columns, averaged over the outputs: (d + 1) x (d + 1)."""
    rows = widened(fit, inputs)
    steep = weights * slopes(fit, inputs).mean(1)
    return rows.T @ (rows * steep[:, None]) + penalties(fit).diag()


def rounding(
    fit: Fit,
    inputs: Tensor,
    targets: Tensor,
    weights: Tensor,
    *,
    data_precision: float,
    coefficient_precision: float,
) -> float:
    """How far an entry of the gradient may be off because numbers were stored rounded."""
    moved = curvature(fit, inputs, weights).square() @ coefficients(fit).square().T
    residuals = weights[:, None] * (means(fit, inputs) - targets)
    terms = residuals.square().T @ widened(fit, inputs).square()
    far = TOLERANCES.backward * (data_precision + coefficient_precision) * moved.mean().sqrt()
    return float(far + data_precision * terms.mean().sqrt())


def recover(
    fit: Fit, gradient: Tensor, *, weight: float = 1.0, target: Tensor | None = None
) -> list[Record]:
    """Records of this target (None: whatever the model says) that cancel `gradient`.

    With a bias there is one. Without, the target has to be given, and each length that solves
    the equations is a record (001, Theorem 8: two of them for linear regression).
    """
    if fit.bias is None:
        return [] if target is None else without_bias(fit, gradient, target, weight)
    last = gradient[:, -1]
    size = float(last.square().sum())
    if size == 0.0:
        return []
    return [judge(fit, gradient, gradient[:, :-1].T @ last / size, -last / weight, target, weight)]


def without_bias(fit: Fit, gradient: Tensor, target: Tensor, weight: float) -> list[Record]:
    """Only the direction u of the record is given: z = t u, weight t (mean(t u) - y) + size = 0."""
    left, sizes, right = torch.linalg.svd(gradient, full_matrices=False)
    size, side, along = float(sizes[0]), left[:, 0], right[0]
    if size == 0.0:
        return []

    def off(lengths: Tensor) -> Tensor:
        residuals = means(fit, lengths[:, None] * along) - target
        found: Tensor = weight * lengths * (residuals @ side) + size
        return found

    def off_one(length: float) -> float:
        return float(off(torch.tensor([length], dtype=torch.float64)))

    if fit.family == "linear":
        across = float(weight * (side @ (fit.weight @ along)))
        roots = quadratic(across, -float(weight * (side @ target)), size)
    else:
        reach, points = TOLERANCES.reach, TOLERANCES.points
        lengths = size / weight * torch.logspace(-reach, reach, points, dtype=torch.float64)
        grid = torch.cat([-lengths.flip(0), lengths])
        product = off(grid)[:-1] * off(grid)[1:]
        roots = [
            brentq(off_one, float(grid[i]), float(grid[i + 1]), xtol=1e-300, rtol=1e-14)
            for i in (torch.isfinite(product) & (product < 0)).nonzero()[:, 0].tolist()
        ]
    found = []
    for t in roots:
        record = judge(fit, gradient, t * along, -size * side / (weight * t), target, weight)
        steep = (off_one(t * (1 + 1e-6)) - off_one(t * (1 - 1e-6))) / 2e-6
        length = 1 / max(abs(steep), 1e-300)  # two roots that meet leave the length open
        found.append(replace(record, amplification=max(record.amplification, length)))
    return found


def quadratic(a: float, b: float, c: float) -> list[float]:
    """Real roots of a t^2 + b t + c, in the form that does not cancel; c is not zero."""
    inside = b * b - 4 * a * c
    if inside < 0:
        return []
    far = -(b + math.copysign(math.sqrt(inside), b)) / 2
    return [c / far, *([far / a] if a != 0 else [])]


def judge(
    fit: Fit,
    gradient: Tensor,
    found: Tensor,
    residual: Tensor,
    target: Tensor | None,
    weight: float,
) -> Record:
    """How well the record fits the model, and how far an inexact gradient would move it."""
    own = means(fit, found[None])[0]
    size = float(residual.norm())
    misfit = 0.0 if target is None else float((own - target - residual).norm()) / size
    leftover = off_rank(fit, gradient)
    if leftover is None and target is not None and fit.bias is not None:
        # One output: what the misfit of the target says about the gradient it came from.
        steep = slopes(fit, found[None])[0, 0]
        across = steep * fit.weight[0].norm() / size
        along = steep * (fit.weight[0] @ found) / residual[0] + 1
        leftover = misfit * size * weight / float(torch.hypot(across, along))
    # d z = (e_w - z e_b) / (weight r): each entry of e counts once, or |z| times.
    length = float(found.norm())
    reach = math.sqrt(len(found) + (0.0 if fit.bias is None else length**2))
    return Record(
        input=found,
        target=own - residual if target is None else target,
        residual=residual,
        misfit=misfit,
        leftover=leftover,
        amplification=reach / max(weight * size * length, 1e-300),
    )


def off_rank(fit: Fit, gradient: Tensor) -> float | None:
    """One record makes a gradient of rank one: the size of an entry of what is not."""
    free = len(gradient) - (1 if fit.family == "multinomial" and not fit.reference else 0)
    degrees = (free - 1) * (gradient.shape[1] - 1)
    if degrees < 1:
        return None
    values = torch.linalg.svdvals(gradient)
    return math.sqrt(float(values[1:].square().sum()) / degrees)


def from_mean(
    known: Tensor, mean: Tensor, std: Tensor, tolerance: float = 1e-6
) -> tuple[Tensor, float] | None:
    """The missing record from the mean of all, if the standard deviations agree: (d, misfit).

    A scaler that was fitted on the training set is released with the model: n times its mean
    less the known records is the missing one, and its n variances say whether that holds.
    """
    count = len(known) + 1
    found = count * mean - known.sum(0)
    rows = torch.cat([known, found[None]])
    spread = (rows - mean).square().mean(0)
    moving = spread > 1e-12 * rows.square().mean(0)  # scalers put 1 for a constant feature
    if not bool(moving.any()):
        return None
    misfit = float((spread / std.square() - 1)[moving].abs().max())
    # A scaler of the known records alone would fit to about one part in their number.
    return (found, misfit) if misfit <= min(tolerance, 0.01 / count) else None
