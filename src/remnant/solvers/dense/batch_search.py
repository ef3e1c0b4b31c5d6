"""The search behind one gradient, for layers of a piecewise linear activation.

Relaxed reflections find records roughly. Once the signs of a record's pre-activations t are known,
so is the slope f'(t) on every neuron, and both halves of the record are pairs of vectors in known
spaces, one of which is the other times that slope: its features, h = slope * t, and its dual,
a = slope * p. Both are solved for exactly, and what is found leaves the spaces.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.dense.frames import Coordinates, Frames, deflate
from remnant.solvers.dense.reflections import Graph, Iterates, Signals, iterate, starting_at
from remnant.solvers.dense.rounds import Found, Search, in_rounds, nothing_found
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import complement, distinct, least_squares


@dataclass(frozen=True, kw_only=True)
class Limits:
    """When a point has arrived near a record, and when its equations hold; a noisy gradient
    needs larger ones."""

    arrived: float = TOLERANCES.arrived  # gap of a point
    residual: float = TOLERANCES.exact  # of a record's equations, relative


@dataclass(frozen=True, kw_only=True, eq=False)
class Pairs:
    """Coordinates `outer` (k x r, unit rows) and `inner` (k x s), and how well they fit (k).

    residual: |outer part - slope * inner part| / |outer part| over the neurons that were used.
    """

    outer: Tensor
    inner: Tensor
    residual: Tensor

    def take(self, which: Tensor) -> Pairs:
        return Pairs(
            outer=self.outer[which], inner=self.inner[which], residual=self.residual[which]
        )


def joined(parts: Sequence[Pairs]) -> Pairs:
    """The rows of several sets of pairs as one."""
    return Pairs(
        outer=torch.cat([part.outer for part in parts]),
        inner=torch.cat([part.inner for part in parts]),
        residual=torch.cat([part.residual for part in parts]),
    )


def solve_pairs(
    outer: Tensor, inner: Tensor, slope: Tensor, used: Tensor, start: tuple[Tensor, Tensor]
) -> Pairs:
    """Minimise |used * (outer u - slope * (inner v))| over (u, v) with u fixed along its start.

    outer: w x r and inner: w x s, orthonormal columns. slope, used: k x w. start: rows k x r and
    k x s; the part of u along its own start stays, which excludes the zero solution. Conjugate
    gradients take products of a few rows by the frames, much less than a matrix for each record.
    """
    r = outer.shape[1]
    outer_t, inner_t = outer.T.contiguous(), inner.T.contiguous()
    size = start[0].norm(dim=1, keepdim=True)
    fixed = start[0] / size

    def mismatch(uv: Tensor) -> Tensor:
        return (uv[:, :r] @ outer_t - slope * (uv[:, r:] @ inner_t)) * used

    def back(rows: Tensor) -> Tensor:
        u, v = rows @ outer, -(rows * slope) @ inner
        return torch.cat([u - (u * fixed).sum(1, keepdim=True) * fixed, v], dim=1)

    uv = torch.cat([fixed, start[1] / size], dim=1)
    steps = TOLERANCES.solves
    uv = uv + least_squares(mismatch, back, -mismatch(uv), iterations=steps, tolerance=1e-11)
    part = (uv[:, :r] @ outer_t) * used
    return Pairs(
        outer=normalize(uv[:, :r], dim=1),
        inner=uv[:, r:] / uv[:, :r].norm(dim=1, keepdim=True),
        residual=mismatch(uv).norm(dim=1) / part.norm(dim=1),
    )


def slopes(t: Tensor, leak: float, margin: float) -> tuple[Tensor, Tensor]:
    """f'(t), and 1 where the sign of t is beyond doubt (margin: of its root-mean-square)."""
    sure = t.abs() > margin * t.square().mean(1, keepdim=True).sqrt()
    return torch.where(t > 0, 1.0, leak).to(t.dtype), sure.to(t.dtype)


