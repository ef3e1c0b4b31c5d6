"""Attacks: a choice of evidence, solver and defaults. One file each, one line in the table."""

from __future__ import annotations

from remnant.attacks.about import Attack
from remnant.attacks.glm import GLM
from remnant.attacks.gradient import Gradient
from remnant.attacks.informed import Informed
from remnant.attacks.kkt import KKT
from remnant.attacks.ntk import NTK

__all__ = ["ATTACKS", "GLM", "KKT", "NTK", "Attack", "Gradient", "Informed"]

ATTACKS: dict[str, type[Attack]] = {
    "ntk": NTK,  # final and initial weights (000)
    "gradient": Gradient,  # one gradient of a batch (002)
    "kkt": KKT,  # final weights alone (003, 004)
    "informed": Informed,  # all records but a few, and the training itself (001)
    "glm": GLM,  # a linear model and all records but one (001)
}
