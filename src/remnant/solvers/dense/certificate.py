"""Which recovered records are right, told without the truth.

If all n duals are determined by their exact zeros (`zeros_of`), the records follow from them by a
linear solve. Then three witnesses have to agree: the record; its dual, since neurons that the
record leaves silent must have learned nothing from it and neurons that it fires must have; and the
point that the search found from the *next* layer's change, which has to contain the features that
the record fires. If some duals are missing, records are estimates from the next layer alone, and
the dual, which comes from the first layer, has to agree with each more closely.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.dense.duals import Zeros, determined_by, zeros_below, zeros_of
from remnant.solvers.dense.problem import Problem
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import damped_cholesky


@dataclass(frozen=True, kw_only=True, eq=False)
class Certificate:
    """The checks of k records: one entry each, but for `exact` and `residual`, which are of all
    together."""

    zero_but_firing: Tensor  # share of its dual's zeros that the record fires
    silent_but_active: Tensor  # share of its silent neurons that the dual moves
    doubtful: Tensor  # k, bool: record, dual and point contradict each other
    passed: Tensor  # k, bool: certified
    exact: bool  # all duals were found, and each is determined
    residual: float | None  # of the first layer's change, once duals are zero where silent
    error: Tensor  # squared, to expect of the record (L2, in the model's scale)
    foreign: Tensor | None  # of its features to the next layer's change; none if that is the output


def certify(
    problem: Problem, records: Tensor, z: Tensor, points: Tensor, error: Tensor | None = None
) -> Certificate:
    """Checks records (k x (d+1), the last entry 1) against their duals z and the points of the
    search (both k x n).

    error: k, the squared errors to expect of records that are estimates; None if all n duals were
    found and the records follow from them.
    """
    y = records @ problem.span.right.T
    exact_zeros = zeros_of(problem, z, problem.not_firing(y))
    sure = determined_by(problem, exact_zeros)
    dual = (z @ problem.span.left.T).abs()
    zero, firing = dual < problem.zero, problem.start_margin(y) > 0.02
    active, silent = dual > max(0.03, problem.zero), problem.margin(y) < -0.1
    zeros, silents = zero.sum(1).double(), silent.sum(1).double()
    zero_but_firing = (zero & firing).sum(1).double()
    silent_but_active = (active & silent).sum(1).double()
    # Two neurons are always forgiven, for narrow layers.
    agrees = (zero_but_firing <= (TOLERANCES.firing * zeros).clamp(min=2)) & (
        silent_but_active <= (TOLERANCES.active * silents).clamp(min=2)
    )
    foreign = foreign_features(problem, y)
    near = distance_to_points(problem, y, points) < TOLERANCES.far
    if problem.signals is not None:  # points of a single hidden layer are too rough a witness
        near[:] = True
    doubtful = ~(sure & agrees & near)
    passed = ~doubtful if foreign is None else ~doubtful & ~odd_features(foreign)
    exact = error is None
    if error is None:
        error = squared_errors(problem, records, z, exact_zeros)
        if foreign is not None and len(foreign):  # a share of another record, told by features
            told = foreign > TOLERANCES.odd * foreign.median()
            error = torch.where(told, error.maximum(foreign * spread_of(y)), error)
        many = bool(sure.all()) and float(passed.double().mean()) >= TOLERANCES.most
        passed = passed & torch.tensor(many)
    else:
        close = zero_but_firing <= (TOLERANCES.firing / 2 * zeros).clamp(min=2)
        passed = passed & close
    return Certificate(
        zero_but_firing=zero_but_firing / zeros.clamp(min=1),
        silent_but_active=silent_but_active / silents.clamp(min=1),
        doubtful=doubtful,
        passed=passed & (error < TOLERANCES.sure * spread_of(y)),
        exact=exact and bool(sure.all()),
        residual=unexplained(problem, y, silent) if exact else None,
        error=error,
        foreign=foreign,
    )


def unexplained(problem: Problem, y: Tensor, silent: Tensor) -> float:
    """The share of the first layer's change that records y (n x n) cannot explain.

    Their duals are solved for again from the change, with the neurons that each record leaves
    silent (`silent`, n x w) held at zero, since those learned nothing from it. What then remains is
    unexplained.
    """
    change = problem.span.left * problem.span.scale  # w x n, in the span
    duals = torch.linalg.solve(y.T, change.T)
    left_over = (duals * silent).T @ y
    return float(left_over.norm() / change.norm())


def foreign_features(problem: Problem, y: Tensor) -> Tensor | None:
    """How much of each record's features the next layer's change lacks (k), or None if that layer
    is the output layer.

    Features in a direction in which the change is weak count as lacking. The unit is the median of
    what blends of two neighbouring records lack: a point that is no record lacks about as much.
    """
    if problem.signals is not None:
        return None

    def outside(points: Tensor) -> Tensor:
        return problem.foreign((points @ problem.start.T).clamp(min=0))

    if len(y) < 2:
        return outside(y)
    return outside(y) / outside((y + y.roll(1, 0)) / 2).median()


def odd_features(foreign: Tensor) -> Tensor:
    """k, bool: records whose features the change lacks far more than those of the other records,
    and more than records ever do; or half as much as those of blends of two."""
    if not len(foreign):
        return foreign > 0
    usual = TOLERANCES.odd * float(foreign.median())
    return foreign > min(0.5, max(TOLERANCES.foreign, usual))


def distance_to_points(problem: Problem, y: Tensor, points: Tensor) -> Tensor:
    """k: squared distances between records and the points that the search found for them (both k
    x n), in units of the records' spread."""
    last = problem.span.right[:, -1]
    scaled = points / (points @ last)[:, None]
    return (y - scaled).square().sum(1) / spread_of(y)


