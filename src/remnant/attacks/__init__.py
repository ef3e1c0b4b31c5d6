"""Attacks: a choice of evidence, solver and defaults. One file each, one line in the table."""

from __future__ import annotations

from typing import Protocol

import torch

from remnant.attacks.glm import GLM
from remnant.attacks.gradient import Gradient
from remnant.attacks.informed import Informed
from remnant.attacks.kkt import KKT
from remnant.attacks.ntk import NTK
from remnant.types import Candidates, Target

__all__ = ["ATTACKS", "GLM", "KKT", "NTK", "Attack", "Gradient", "Informed"]


class Attack(Protocol):
    """A frozen dataclass of hyperparameters. It sees the target and a generator, nothing else."""

    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates: ...


ATTACKS: dict[str, type[Attack]] = {
    "glm": GLM,  # a linear model and all records but one (001)
    "gradient": Gradient,  # one gradient of a batch (002)
    "informed": Informed,  # all records but a few, and the training itself (001)
    "kkt": KKT,  # final weights alone (003, 004)
    "ntk": NTK,  # final and initial weights (000)
}
