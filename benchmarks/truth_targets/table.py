"""All targets by name. A name and the seed draw everything about a target."""

from __future__ import annotations

from collections.abc import Mapping

from truth_targets import (
    of_checkpoints,
    of_gradients,
    of_ledgers,
    of_linear,
    of_runs,
    of_weights,
)
from truth_targets.making import Target

_ROOMS = (of_checkpoints, of_gradients, of_weights, of_linear, of_runs, of_ledgers)
TARGETS: Mapping[str, Target] = {t.name: t for room in _ROOMS for t in room.targets()}
if len(TARGETS) != sum(len(list(room.targets())) for room in _ROOMS):
    raise ValueError("truth targets: expected each name once, got one twice")
