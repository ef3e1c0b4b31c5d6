"""The part of an unknown record outside the known records' span, read off the first dense layer.

A descent step changes the first layer by sum_i a_i x_i^T. Outside the span of the known records
only the unknown one is left: the change there is a x_out^T, of rank one, whatever the activation.
So x lies in the known span plus one line, and is solved for in r + 1 numbers instead of d. Adam
scales every coordinate by itself, which breaks it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from remnant.solvers.replay.tolerances import TOLERANCES
from remnant.training.fleet import SharedRun
from remnant.training.recipes import Adam
from remnant.training.steps import first_state
from remnant.types import Weights


def frames(run: SharedRun, released: Weights) -> Tensor | None:
    """K x d x (r+1), orthonormal columns: where each unknown record lies; None if not known.

    The columns are the known records' span and the line outside it.
    """
    first = first_weight(run)
    if run.extra != 1 or isinstance(run.recipe, Adam) or first is None:
        return None
    x, start = run.inputs.flatten(1).double(), run.start[first].double()
    _, values, right = torch.linalg.svd(x, full_matrices=True)
    rank = int((values > 1e-6 * values[0]).sum())
    span, empty = right[:rank].T, right[rank:].T
    if empty.shape[1] < 2:
        return None
    lines = []
    for end in released[run.names[first]].double():
        change = (end - decayed(run) * start) @ empty
        _, size, direction = torch.linalg.svd(change, full_matrices=False)
        if len(size) > 1 and float(size[0]) < TOLERANCES.clear * float(size[1]):
            return None
        lines.append(torch.cat([span, (empty @ direction[0])[:, None]], 1))
    return torch.stack(lines).to(run.inputs)


def first_weight(run: SharedRun) -> int | None:
    """Where among the parameters the first layer's matrix is, if it multiplies known records."""
    first = next((i for i, w in enumerate(run.start) if w.ndim > 1), None)
    if first is None or not len(run.inputs):
        return None
    entries = run.inputs[0].numel()
    return first if run.start[first].shape[1:] == (entries,) else None


def decayed(run: SharedRun) -> float:
    """What weight decay leaves of a weight that no record moves."""
    still = torch.zeros(1, dtype=torch.float64)
    state = first_state(run.recipe, [still + 1])
    for step in range(len(run.rows)):
        state = run.update(step, state, [still])
    return float(state[0])
