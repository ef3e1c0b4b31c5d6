"""Records as points where linear spaces meet the graph of the ReLU.

Between two consecutive dense layers, a record has pre-activations t = W1 x + b1 at the initial
weights and u at the final ones, in known linear spaces (images of the records' span); features
s = relu(t), nearly in the row space of the next layer's change; and a dual a (what each neuron
learned of it) in the column space of the first layer's change, which is zero where t and u are both
negative. Relaxed reflections between the spaces and that set (RRR, a relative of Douglas-Rachford)
find such points from random starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.algebra import damped_cholesky, times
from remnant.solvers.difference.tolerances import TOLERANCES


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Where a search ended: coordinates (k x r) in the space of (t, u), rough duals (k x w), and
    gaps (k), the distance of the two projections relative to the point; 0 is a solution."""

    coordinates: Tensor
    dual: Tensor
    gap: Tensor


@dataclass(frozen=True, kw_only=True, eq=False)
class Spaces:
    """The linear spaces, in single precision or less, and what points keep away from in them."""

    ends: Tensor  # 2w x r, orthonormal columns: t above sqrt(end_weight) u
    soft: Tensor  # w x w: projector on the space of s, weights below 1 where that is uncertain
    duals: Tensor  # w x n, orthonormal columns
    found: Tensor  # f x r: coordinates of points found, unit rows before their part outside is cut
    cosine: float = 1.0  # that a point may have at most with those found, and with other points

    @property
    def keep_apart(self) -> bool:
        return self.cosine < 1

    def project(self, parts: Tensor) -> tuple[Tensor, Tensor]:
        """The nearest t, u, s, a (4 x k x w) in the spaces, and the coordinates (k x r) of (t, u);
        turned away where these are too close to others."""
        t, u, s, a = parts
        coordinates = times(torch.cat([t, math.sqrt(TOLERANCES.end_weight) * u], dim=1), self.ends)
        if self.keep_apart:
            coordinates = turned_away(coordinates, self.found, self.cosine)
        ends = self.at(coordinates)
        near_a = times(times(a, self.duals), self.duals.T)
        return torch.stack([*ends, times(s, self.soft.T), near_a]), coordinates

    def at(self, coordinates: Tensor) -> tuple[Tensor, Tensor]:
        """t and u of coordinates (k x r)."""
        both = times(coordinates, self.ends.T)
        width = len(self.soft)
        return both[:, :width], both[:, width:] / math.sqrt(TOLERANCES.end_weight)


def turned_away(rows: Tensor, found: Tensor, cosine: float, *, turns: int = 3) -> Tensor:
    """Rows (k x r) moved little, so that they have at most that cosine with those found (f x r) and
    with the rows before them.

    Each turn moves a row to the nearest that has this cosine with the one it is closest to; a few
    turns do not quite free a row that is close to several.
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


def project_on_graph(parts: Tensor) -> Tensor:
    """The nearest to t, u, s, a (4 x k x w) with s = relu(t), and a = 0 where t and u are negative.

    Entry by entry the cheapest of three cases: firing at first, firing later only, never firing.
    """
    t, u, s, a = parts
    weight, zero = TOLERANCES.feature_weight**2, torch.zeros_like(t)
    on = ((t + weight * s) / (1 + weight)).clamp(min=0)
    off = t.clamp(max=0)
    cost_on = (t - on).square() + weight * (s - on).square()
    later, never = u.clamp(max=0).square(), u.clamp(min=0).square() + a.square()
    cost_off = (t - off).square() + weight * s.square()
    cost_off = cost_off + TOLERANCES.end_weight * torch.minimum(later, never)
    fires, silent = cost_on < cost_off, never < later
    end = torch.where(fires, u, torch.where(silent, u.clamp(max=0), u.clamp(min=0)))
    near_a = torch.where(silent & ~fires, zero, a)
    return torch.stack([torch.where(fires, on, off), end, torch.where(fires, on, zero), near_a])


def rescaled(parts: Tensor) -> Tensor:
    """The same t, u, s and a (4 x k x w) at fixed scales, those of a record that fires about half
    of the neurons: any multiple of a solution is one, and so is 0."""
    t, u, s, a = parts
    width = t.shape[1]
    unit = math.sqrt(1.5 * width) / torch.sqrt(t.square().sum(1) + s.square().sum(1))
    unit = unit.clamp(max=1e12)[:, None]
    near_a = math.sqrt(0.55 * width) * normalize(a, dim=1)
    return torch.stack([t * unit, u * unit, s * unit, near_a])


def relaxed_step(spaces: Spaces, parts: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The step of RRR from t, u, s, a (4 x k x w), where it projects to, and its coordinates."""
    graph = rescaled(project_on_graph(parts))
    line, coordinates = spaces.project(2 * graph - parts)
    return line - graph, line, coordinates