def arrivals(
    intersection: Graph | Signals,
    going_on: Iterates | None,
    search: Search,
    limits: Limits,
    room: int,
    generator: torch.Generator,
) -> tuple[Iterates, list[Tensor]]:
    """Iterates that go on, and the parts (k x w each, float64) of those that have arrived. Where
    none has, the worse half starts anew. room: records that are left to find."""
    fresh = intersection.starts(min(search.starts, max(4, 2 * room)), generator)
    iterates = iterate(
        intersection,
        starting_at(fresh, going_on),
        iterations=search.iterations,
        hurry=TOLERANCES.hurry,
        arrived=limits.arrived,
    )
    there = iterates.gap < limits.arrived
    left = ~there if bool(there.any()) else iterates.gap <= iterates.gap.median()
    return iterates.take(left), [part[there].double() for part in iterates.best]


# Where the next layer's gradient holds the features of every record.


@dataclass(frozen=True, kw_only=True, eq=False)
class Unfound:
    """The state of the search: the frames without the records found, iterates that have not
    arrived, and how often beginning with new ones brought nothing."""

    frames: Frames
    iterates: Iterates | None = None
    fruitless: int = 0  # how often beginning again brought nothing


def search_graph(
    whole: Frames, leak: float, search: Search, limits: Limits, generator: torch.Generator
) -> tuple[Found, list[float]]:
    """Records, found one after the other until none is left or `patience` rounds bring nothing;
    and their number after each."""

    def once(found: Found, unfound: Unfound, barren: int) -> tuple[Found, Unfound]:
        frames = unfound.frames
        intersection = Graph(ends=frames.t.float(), features=frames.h.float(), leak=leak)
        room = frames.remaining
        iterates, parts = arrivals(intersection, unfound.iterates, search, limits, room, generator)
        features, duals = solve_both(frames, parts[0][distinct(parts[0], 0.99)], leak)
        near = features.inner @ frames.t.T
        features, duals = choose(features, duals, limits, frames.remaining)
        if len(features.residual):
            found = found.with_more(in_whole(whole, frames, features, duals))
            return found, left_after(frames, features, duals, iterates, unfound.fruitless)
        if not len(found) or unfound.fruitless >= search.patience:
            return found, replace(unfound, iterates=iterates)
        # What is wrong with a found record is wrong with the frames that it left: begin again from
        # those of all records, with the records that hold in these.
        points = torch.cat([found.y @ whole.t.T, near])
        features, duals = choose(*solve_both(whole, points, leak), limits, whole.remaining)
        again = in_whole(whole, whole, features, duals)
        fruitless = unfound.fruitless + (len(again) <= len(found))
        return again, left_after(whole, features, duals, None, fruitless)

    return in_rounds(
        once,
        nothing_found(whole.remaining),
        Unfound(frames=whole),
        given=(leak, search, limits),
        restore=restored,
        patience=search.patience,
        generator=generator,
    )


def restored(kept: dict[str, Any]) -> Unfound:
    """That state from what an interrupted run kept of it."""
    iterates = kept["iterates"]
    return Unfound(
        frames=Frames(**kept["frames"]),
        iterates=None if iterates is None else Iterates(**iterates),
        fruitless=kept["fruitless"],
    )


def left_after(
    frames: Frames, features: Pairs, duals: Pairs, iterates: Iterates | None, fruitless: int
) -> Unfound:
    """What is left of the frames without the records of these features and duals."""
    if len(features.residual) < frames.remaining:
        four = (features.inner, features.outer, duals.outer, duals.inner)
        y, e, z, c = four
        frames = deflate(frames, Coordinates(y=y, e=e, z=z, c=c))
    return Unfound(frames=frames, iterates=iterates, fruitless=fruitless)


