"""Whether the end of a run depends on the records that match it.

A record that silences every ReLU, or an entry that no active unit reads, leaves the run as it is
wherever it moves: the run is matched, and by many others as well. By the derivative in each entry
such a match is told from one that holds its records in place.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.solvers.replay.unroll import Observe, end_of_run, misfit
from remnant.training.fleet import SharedRun


def sensitivity(
    run: SharedRun, records: Tensor, labels: Tensor, *, observe: Observe, memory: int
) -> Tensor:
    """K x m x shape: the squared length of the derivative in each entry of what is seen, estimated;
    0 is exact. The draws are always the same and those of no other generator."""
    generator = torch.Generator().manual_seed(0)
    end = observe(end_of_run(run, records, labels))
    total = torch.zeros_like(records)
    for _ in range(TOLERANCES.sense_draws):
        draw = torch.randn(end.shape[1], generator=generator, dtype=torch.float64).to(end)
        _, slope = misfit(run, records, labels, observe, end - draw / 2, memory=memory)
        total += slope.square() / TOLERANCES.sense_draws
    return total


def idle_records(
    run: SharedRun,
    records: Tensor,
    labels: Tensor,
    matched: Tensor,
    *,
    observe: Observe,
    memory: int,
) -> Tensor:
    """K x m: of which records some entry has no effect at all, or of which all have next to none.

    matched: K, the misfit below which a run counts as matched. By its derivative, a record that
    moves alone by `move` in every entry must leave `far` times as much.
    """
    slopes = sensitivity(run, records, labels, observe=observe, memory=memory).flatten(2)
    spread = (run.inputs if len(run.inputs) else records).std()
    moved = (TOLERANCES.move * spread * run.records) ** 2 * slopes.sum(2)
    return (slopes == 0).any(2) | ~(moved > TOLERANCES.far * matched[:, None])