def gap_of(step: Tensor) -> Tensor:
    """k: of a step (4 x k x w) that RRR takes."""
    return torch.sqrt(step.square().sum((0, 2)) / (3 * step.shape[2]))


def random_parts(spaces: Spaces, starts: int, generator: torch.Generator) -> Tensor:
    """t, u, s, a (4 x k x w) to start from."""
    width, r = len(spaces.soft), spaces.ends.shape[1]
    size = math.sqrt((1 + TOLERANCES.end_weight) * width)
    t, u = spaces.at(size * normalize(torch.randn(starts, r, generator=generator), dim=1))
    a = torch.randn(starts, width, generator=generator).masked_fill((t < 0) & (u < 0), 0.0)
    return rescaled(spaces.project(torch.stack([t, u, t.clamp(min=0), a]))[0])


def find_points(
    spaces: Spaces,
    starts: int,
    *,
    generator: torch.Generator,
    iterations: int,
    tolerance: float = 3e-3,
    enough: float = 0.6,
    every: int = 25,
    look_back: int = 6,
) -> Points:
    """Points from random starts, the smallest gaps first.

    Relaxed reflections until the share `enough` has a gap below `tolerance`, or the median gap has
    not fallen by a tenth over `look_back` looks, one `every` so many iterations.
    """
    parts = random_parts(spaces, starts, generator)
    best, best_dual = spaces.project(parts)[1], parts[3].clone()
    best_gap = torch.full((starts,), math.inf)
    medians: list[float] = []
    for iteration in range(1, iterations + 1):
        step, line, coordinates = relaxed_step(spaces, parts)
        parts = parts + step
        if iteration % every == 0 or iteration == iterations:
            gap = gap_of(step)
            better = gap < best_gap
            best[better], best_dual[better] = coordinates[better], line[3][better]
            best_gap[better] = gap[better]
            medians.append(float(best_gap.median()))
            stalled = len(medians) > look_back and medians[-1] > 0.9 * medians[-1 - look_back]
            if stalled or float((best_gap < tolerance).float().mean()) >= enough:
                break
    order = best_gap.argsort()
    return Points(coordinates=best[order], dual=best_dual[order], gap=best_gap[order])


def refine_points(
    basis: Tensor, penalty: Tensor, y: Tensor, *, iterations: int, chunk: int = 8
) -> tuple[Tensor, Tensor]:
    """Unit rows near those of y (k x r) with least |penalty relu(basis y)|^2 / |relu(basis y)|^2,
    and these quotients (k): points whose features the next layer's change contains most of.

    basis: w x r. penalty: w x w, see `Problem.penalty`. Each iteration fixes the softened mask of
    firing neurons and takes two inverse power steps of what then is a quotient of quadratics.
    """
    basis32 = basis.float()
    refined, quotients = [], []
    for rows in y.float().split(chunk):
        for i in range(iterations):
            sharpness = 0.1 * 0.1 ** (i / max(1, iterations - 1))  # 0.1 -> 0.01 of the spread
            t = rows @ basis32.T
            mask = torch.sigmoid(t / (sharpness * t.std(1, keepdim=True)))
            masked = mask[:, :, None] * basis32
            cost = torch.matmul(penalty, masked)
            top = torch.matmul(cost.mT, cost).double()
            bottom = torch.matmul(masked.mT, masked).double()
            factor = damped_cholesky(top, 1e-7)
            z = rows.double()[:, :, None]
            for _ in range(2):
                z = normalize(torch.cholesky_solve(bottom @ z, factor), dim=1)
            flat = z[:, :, 0]
            flat = flat * torch.sign((flat * rows).sum(1, keepdim=True))
            rows = flat.float()
        z = flat[:, :, None]
        refined.append(flat)
        quotients.append(((z * (top @ z)).sum(1) / (z * (bottom @ z)).sum(1))[:, 0])
    return torch.cat(refined), torch.cat(quotients)
