"""Every attack keeps the same promises, and one added by the book is known to every verb."""

import copy
import dataclasses
import json
import re
import sys
import types
from pathlib import Path

import numpy as np
import pytest
import torch
from sklearn.linear_model import Ridge

from linear_cases import table, target_of
from remnant.attacks import ATTACKS
from remnant.attacks.made import make_attack
from remnant.auditing import Plan, audit
from remnant.capturing import capture
from remnant.cli import main
from remnant.data import load
from remnant.errors import InputError
from remnant.models import build, save_weights
from remnant.training import GradientDescent, train
from remnant.types import Candidates, Knowledge, Scaling, Status, Target
from seeding import seeded
from targets import faces_target

DIGITS = load("digits")
PAGE = Path(__file__).parents[1] / "docs" / "research" / "adding-an-attack.md"


def two_checkpoints():
    return faces_target()[0]


def one_gradient():
    model = build("mlp:64-128-128-10", generator=seeded(1))
    held = capture(model, "ce", (DIGITS.inputs[:4], DIGITS.labels[:4]))
    return Target(model=model, input_shape=(1, 8, 8), knowledge=Knowledge(gradient=held))


def all_records_but_one():
    records, recipe = DIGITS.take(range(11)), GradientDescent(lr=0.2, momentum=0.9, steps=4)
    start = build("mlp:64-8-10:elu", generator=seeded(1))
    trained = train(start, records, recipe, scaling=Scaling(), generator=seeded(9))
    known = Knowledge(initial=trained.initial, recipe=recipe, known=records.take(range(10)))
    return Target(model=trained.model, input_shape=(1, 8, 8), knowledge=known)


def linear_model():
    x, y = table()
    return target_of(Ridge().fit(x, y["linear"]), x, y["linear"])


def with_public():
    model = build("mlp:64-8-10", generator=seeded())
    known = Knowledge(public=DIGITS.inputs[30:40])
    return Target(model=model, input_shape=(1, 8, 8), knowledge=known)


ROWS = {
    "ntk": ({"preset": "exact"}, two_checkpoints),
    "gradient": ({}, one_gradient),
    "kkt": ({"starts": 2, "steps": 5, "candidates": 4}, two_checkpoints),
    "informed": ({"replaying": {"evaluations": 4, "label_evaluations": 2}}, all_records_but_one),
    "glm": ({}, linear_model),
}
"""Attack -> settings with which a run takes a second, and a target on which it applies."""


def blocks():
    """The page's Python: the attack's file, its row and its test row."""
    return re.findall(r"```python\n(.*?)```", PAGE.read_text(), re.DOTALL)


@pytest.fixture
def nearest(monkeypatch):
    """The page's attack, added."""
    code, row, test_row = blocks()
    module = types.ModuleType("remnant.attacks.nearest")
    monkeypatch.setitem(sys.modules, module.__name__, module)
    exec(compile(code, str(PAGE), "exec"), vars(module))
    for name, kind in eval(f"{{{row}}}", vars(module)).items():
        monkeypatch.setitem(ATTACKS, name, kind)
    for name, held in eval(f"{{{test_row}}}", globals()).items():
        monkeypatch.setitem(ROWS, name, held)


def conforms(name):
    """Frozen keyword-only settings, candidates in the data's shape, no side effect, and the same
    bytes for the same seed."""
    kind, (settings, make) = ATTACKS[name], ROWS[name]
    assert dataclasses.is_dataclass(kind)
    assert kind.__dataclass_params__.frozen
    assert all(field.kw_only for field in dataclasses.fields(kind))
    target, state = make(), torch.get_rng_state()
    weights = copy.deepcopy(dict(target.weights))
    found, again = (make_attack(name, settings)(target, generator=seeded()) for _ in range(2))
    assert isinstance(found, Candidates)
    assert found.status is not Status.NOT_APPLICABLE, found.reason
    assert tuple(found.inputs.shape[1:]) == target.input_shape
    assert found.inputs.numpy().tobytes() == again.inputs.numpy().tobytes()
    assert torch.equal(torch.get_rng_state(), state)
    assert all(torch.equal(weights[n], p) for n, p in target.weights.items())


@pytest.mark.parametrize("name", ATTACKS)
def test_every_attack_conforms(name):
    assert name in ROWS, f"add a row for {name} to ROWS"
    conforms(name)


def test_what_does_not_apply_has_a_reason_and_no_candidates():
    """An untrained model of which nothing else is known."""
    target = dataclasses.replace(with_public(), knowledge=Knowledge())
    for name in set(ATTACKS) - {"kkt"}:  # the weights are all that it needs
        found = make_attack(name, {})(target, generator=seeded())
        assert found.status is Status.NOT_APPLICABLE
        assert len(found.reason) > 10
        assert found.inputs.shape == (0, 1, 8, 8)


def test_the_added_attack_conforms_and_needs_public_images(nearest):
    conforms("nearest")
    test_what_does_not_apply_has_a_reason_and_no_candidates()


@pytest.fixture
def folder(tmp_path, nearest):
    model = build("mlp:64-8-10", generator=seeded())
    save_weights(tmp_path / "w.safetensors", dict(model.named_parameters()))
    for name, first in (("train", 0), ("public", 10)):
        part = DIGITS.take(range(first, first + 8))
        np.savez(tmp_path / f"{name}.npz", x=part.inputs.numpy(), y=part.labels.numpy())
    return tmp_path


def held(folder):
    return [f"--weights={folder / 'w.safetensors'}", f"--public={folder / 'public.npz'}"]


def test_reconstruct_has_its_fields_for_flags(folder, capsys):
    words = ["reconstruct", "nearest", *held(folder), "--images=3", f"--out={folder / 'out'}"]
    assert main([*words, "--json"]) == 0
    assert "3 public images" in json.loads(capsys.readouterr().out)["reason"]
    with pytest.raises(SystemExit):
        main(["reconstruct", "nearest", "--help"])
    assert "--images" in capsys.readouterr().out


def test_an_audit_and_its_preflight_play_it(folder, capsys):
    data = f"--data={folder / 'train.npz'}"
    assert main(["preflight", *held(folder), data, "--attacks=nearest", "--json"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["applies"]
    assert row["title"] == "Public images alone"
    truth, others = DIGITS.take(range(8)), DIGITS.take(range(10, 30))
    result = audit(with_public(), truth, holdout=others, plan=Plan(attacks=("nearest",)))
    assert "nearest" in [row.attack for row in result.attacks]
    assert result.verdict == "inconclusive"


def test_a_search_varies_it(folder, capsys):
    pytest.importorskip("optuna")
    search = "search: {attack: nearest, trials: 2, objective: consensus}\n"
    text = f"weights: w.safetensors\npublic: {folder / 'public.npz'}\n{search}"
    (folder / "search.yaml").write_text(text)
    words = ["sweep", str(folder / "search.yaml"), "--jobs=1", f"--out={folder / 'found'}"]
    assert main([*words, "--quiet"]) == 0
    disclosed = json.loads((folder / "found" / "finding.json").read_text())["figures"]["search"]
    assert {1 <= row["settings"]["images"] <= 9 for row in disclosed["rows"]} == {True}


def test_a_wrong_name_is_told_what_was_meant():
    with pytest.raises(InputError, match=r"did you mean kkt\?"):
        make_attack("kktt", {})
    with pytest.raises(InputError, match=r"did you mean steps\?"):
        make_attack("kkt", {"step": 3})
