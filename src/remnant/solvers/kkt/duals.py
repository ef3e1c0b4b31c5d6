"""Which gradient each record adds to the weights, and with which sign: the objectives of 003 and
004.

At a stationary point under weight decay the weights are a sum of gradients of the network's outputs
at the records, each in a direction in output space and with a dual, a number that says how much:

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
    """Turns the raw numbers that a descent moves into duals and directions. labels: m classes (0
    and 1 for one output)."""

    objective: Objective
    labels: Tensor
    outputs: int
    least: float = 0.0
    first: float = TOLERANCES.first_dual  # where they begin, above their least

    def start(self, starts: int, dtype: torch.dtype) -> Tensor:
        """The raw numbers to begin with: k x m, or k x m x c where several outputs have free
        duals."""
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
        """Raw numbers of `count` merged candidates, so that the dual of each is the sum of its
        members' duals over the number of starts.

        raw: n, or n x c, of the members. member: n, into which candidate each is merged. starts:
        how many starts they come from.
        """
        amounts = raw if self.objective == "free" else F.softplus(raw)
        total = amounts.new_zeros(count, *raw.shape[1:]).index_add(0, member, amounts) / starts
        return total if self.objective == "free" else _raw(total)

    def directions(self, raw: Tensor, outputs: Tensor) -> Tensor:
        """The direction in output space (km x c) of each candidate's gradient, from the outputs
        there."""
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
    """The raw numbers whose softplus the given amounts are."""
    amounts = amounts.clamp(min=1e-12)
    return amounts + torch.log(-torch.expm1(-amounts))


def balanced_labels(m: int, outputs: int) -> Tensor:
    """m classes, equally many of each as far as possible."""
    return torch.arange(m) % max(outputs, 2)
