"""Every record of a batch behind one gradient, where dropout follows the first hidden layer.

A neuron that was dropped is a zero of the features and of the dual although it would have fired:

    s = m relu(t) / (1 - p),   a = m / (1 - p) * (W2^T d) where t > 0,   m = 0 or 1

So a neuron either gives s = t (up to the factor, which a linear space does not see: p need not be
known) or s = 0 whatever t is: still one equation each, and the same reflections find points in the
two spaces (`one_gradient`). The masks are read off each record's own features, and all records with
their masks have to give back both gradients.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from remnant.progress import task
from remnant.solvers.dense.one_gradient import BatchRecovery, Layers
from remnant.solvers.dense.reflections import Graph, iterate, starting_at
from remnant.solvers.dense.resimulate import Resimulation
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import best_fit, distinct
from remnant.solvers.spans import count_in_noise


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """What the search spends, and when records and masks are believed. Nothing depends on the
    clock, so a seed decides."""

    starts: int = 48  # points searched for at a time: more of them share a product
    iterations: int = 2000  # of reflections in a round
    patience: int = 4  # rounds without a new record before giving up
    arrived: float = 1e-2  # gap of a walker below which it is tried as a record
    apart: float = 0.98  # cosine that points may have with each other and with those found
    passes: int = 6  # of solving a record with the masks that it has by then
    exact: float = 1e-4  # residual of a record: right ones have 1e-6, one wrong mask costs 1e-3
    returned: float = 1e-3  # share of the gradients that all records may leave unexplained
    kink: float = 1e-4  # a neuron this near to its kink may have fired there and not here
    # A record's relative error next to the share of the gradient left unexplained.
    safety: float = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class Dropped(Graph):
    """Pre-activations and features, where a feature may be 0 although its neuron fires."""

    keep: float = 0.7  # about the share of neurons that are not dropped

    def nearest(self, parts: Sequence[Tensor]) -> list[Tensor]:
        t, s = parts
        weight = TOLERANCES.feature_weight**2
        on = ((t + weight * s) / (1 + weight)).clamp(min=0)
        cost_on = (t - on).square() + weight * (s - on).square()
        fires = cost_on < weight * s.square()
        # Each at its own length: with one for both, no features at all would be a solution.
        half = math.sqrt(self.width / 2)
        both = (normalize(torch.where(fires, on, t), dim=1), normalize(on * fires, dim=1))
        return [math.sqrt(2) * half * both[0], math.sqrt(self.keep) * half * both[1]]


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Records as coordinates y (k x n) in the frame of pre-activations, and which neurons gave
    their features (`fires`, k x w: firing and not dropped)."""

    y: Tensor
    fires: Tensor
    residual: Tensor

    def take(self, which: Tensor | Sequence[int]) -> Points:
        return Points(y=self.y[which], fires=self.fires[which], residual=self.residual[which])


def drops(model: nn.Module) -> bool:
    """Whether the network has dropout, which a gradient taken in training mode went through."""
    return any(isinstance(module, nn.Dropout) and module.p > 0 for module in model.modules())


def recover_dropped(
    layers: Layers,
    *,
    generator: torch.Generator,
    count: int | None = None,
    settings: Tolerances | None = None,
) -> BatchRecovery | None:
    """All records of the batch; None where this solver does not apply: it needs a bias and a
    second hidden layer."""
    settings = settings or Tolerances()
    _, values, right = torch.linalg.svd(layers.first_gradient, full_matrices=False)
    spectrum = count_in_noise(values, layers.first_gradient, layers.precision)
    n = spectrum.counted(count)
    if layers.last or not layers.bias or n > len(layers.next_weight) or 2 * n >= layers.width:
        return None
    columns = layers.first @ right[:n].T
    frame_t = torch.linalg.qr(columns)[0]
    after = layers.next_gradient[:, : layers.width]
    frame_h = torch.linalg.svd(after, full_matrices=False).Vh[:n].T
    points = search(frame_t, frame_h, n, settings, generator)
    records = points.y @ best_fit(columns, frame_t).T @ right[:n]
    records = records / records[:, -1:]
    again, complete = None, False
    if len(records) == n:
        again = resimulate(layers, records, points.fires, settings.kink)
        complete = max(again.first, again.next) < settings.returned
    off = math.inf if again is None else max(again.first, again.next, layers.precision)
    size = records.square().sum(1)
    words = "which give back the gradient with the neurons that dropout left of each"
    reason = f"all {n} records, {words}" if complete else f"{len(records)} of {n} records found"
    return BatchRecovery(
        inputs=records[:, :-1],
        residual=points.residual,
        passed=torch.full((len(records),), complete),
        counted=n,
        spectrum=spectrum,
        complete=complete,
        found=[0.0, float(len(records))],
        resimulation=again,
        error=(settings.safety * off) ** 2 * size,
        reason=reason,
    )


