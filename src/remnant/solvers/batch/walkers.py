"""Walkers that search for records where a linear space meets the graph of the activation.

t and s = f(t) each lie in a known space. Relaxed reflections between that pair of spaces and the
graph (RRR) wander until they fall into a common point, which is a record. A walker that has not
arrived keeps its place when the spaces shrink around found records; one that has is sent out anew.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

# Distances in s count WEIGHT times those in t: silent neurons then stay silent. Measured on widths
# 256 to 2048, weights of 2 to 3 need half to a sixth of the iterations of weight 1 and get through
# where it does not (110 records at width 256); a relaxation a little above 1 saves some more.
WEIGHT = 2.0
RELAXATION = 1.2


@dataclass(frozen=True, kw_only=True, eq=False)
class Walkers:
    """k x w each, float32: positions (t, s), the last projection of t, and the gap (k).

    The gap is the distance between the two projections relative to the point; 0 is a solution.
    """

    t: Tensor
    s: Tensor
    projected: Tensor
    gap: Tensor

    def __len__(self) -> int:
        return len(self.t)


def set_out(frame: Tensor, count: int, leak: float, *, generator: torch.Generator) -> Walkers:
    """Random points of the space of t (w x r), entries of unit root-mean-square."""
    t = torch.randn(count, frame.shape[1], generator=generator, dtype=frame.dtype) @ frame.T
    t *= math.sqrt(len(frame)) / t.norm(dim=1, keepdim=True)
    s = torch.where(t > 0, t, leak * t)
    return Walkers(t=t, s=s, projected=t, gap=torch.full((count,), math.inf, dtype=t.dtype))


def nearest_on_graph(t: Tensor, s: Tensor, leak: float) -> tuple[Tensor, Tensor]:
    """The nearest (u, f(u)), f(u) = u above 0 and leak u below, entry by entry, s weighted."""
    weight = WEIGHT**2
    on = ((t + weight * s) / (1 + weight)).clamp(min=0)
    off = (
        ((t + weight * leak * s) / (1 + weight * leak**2)).clamp(max=0) if leak else t.clamp(max=0)
    )
    cost_on = (t - on).square() + weight * (s - on).square()
    cost_off = (t - off).square() + weight * (s - leak * off).square()
    nearer = cost_on < cost_off
    return torch.where(nearer, on, off), torch.where(nearer, on, leak * off)


def walk(
    walkers: Walkers, t_frame: Tensor, s_frame: Tensor, *, leak: float, iterations: int
) -> Walkers:
    """`iterations` of RRR. Frames: w x r, orthonormal columns, float32. Four products each."""
    t, s = walkers.t, walkers.s
    size = math.sqrt((1.5 + 0.5 * leak**2) * t.shape[1])  # |(t, f(t))| of unit entries
    t_back, s_back = t_frame.T.contiguous(), s_frame.T.contiguous()
    for _ in range(iterations):
        graph_t, graph_s = nearest_on_graph(t, s, leak)
        norm = torch.sqrt(graph_t.square().sum(1) + graph_s.square().sum(1)).clamp(min=1e-12)
        unit = (size / norm)[:, None]  # the graph is a cone: hold the scale, or 0 is a solution
        graph_t, graph_s = graph_t * unit, graph_s * unit
        line_t = ((2 * graph_t - t) @ t_frame) @ t_back
        line_s = ((2 * graph_s - s) @ s_frame) @ s_back
        step_t, step_s = line_t - graph_t, line_s - graph_s
        t, s = t + RELAXATION * step_t, s + RELAXATION * step_s
    gap = torch.sqrt(step_t.square().sum(1) + step_s.square().sum(1)) / size
    return Walkers(t=t, s=s, projected=line_t, gap=gap)


def relay(walkers: Walkers | None, fresh: Walkers) -> Walkers:
    """Those still under way first, then as many fresh ones as make up the number of `fresh`."""
    if walkers is None:
        return fresh
    count, old = len(fresh), min(len(walkers), len(fresh))
    return Walkers(
        t=torch.cat([walkers.t[:old], fresh.t[: count - old]]),
        s=torch.cat([walkers.s[:old], fresh.s[: count - old]]),
        projected=torch.cat([walkers.projected[:old], fresh.projected[: count - old]]),
        gap=torch.cat([walkers.gap[:old], fresh.gap[: count - old]]),
    )


def take(walkers: Walkers, which: Tensor) -> Walkers:
    return Walkers(
        t=walkers.t[which],
        s=walkers.s[which],
        projected=walkers.projected[which],
        gap=walkers.gap[which],
    )
