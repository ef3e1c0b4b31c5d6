"""An attack added by the book: one file, one row of `ATTACKS`; every verb then knows it."""

import json
from dataclasses import dataclass, replace
from typing import ClassVar

import numpy as np
import pytest
import torch

from remnant.attacks import ATTACKS
from remnant.attacks.about import About, Cost, Range, Space, setting
from remnant.attacks.made import make_attack
from remnant.auditing import Plan, audit
from remnant.cli import main
from remnant.data import load
from remnant.errors import InputError
from remnant.models import build, save_weights
from remnant.types import Candidates, Knowledge, Status, Target

DIGITS = load("digits")


@dataclass(frozen=True, kw_only=True)
class Nearest:
    """The public images of which the model is surest: no attack at all, but a whole entry."""

    about: ClassVar[About] = About(
        summary="the public images of which the model is surest",
        example="--weights released.safetensors --public other.npz",
        title="Public images alone",
        holds="the released weights and public images",
        defence="None is needed.",
        missing="public",
        stronger="give --public",
        spaces={"default": Space(axes={"images": Range(low=1, high=9, integer=True)})},
    )
    images: int = setting(5, "how many to return")

    def __call__(self, target, *, generator):
        public = target.knowledge.public
        with torch.no_grad():
            sure = target.model(target.scaling.to_model(public)).softmax(1).max(1).values
        best = sure.argsort(descending=True)[: self.images]
        reason = f"{len(best)} public images, none of them reconstructed"
        return Candidates(
            inputs=public[best], confidence=sure[best], status=Status.INCONCLUSIVE, reason=reason
        )

    def why_not(self, scene):
        return None if scene.target.knowledge.public is not None else "no public images were given"

    def cost(self, scene):
        return Cost(work=1e-6 * scene.parameters, memory=4.0 * scene.parameters)

    def twin(self, scene, strangers, generator):
        return replace(scene.target, knowledge=Knowledge(public=strangers.inputs))


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.setitem(ATTACKS, "nearest", Nearest)
    model = build("mlp:64-8-10", generator=torch.Generator().manual_seed(0))
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
    target = Target(
        model=build("mlp:64-8-10", generator=torch.Generator().manual_seed(0)),
        input_shape=(1, 8, 8),
        knowledge=Knowledge(public=DIGITS.inputs[30:40]),
    )
    truth, others = DIGITS.take(range(8)), DIGITS.take(range(10, 30))
    result = audit(target, truth, holdout=others, plan=Plan(attacks=("nearest",)))
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
