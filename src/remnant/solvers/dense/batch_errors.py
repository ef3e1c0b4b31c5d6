"""How far the recovered records of a batch may be off, told without the truth.

A record of a piecewise linear layer solves a least-squares problem of its own. What its equations
leave over is their noise, and their Gram matrix says how far such noise moves the solution: without
limit where two records fire the same neurons, since the layer cannot tell these from their
mixtures. Noise of the gradient outside the records' span is added.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.dense.batch_search import Spaces, slopes
from remnant.solvers.dense.frames import Frames
from remnant.solvers.dense.rounds import Found
from remnant.solvers.dense.tolerances import TOLERANCES


def graph_errors(
    frames: Frames, to_record: Tensor, found: Found, leak: float, bias: bool, noise: Tensor
) -> Tensor:
    """k: squared errors of records that were found by their features. noise: r x r, the squared
    length that noise has in each direction of the frame of pre-activations."""
    slope, sure = slopes(found.y @ frames.t.T, leak, 0.02)
    errors = infinite_errors(found)
    for i, y in enumerate(found.y):
        turned, beside = (slope[i] * sure[i])[:, None] * frames.t, sure[i][:, None] * frames.h
        variance, factor = solution_noise(turned, beside, sure[i].sum(), y, noise)
        size = unit_of(y @ to_record, bias)
        own = y @ to_record / size
        ways = (to_record - torch.outer(unit_of(to_record, bias, own), own)) / size
        errors[i] = variance * (ways * torch.cholesky_solve(ways, factor)).sum()
    return errors


def dual_errors(
    spaces: Spaces, found: Found, records: Tensor, leak: float, bias: bool, noise: Tensor
) -> Tensor:
    """n: squared errors of records (n x (d+1)) that follow from all n duals together.

    Where a dual contains a share of another record's dual, its record contains the same share of
    that record. noise: n x n, the squared length that noise has in each direction of the frame of
    duals.
    """
    slope, sure = slopes(found.y @ spaces.t.T, leak, 1e-3)
    duals = found.z
    own = torch.linalg.pinv(duals.T)  # n x n: row i times the core is record i
    size = unit_of(records, bias)
    apart = torch.cdist(upright(records, bias), upright(records, bias)).square()
    share = (size[None, :] / size[:, None]).square() * apart  # n x n: of record j in record i
    errors = torch.zeros(len(records), dtype=records.dtype)
    for j, z in enumerate(duals):
        rows, beside = sure[j][:, None] * spaces.a, (slope[j] * sure[j])[:, None] * spaces.p
        variance, factor = solution_noise(rows, beside, sure[j].sum(), z, noise)
        across = own.T - torch.outer(z, own @ z) / z.square().sum()
        mixed = variance * (across * torch.cholesky_solve(across, factor)).sum(0)
        errors += mixed * share[:, j]
    return errors


def solution_noise(
    rows: Tensor, basis: Tensor, used: Tensor, own: Tensor, noise: Tensor
) -> tuple[Tensor, Tensor]:
    """How well the equations "rows v lies in the span of the basis" hold their solution v = own.

    rows: w x r; basis: w x s; own: r, whose length is no unknown; used: how many rows are not 0;
    noise: r x r, the squared length that noise of the rows has in each direction. Returns the
    variance of one equation and a Cholesky factor of the Gram matrix of all (r x r), less what
    noise makes up. The variance is infinite where a direction is held by noise alone.
    """
    basis = torch.linalg.qr(basis)[0]
    rows = rows - basis @ (basis.T @ rows)
    rows = rows - basis @ (basis.T @ rows)  # what rounding left would pass for an equation
    spare = (used - rows.shape[1] - basis.shape[1]).clamp(min=1)
    variance = (rows @ own).square().sum() / spare
    gram = rows.T @ rows
    size = gram.trace()
    gram = (
        gram - TOLERANCES.batch_safety * noise + size / own.square().sum() * torch.outer(own, own)
    )
    gram.diagonal().sub_(4 * torch.finfo(gram.dtype).eps * size)
    factor, failed = torch.linalg.cholesky_ex(gram)
    return torch.where(failed == 0, variance, torch.inf), factor


def unit_of(records: Tensor, bias: bool, along: Tensor | None = None) -> Tensor:
    """The number that a record (a row of d+1, or several) is divided by to fix its scale: the
    entry of the bias, which has to become 1, or the record's length where the layer has no bias.
    along: a unit vector to measure the length along instead, for small changes of that record."""
    if bias:
        return records[..., -1]
    return records.norm(dim=-1) if along is None else records @ along


def upright(records: Tensor, bias: bool) -> Tensor:
    """Records (rows of d+1) at their scale: the bias' entry 1, or length one where the layer has
    no bias."""
    one = records[:, -1:] if bias else records.norm(dim=1, keepdim=True)
    scaled: Tensor = records / torch.where(one.abs() < 1e-12, 1e-12, one)
    return scaled


def outside_span(records: Tensor, shares: Tensor, noise: float, bias: bool) -> Tensor:
    """k: the part of squared errors that noise of the first layer's gradient (root-mean-square of
    an entry) makes on its own. shares: k x n, of each left direction of it in a record."""
    unit = records[:, -1] if bias else records.norm(dim=1)
    each = (noise * shares.norm(dim=1) / unit).square()
    far: Tensor = each * (records.shape[1] + upright(records, bias).square().sum(1))
    return far


def infinite_errors(found: Found) -> Tensor:
    """Errors of records about whose exactness nothing is known."""
    return torch.full((len(found),), torch.inf, dtype=torch.float64)


def scale_errors(signals: Tensor, inverse: Tensor, wanted: Tensor, rest: Tensor) -> Tensor:
    """n: squared relative errors of scales, 1 / inverse (n x 1), where signals (n x v) add up to
    `wanted` (v x 1) with them. rest: what the features left of the next layer's gradient."""
    left = (signals.T @ inverse - wanted).square().sum() / max(1, len(wanted) - len(signals))
    level = torch.maximum(left, rest.square().mean())
    spread: Tensor = torch.linalg.pinv(signals @ signals.T).diagonal()
    return level * spread / inverse[:, 0].square()
