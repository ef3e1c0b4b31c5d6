"""Attacks and training compute where they are told, with no tensor left behind on the CPU.

No GPU is needed: `away.py` is a device on which an operation that mixes in a tensor of the CPU
raises. `pytest --away` plays any other test there.
"""

import copy
import dataclasses
import json

import numpy as np
import pytest
import torch
from torch import nn

from away import AWAY, Away, pretending
from remnant.attacks.made import make_attack
from remnant.capturing import capture
from remnant.checkpoints import Keeper, keeping
from remnant.cli import main
from remnant.data import load
from remnant.data.texts import padded
from remnant.devices import computed_there, computing_on, living_on
from remnant.models import build, save_weights
from remnant.solvers.numerics import best_fit
from remnant.solvers.reconstructor.reconn import RecoNN, fit_reconn
from remnant.training import SGD, PrivateDescent, train
from remnant.types import Examples, Knowledge, Scaling, Status, Target
from seeding import seeded
from targets import faces_target
from test_attacks import all_records_but_one, linear_model, one_gradient
from text_case import gpt2

DIGITS = load("digits")


def two_checkpoints():
    target = faces_target(records=4, width=64)[0]
    known = dataclasses.replace(target.knowledge, records=4)
    return dataclasses.replace(target, knowledge=known)


def gradient_of(text, records=2):
    model, some = build(text, generator=seeded(1)), DIGITS.take(range(records))
    held = capture(model, "ce", (some.inputs, some.labels))
    known = Knowledge(gradient=held, records=records, loss="ce")
    return Target(model=model, input_shape=(1, 8, 8), knowledge=known)


def small():
    return gradient_of("mlp:64-32-10")


def convolutions():
    return gradient_of("cnn:1x8x8-c6k3-64-64-10", records=1)


def public_too():
    target = all_records_but_one()
    known = dataclasses.replace(target.knowledge, public=DIGITS.inputs[30:80])
    return dataclasses.replace(target, knowledge=known)


def of_texts():
    model, rows = gpt2(width=48), [[7, 3, 250, 12, 99, 5], [8, 120, 4, 4, 31, 2]]
    texts = Examples(inputs=padded(rows), labels=torch.zeros(2), ids=("a", "b"), bounds=None)
    held = Knowledge(gradient=capture(model, "ce", texts))
    return Target(model=model, input_shape=(6,), bounds=None, knowledge=held)


@pytest.mark.parametrize(
    ("name", "settings", "make"),
    [
        ("ntk", {"preset": "exact", "patience": 1}, lambda: faces_target(records=6, width=192)[0]),
        ("ntk", {"preset": "paper", "steps": 10}, two_checkpoints),
        ("ntk", {"preset": "paper", "steps": 4, "features": "hybrid"}, two_checkpoints),
        ("ntk", {"preset": "projected", "steps": 10, "runs": 2}, two_checkpoints),
        ("gradient", {}, one_gradient),
        ("gradient", {}, convolutions),
        ("gradient", {}, of_texts),
        ("gradient", {"preset": "matching", "steps": 10}, small),
        ("gradient", {"preset": "matching", "steps": 4}, convolutions),
        ("kkt", {"starts": 2, "steps": 5, "candidates": 4}, two_checkpoints),
        ("kkt", {"preset": "paper", "steps": 10, "trials": 1, "lr": 1e-4}, two_checkpoints),
        (
            "informed",
            {"replaying": {"evaluations": 4, "label_evaluations": 2}},
            all_records_but_one,
        ),
        ("informed", {"method": "ridge", "shadows": 20}, public_too),
        ("informed", {"method": "reconn", "shadows": 20}, public_too),
        ("glm", {}, linear_model),
    ],
)
def test_an_attack_on_a_model_elsewhere_finds_the_same_there(name, settings, make):
    here = make()
    attack = make_attack(name, settings)
    wanted = attack(here, generator=seeded())
    with pretending():
        model = copy.deepcopy(here.model).to(AWAY)
        found = attack(dataclasses.replace(here, model=model), generator=seeded())
    assert wanted.status is not Status.NOT_APPLICABLE, wanted.reason
    assert found.status is wanted.status
    assert type(found.inputs) is torch.Tensor
    assert found.inputs.device.type == "cpu"
    assert torch.equal(found.inputs, wanted.inputs)
    assert all(isinstance(p, Away) for p in model.parameters())  # the user's model stays there


@pytest.mark.parametrize(
    "recipe",
    [SGD(lr=0.1, epochs=2, batch_size=4), PrivateDescent(lr=0.1, steps=3, clip=1.0, noise=1.0)],
)
def test_training_elsewhere_ends_at_the_same_weights(recipe):
    start = build("mlp:64-8-10", generator=seeded(1))
    given = {"scaling": Scaling(), "examples": DIGITS.take(range(8)), "recipe": recipe}
    wanted = train(start, generator=seeded(2), **given)
    with pretending(), computing_on(AWAY):
        found = train(start, generator=seeded(2), **given)
    assert all(type(p) is nn.Parameter for p in found.model.parameters())
    assert all(torch.equal(found.final[name], p) for name, p in wanted.final.items())
    assert found.ledger == wanted.ledger


