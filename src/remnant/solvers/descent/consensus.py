"""What independent starts agree on. A small residual proves nothing; agreement is evidence."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

WITHIN = 0.9  # centred correlation above which two candidates are one


def consensus(starts: Sequence[Tensor], *, within: float = WITHIN) -> tuple[Tensor, Tensor]:
    """Candidates of s starts (each m x shape) as clusters: k x shape, and confidence k, best first.

    A candidate's confidence is the mean, over the other starts, of its correlation with the nearest
    of theirs (0 for a single start: nobody agrees). The most confident one takes in all that is
    `within` of it, and their mean stands for them.
    """
    rows = torch.cat([start.detach().double().flatten(1) for start in starts])
    owner = torch.cat([torch.full((len(start),), i) for i, start in enumerate(starts)])
    unit = torch.nn.functional.normalize(rows - rows.mean(1, keepdim=True), dim=1)
    near = unit @ unit.T
    best = torch.stack([near[:, owner == i].amax(1) for i in range(len(starts))], dim=1)
    best.scatter_(1, owner[:, None], 0.0)  # itself is no witness
    agreement = best.clamp(0, 1).sum(1) / max(1, len(starts) - 1)
    free = torch.ones(len(rows), dtype=torch.bool)
    inputs, confidence = [], []
    for i in agreement.argsort(descending=True, stable=True).tolist():
        if free[i]:
            members = free & (near[i] >= within)
            members[i] = True  # a constant image correlates with nothing, not even itself
            inputs.append(rows[members].mean(0))
            confidence.append(agreement[i])
            free &= ~members
    shape = starts[0].shape[1:]
    return torch.stack(inputs).reshape(-1, *shape), torch.stack(confidence)
