"""How far records that follow from exact zeros may be off, told without the truth.

All records follow from all duals by one linear solve. A dual is the least-squares solution of its
own zeros: what it leaves on them is the noise of these equations, and their Gram matrix says how
far that noise moves the dual. A dual that is off by a share of another record's mixes so much of
that record into others. Noise of the first layer's change itself comes on top.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.algebra import damped_cholesky
from remnant.solvers.difference.duals import DENSE
from remnant.solvers.difference.problem import Problem
from remnant.solvers.difference.tolerances import TOLERANCES
from remnant.solvers.difference.zeros import Zeros, zeros_below


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
    """n x n: the variance of the share of record j that is mixed into record i."""
    left = problem.span.left
    zero = zeros_below(problem, z, problem.zero)
    noise = problem.noise * (z / problem.span.scale).norm(dim=1)  # on a neuron, if it is even
    least = ((z @ left.T).square() * zero).sum(1) / (zero.sum(1) - problem.count).clamp(min=1)
    variance = torch.maximum(least, noise.square())
    if problem.count > DENSE:  # as if the least direction's were that of all
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