def test_a_reconstructor_trained_elsewhere_comes_back_the_same():
    seen, inputs = torch.randn(20, 6, generator=seeded(1)), DIGITS.inputs[:20]
    settings = RecoNN(width=16, epochs=2, batch_size=8)
    wanted = fit_reconn(seen, inputs, settings, generator=seeded())
    with pretending(), computing_on(AWAY):
        found = fit_reconn(seen, inputs, settings, generator=seeded())
    assert torch.equal(found(seen), wanted(seen))


def test_a_loop_that_was_stopped_elsewhere_goes_on_there():
    kept, attack = {}, make_attack("ntk", {"preset": "paper", "steps": 12})
    target = two_checkpoints()

    def first(key, tensors):  # only the first state is kept, as if the loop had been killed there
        kept.setdefault(key, {name: t.cpu().clone() for name, t in tensors.items()})

    with pretending(), computing_on(AWAY), keeping(Keeper(load=kept.get, save=first, every=0.0)):
        wanted = attack(target, generator=seeded())
        assert kept
        again = attack(target, generator=seeded())
    assert torch.equal(again.inputs, wanted.inputs)


def test_what_is_made_and_drawn_inside_lives_there():
    with pretending(), living_on(AWAY):
        made = [torch.zeros(2), torch.tensor([1.0]), torch.as_tensor(np.ones(2)), torch.arange(3)]
        made += [torch.randn(2, generator=seeded()), torch.empty(2).normal_(generator=seeded())]
        made += [
            best_fit(torch.ones(3, 2), torch.ones(3, 1)),
            torch.randperm(4, generator=seeded()),
        ]
        assert all(type(t) is Away for t in made)
        assert made[0].numpy().sum() == 0
    assert torch.equal(made[4].held, torch.randn(2, generator=seeded()))


def test_the_pretended_device_refuses_the_cpu_as_a_gpu_does():
    with pretending():
        x = torch.randn(3, 2, generator=seeded()).to(AWAY)
        assert float((x + torch.ones(())).sum()) == pytest.approx(float(x.sum()) + 6)
        for wrong in (
            lambda: x + torch.ones(3, 2),
            lambda: torch.cat([x, torch.ones(3, 2)]),
            lambda: torch.linalg.lstsq(x, x),
            lambda: torch.randn(2, generator=seeded(), device=AWAY),
        ):
            with pytest.raises(RuntimeError, match=r"expected|only"):
                wrong()
        with pytest.raises(TypeError, match="cpu"):
            x.numpy()


def test_an_attack_that_leaves_a_tensor_behind_is_found_out():
    left = torch.ones(64)

    @computed_there
    def attack(target, *, generator):
        return target.model[1].weight @ left

    with pretending(), computing_on(AWAY), pytest.raises(RuntimeError, match="one of the CPU"):
        attack(one_gradient(), generator=seeded())


@pytest.fixture
def cuda(monkeypatch):
    """A machine with a GPU, which is the pretended one."""
    kind = torch.get_device_module("cuda")
    monkeypatch.setattr(kind, "is_available", lambda: True)
    there = lambda device: computing_on(AWAY if device == "cuda" else device)  # noqa: E731
    monkeypatch.setattr("remnant.devices.computing_on", there)
    with pretending():
        yield


def test_reconstruct_computes_on_the_device_that_it_is_told(cuda, tmp_path, capsys, monkeypatch):
    target, places = small(), []
    monkeypatch.setattr("remnant.devices.living_on", lambda at: places.append(at) or living_on(at))
    save_weights(tmp_path / "w.safetensors", dict(target.model.named_parameters()))
    save_weights(tmp_path / "g.safetensors", target.knowledge.gradient)
    words = ["reconstruct", "gradient", f"--weights={tmp_path / 'w.safetensors'}"]
    words += [f"--gradient={tmp_path / 'g.safetensors'}", "--shape=1x8x8", "--json"]
    assert main([*words, f"--out={tmp_path / 'here'}"]) == 0
    here = json.loads(capsys.readouterr().out)
    assert not places
    assert main([*words, "--device=cuda", f"--out={tmp_path / 'there'}"]) == 0
    assert json.loads(capsys.readouterr().out) == here
    assert places == [AWAY]
    assert "cuda" in (tmp_path / "there" / "run.json").read_text()


def test_a_device_that_is_not_here_or_that_others_would_need_is_refused(capsys, request):
    if not torch.cuda.is_available():
        assert main(["distill", "rkip", "--data=digits", "--device=cuda"]) == 2
        assert "--device: expected one that is here (cpu), got cuda" in capsys.readouterr().err
    request.getfixturevalue("cuda")
    assert main(["study", "ntk-grid", "--quick", "--device=cuda", "--jobs=2"]) == 2
    assert "--device: expected cpu with --jobs or --on, got cuda" in capsys.readouterr().err
