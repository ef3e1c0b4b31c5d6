"""`remnant reconstruct ntk` with what an adversary may know of the training besides its ends."""

import json

import pytest
import torch

from remnant.cli import main
from remnant.data import load
from remnant.models import build, save_weights
from remnant.training import GradientDescent, describe, train
from remnant.types import Scaling

RECIPE = GradientDescent(lr=0.05, momentum=0.9, steps=5)
MODEL = "cnn:1x8x8-c4k3-16-10:elu"


@pytest.fixture
def folder(tmp_path):
    """Both ends of a short training on two digits, a convolution first."""
    truth = load("digits").take((10, 11))
    model = build(MODEL, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    order = torch.Generator().manual_seed(0)
    result = train(model, truth, RECIPE, scaling=Scaling(), generator=order)
    save_weights(tmp_path / "before.safetensors", result.initial)
    save_weights(tmp_path / "after.safetensors", result.final)
    (tmp_path / "recipe.json").write_text(json.dumps(describe(RECIPE)))
    return tmp_path


def run(folder, *more):
    held = {"weights": "after.safetensors", "initial": "before.safetensors"}
    given = [part for flag, name in held.items() for part in (f"--{flag}", str(folder / name))]
    model = ["--model", MODEL, "--shape", "1x8x8", "--out", str(folder / "out"), "--json"]
    return main(["reconstruct", "ntk", *given, *model, *more])


def test_a_short_training_of_a_known_recipe_is_left_to_the_attack_that_replays_it(folder, capsys):
    assert run(folder, "--recipe", str(folder / "recipe.json")) == 5
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] != "complete"
    assert "attack informed replays a short training" in finding["reason"]


def test_without_them_the_reason_asks_for_more(folder, capsys):
    assert run(folder) == 5
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] != "complete"
    assert "give --records" in finding["reason"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--loss", "foo"), "loss: expected "),
        (("--recipe", "recipe.json", "--loss", "mse"), "--loss: expected ce, as in --recipe"),
    ],
)
def test_what_contradicts_the_model_or_the_recipe_is_one_line(folder, capsys, flags, says):
    given = [str(folder / flag) if flag.endswith(".json") else flag for flag in flags]
    assert run(folder, *given) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
