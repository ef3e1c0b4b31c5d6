"""`remnant reconstruct ntk` with what an adversary may know of the training besides its ends."""

import json

import pytest
import torch
from safetensors.torch import load_file

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
    return tmp_path, truth


def run(folder, *more):
    held = {"weights": "after.safetensors", "initial": "before.safetensors"}
    given = [part for flag, name in held.items() for part in (f"--{flag}", str(folder / name))]
    model = ["--model", MODEL, "--shape", "1x8x8", "--out", str(folder / "out"), "--json"]
    return main(["reconstruct", "ntk", *given, *model, *more])


def test_a_told_recipe_and_labels_are_replayed(folder, capsys):
    path, truth = folder
    labels = ",".join(str(label) for label in truth.labels.tolist())
    told = ("--recipe", str(path / "recipe.json"), "--labels", labels, "--records", "2")
    assert run(path, *told) == 0
    finding = json.loads(capsys.readouterr().out)
    assert "instead replay of 5 steps" in finding["reason"]
    found = load_file(path / "out/candidates.safetensors")["inputs"]
    away = torch.cdist(truth.inputs.double().flatten(1), found.double().flatten(1)).square()
    assert finding["status"] == "complete", finding["reason"]
    assert float(away.min(1).values.max()) < 1e-4


def test_without_them_the_reason_asks_for_more(folder, capsys):
    assert run(folder[0]) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] != "complete"
    assert "give --records" in finding["reason"]


@pytest.mark.parametrize(
    ("flags", "says"),
    [
        (("--labels", "1.5,2"), "--labels: expected classes such as 3,1"),
        (("--labels", "3,44"), "--labels: expected classes 0 to 9, got 3,44"),
        (("--loss", "foo"), "loss: expected "),
        (("--recipe", "recipe.json", "--loss", "mse"), "--loss: expected ce, as in --recipe"),
    ],
)
def test_what_contradicts_the_model_or_the_recipe_is_one_line(folder, capsys, flags, says):
    given = [str(folder[0] / flag) if flag.endswith(".json") else flag for flag in flags]
    assert run(folder[0], *given) == 2
    err = capsys.readouterr().err
    assert says in err
    assert err.count("\n") == 1