def search(
    frame_t: Tensor, frame_h: Tensor, n: int, settings: Tolerances, generator: torch.Generator
) -> Points:
    """Records up to their lengths, one after the other, away from those found."""
    empty = frame_t.new_zeros(0, len(frame_t))
    found = Points(y=frame_t.new_zeros(0, n), fires=empty, residual=empty.sum(1))
    lost = 0
    with task("searching for records under dropout", n) as step:
        while len(found.y) < n and lost < settings.patience:
            graph = Dropped(
                ends=frame_t.float(),
                features=frame_h.float(),
                found=normalize(found.y, dim=1).float(),
                cosine=settings.apart,
            )
            iterates = iterate(
                graph,
                starting_at(graph.starts(settings.starts, generator)),
                iterations=settings.iterations,
                hurry=settings.iterations / 4,
                arrived=settings.arrived,
            )
            there = iterates.gap < settings.arrived
            t, s = (part[there].double() for part in iterates.best)
            new = settle(frame_t, frame_h, t, s, settings)
            new = new.take((new.residual < settings.exact).nonzero()[:, 0])
            pairs = (torch.cat(pair) for pair in zip(
                (found.y, found.fires, found.residual), (new.y, new.fires, new.residual),
                strict=True,
            ))  # fmt: skip
            y, fires, residual = pairs
            kept = distinct(y, 0.999)[:n]
            more = len(kept) - len(found.y)
            found = Points(y=y, fires=fires, residual=residual).take(kept)
            lost = 0 if more else lost + 1
            step(more, note=f"{len(found.y)} of {n}")
    return found


def settle(frame_t: Tensor, frame_h: Tensor, t: Tensor, s: Tensor, settings: Tolerances) -> Points:
    """The nearest exact points, with the masks that t and s tell; each t at length sqrt(w)."""
    w, n = frame_t.shape
    y, residual = t @ frame_t, t.new_full((len(t),), math.inf)
    fires = torch.zeros_like(t)
    for _ in range(settings.passes if len(t) else 0):
        fires = ((t > 0) & (s > t / 2)).double()
        both = torch.cat([fires[:, :, None] * frame_t, -frame_h.expand(len(t), w, n)], dim=2)
        least = torch.linalg.eigh(both.mT @ both).eigenvectors[:, :, 0]
        moved, part = least[:, :n] @ frame_t.T, least[:, n:] @ frame_h.T
        turn = torch.sign((moved * t).sum(1, keepdim=True))
        length = turn * math.sqrt(w) / moved.norm(dim=1, keepdim=True)
        t, s = moved * length, part * length
        y = t @ frame_t
        residual = (fires * t - s).norm(dim=1) / s.norm(dim=1)
    wrong = ((fires > 0) & (t < 0)).any(1)
    return Points(y=y, fires=fires, residual=residual.masked_fill(wrong, math.inf))


def resimulate(layers: Layers, records: Tensor, fires: Tensor, kink: float) -> Resimulation:
    """What the records and masks leave of both gradients; nothing is left to choose."""
    t = records @ layers.first.T
    features, back = fires * t, layers.next_gradient
    if back.shape[1] == layers.width + 1:  # the factor of dropout is not that of the bias' 1
        back = back[:, : layers.width]
    signals = best_fit(features.T, back.T)
    rest = features.T @ signals - back.T
    duals = fires * (signals @ layers.next_weight)
    spread = t.square().mean(1, keepdim=True).sqrt()
    sure = (t.abs() > kink * spread).all(0)
    first = (duals.T @ records - layers.first_gradient)[sure]
    return Resimulation(
        first=float(first.norm() / layers.first_gradient[sure].norm()),
        next=float(rest.norm() / back.norm()),
        duals=duals,
        signals=signals,
    )
