"""`remnant reconstruct informed` and `kkt` as a user types them."""

import json
from dataclasses import replace
from functools import wraps

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from remnant.cli import main
from remnant.data import load, split
from remnant.models import build, save_weights
from remnant.sweep import fleets
from remnant.training import GradientDescent, PrivateDescent, describe, train
from remnant.types import Scaling

MODEL = "mlp:64-10-10:elu"
RECIPE = GradientDescent(lr=0.1, momentum=0.9, steps=15)


@pytest.fixture
def folder(tmp_path):
    """A model trained on 31 digits, of which 30 are known."""
    train_set = split(load("digits"), train=31, public=None, holdout=1, seed=0).train
    model = build(MODEL, generator=torch.Generator().manual_seed(0))
    result = train(
        model, train_set, RECIPE, scaling=Scaling(), generator=torch.Generator().manual_seed(1)
    )
    save_weights(tmp_path / "before.safetensors", result.initial)
    save_weights(tmp_path / "after.safetensors", result.final)
    known = train_set.take(range(30))
    np.savez(tmp_path / "known.npz", x=known.inputs.numpy(), y=known.labels.numpy())
    np.save(tmp_path / "truth.npy", train_set.inputs[30].numpy())
    (tmp_path / "recipe.json").write_text(json.dumps(describe(RECIPE)))
    return tmp_path


def flags(folder, *more, model=MODEL):
    held = {
        "weights": "after.safetensors", "initial": "before.safetensors", "recipe": "recipe.json",
        "known": "known.npz",
    }  # fmt: skip
    given = [part for flag, name in held.items() for part in (f"--{flag}", str(folder / name))]
    looks = ["--model", model, "--shape", "1x8x8", "--bounds", "0,1"]
    return ["reconstruct", "informed", *given, *looks, "--out", str(folder / "out"), *more]


def test_the_unknown_record_comes_back(folder, capsys):
    assert main(flags(folder, "--json")) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] == "complete", finding["reason"]
    found = load_file(folder / "out/candidates.safetensors")["inputs"][0].numpy()
    assert float(((found - np.load(folder / "truth.npy")) ** 2).mean()) < 1e-4


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("[1]", "a JSON object"),
        ("{", "a JSON file"),
        ('{"name": "magic"}', "one of gradient-descent"),
        ('{"name": "sgd", "lr": -1, "epochs": 1, "batch_size": 4}', "lr: expected more than 0"),
    ],
)
def test_a_bad_recipe_is_one_line(folder, capsys, text, said):
    (folder / "recipe.json").write_text(text)
    assert main(flags(folder)) == 2
    err = capsys.readouterr().err
    assert said in err
    assert err.count("\n") == 1


@pytest.mark.parametrize(
    ("labels", "outputs", "said"),
    [
        ("44", 10, "--labels: expected classes 0 to 9, got 44"),
        ("2", 1, "--labels: expected classes 0 to 1, got 2"),
        ("-1", 10, "--labels: expected at least 0, got '-1'"),
        ("1e30", 10, "--labels: expected a valid integer, got '1e30'"),
    ],
)
def test_a_label_that_is_no_class_of_the_model_is_one_line(folder, capsys, labels, outputs, said):
    model = f"mlp:64-10-{outputs}:elu"
    for name in ("before", "after"):
        weights = build(model, generator=torch.Generator().manual_seed(0)).state_dict()
        save_weights(folder / f"{name}.safetensors", weights)
    assert main(flags(folder, "--labels", labels, model=model)) == 2
    assert capsys.readouterr().err == f"remnant: {said}\n"
    assert not (folder / "out").exists()


def test_kkt_from_the_final_weights_alone(folder, capsys):
    given = ["--weights", str(folder / "after.safetensors"), "--model", "mlp:64-10-10"]
    more = ["--records", "4", "--steps", "5", "--starts", "2", "--json"]
    shape = ["--shape", "1x8x8", "--out", str(folder / "kkt")]
    assert main(["reconstruct", "kkt", *given, *more, *shape]) == 0
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] == "inconclusive"  # it was never near a stationary point
    assert main(["reconstruct", "kkt", *given, "--objective", "best", *shape]) == 2


@pytest.fixture
def learned(folder):
    """The flags of a learned attack with twelve shadow models, in chunks of four."""
    public = load("digits").take(range(200, 212))
    np.savez(folder / "public.npz", x=public.inputs.numpy(), y=public.labels.numpy())
    return ("--method", "ridge", "--public", str(folder / "public.npz"), "--quiet")


