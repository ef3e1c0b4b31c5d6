"""Recipes are values: checked when made, described as JSON and read back."""

import copy
import json
from dataclasses import FrozenInstanceError

import pytest
import torch
from torch import nn

from remnant.cli import main
from remnant.cli.target import read_recipe
from remnant.data import load
from remnant.errors import InputError
from remnant.models import build
from remnant.training import (
    RECIPES,
    SGD,
    Adam,
    AdamW,
    DecayTime,
    GradientDescent,
    LossProportional,
    describe,
    recipe_from,
    train,
)
from remnant.types import Scaling
from seeding import seeded

SOME = [
    GradientDescent(lr=0.1, steps=5, momentum=0.9, stop_loss=1e-3),
    SGD(lr=0.1, epochs=2, batch_size=8, loss="power2.5"),
    Adam(steps=3, betas=(0.8, 0.9), batch_size=4),
    AdamW(epochs=3, batch_size=4, schedule="cosine", warmup=2),
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
    with pytest.raises(InputError):
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
            "steps: expected at least 1, got 0",
        ),
        (lambda: GradientDescent(lr=1, steps=2, momentum=1), "momentum: expected below 1"),
        (
            lambda: GradientDescent(lr=1, steps=2, weight_decay=-1),
            "weight_decay: expected at least 0",
        ),
        (
            lambda: GradientDescent(lr=float("inf"), steps=2),
            "lr: expected a finite number, got inf",
        ),
        (lambda: SGD(lr=1, epochs=1, batch_size=2.5), "SGD: batch_size: expected a valid integer"),
        (lambda: Adam(steps=2, betas=(0.9, 1.0)), "Adam: betas.1: expected below 1"),
        (
            lambda: DecayTime(weight_decay=0),
            "DecayTime: weight_decay: expected more than 0, got 0",
        ),
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
        (lambda: GradientDescent(lr=1, steps=2, loss=["ce"]), "loss: expected a valid string"),
        (lambda: GradientDescent(lr=1, steps=2, loss="power" + "9" * 999), "loss: expected bce"),
        (
            lambda: recipe_from({"name": "gradient-descent", "lr": "x", "steps": 2}),
            "GradientDescent: lr: expected a valid number, got 'x'",
        ),
    ],
)
def test_faults_are_named(make, says):
    with pytest.raises(InputError, match=says) as caught:
        make()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine"])
def test_adamw_and_its_schedules_are_those_of_torch_and_transformers(schedule):
    transformers = pytest.importorskip("transformers")
    model = build("mlp:64-16-10", generator=seeded(1))
    data = load("digits").take(range(40))
    recipe = AdamW(epochs=3, batch_size=16, lr=0.01, schedule=schedule, warmup=2)
    made = train(model, data, recipe, scaling=Scaling(), generator=seeded(2))
    theirs = copy.deepcopy(model)
    optimizer = torch.optim.AdamW(theirs.parameters(), lr=0.01)
    kind = "constant_with_warmup" if schedule == "constant" else schedule
    rates = transformers.get_scheduler(kind, optimizer, 2, 9)
    order = seeded(2)
    for _ in range(3):
        for rows in torch.randperm(40, generator=order).split(16):
            optimizer.zero_grad()
            nn.functional.cross_entropy(theirs(data.inputs[rows]), data.labels[rows]).backward()
            optimizer.step()
            rates.step()
    for mine, other in zip(made.model.parameters(), theirs.parameters(), strict=True):
        torch.testing.assert_close(mine, other, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("name", ["gradient-descent", "sgd", "adam", "adamw", "decay-time"])
def test_a_commented_recipe_is_read_again(tmp_path, name):
    path = tmp_path / "recipe.yaml"
    assert main(["recipe", name, "--out", str(path), "--quiet"]) == 0
    assert describe(recipe_from(read_recipe(path)))["name"] == name
    assert all("  # " in line for line in path.read_text().splitlines()[1:])
