"""Relaxed reflections (RRR): points where linear spaces meet a set that is easy to project on.

A point has several parts, each of which lies in a known linear space, and all together lie on a
non-linear set: pre-activations and features on the graph of the activation (`Graph`), or
pre-activations, duals and signals that follow from each other (`Signals`). From random starts,
reflections between the spaces and the set iterate until they fall into a common point.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import times


class Intersection(Protocol):
    """Linear spaces and a non-linear set, of which a common point is sought. A point has several
    parts, and k points at once have parts of k x w each."""

    @property
    def length(self) -> float:
        """Of a point of the set, about."""
        ...

    def starts(self, count: int, generator: torch.Generator) -> list[Tensor]:
        """Random parts to start from."""
        ...

    def nearest(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The nearest point of the set, at a fixed length: 0 must be no solution."""
        ...

    def project(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The nearest point of the spaces."""
        ...


@dataclass(frozen=True, kw_only=True, eq=False)
class Graph:
    """Pre-activations t and features s = f(t); with two checkpoints also pre-activations u at the
    final weights and the dual a, which is zero where neither t nor u is positive.

    f(t) is t above 0 and leak t below. With duals the leak is 0.
    """

    ends: Tensor  # w x r, orthonormal columns; with duals 2w x r: t above sqrt(end_weight) u
    features: Tensor  # w x n, orthonormal columns; or w x w, a projector that is soft
    duals: Tensor | None = None  # w x n, orthonormal columns
    leak: float = 0.0
    found: Tensor | None = None  # f x r: points found, as rows of coordinates in `ends`
    cosine: float = 1.0  # that a point may have at most with those found, and with other points

    @property
    def width(self) -> int:
        return len(self.features)

    @property
    def length(self) -> float:
        firing = 1.5 + 0.5 * self.leak**2
        return math.sqrt((firing if self.duals is None else 3.0) * self.width)

    @property
    def keep_apart(self) -> bool:
        return self.cosine < 1

    def coordinates(self, parts: Sequence[Tensor]) -> Tensor:
        """k x r: of the pre-activations in `ends`."""
        if self.duals is None:
            return times(parts[0], self.ends)
        both = torch.cat([parts[0], math.sqrt(TOLERANCES.end_weight) * parts[2]], dim=1)
        return times(both, self.ends)

    def at(self, coordinates: Tensor) -> list[Tensor]:
        """Pre-activations of coordinates (k x r): t, and u where there are two checkpoints."""
        both = times(coordinates, self.ends.T)
        if self.duals is None:
            return [both]
        return [both[:, : self.width], both[:, self.width :] / math.sqrt(TOLERANCES.end_weight)]

    def starts(self, count: int, generator: torch.Generator) -> list[Tensor]:
        drawn = torch.randn(count, self.ends.shape[1], generator=generator)
        light = 0.0 if self.duals is None else TOLERANCES.end_weight
        ends = self.at(math.sqrt((1 + light) * self.width) * normalize(drawn, dim=1))
        parts = [ends[0], torch.where(ends[0] > 0, ends[0], self.leak * ends[0]), *ends[1:]]
        if self.duals is not None:
            a = torch.randn(count, self.width, generator=generator)
            parts.append(a.masked_fill((ends[0] < 0) & (ends[1] < 0), 0.0))
        return self.rescaled(self.project(parts))

    def nearest(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Entry by entry the cheapest case: it fires, or it does not; and of those that do not at
        first, it fires later, or never and then learns nothing."""
        t, s, weight, leak = parts[0], parts[1], TOLERANCES.feature_weight**2, self.leak
        on = ((t + weight * s) / (1 + weight)).clamp(min=0)
        off = ((t + weight * leak * s) / (1 + weight * leak**2)) if leak else t
        off = off.clamp(max=0)
        cost_on = (t - on).square() + weight * (s - on).square()
        cost_off = (t - off).square() + weight * (s - leak * off).square()
        if self.duals is None:
            fires = cost_on < cost_off
            near = [torch.where(fires, on, off), torch.where(fires, on, leak * off)]
            return self.rescaled(near)
        u, a = parts[2:]
        later, never = u.clamp(max=0).square(), u.clamp(min=0).square() + a.square()
        cost_off = cost_off + TOLERANCES.end_weight * torch.minimum(later, never)
        fires, silent = cost_on < cost_off, never < later
        end = torch.where(fires, u, torch.where(silent, u.clamp(max=0), u.clamp(min=0)))
        near = [torch.where(fires, on, off), on * fires, end, a * ~(silent & ~fires)]
        return self.rescaled(near)

    def rescaled(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """The same parts at a fixed length, that of a record which fires about half of the neurons:
        without it 0, and any multiple of a solution, would be a solution."""
        t, s = parts[0], parts[1]
        length = torch.sqrt(t.square().sum(1) + s.square().sum(1)).clamp(min=1e-12)
        unit = (math.sqrt((1.5 + 0.5 * self.leak**2) * self.width) / length)[:, None]
        duals = [math.sqrt(0.55 * self.width) * normalize(a, dim=1) for a in parts[3:]]
        return [*(part * unit for part in parts[:3]), *duals]

    def project(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """In the spaces; turned away where a point is too close to others."""
        coordinates = self.coordinates(parts)
        if self.keep_apart and self.found is not None:
            coordinates = turned_away(coordinates, self.found, self.cosine)
        ends, soft = self.at(coordinates), self.features.shape[1] == self.width
        s = times(parts[1], self.features) if soft else onto(parts[1], self.features)
        duals = [] if self.duals is None else [onto(parts[3], self.duals)]
        return [ends[0], s, *ends[1:], *duals]


@dataclass(frozen=True, kw_only=True, eq=False)
class Signals:
    """Pre-activations t, duals a and signals p of a layer that the output layer follows.

    A signal is what comes back from the outputs, p = W_out^T d, and the dual is a = p where the
    record fires and leak p where it does not. Signs alone do not fix t, so that a point is rough;
    its dual becomes exact all the same, and all duals together give all records.
    """

    t: Tensor  # w x r, orthonormal columns
    a: Tensor  # w x n, likewise
    p: Tensor  # w x c, likewise: W_out's rows
    leak: float = 0.0

    @property
    def length(self) -> float:
        return math.sqrt((2.5 + 0.5 * self.leak**2) * len(self.t))

    @property
    def keep_apart(self) -> bool:
        return False

    def coordinates(self, parts: Sequence[Tensor]) -> Tensor:
        return parts[0] @ self.t

    def starts(self, count: int, generator: torch.Generator) -> list[Tensor]:
        size = math.sqrt(len(self.t))
        t, p = (
            size * normalize(torch.randn(count, f.shape[1], generator=generator) @ f.T, dim=1)
            for f in (self.t, self.p)
        )
        return [t, onto(torch.where(t > 0, p, self.leak * p), self.a), p]

    def nearest(self, parts: Sequence[Tensor]) -> list[Tensor]:
        """Entry by entry the cheaper of firing and not; two scales are held, that of t and that of
        a and p."""
        t, a, p = parts
        weight, leak = TOLERANCES.feature_weight**2, self.leak
        on_p = (weight * a + p) / (weight + 1)
        off_p = (weight * leak * a + p) / (weight * leak**2 + 1)
        cost_on = t.clamp(max=0).square() + weight * (a - on_p).square() + (p - on_p).square()
        cost_off = t.clamp(min=0).square() + weight * (a - leak * off_p).square()
        on = cost_on < cost_off + (p - off_p).square()
        near_t = torch.where(on, t.clamp(min=0), t.clamp(max=0))
        near_a, near_p = torch.where(on, on_p, leak * off_p), torch.where(on, on_p, off_p)
        size = math.sqrt((1.5 + 0.5 * leak**2) * t.shape[1])
        unit = size / torch.sqrt(near_a.square().sum(1) + near_p.square().sum(1))[:, None]
        return [math.sqrt(t.shape[1]) * normalize(near_t, dim=1), near_a * unit, near_p * unit]

    def project(self, parts: Sequence[Tensor]) -> list[Tensor]:
        pairs = zip(parts, (self.t, self.a, self.p), strict=True)
        return [onto(part, frame) for part, frame in pairs]


def onto(rows: Tensor, frame: Tensor) -> Tensor:
    """Rows (k x w) projected on the span of orthonormal columns (w x r)."""
    return times(times(rows, frame), frame.T)


def turned_away(rows: Tensor, found: Tensor, cosine: float, *, turns: int = 3) -> Tensor:
    """Rows (k x r), moved as little as possible so that none has a larger cosine than `cosine` with
    a row found (f x r) or a row before it.

    A turn moves a row to the nearest one at that cosine from the row it is closest to. After
    `turns` of them a row that is close to several may still be slightly too close.
    """
    for _ in range(turns if len(rows) else 0):
        unit = normalize(rows, dim=1).nan_to_num()  # a row that is lost turns no other
        near = torch.cat([unit @ found.T, (unit @ unit.T).tril(-1)], dim=1)
        worst, which = near.max(1, keepdim=True)
        if not bool((worst > cosine).any()):
            break
        other = torch.cat([found, unit])[which[:, 0]]
        length = other.norm(dim=1, keepdim=True).clamp(min=1e-30)
        along = other / length
        across = unit - worst / length * along
        most = (cosine / length).clamp(max=1.0)
        edge = normalize(most * along + torch.sqrt(1 - most.square()) * normalize(across, dim=1))
        turned = (rows * edge).sum(1, keepdim=True) * edge
        rows = torch.where(worst > cosine, turned, rows)
    return rows


@dataclass(frozen=True, kw_only=True, eq=False)
class Iterates:
    """K points under way: their present parts, their projection on the spaces where the gap was
    smallest (k x w each), and that gap (k): the distance between the two projections relative to
    the point; 0 is a solution."""

    parts: Sequence[Tensor]
    best: Sequence[Tensor]
    gap: Tensor

    def __len__(self) -> int:
        return len(self.gap)

    def take(self, which: Tensor) -> Iterates:
        parts, best = ([part[which] for part in side] for side in (self.parts, self.best))
        return Iterates(parts=parts, best=best, gap=self.gap[which])


def starting_at(parts: Sequence[Tensor], going_on: Iterates | None = None) -> Iterates:
    """Iterates that start at these parts. going_on: iterates of an earlier round, whose spaces have
    changed since: they replace as many of the parts, and their gaps are not known."""
    if going_on is not None:
        kept = len(parts[0]) - len(going_on)
        pairs = zip(going_on.parts, parts, strict=True)
        parts = [torch.cat([old, new[: max(0, kept)]]) for old, new in pairs]
    return Iterates(parts=parts, best=parts, gap=torch.full_like(parts[0][:, 0], math.inf))


def reflect(intersection: Intersection, iterates: Iterates, iterations: int) -> Iterates:
    """The iterates after so many relaxed reflections; their gap is measured after the last."""
    parts = iterates.parts
    for _ in range(iterations):
        on_set = intersection.nearest(parts)
        pairs = zip(on_set, parts, strict=True)
        lines = intersection.project([2 * near - part for near, part in pairs])
        steps = [line - near for line, near in zip(lines, on_set, strict=True)]
        parts = [part + step for part, step in zip(parts, steps, strict=True)]
    gap = torch.cat(steps, dim=1).norm(dim=1) / intersection.length
    better = (gap < iterates.gap)[:, None]
    pairs = zip(lines, iterates.best, strict=True)
    best = [torch.where(better, line, before) for line, before in pairs]
    return Iterates(parts=parts, best=best, gap=torch.minimum(gap, iterates.gap))


def iterate(
    intersection: Intersection,
    iterates: Iterates,
    *,
    iterations: int,
    hurry: float = math.inf,
    arrived: float = TOLERANCES.arrived,
    stalls: bool = False,
    stride: int = 25,
    look_back: int = 6,
) -> Iterates:
    """Reflect until most have a gap below `arrived`, or one has after `hurry` iterations.

    stalls: give up where the median gap has not fallen by a tenth over the last looks, one each
    `stride` iterations.
    """
    medians: list[float] = []
    for done in range(stride, iterations + stride, stride):
        iterates = reflect(intersection, iterates, stride)
        share = float((iterates.gap < arrived).float().mean())
        medians.append(float(iterates.gap.median()))
        slow = len(medians) > look_back and medians[-1] > 0.9 * medians[-1 - look_back]
        if share >= TOLERANCES.enough or (share > 0 and done >= hurry) or (stalls and slow):
            break
    return iterates