def test_shadow_models_on_two_processes_are_those_of_one(folder, learned, monkeypatch):
    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 4)
    found = []
    for more in ((), ("--jobs", "2")):
        out = folder / f"out{len(found)}"
        assert main([*flags(folder, *learned, *more), "--out", str(out)]) == 0
        assert not list(out.glob("fleet-*"))  # wanted no longer
        found.append(load_file(out / "candidates.safetensors")["inputs"])
    assert torch.equal(*found)


def without(told, flag):
    """These flags but for one and its value."""
    at = told.index(flag)
    return told[:at] + told[at + 2 :]


def test_without_initial_weights_shadow_models_start_anywhere_and_replay_says_what_it_needs(
    folder, learned, capsys, monkeypatch
):
    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 4)
    found = []
    for more in ((), ("--jobs", "2")):
        told = without(flags(folder, *learned, *more), "--initial")
        out = folder / f"out{len(found)}"
        assert main([*told, "--out", str(out), "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["status"] == "inconclusive"
        found.append(load_file(out / "candidates.safetensors")["inputs"])
    assert torch.equal(*found)
    assert main(flags(folder, *learned)) == 0  # from the known start it is another answer
    assert not torch.equal(found[0], load_file(folder / "out/candidates.safetensors")["inputs"])
    told = without(flags(folder, "--json"), "--initial")
    assert main([*told, "--out", str(folder / "replay")]) == 5
    finding = json.loads(capsys.readouterr().out)
    assert finding["status"] == "not applicable"
    assert "replay starts there; give --initial, or --method ridge" in finding["reason"]


def test_a_private_recipe_is_for_shadow_models_as_private_and_replay_says_why_not(
    folder, learned, capsys, monkeypatch
):
    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 4)
    recipe = PrivateDescent(lr=0.1, momentum=0.9, steps=15, noise=0.5)
    found = []
    for noise, more in ((0.5, ()), (0.5, ("--jobs", "2")), (5.0, ())):
        (folder / "recipe.json").write_text(json.dumps(describe(replace(recipe, noise=noise))))
        out = folder / f"out{len(found)}"
        assert main([*flags(folder, *learned, *more), "--out", str(out), "--json"]) == 0
        finding = json.loads(capsys.readouterr().out)
        assert finding["status"] == "inconclusive"
        found.append(load_file(out / "candidates.safetensors")["inputs"])
    assert torch.equal(found[0], found[1])
    assert not torch.equal(found[0], found[2])  # the shadow models have the recipe's noise
    for more, said in [
        ((), "training was private: replay cannot know what noise was added"),
        (learned, "sampling: expected 1, full batches, got 0.5"),
    ]:
        changed = replace(recipe, sampling=0.5 if more else 1.0)
        (folder / "recipe.json").write_text(json.dumps(describe(changed)))
        out = folder / f"none{len(more)}"
        assert main([*flags(folder, *more), "--out", str(out), "--json"]) == 5
        assert said in json.loads(capsys.readouterr().out)["reason"]


def watch(monkeypatch, *, until=None):
    """The beginnings of chunks as they are trained; interrupted after so many."""
    begun, train_part = [], fleets.train_part

    @wraps(train_part)
    def watched(spec, fleet):
        if len(begun) == until:
            raise KeyboardInterrupt
        begun.append(spec["begin"])
        return train_part(spec, fleet)

    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 4)
    monkeypatch.setattr(fleets, "train_part", watched)
    return begun


def test_shadow_models_survive_a_kill_and_serve_another_run(folder, learned, monkeypatch):
    kept = ("--fleets", str(folder / "kept"))
    with monkeypatch.context() as patch:
        begun = watch(patch, until=2)
        assert main(flags(folder, *learned, *kept)) == 130
        assert begun == [0, 4]
    begun = watch(monkeypatch)
    assert main(flags(folder, *learned, *kept)) == 0
    assert begun == [8]
    other = [*flags(folder, *learned, *kept), "--seed", "5", "--out", str(folder / "other")]
    assert main(other) == 0
    assert begun == [8]


def test_a_killed_run_is_removed_with_its_shadow_models(folder, learned, monkeypatch):
    watch(monkeypatch, until=1)
    assert main(flags(folder, *learned)) == 130
    assert list((folder / "out").glob("fleet-*/run.json"))
    assert main(["runs", "remove", str(folder / "out"), "--yes"]) == 0
    assert not (folder / "out").exists()