def spread_of(y: Tensor) -> float:
    """The median squared distance of records (k x n) from their median."""
    if len(y) < 2:
        return max(float(y.square().sum()), 1e-300)
    return max(float((y - y.quantile(0.5, dim=0)).square().sum(1).quantile(0.5)), 1e-300)


def squared_errors(problem: Problem, records: Tensor, z: Tensor, zeros: Zeros) -> Tensor:
    """n: squared L2 errors to expect of records (n x (d+1), the last entry 1) that follow from
    duals z (n x n) with these zeros; infinite if some duals are missing."""
    span, width = problem.span, len(problem.start)
    if len(z) != problem.count:
        return torch.full((len(z),), torch.inf, dtype=torch.float64)
    own = torch.linalg.pinv(z.T)  # n x n: records in the span are own @ (scale * right)
    last = own @ (span.scale * span.right[:, -1])  # what the rows were divided by
    share = (last[None, :] / last[:, None]).square()  # n x n: of record j in record i
    apart = torch.cdist(records, records).square()
    mixed = (mixtures(problem, own, z, zeros) * share * apart).sum(1)
    noise = own.square().sum(1) / last.square() * problem.noise**2 / width
    size = records.square().sum(1)
    error = torch.nan_to_num(mixed + noise * (records.shape[1] + size), nan=torch.inf)
    return TOLERANCES.safety * error


def mixtures(problem: Problem, own: Tensor, z: Tensor, zeros: Zeros) -> Tensor:
    """n x n: the variance of the share of record j that may be mixed into record i, by what its
    zeros leave open."""
    left = problem.span.left
    zero = zeros_below(problem, z, problem.zero)
    noise = problem.noise * (z / problem.span.scale).norm(dim=1)  # on a neuron, if it is even
    least = ((z @ left.T).square() * zero).sum(1) / (zero.sum(1) - problem.count).clamp(min=1)
    variance = torch.maximum(least, noise.square())
    if problem.count > TOLERANCES.dense:  # as if the least direction's were that of all
        weakest = (zeros.second * zeros.count).clamp(min=1e-300)
        return own.square().sum(1)[:, None] * (variance / weakest)[None]
    columns = []
    for j in range(len(z)):
        rows = left[zero[j]]
        gram = rows.T @ rows + len(rows) * torch.outer(z[j], z[j])  # its length is no unknown
        factor = damped_cholesky(gram[None], 1e-14)[0]
        across = own.T - torch.outer(z[j], own @ z[j])
        columns.append(variance[j] * (across * torch.cholesky_solve(across, factor)).sum(0))
    return torch.stack(columns, dim=1)


def at_least_usual(error: Tensor) -> Tensor:
    """The squared errors (k) that are stated of estimates: an error that came out small by
    chance is raised, so that none is below `safety` times the median."""
    return error.clamp(min=TOLERANCES.safety * float(error.median())) if len(error) else error
