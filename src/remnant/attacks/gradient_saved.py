"""The part of attack `gradient` that reads an optimizer saved beside the weights.

After one step Adam's `exp_avg` and SGD's momentum buffer are the batch's gradient, taken at the
weights before that step, which follow from the same file. After several they are a sum of gradients
at weights that moved, as the difference of two checkpoints is, but not divided entry by entry as
Adam's own steps are: the search for two checkpoints reads it.
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import replace

import torch
from torch import nn

from remnant.attacks.ntk_exact import recover_exactly
from remnant.evidence import one_gradient, summed_gradients
from remnant.models import load_weights
from remnant.solvers.dense.rounds import Search
from remnant.types import Candidates, Evidence, Status, Target, Weights

MOVED = (
    "nor more as a sum over several: the batches fill the layer, or the weights moved too far "
    "between them; a checkpoint after the first step, or --initial, would tell more"
)

Solve = Callable[[Target, Evidence, torch.Generator], Candidates]


def from_optimizer(target: Target, solve: Solve, generator: torch.Generator) -> Candidates:
    """The better of what one step and what several would have left behind. solve: one gradient."""
    held = target.knowledge
    assert held.initial is not None
    single = replace(target, model=with_weights(target.model, held.initial))
    found = solve(single, one_gradient(single), generator)
    if found.status is not Status.COMPLETE:
        search = Search(starts=32, iterations=300, patience=12)
        several = recover_exactly(target, summed_gradients(target), search, generator)
        if (several.stated.certified or 0) > (found.stated.certified or 0):
            found = several
        else:
            found = replace(found, reason=f"as one step {found.reason}; {MOVED}")
    whose = f"the checkpoint's optimizer holds a gradient ({held.gradient_of})"
    return replace(found, reason=f"{whose}: {found.reason}")


def with_weights(model: nn.Module, weights: Weights) -> nn.Module:
    """A copy with other parameters."""
    other = copy.deepcopy(model)
    load_weights(other, dict(model.state_dict()) | dict(weights))
    return other