def solve_both(frames: Frames, points: Tensor, leak: float) -> tuple[Pairs, Pairs]:
    """Exact features (outer e, inner y) and duals (outer z, inner c) near the points (k x w), some
    at a time."""
    features, duals = [], []
    for rows in points.split(64):
        features.append(solve_features(frames, rows @ frames.t, leak))
        y = features[-1].inner
        slope, sure = slopes(y @ frames.t.T, leak, 1e-3)
        # inverse1 pairs y with its own z alone; its transpose's image of y is close to that z.
        start = (y @ frames.inverse1, torch.zeros_like(y))
        duals.append(solve_pairs(frames.a, frames.p, slope, sure, start))
    return joined(features), joined(duals)


def solve_features(frames: Frames, y: Tensor, leak: float, *, passes: int = 4) -> Pairs:
    """Exact features near points y (k x r), solved with the signs that the points have; where
    the solution has other signs it is solved again with these, `passes` times at most. The
    residual is that of f(t) over all neurons."""
    for _ in range(passes):
        t = y @ frames.t.T
        slope, sure = slopes(t, leak, 0.02)
        pairs = solve_pairs(frames.h, frames.t, slope, sure, ((slope * t) @ frames.h, y))
        y = pairs.inner
        t = y @ frames.t.T
        image = torch.where(t > 0, t, leak * t)
        rest = image - (image @ frames.h) @ frames.h.T
        pairs = replace(pairs, residual=rest.norm(dim=1) / image.norm(dim=1))
        if bool((((t > 0) == (slope > leak)) | (sure == 0)).all()):
            break
    return pairs


def choose(features: Pairs, duals: Pairs, limits: Limits, room: int) -> tuple[Pairs, Pairs]:
    """At most `room` different ones of those that fit."""
    fits = (features.residual < limits.residual) & (duals.residual < limits.residual)
    which = fits.nonzero()[:, 0]
    which = which[distinct(features.inner[which], 0.99)][:room]
    return features.take(which), duals.take(which)


def in_whole(whole: Frames, frames: Frames, features: Pairs, duals: Pairs) -> Found:
    """Records of features and duals in some frames, in coordinates of those of all records."""
    return Found(
        y=(features.inner @ frames.t.T) @ whole.t,
        z=(duals.outer @ frames.a.T) @ whole.a,
        residual=torch.maximum(features.residual, duals.residual),
    )


def settle(frames: Frames, found: Found, leak: float) -> Found:
    """The found records solved for once more, each by itself in the frames of all records: in
    frames that were shrunk a record carries the errors of those found before it."""
    if not len(found):
        return found
    return in_whole(frames, frames, *solve_both(frames, found.y @ frames.t.T, leak))


# Before the output layer, or a next layer too narrow for the batch: duals alone are exact.


@dataclass(frozen=True, kw_only=True, eq=False)
class Spaces:
    """Orthonormal frames of t (w x r), a (w x n) and p (w x c), and M1's inverse core (r x n)."""

    t: Tensor
    a: Tensor
    p: Tensor
    inverse1: Tensor


def search_signals(
    whole: Spaces, leak: float, search: Search, limits: Limits, generator: torch.Generator
) -> tuple[Found, list[float]]:
    """Duals until all are found or patience ends, and their number after each round. Points y are
    exact in the signs of t only. All iterates start anew in every round: the space of a does not
    shrink, and holds what was found."""
    total = whole.a.shape[1]

    def once(found: Found, spaces: Spaces, barren: int) -> tuple[Found, Spaces]:
        intersection = Signals(
            t=spaces.t.float(), a=spaces.a.float(), p=spaces.p.float(), leak=leak
        )
        _, (t, a, _) = arrivals(intersection, None, search, limits, spaces.t.shape[1], generator)
        kept = distinct(a, 0.99)
        duals = solve_duals(spaces, t[kept], a[kept], leak)
        chosen = (duals.residual < limits.residual).nonzero()[:, 0]
        chosen = chosen[distinct(duals.outer[chosen], 0.99)]
        chosen = chosen[new_ones(duals.outer[chosen], found.z)][: total - len(found)]
        if not len(chosen):
            return found, spaces
        z, residual = duals.outer[chosen], duals.residual[chosen]
        fresh = Found(y=t[kept][chosen] @ whole.t, z=z, residual=residual)
        return found.with_more(fresh), leave_out(spaces, z)

    found, series = in_rounds(
        once,
        nothing_found(total),
        whole,
        given=(leak, search, limits),
        restore=lambda kept: Spaces(**kept),
        patience=search.patience,
        generator=generator,
    )
    if len(found) == total - 1:
        found = add_last(found, whole, leak, limits)
        series.append(float(len(found)))
    return found, series


