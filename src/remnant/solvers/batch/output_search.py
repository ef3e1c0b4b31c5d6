"""Search for records of a piecewise linear layer that the output layer follows.

Its gradient has only as many rows as there are outputs and does not hold every record's features.
But the signal from the outputs, p = W2^T d, lies in the few dimensions of W2's rows, the dual
a = f'(t) * p in the column space of M1, and t decides the slope f'(t) by its signs. Relaxed
reflections look for (t, a, p) in their three spaces. Signs alone do not fix t: only the duals are
exact, and all of them together give all records. The same serves where the next layer is too narrow
for the batch.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import complement, distinct
from remnant.solvers.batch.graph_search import Found, nothing_found, slopes
from remnant.solvers.batch.pairs import Pairs, solve_pairs
from remnant.solvers.batch.tolerances import Tolerances
from remnant.solvers.reflections import roam


@dataclass(frozen=True, kw_only=True, eq=False)
class Spaces:
    """Orthonormal frames of t (w x r), a (w x n) and p (w x c), and M1's inverse core (r x n)."""

    t: Tensor
    a: Tensor
    p: Tensor
    inverse1: Tensor


def search_signals(
    spaces: Spaces, leak: float, settings: Tolerances, tolerance: float, generator: torch.Generator
) -> Found:
    """Duals until all are found or patience ends. A found record's t is exact in its signs only."""
    total = spaces.a.shape[1]
    found, lost = nothing_found(len(spaces.t)), 0
    states = checkpoint("signals", spaces, leak, settings, tolerance, generator=generator)
    if states.state is not None:
        held, left, lost = states.state
        found, spaces = Found(**held), Spaces(**left)
    with task("searching for records", total) as step:
        step(len(found))
        while len(found) < total and lost < settings.patience:
            t, a = wander(spaces, leak, settings, generator)
            kept = distinct(a, 0.99)
            duals = solve_duals(spaces, t[kept], a[kept], leak, settings)
            t = t[kept]
            chosen = (duals.residual < tolerance).nonzero()[:, 0]
            chosen = chosen[distinct(duals.outer[chosen], 0.99)]
            chosen = chosen[new_ones(duals.outer[chosen] @ spaces.a.T, found.a)]
            chosen = chosen[: total - len(found)]
            lost = 0 if len(chosen) else lost + 1
            if len(chosen):
                found = add(found, spaces, t[chosen], duals, chosen)
                spaces = leave_out(spaces, duals.outer[chosen])
            found.series.append(float(len(found)))
            step(len(chosen), note=f"{len(found)} of {total}")
            if states.due():
                states.save([found, spaces, lost])
        if len(found) == total - 1:
            found = add_last(found, spaces, leak, tolerance)
            step(len(found) - total + 1)
    return found


def add_last(found: Found, spaces: Spaces, leak: float, tolerance: float) -> Found:
    """The only record left has the only direction left, of either sign; its dual follows."""
    n = spaces.a.shape[1]
    for t in (spaces.t[:, :1].T, -spaces.t[:, :1].T):
        slope, sure = slopes(t, leak, 1e-3)
        joint = torch.cat([spaces.a, -slope.T * spaces.p], dim=1) * sure.T
        null = torch.linalg.svd(joint, full_matrices=False)[2][-1:]
        outer = null[:, :n]
        a = outer @ spaces.a.T
        residual = (null @ joint.T).norm(dim=1) / (a * sure).norm(dim=1)
        fresh = new_ones(a, found.a)
        if float(residual) < tolerance and len(fresh):
            duals = Pairs(outer=normalize(outer, dim=1), inner=null[:, n:], residual=residual)
            return add(found, spaces, t, duals, fresh)
    return found


def wander(
    spaces: Spaces, leak: float, settings: Tolerances, generator: torch.Generator
) -> tuple[Tensor, Tensor]:
    """t and a (k x w each) of points near records, by reflections from random starts.

    All start anew in every round: the space of a does not shrink, and holds what was found.
    """
    frames = spaces.t.float(), spaces.a.float(), spaces.p.float()
    size = math.sqrt(len(spaces.t))
    count = min(settings.walkers, max(4, 2 * spaces.t.shape[1]))
    t, p = (
        size * normalize(torch.randn(count, f.shape[1], generator=generator) @ f.T, dim=1)
        for f in (frames[0], frames[2])
    )
    a = (torch.where(t > 0, p, leak * p) @ frames[1]) @ frames[1].T
    _, (t, a, _) = roam(
        None,
        [t, a, p],
        frames,
        partial(nearest_signals, leak=leak, weight=settings.weight),
        arrived=3 * settings.arrived,
        enough=settings.enough,
        hurry=2 * settings.hurry,
        iterations=settings.iterations,
    )
    return t, a


