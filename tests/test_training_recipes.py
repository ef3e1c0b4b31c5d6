"""Recipes are values: checked when made, described as JSON and read back."""

import json
from dataclasses import FrozenInstanceError

import pytest

from remnant.errors import InputError
from remnant.training import (
    RECIPES,
    SGD,
    Adam,
    DecayTime,
    GradientDescent,
    LossProportional,
    describe,
    recipe_from,
)

SOME = [
    GradientDescent(lr=0.1, steps=5, momentum=0.9, stop_loss=1e-3),
    SGD(lr=0.1, epochs=2, batch_size=8, loss="power2.5"),
    Adam(steps=3, betas=(0.8, 0.9), batch_size=4),
    DecayTime(),
    LossProportional(),
]


@pytest.mark.parametrize("recipe", SOME, ids=lambda r: type(r).__name__)
def test_a_description_survives_json(recipe):
    text = json.dumps(describe(recipe))
    assert recipe_from(json.loads(text)) == recipe
    assert RECIPES[json.loads(text)["name"]] is type(recipe)


def test_recipes_cannot_be_changed():
    with pytest.raises(FrozenInstanceError):
        SOME[0].lr = 1.0
    with pytest.raises(TypeError):
        GradientDescent(0.1, 5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (
            lambda: GradientDescent(lr=0, steps=5),
            "GradientDescent: lr: expected more than 0, got 0",
        ),
        (
            lambda: GradientDescent(lr=1, steps=0),
            "steps: expected a whole number, 1 to 100000000, got 0",
        ),
        (lambda: GradientDescent(lr=1, steps=2, momentum=1), "momentum: expected at least 0 and b"),
        (
            lambda: GradientDescent(lr=1, steps=2, weight_decay=-1),
            "weight_decay: expected 0 or more",
        ),
        (lambda: GradientDescent(lr=float("inf"), steps=2), "lr: expected more than 0, got inf"),
        (lambda: SGD(lr=1, epochs=1, batch_size=2.5), "SGD: batch_size: expected a whole number"),
        (lambda: Adam(steps=2, betas=(0.9, 1.0)), "Adam: betas: expected two numbers from 0"),
        (lambda: DecayTime(weight_decay=0), "DecayTime: weight_decay: expected more than 0, got 0"),
        (lambda: LossProportional(stop_loss=0.0), "stop_loss: expected more than 0, got 0.0"),
        (lambda: DecayTime(loss="l7"), "loss: expected bce, .*, got l7"),
        (lambda: recipe_from({"name": "lbfgs"}), "recipe: name: expected one of gradient-descent"),
        (
            lambda: recipe_from({"name": "sgd", "rate": 1}),
            "recipe sgd: fields: expected lr, epochs, batch_size, and some of .*, got 'rate'",
        ),
        (lambda: recipe_from({"name": ["sgd"]}), "recipe: name: expected one of gradient-descent"),
        (lambda: recipe_from({"name": "sgd", "lr": 1}), "expected lr, epochs, .*, got only lr"),
        (
            lambda: GradientDescent(lr=1, steps=10**18),
            "steps: expected .*, got 1000000000000000000",
        ),
        (lambda: SGD(lr=10**5000, epochs=1, batch_size=2), "lr: .*, got a whole number of 16610 b"),
        (lambda: Adam(steps=10**400), "steps: .*, got a whole number of 1329 bits"),
        (lambda: GradientDescent(lr=1, steps=2, loss=["ce"]), "loss: expected a name"),
        (lambda: GradientDescent(lr=1, steps=2, loss="power" + "9" * 999), "loss: expected bce"),
        (
            lambda: recipe_from({"name": "gradient-descent", "lr": "x", "steps": 2}),
            "recipe gradient-descent: expected numbers as values",
        ),
    ],
)
def test_faults_are_named(make, says):
    with pytest.raises(InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)