def add_last(found: Found, whole: Spaces, leak: float, limits: Limits) -> Found:
    """The last record without a search: one direction is left for its dual, of either sign, and
    its point follows."""
    only = leave_out(whole, found.z).t[:, :1].T
    n = whole.a.shape[1]
    for t in (only, -only):
        slope, sure = slopes(t, leak, 1e-3)
        joint = torch.cat([whole.a, -slope.T * whole.p], dim=1) * sure.T
        null = torch.linalg.svd(joint, full_matrices=False)[2][-1:]
        z = null[:, :n]
        residual = (null @ joint.T).norm(dim=1) / ((z @ whole.a.T) * sure).norm(dim=1)
        z = normalize(z, dim=1)
        if float(residual) < limits.residual and len(new_ones(z, found.z)):
            return found.with_more(Found(y=t @ whole.t, z=z, residual=residual))
    return found


def solve_duals(spaces: Spaces, t: Tensor, a: Tensor, leak: float) -> Pairs:
    """Exact duals from the rough ones: signs of t near 0, or against a, are left out of account."""
    slope, sure = slopes(t, leak, 0.02)
    rms = a.square().mean(1, keepdim=True).sqrt()
    against = (t < 0) & (a.abs() > 0.1 * rms) if not leak else torch.zeros_like(t, dtype=torch.bool)
    start = (a @ spaces.a, a @ spaces.p)
    return solve_pairs(spaces.a, spaces.p, slope, sure * ~against, start)


def new_ones(z: Tensor, known: Tensor) -> Tensor:
    """Indices of the duals z (k x n, unit rows) that are not among the known ones."""
    if not len(known):
        return torch.arange(len(z))
    return ((z @ known.T).abs().max(1).values < 0.99).nonzero()[:, 0]


def leave_out(spaces: Spaces, z: Tensor) -> Spaces:
    """All other records are orthogonal to inverse1 z; the other spaces stay as they are."""
    keep = complement(z @ spaces.inverse1.T, spaces.t.shape[1])
    return Spaces(t=spaces.t @ keep, a=spaces.a, p=spaces.p, inverse1=keep.T @ spaces.inverse1)


def records_of(spaces: Spaces, to_record: Tensor, z: Tensor) -> Tensor:
    """All x~ (n x (d+1)) from all duals: M1 = sum_i a_i x~_i^T, in the spaces of all records."""
    core = torch.linalg.inv(spaces.inverse1) @ to_record
    records: Tensor = torch.linalg.solve(z.T, core)
    return records


def settle_duals(
    spaces: Spaces, to_record: Tensor, found: Found, first: Tensor, leak: float
) -> tuple[Found, Tensor]:
    """Duals again from the signs of the records that they give; the records (n x (d+1)).

    The signs of the search's own t are right where they are clear; the records' are everywhere.
    """
    for margin in (0.05, 0.01, 1e-3):
        a = found.z @ spaces.a.T
        t = records_of(spaces, to_record, found.z) @ first.T
        # A dual has no sign of its own. It is larger on the neurons that its record fires.
        t = t * torch.sign((a.abs() * t).sum(1, keepdim=True))
        slope, sure = slopes(t, leak, margin)
        duals = solve_pairs(spaces.a, spaces.p, slope, sure, (found.z, a @ spaces.p))
        found = Found(y=t @ spaces.t, z=duals.outer, residual=duals.residual)
    return found, records_of(spaces, to_record, found.z)
