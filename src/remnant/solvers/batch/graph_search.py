"""Search for records of a piecewise linear layer that a second dense layer follows.

A record's t and s = f(t) each lie in a known space, together on the graph of f. Relaxed reflections
find such points roughly; `solve_pairs` turns each into its exact features and its exact dual; what
is found leaves the frames, so that the search gets easier as it goes.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from functools import partial

import torch
from torch import Tensor

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import distinct
from remnant.solvers.batch.frames import Coordinates, Frames, deflate
from remnant.solvers.batch.pairs import Pairs, solve_pairs
from remnant.solvers.batch.tolerances import Tolerances
from remnant.solvers.reflections import Walkers, roam


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Pre-activations t and duals a (k x w each, up to scale), and how well each fits (k)."""

    t: Tensor
    a: Tensor
    graph_residual: Tensor
    dual_residual: Tensor
    series: list[float] = field(default_factory=lambda: [0.0])  # found after each round

    def __len__(self) -> int:
        return len(self.t)

    @property
    def rounds(self) -> int:
        return len(self.series) - 1


def search_graph(
    frames: Frames, leak: float, settings: Tolerances, tolerance: float, generator: torch.Generator
) -> Found:
    """Records, one after the other, until the frames are empty or patience is at its end.

    tolerance: the largest residual of a record, relative to the record.
    """
    whole, total, lost, worn = frames, frames.remaining, 0, 0
    found, walkers = nothing_found(len(frames.t)), None
    kept = checkpoint("graph", frames, leak, settings, tolerance, generator=generator)
    if kept.state is not None:
        held, spaces, under_way, lost, worn = kept.state
        found, frames = Found(**held), Frames(**spaces)
        walkers = None if under_way is None else Walkers(**under_way)
    with task("searching for records", total) as step:
        step(len(found))
        while len(found) < total and lost < settings.patience:
            walkers, points = wander(walkers, frames, leak, settings, generator)
            features, duals = solve_both(frames, points[distinct(points, 0.99)], leak, settings)
            near = features.inner @ frames.t.T
            features, duals = choose(features, duals, tolerance, frames.remaining)
            before = len(found)
            if len(features.residual):
                found = extend(found, frames, features, duals)
                if len(found) < total:
                    frames = deflate(frames, coordinates(features, duals))
            elif len(found) and worn < settings.patience:
                # What is wrong with a found record is wrong with the frames that it left: begin
                # again from those of all records, with the records that hold in these.
                points = torch.cat([found.t, near])
                features, duals = solve_all(whole, points, leak, settings)
                features, duals = choose(features, duals, tolerance, total)
                found = extend(nothing_found(len(frames.t), found.series), whole, features, duals)
                if len(found) < total:
                    frames, walkers = deflate(whole, coordinates(features, duals)), None
                worn += len(found) <= before
            new = len(found) - before
            lost = 0 if new > 0 else lost + 1
            found.series.append(float(len(found)))
            step(max(0, new), note=f"{len(found)} of {total}")
            if kept.due():
                kept.save([found, frames, walkers, lost, worn])
    return found


def coordinates(features: Pairs, duals: Pairs) -> Coordinates:
    return Coordinates(y=features.inner, e=features.outer, z=duals.outer, c=duals.inner)


def wander(
    walkers: Walkers | None,
    frames: Frames,
    leak: float,
    settings: Tolerances,
    generator: torch.Generator,
) -> tuple[Walkers, Tensor]:
    """Those still under way after some have arrived, and the arrived ones' t (k x w)."""
    spaces = frames.t.float(), frames.h.float()
    width, r = spaces[0].shape
    count = min(settings.walkers, max(4, 2 * frames.remaining))
    t = torch.randn(count, r, generator=generator) @ spaces[0].T
    t *= math.sqrt(width) / t.norm(dim=1, keepdim=True)
    walkers, (points, _) = roam(
        walkers,
        [t, torch.where(t > 0, t, leak * t)],
        spaces,
        partial(nearest_on_graph, leak=leak, weight=settings.weight),
        arrived=settings.arrived,
        enough=settings.enough,
        hurry=settings.hurry,
        iterations=settings.iterations,
    )
    return walkers, points


def nearest_on_graph(parts: Sequence[Tensor], leak: float, weight: float) -> tuple[Tensor, Tensor]:
    """The nearest (u, f(u)) to (t, s), f(u) = u above 0 and leak u below, entry by entry, where
    distances in s count `weight` times; scaled to the length of entries of unit size."""
    t, s = parts
    weight = weight**2
    on = ((t + weight * s) / (1 + weight)).clamp(min=0)
    off = (
        ((t + weight * leak * s) / (1 + weight * leak**2)).clamp(max=0) if leak else t.clamp(max=0)
    )
    cost_on = (t - on).square() + weight * (s - on).square()
    cost_off = (t - off).square() + weight * (s - leak * off).square()
    nearer = cost_on < cost_off
    u, image = torch.where(nearer, on, off), torch.where(nearer, on, leak * off)
    norm = torch.sqrt(u.square().sum(1) + image.square().sum(1)).clamp(min=1e-12)
    unit = (math.sqrt((1.5 + 0.5 * leak**2) * t.shape[1]) / norm)[:, None]
    return u * unit, image * unit


