"""Relaxed reflections (RRR): points where linear spaces meet a set that is easy to project on.

A point has several parts (t and s = f(t), say), each of which lies in a known linear space, and all
together lie on a non-linear set (the graph of f). From random starts, reflections between the
spaces and the set wander until they fall into a common point. A walker that has not arrived keeps
its place when the spaces shrink around what was found; one that has is sent out anew.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

Nearest = Callable[[Sequence[Tensor]], Sequence[Tensor]]
"""Parts (k x w each) -> the nearest point of the set, at a fixed length: 0 must be no solution."""
STRIDE = 25  # iterations between two looks at who has arrived


@dataclass(frozen=True, kw_only=True, eq=False)
class Walkers:
    """Parts and their last projections on the spaces (k x w each), and the gap (k).

    The gap is the distance between the two projections relative to the point; 0 is a solution.
    """

    parts: Sequence[Tensor]
    projected: Sequence[Tensor]
    gap: Tensor

    def __len__(self) -> int:
        return len(self.gap)

    def take(self, which: Tensor | slice) -> Walkers:
        parts, projected = ([x[which] for x in side] for side in (self.parts, self.projected))
        return Walkers(parts=parts, projected=projected, gap=self.gap[which])


def relay(walkers: Walkers | None, starts: Sequence[Tensor]) -> Walkers:
    """Those still under way first, then as many fresh ones as make up the number of starts."""
    unknown = torch.full_like(starts[0][:, 0], math.inf)
    fresh = Walkers(parts=starts, projected=starts, gap=unknown)
    if walkers is None:
        return fresh
    old, new = walkers.take(slice(len(fresh))), fresh.take(slice(max(0, len(fresh) - len(walkers))))
    pairs = ((old.parts, new.parts), (old.projected, new.projected))
    parts, projected = ([torch.cat(both) for both in zip(*p, strict=True)] for p in pairs)
    return Walkers(parts=parts, projected=projected, gap=torch.cat([old.gap, new.gap]))


def walk(walkers: Walkers, frames: Sequence[Tensor], nearest: Nearest, iterations: int) -> Walkers:
    """frames: orthonormal columns (w x r) of each part's space."""
    parts = walkers.parts
    for _ in range(iterations):
        on_set = nearest(parts)
        lines = [
            ((2 * near - part) @ frame) @ frame.T
            for near, part, frame in zip(on_set, parts, frames, strict=True)
        ]
        steps = [line - near for line, near in zip(lines, on_set, strict=True)]
        parts = [part + step for part, step in zip(parts, steps, strict=True)]
    gap = torch.cat(steps, dim=1).norm(dim=1) / torch.cat(list(on_set), dim=1).norm(dim=1)
    return Walkers(parts=parts, projected=lines, gap=gap)


def roam(
    walkers: Walkers | None,
    starts: Sequence[Tensor],
    frames: Sequence[Tensor],
    nearest: Nearest,
    *,
    arrived: float,
    enough: float,
    hurry: int,
    iterations: int,
) -> tuple[Walkers, list[Tensor]]:
    """Walk until a share of `enough` has a gap below `arrived`, or one has after `hurry`
    iterations: where arrivals are rare, even one makes the rest easier.

    walkers: those still under way, if any; starts: parts of fresh ones to make up their number.
    Returns those that go on, and the arrived ones' parts in the spaces (k x w each, float64).
    """
    walkers = relay(walkers, starts)
    for done in range(STRIDE, iterations + STRIDE, STRIDE):
        walkers = walk(walkers, frames, nearest, STRIDE)
        share = float((walkers.gap < arrived).float().mean())
        if share >= enough or (share > 0 and done >= hurry):
            break
    there = walkers.gap < arrived
    # Where none has arrived, the worse half starts anew.
    left = ~there if bool(there.any()) else walkers.gap <= walkers.gap.median()
    return walkers.take(left), [part[there].double() for part in walkers.projected]
