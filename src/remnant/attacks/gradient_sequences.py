"""The part of attack `gradient` that plays transformers: one solver a kind of layout."""

from __future__ import annotations

from collections.abc import Callable

import torch

from remnant.attacks.outcome import nothing
from remnant.evidence import one_gradient
from remnant.solvers.sequence.layouts import Kind, Layout, read_layout
from remnant.types import Candidates, Evidence, Status, Target

Solve = Callable[[Target, Layout, Evidence, torch.Generator], Candidates]

SOLVERS: dict[Kind, Solve] = {}  # by the layout's kind: "decoder", "encoder", "vision"


def from_sequences(target: Target, generator: torch.Generator) -> Candidates:
    """What comes back of a transformer's batch, by the solver for its kind of layout."""
    layout = read_layout(target.model)
    if isinstance(layout, str):
        return nothing(target, Status.NOT_APPLICABLE, layout)
    if layout.kind not in SOLVERS:
        reason = f"no solver reads a gradient of {layout.name}'s layout"
        return nothing(target, Status.NOT_APPLICABLE, reason)
    return SOLVERS[layout.kind](target, layout, one_gradient(target), generator)
