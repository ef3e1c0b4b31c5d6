"""What every search through dense layers has in common: records come in rounds."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, TypeVar

import torch
from torch import Tensor

from remnant.checkpoints import checkpoint
from remnant.progress import task

State = TypeVar("State")


@dataclass(frozen=True, kw_only=True)
class Search:
    """Settings of the search. Nothing depends on the clock, so a seed decides the result."""

    starts: int = 32  # points searched for at a time
    # Reflections of a round. Between two checkpoints three times as many after a round that found
    # nothing, and half of them where points are kept apart, which arrive sooner.
    iterations: int = 300
    patience: int = 12  # rounds in a row without a new record before giving up, or twice in all
    repairs: int = 5  # searches anew for records that contradict their duals


@dataclass(frozen=True, kw_only=True, eq=False)
class Found:
    """Records found so far, one row each: points y and duals z, as coordinates in the span of the
    first layer's change (k x n each), and how far they are from solving their own equations (k)."""

    y: Tensor
    z: Tensor
    residual: Tensor

    def __len__(self) -> int:
        return len(self.y)

    def take(self, which: Tensor | Sequence[int] | slice) -> Found:
        return Found(y=self.y[which], z=self.z[which], residual=self.residual[which])

    def with_more(self, other: Found) -> Found:
        return Found(
            y=torch.cat([self.y, other.y]),
            z=torch.cat([self.z, other.z]),
            residual=torch.cat([self.residual, other.residual]),
        )


def nothing_found(count: int) -> Found:
    """The start of a search for `count` records."""
    none = torch.zeros(0, count, dtype=torch.float64)
    return Found(y=none, z=none, residual=none[:, 0])


def barren_in(series: Sequence[float]) -> int:
    """How many rounds brought nothing new."""
    return sum(after <= before for before, after in pairwise(series))


def in_rounds(
    once: Callable[[Found, State, int], tuple[Found, State]],
    found: Found,
    state: State,
    *,
    given: Sequence[Any],
    restore: Callable[[Any], State],
    patience: int,
    generator: torch.Generator,
) -> tuple[Found, list[float]]:
    """What rounds find, until all n records are or `patience` rounds in a row bring nothing new;
    and their number after each round; twice as many barren ones in all end it, too.

    once: one round, from what was found, the search's own state and the number of rounds without a
    new record. given: what the search rests on, which tells an interrupted one from others.
    restore: the state from what was kept of it.
    """
    total, barren, series = found.y.shape[1], 0, [float(len(found))]
    kept = checkpoint(once.__module__, found, state, patience, *given, generator=generator)
    if kept.state is not None:
        held, before, barren, series = kept.state
        found, state = Found(**held), restore(before)
    with task("searching for records", total) as step:
        step(len(found))
        while len(found) < total and barren < patience and barren_in(series) < 2 * patience:
            before = len(found)
            found, state = once(found, state, barren)
            barren = 0 if len(found) > before else barren + 1
            series.append(float(len(found)))
            step(max(0, len(found) - before), note=f"{len(found)} of {total}")
            if kept.due():
                kept.save([found, state, barren, series])
    return found, series