def slopes(t: Tensor, leak: float, margin: float) -> tuple[Tensor, Tensor]:
    """f'(t), and 1 where the sign of t is beyond doubt (margin: of its root-mean-square)."""
    sure = t.abs() > margin * t.square().mean(1, keepdim=True).sqrt()
    return torch.where(t > 0, 1.0, leak).to(t.dtype), sure.to(t.dtype)


def solve_both(
    frames: Frames, points: Tensor, leak: float, settings: Tolerances
) -> tuple[Pairs, Pairs]:
    """Exact features (outer e, inner y) and duals (outer z, inner c) near the points (k x w)."""
    features = solve_features(frames, points @ frames.t, leak, settings)
    y = features.inner
    slope, sure = slopes(y @ frames.t.T, leak, 1e-3)
    # inverse1 pairs y with its own z alone; its transpose's image of y is close to that z.
    start = (y @ frames.inverse1, torch.zeros_like(y))
    duals = solve_pairs(frames.a, frames.p, slope, sure, start, iterations=settings.solves)
    return features, duals


def solve_features(frames: Frames, y: Tensor, leak: float, settings: Tolerances) -> Pairs:
    """Exact features near y (k x r); the residual is that of f(t) over all neurons.

    A solution whose signs are not those it was solved with is solved again with its own.
    """
    for _ in range(settings.passes):
        t = y @ frames.t.T
        slope, sure = slopes(t, leak, 0.02)
        start = ((slope * t) @ frames.h, y)
        pairs = solve_pairs(frames.h, frames.t, slope, sure, start, iterations=settings.solves)
        y = pairs.inner
        t = y @ frames.t.T
        image = torch.where(t > 0, t, leak * t)
        rest = image - (image @ frames.h) @ frames.h.T
        pairs = replace(pairs, residual=rest.norm(dim=1) / image.norm(dim=1))
        if bool((((t > 0) == (slope > leak)) | (sure == 0)).all()):
            break
    return pairs


def solve_all(
    frames: Frames, points: Tensor, leak: float, settings: Tolerances
) -> tuple[Pairs, Pairs]:
    """As `solve_both`, some at a time."""
    parts = [solve_both(frames, rows, leak, settings) for rows in points.split(64)]
    features, duals = (
        Pairs(
            outer=torch.cat([pairs.outer for pairs in side]),
            inner=torch.cat([pairs.inner for pairs in side]),
            residual=torch.cat([pairs.residual for pairs in side]),
        )
        for side in zip(*parts, strict=True)
    )
    return features, duals


def choose(features: Pairs, duals: Pairs, tolerance: float, room: int) -> tuple[Pairs, Pairs]:
    """At most `room` different ones of those that fit."""
    which = ((features.residual < tolerance) & (duals.residual < tolerance)).nonzero()[:, 0]
    which = which[distinct(features.inner[which], 0.99)][:room]
    return take_pairs(features, which), take_pairs(duals, which)


def take_pairs(pairs: Pairs, which: Tensor) -> Pairs:
    return Pairs(outer=pairs.outer[which], inner=pairs.inner[which], residual=pairs.residual[which])


def nothing_found(width: int, series: list[float] | None = None) -> Found:
    none, empty = torch.zeros(0, dtype=torch.float64), torch.zeros(0, width, dtype=torch.float64)
    return Found(t=empty, a=empty, graph_residual=none, dual_residual=none, series=series or [0.0])


def extend(found: Found, frames: Frames, features: Pairs, duals: Pairs) -> Found:
    return Found(
        t=torch.cat([found.t, features.inner @ frames.t.T]),
        a=torch.cat([found.a, duals.outer @ frames.a.T]),
        graph_residual=torch.cat([found.graph_residual, features.residual]),
        dual_residual=torch.cat([found.dual_residual, duals.residual]),
        series=found.series,
    )


def settle(frames: Frames, found: Found, leak: float, settings: Tolerances) -> Found:
    """The found records once more, each on its own in the frames of all records.

    In shrunken frames a record carries what was wrong with those before it; here it does not.
    """
    if not len(found):
        return found
    again = solve_all(frames, found.t, leak, settings)
    return extend(nothing_found(len(frames.t), found.series), frames, *again)
