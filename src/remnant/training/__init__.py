"""Recipes that train a copy of a model, exactly and repeatably, and losses by name."""

from remnant.training.linear import solve_linearised
from remnant.training.losses import LOSSES, Loss, accuracy, check_labels, loss_named, targets
from remnant.training.recipes import (
    RECIPES,
    SGD,
    Adam,
    AdamW,
    DecayTime,
    GradientDescent,
    LossProportional,
    PrivateDescent,
    Recipe,
    describe,
    recipe_from,
)
from remnant.training.run import Trained, train

__all__ = [
    "LOSSES",
    "RECIPES",
    "SGD",
    "Adam",
    "AdamW",
    "DecayTime",
    "GradientDescent",
    "Loss",
    "LossProportional",
    "PrivateDescent",
    "Recipe",
    "Trained",
    "accuracy",
    "check_labels",
    "describe",
    "loss_named",
    "recipe_from",
    "solve_linearised",
    "targets",
    "train",
]
