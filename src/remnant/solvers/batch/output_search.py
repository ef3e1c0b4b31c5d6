"""Search for records of a piecewise linear layer that the output layer follows.

Its gradient has only as many rows as there are outputs and does not hold every record's features.
But the signal from the outputs, p = W2^T d, lies in the few dimensions of W2's rows, the dual
a = f'(t) * p in the column space of M1, and t decides the slope f'(t) by its signs. Walkers look
for (t, a, p) in their three spaces. Signs alone do not fix t: only the duals are exact, and all of
them together give all records. The same serves where the next layer is too narrow for the batch.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import complement, distinct
from remnant.solvers.batch.graph_search import BatchSearch, Found, nothing_found, slopes
from remnant.solvers.batch.pairs import Pairs, solve_pairs

A_WEIGHT = 2.0  # distances in a count twice: its zeros say most. Measured, as in `walkers`.


@dataclass(frozen=True, kw_only=True, eq=False)
class Spaces:
    """Orthonormal frames of t (w x r), a (w x n) and p (w x c), and M1's inverse core (r x n)."""

    t: Tensor
    a: Tensor
    p: Tensor
    inverse1: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Signals:
    """Positions (t, a, p), the last projections of t and a (k x w each), and the gap (k)."""

    t: Tensor
    a: Tensor
    p: Tensor
    projected_t: Tensor
    projected_a: Tensor
    gap: Tensor


def search_signals(
    spaces: Spaces, leak: float, settings: BatchSearch, tolerance: float, generator: torch.Generator
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
            signals = roam_signals(spaces, leak, settings, generator)
            arrived = signals.gap < 3 * settings.arrived
            t, a = signals.projected_t[arrived].double(), signals.projected_a[arrived].double()
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


def roam_signals(
    spaces: Spaces, leak: float, settings: BatchSearch, generator: torch.Generator
) -> Signals:
    """Walk from random starts until most have arrived, or some after a while."""
    frames = (spaces.t.float(), spaces.a.float(), spaces.p.float())
    count = min(settings.walkers, max(4, 2 * spaces.t.shape[1]))
    signals = send(frames, count, leak, generator)
    done, stride = 0, 25
    while done < settings.iterations:
        signals = step_signals(signals, frames, leak, stride)
        done += stride
        share = float((signals.gap < 3 * settings.arrived).float().mean())
        if share >= 0.6 or (share > 0 and done >= 16 * stride):
            break
    return signals


def send(
    frames: tuple[Tensor, Tensor, Tensor], count: int, leak: float, generator: torch.Generator
) -> Signals:
    size = math.sqrt(len(frames[0]))
    t, p = (
        size * normalize(torch.randn(count, f.shape[1], generator=generator) @ f.T, dim=1)
        for f in (frames[0], frames[2])
    )
    a = torch.where(t > 0, p, leak * p)
    a = (a @ frames[1]) @ frames[1].T
    gap = torch.full((count,), math.inf)
    return Signals(t=t, a=a, p=p, projected_t=t, projected_a=a, gap=gap)


def nearest_signals(t: Tensor, a: Tensor, p: Tensor, leak: float) -> tuple[Tensor, Tensor, Tensor]:
    """Entry by entry the nearest with a = p where t > 0 and a = leak p where t < 0."""
    weight = A_WEIGHT**2
    on_p = (weight * a + p) / (weight + 1)
    off_p = (weight * leak * a + p) / (weight * leak**2 + 1)
    cost_on = t.clamp(max=0).square() + weight * (a - on_p).square() + (p - on_p).square()
    cost_off = t.clamp(min=0).square() + weight * (a - leak * off_p).square() + (p - off_p).square()
    on = cost_on < cost_off
    near_t = torch.where(on, t.clamp(min=0), t.clamp(max=0))
    return near_t, torch.where(on, on_p, leak * off_p), torch.where(on, on_p, off_p)


def step_signals(
    signals: Signals, frames: tuple[Tensor, Tensor, Tensor], leak: float, iterations: int
) -> Signals:
    """Relaxed reflections, as in `walkers`, with two scales to hold: that of t and that of a, p."""
    t, a, p = signals.t, signals.a, signals.p
    width = t.shape[1]
    size_t, size_a = math.sqrt(width), math.sqrt((1.5 + 0.5 * leak**2) * width)
    for _ in range(iterations):
        near_t, near_a, near_p = nearest_signals(t, a, p, leak)
        near_t = size_t * normalize(near_t, dim=1)
        unit = size_a / torch.sqrt(near_a.square().sum(1) + near_p.square().sum(1))[:, None]
        near_a, near_p = near_a * unit, near_p * unit
        line_t = ((2 * near_t - t) @ frames[0]) @ frames[0].T
        line_a = ((2 * near_a - a) @ frames[1]) @ frames[1].T
        line_p = ((2 * near_p - p) @ frames[2]) @ frames[2].T
        t, a, p = t + line_t - near_t, a + line_a - near_a, p + line_p - near_p
    steps = torch.cat([line_t - near_t, line_a - near_a, line_p - near_p], dim=1)
    gap = steps.norm(dim=1) / math.sqrt(size_t**2 + size_a**2)
    return Signals(t=t, a=a, p=p, projected_t=line_t, projected_a=line_a, gap=gap)


def solve_duals(spaces: Spaces, t: Tensor, a: Tensor, leak: float, settings: BatchSearch) -> Pairs:
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
    settings: BatchSearch,
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
