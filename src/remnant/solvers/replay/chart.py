"""Coordinates of an unknown record: where it may lie, and on what scale its entries are searched.

Descent leaves the record in the known span and one line (`outside`). Adam divides every weight's
gradient by its own size, so that an entry which hardly any known record has moves its weights by
a whole step whatever its value: there the run is steep, and flat elsewhere. Entries are therefore
searched on the scale that the known records have, and one that none has is 0 if its weights
have not moved at all.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.replay.outside import first_weight, frames
from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun
from remnant.training.recipes import Adam
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
    if isinstance(run.recipe, Adam):
        return Chart(scale=adam_scale(run, released))
    return Chart(frame=frames(run, released))


def adam_scale(run: SharedRun, released: Weights) -> Tensor | None:
    """K x d: root of each entry's size in the known records; 0 where nothing moved."""
    first = first_weight(run)
    if first is None or run.extra != 1:
        return None
    size = run.inputs.flatten(1).abs().mean(0)
    scale = (size / size.mean().clamp(min=1e-30)).clamp(min=TOLERANCES.least_scale**2).sqrt()
    moved = (released[run.names[first]].to(run.inputs) - run.start[first]).abs().amax(1)
    known = (moved == 0) & (size == 0) & (run.recipe.weight_decay == 0)
    return torch.where(known, 0.0, scale)
