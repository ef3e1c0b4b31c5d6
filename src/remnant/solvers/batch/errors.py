"""How far the records of a batch may be off, told without the truth.

A record of a piecewise linear layer is the least-squares solution of its own equations. Noise of
the size of what they leave over is added to them and they are solved again: how far the record
moves is its error, up to a factor. Noise of the gradient outside the records' span comes on top.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from remnant.solvers.batch.frames import Frames
from remnant.solvers.batch.graph_search import Found, slopes
from remnant.solvers.batch.output_search import Spaces, records_of
from remnant.solvers.batch.pairs import Pairs, solve_pairs

SAFETY = 36.0  # of squared errors: noise of a gradient is not as even as that which is drawn
DRAWS, MANY = 4, 256  # of noise; one is enough of so many records, each of as many numbers
CLOSELY = 1e-4  # a move need not be known better
MOST = 400  # iterations
AT_ONCE = 64  # records


def graph_errors(
    frames: Frames, to_record: Tensor, found: Found, leak: float, bias: bool
) -> Tensor:
    """k: squared errors of records that were found by their features."""
    whole = upright(found.t @ frames.t @ to_record, bias)
    errors = []
    for t, own in zip(found.t.split(AT_ONCE), whole.split(AT_ONCE), strict=True):
        slope, sure = slopes(t, leak, 0.02)
        start = ((slope * t) @ frames.h, t @ frames.t)

        def record(pairs: Pairs) -> Tensor:
            return upright(pairs.inner @ to_record, bias)

        errors.append(moved(frames.h, frames.t, slope, sure, start, record, own))
    return torch.cat(errors) if errors else unknown(found)


def dual_errors(
    spaces: Spaces, to_record: Tensor, found: Found, records: Tensor, leak: float, bias: bool
) -> Tensor:
    """n: squared errors of records that follow from all duals together."""
    slope, sure = slopes(found.t, leak, 1e-3)
    own = found.a @ spaces.a
    signals = solve_pairs(
        spaces.a, spaces.p, slope, sure, (own, found.a @ spaces.p), iterations=MOST
    )
    start = (signals.outer, signals.inner)

    def record(pairs: Pairs) -> Tensor:
        sign = torch.sign((pairs.outer * own).sum(1, keepdim=True))
        return upright(records_of(spaces, to_record, sign * pairs.outer @ spaces.a.T), bias)

    return moved(spaces.a, spaces.p, slope, sure, start, record, upright(records, bias))


def moved(
    outer: Tensor,
    inner: Tensor,
    slope: Tensor,
    used: Tensor,
    start: tuple[Tensor, Tensor],
    record: Callable[[Pairs], Tensor],
    own: Tensor,
) -> Tensor:
    """k: the mean squared distance between own (k x (d+1)) and the records of noisy equations."""
    size = start[0].norm(dim=1, keepdim=True)
    rest = (start[0] @ outer.T - slope * (start[1] @ inner.T)) * used / size
    spare = (used.sum(1) - outer.shape[1] - inner.shape[1]).clamp(min=1)
    level = (rest.square().sum(1) / spare).sqrt()[:, None]
    generator = torch.Generator().manual_seed(0)  # its own: it changes no other result
    draws = 1 if outer.shape[1] > MANY else DRAWS
    total = torch.zeros(len(own), dtype=own.dtype)
    for _ in range(draws):
        noise = level * torch.randn(rest.shape, generator=generator, dtype=rest.dtype)
        pairs = solve_pairs(
            outer, inner, slope, used, start, iterations=MOST, tolerance=CLOSELY, noise=noise
        )
        total += (record(pairs) - own).square().sum(1) / draws
    return total


def upright(records: Tensor, bias: bool) -> Tensor:
    """With the bias' 1 as last entry, or without one of unit length."""
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


def unknown(found: Found) -> Tensor:
    return torch.full((len(found),), torch.inf, dtype=torch.float64)


def scale_doubt(signals: Tensor, inverse: Tensor, wanted: Tensor, rest: Tensor) -> Tensor:
    """n: squared relative errors of scales, 1 / inverse (n x 1), where signals (n x v) add up to
    `wanted` (v x 1) with them. rest: what the features left of the next layer's gradient."""
    left = (signals.T @ inverse - wanted).square().sum() / max(1, len(wanted) - len(signals))
    level = torch.maximum(left, rest.square().mean())
    spread: Tensor = torch.linalg.pinv(signals @ signals.T).diagonal()
    return level * spread / inverse[:, 0].square()
