"""Coordinates of an unknown record: where it may lie, and on what scale its entries are searched.

A descent step changes the first layer by sum_i a_i x_i^T. Outside the span of the known records
only the unknown one is left: the change there is a x_out^T, of rank one, whatever the activation.
So the record lies in the known span plus one line, and is solved for in r + 1 numbers instead of d.

Adam scales every coordinate by itself, which breaks that. An entry which hardly any known record
has moves its weights by a whole step whatever its value: there the run is steep, and flat
elsewhere. Entries are therefore searched on the scale that the known records have, and one that
none has is 0 if its weights have not moved at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun
from remnant.training.recipes import Adam
from remnant.training.steps import first_state
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Chart:
    """frame: K x d x f with orthonormal columns. scale: K x d, 0 for entries that are known to be
    0. Both None: the entries themselves."""

    frame: Tensor | None = None
    scale: Tensor | None = None

    def rows(self, index: Tensor) -> Chart:
        frame, scale = (None if t is None else t[index] for t in (self.frame, self.scale))
        return Chart(frame=frame, scale=scale)

    def place(self, records: Tensor) -> Tensor:
        """K x f: the coordinates of the nearest point that the chart has to K x m x shape."""
        if self.scale is not None:
            inverse = torch.where(self.scale > 0, 1 / self.scale, 0.0)
            return records.flatten(1) * inverse
        return self.pull(records)

    def pull(self, gradient: Tensor) -> Tensor:
        """The gradient in the coordinates, from that in the records."""
        flat = gradient.flatten(1)
        if self.scale is not None:
            return flat * self.scale
        return flat if self.frame is None else (flat[:, None] @ self.frame)[:, 0]

    def records(self, coordinates: Tensor, like: Tensor) -> Tensor:
        if self.scale is not None:
            coordinates = coordinates * self.scale
        elif self.frame is not None:
            coordinates = (self.frame @ coordinates[:, :, None])[:, :, 0]
        return coordinates.view_as(like)


def chart_of(run: SharedRun, released: Weights) -> Chart:
    """The chart for one unknown record, where the first layer is dense and seen."""
    first = first_weight(run)
    if run.extra != 1 or first is None:
        return Chart()
    ends = released[run.names[first]]
    if isinstance(run.recipe, Adam):
        return Chart(scale=adam_scale(run, run.start[first], ends.to(run.inputs)))
    return Chart(frame=frames(run, run.start[first], ends))


def first_weight(run: SharedRun) -> int | None:
    """Where among the parameters the first layer's matrix is, if it multiplies known records."""
    first = next((i for i, w in enumerate(run.start) if w.ndim > 1), None)
    if first is None or not len(run.inputs):
        return None
    entries = run.inputs[0].numel()
    return first if run.start[first].shape[1:] == (entries,) else None


def adam_scale(run: SharedRun, start: Tensor, ends: Tensor) -> Tensor:
    """K x d: root of each entry's size in the known records; 0 where nothing moved."""
    size = run.inputs.flatten(1).abs().mean(0)
    scale = (size / size.mean().clamp(min=1e-30)).clamp(min=TOLERANCES.least_scale**2).sqrt()
    moved = (ends - start).abs().amax(1)
    known = (moved == 0) & (size == 0) & (run.recipe.weight_decay == 0)
    return torch.where(known, 0.0, scale)


def frames(run: SharedRun, start: Tensor, ends: Tensor) -> Tensor | None:
    """K x d x (r+1), orthonormal columns: the known records' span and the line outside it on which
    the unknown one lies; None if not known. start, ends: the first layer, h x d and K x h x d."""
    x, start = run.inputs.flatten(1).double(), start.double()
    _, values, right = torch.linalg.svd(x, full_matrices=True)
    rank = int((values > 1e-6 * values[0]).sum())
    span, empty = right[:rank].T, right[rank:].T
    if empty.shape[1] < 2:
        return None
    # What weight decay leaves of a weight that no record moves.
    still = torch.zeros(1, dtype=torch.float64)
    state = first_state(run.recipe, [still + 1])
    for step in range(len(run.rows)):
        state = run.update(step, state, [still])
    lines = []
    for end in ends.double():
        change = (end - float(state[0]) * start) @ empty
        _, size, direction = torch.linalg.svd(change, full_matrices=False)
        if len(size) > 1 and float(size[0]) < TOLERANCES.clear * float(size[1]):
            return None
        lines.append(torch.cat([span, (empty @ direction[0])[:, None]], 1))
    return torch.stack(lines).to(run.inputs)
