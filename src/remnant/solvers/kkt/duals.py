"""Which gradient each record adds, and with which sign: the objectives of 003 and 004.

margin  the distance to the nearest boundary, dual >= 0: y f (one output), f_y - max_{j != y} f_j
soft    e_y - softmax over the others, dual >= 0: exactly what cross-entropy's gradient points along
free    any loss under weight decay: one free dual for every output
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from remnant.solvers.kkt.tolerances import TOLERANCES

Objective = Literal["margin", "soft", "free"]
OBJECTIVES: tuple[Objective, ...] = ("margin", "soft", "free")


@dataclass(frozen=True, kw_only=True, eq=False)
class Duals:
    """How raw numbers become duals. labels: m classes (0 and 1 for one output)."""

    objective: Objective
    labels: Tensor
    outputs: int
    least: float = 0.0
    first: float = TOLERANCES.first_dual  # where they begin, above their least

    def start(self, starts: int, dtype: torch.dtype) -> Tensor:
        """Raw numbers, k x m, or k x m x c for several free outputs."""
        m = len(self.labels)
        if self.objective == "free":
            if self.outputs == 1:  # half of either sign: records lie on both sides of the fit
                signs = 2.0 * self.labels.to(dtype) - 1
                return (self.first * signs).expand(starts, m).clone()
            held = F.one_hot(self.labels, self.outputs).to(dtype) - 1 / self.outputs
            return (self.first * held).expand(starts, m, self.outputs).clone()
        return _raw(torch.full((starts, m), self.first, dtype=dtype))

    def values(self, raw: Tensor) -> Tensor:
        """k x m: how much of its direction each record adds."""
        if self.objective == "free":
            lengths: Tensor = raw if self.outputs == 1 else raw.norm(dim=2)
            return lengths
        return self.least + F.softplus(raw)

    def joined(self, raw: Tensor, member: Tensor, count: int, starts: int) -> Tensor:
        """Raw numbers of `count` candidates, each what its members, n out of all starts, add up to.

        raw: n, or n x c, of members in a mean of so many starts; member: n, whose each is."""
        amounts = raw if self.objective == "free" else F.softplus(raw)
        total = amounts.new_zeros(count, *raw.shape[1:]).index_add(0, member, amounts) / starts
        return total if self.objective == "free" else _raw(total)

    def directions(self, raw: Tensor, outputs: Tensor) -> Tensor:
        """km x c, from the outputs at the candidates."""
        if self.objective == "free":
            if self.outputs == 1:
                return torch.ones_like(outputs)
            lengths: Tensor = raw.norm(dim=2, keepdim=True).clamp(min=1e-12)
            return (raw / lengths).flatten(0, 1)
        labels = self.labels.repeat(len(outputs) // len(self.labels))
        if self.outputs == 1:
            return (2 * labels - 1).to(outputs)[:, None]
        mine = F.one_hot(labels, self.outputs).to(outputs)
        others = outputs.masked_fill(mine.bool(), -torch.inf)
        if self.objective == "soft":
            return mine - torch.softmax(others, dim=1)
        return mine - F.one_hot(others.argmax(1), self.outputs).to(outputs)


def _raw(amounts: Tensor) -> Tensor:
    """The numbers whose softplus these are."""
    amounts = amounts.clamp(min=1e-12)
    return amounts + torch.log(-torch.expm1(-amounts))


def balanced_labels(m: int, outputs: int) -> Tensor:
    """m classes, as even as can be."""
    return torch.arange(m) % max(outputs, 2)