def nearest_signals(parts: Sequence[Tensor], leak: float, weight: float) -> tuple[Tensor, ...]:
    """Entry by entry the nearest (t, a, p) with a = p where t > 0 and a = leak p where t < 0, where
    distances in a count `weight` times. Two scales are held: that of t and that of a and p."""
    t, a, p = parts
    weight = weight**2
    on_p = (weight * a + p) / (weight + 1)
    off_p = (weight * leak * a + p) / (weight * leak**2 + 1)
    cost_on = t.clamp(max=0).square() + weight * (a - on_p).square() + (p - on_p).square()
    cost_off = t.clamp(min=0).square() + weight * (a - leak * off_p).square() + (p - off_p).square()
    on = cost_on < cost_off
    near_t = torch.where(on, t.clamp(min=0), t.clamp(max=0))
    near_a, near_p = torch.where(on, on_p, leak * off_p), torch.where(on, on_p, off_p)
    size = math.sqrt((1.5 + 0.5 * leak**2) * t.shape[1])
    unit = size / torch.sqrt(near_a.square().sum(1) + near_p.square().sum(1))[:, None]
    return math.sqrt(t.shape[1]) * normalize(near_t, dim=1), near_a * unit, near_p * unit


def solve_duals(spaces: Spaces, t: Tensor, a: Tensor, leak: float, settings: Tolerances) -> Pairs:
    """Exact duals from the rough ones: signs of t near 0, or against a, are left out of account."""
    slope, sure = slopes(t, leak, 0.02)
    rms = a.square().mean(1, keepdim=True).sqrt()
    against = (t < 0) & (a.abs() > 0.1 * rms) if not leak else torch.zeros_like(t, dtype=torch.bool)
    start = (a @ spaces.a, a @ spaces.p)
    return solve_pairs(
        spaces.a, spaces.p, slope, sure * ~against, start, iterations=settings.solves
    )


def new_ones(a: Tensor, known: Tensor) -> Tensor:
    """Indices of the rows of a that are not yet among the known duals."""
    if not len(known):
        return torch.arange(len(a))
    overlap = (normalize(a, dim=1) @ normalize(known, dim=1).T).abs().max(1).values
    return (overlap < 0.99).nonzero()[:, 0]


def add(found: Found, spaces: Spaces, t: Tensor, duals: Pairs, chosen: Tensor) -> Found:
    residual = duals.residual[chosen]
    return Found(
        t=torch.cat([found.t, t]),
        a=torch.cat([found.a, duals.outer[chosen] @ spaces.a.T]),
        graph_residual=torch.cat([found.graph_residual, residual]),
        dual_residual=torch.cat([found.dual_residual, residual]),
        series=found.series,
    )


def leave_out(spaces: Spaces, z: Tensor) -> Spaces:
    """All other records are orthogonal to inverse1 z; the other spaces stay as they are."""
    keep = complement(z @ spaces.inverse1.T, spaces.t.shape[1])
    return Spaces(t=spaces.t @ keep, a=spaces.a, p=spaces.p, inverse1=keep.T @ spaces.inverse1)


def records_of(spaces: Spaces, to_record: Tensor, a: Tensor) -> Tensor:
    """All x~ (n x (d+1)) from all duals: M1 = sum_i a_i x~_i^T, in the spaces of all records."""
    core = torch.linalg.inv(spaces.inverse1) @ to_record
    records: Tensor = torch.linalg.solve((a @ spaces.a).T, core)
    return records


def polish(
    spaces: Spaces,
    to_record: Tensor,
    found: Found,
    first: Tensor,
    leak: float,
    settings: Tolerances,
) -> tuple[Found, Tensor]:
    """Duals again from the signs of the records that they give; the records (n x (d+1)).

    The signs of the search's own t are right where they are clear; the records' are everywhere.
    """
    for margin in (0.05, 0.01, 1e-3):
        t = records_of(spaces, to_record, found.a) @ first.T
        # A dual has no sign of its own. It is larger on the neurons that its record fires.
        t = t * torch.sign((found.a.abs() * t).sum(1, keepdim=True))
        slope, sure = slopes(t, leak, margin)
        start = (found.a @ spaces.a, found.a @ spaces.p)
        duals = solve_pairs(spaces.a, spaces.p, slope, sure, start, iterations=settings.solves)
        found = Found(
            t=t,
            a=duals.outer @ spaces.a.T,
            graph_residual=duals.residual,
            dual_residual=duals.residual,
            series=found.series,
        )
    return found, records_of(spaces, to_record, found.a)
