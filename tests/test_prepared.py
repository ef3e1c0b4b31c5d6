"""Ordinary mistakes: a scaling that was not given, and files that were taken for each other."""

import dataclasses

import pytest
import torch

from remnant.auditing import Case, Plan, audit
from remnant.auditing.preparation import fits_better, mistaken_initial
from remnant.capturing import capture
from remnant.cli import main
from remnant.cli.spec import read_spec
from remnant.cli.target import read_model
from remnant.data import load, split
from remnant.errors import WeightsError
from remnant.models import build, load_weights
from remnant.training import GradientDescent, train
from remnant.types import Examples, Knowledge, Scaling, Target
from seeding import seeded

SIDES = split(load("digits"), train=12, public=None, holdout=200, seed=0)
GIVEN = {
    "one number": Scaling(mean=torch.tensor(0.3), std=torch.tensor(0.8)),
    "each number": Scaling(mean=SIDES.train.inputs.mean(0)),
}


def released(scaling, *, given=None, steps=2000):
    recipe = GradientDescent(lr=0.1, momentum=0.9, steps=steps, stop_loss=0.02)
    start = build("mlp:64-192-192-10", generator=seeded(1))
    made = train(start, SIDES.train, recipe, scaling=scaling, generator=seeded(2))
    known = Knowledge(initial=made.initial)
    given = given or Scaling()
    return Target(model=made.model, input_shape=(1, 8, 8), scaling=given, knowledge=known)


def case_of(target, truth=SIDES.train):
    sides = {"holdout": SIDES.holdout, "public": SIDES.public}
    return Case(target=target, truth=truth, loss="ce", **sides)


@pytest.mark.parametrize("name", GIVEN)
def test_a_forgotten_scaling_is_found_and_applied(name):
    plan = Plan(attacks=("ntk",))
    found = audit(released(GIVEN[name]), SIDES.train, holdout=SIDES.holdout, plan=plan)
    assert found.verdict == "exposed"
    assert len(found.exposed) == len(SIDES.train)
    assert any("which was not given" in note for note in found.notes)
    assert "training saw them so" in found.attacks[0].reason


def test_other_records_are_no_declared_ones_under_any_scaling():
    ids = set(SIDES.train.ids)
    every = split(load("digits"), train=60, public=None, holdout=200, seed=5).train
    others = every.take([i for i, name in enumerate(every.ids) if name not in ids][:12])
    strange = split(load("digits"), train=60, public=None, holdout=200, seed=5).holdout
    target, plan = released(GIVEN["one number"]), Plan(attacks=("ntk",))
    found = audit(target, others, holdout=strange, plan=plan)
    assert found.verdict == "inconclusive"
    assert not found.exposed


def amounts(places, name, generator):
    """Records of one number that is not zero, at these places."""
    inputs = torch.zeros(len(places), 128)
    inputs[torch.arange(len(places)), places] = torch.rand(len(places), generator=generator) * 4 + 1
    labels = torch.arange(len(places)) % 2
    ids = tuple(f"{name}{i}" for i in range(len(places)))
    return Examples(inputs=inputs, labels=labels, ids=ids, bounds=None)


def test_one_record_at_another_strength_is_not_the_one_that_was_trained_on():
    generator = seeded(0)
    trained = amounts(torch.arange(8) * 2, "t", generator)
    declared = amounts(torch.tensor([0, 1, 3, 5, 7, 9, 11, 13]), "d", generator)
    strange = amounts(torch.randint(0, 128, (300,), generator=generator), "h", generator)
    model = build("mlp:128-256-256-2", generator=seeded(1))
    known = Knowledge(gradient=capture(model, "ce", (trained.inputs, trained.labels)))
    target = Target(model=model, input_shape=(128,), knowledge=known)
    found = audit(target, declared, holdout=strange, plan=Plan(attacks=("gradient",)))
    assert found.verdict == "inconclusive"
    assert not found.exposed


def test_files_that_were_taken_for_each_other_are_named():
    right = released(Scaling())
    assert list(mistaken_initial(case_of(right))) == []
    seed = dict(build("mlp:64-192-192-10", generator=seeded(9)).named_parameters())
    held = dataclasses.replace(right.knowledge, initial={k: v.detach() for k, v in seed.items()})
    (said,) = mistaken_initial(case_of(dataclasses.replace(right, knowledge=held)))
    assert "another seed" in said
    swapped = build("mlp:64-192-192-10", generator=seeded(1))
    held = Knowledge(initial=right.weights)
    (said,) = mistaken_initial(case_of(dataclasses.replace(right, model=swapped, knowledge=held)))
    assert "swapped" in said


def test_a_preparation_that_fits_far_better_is_named():
    right = released(Scaling())
    assert fits_better(case_of(right)) is None
    turned = dataclasses.replace(SIDES.train, inputs=SIDES.train.inputs.transpose(-1, -2))
    assert "transposed" in fits_better(case_of(right, turned))


def test_a_first_layer_that_sees_a_part_of_a_record_says_nothing_of_its_shape(tmp_path):
    code = """
from torch import nn

class Rows(nn.Module):
    def __init__(self):
        super().__init__()
        self.each, self.head = nn.Linear(8, 4), nn.Linear(4, 10)
    def forward(self, x):
        return self.head(self.each(x.reshape(-1, 8, 8)).relu().mean(1))
"""
    (tmp_path / "rows.py").write_text(code)
    state = {"each.weight": torch.zeros(4, 8), "each.bias": torch.zeros(4)}
    state |= {"head.weight": torch.zeros(10, 4), "head.bias": torch.zeros(10)}
    _, shape = read_model(f"{tmp_path / 'rows.py'}:Rows", state)
    assert shape == ()
    _, shape = read_model("mlp:8-4-10", state)
    assert shape == (8,)


def test_left_over_and_missing_keys_are_listed(tmp_path):
    state = build("mlp:8-4-4-10", generator=seeded(0)).state_dict()
    del state["1.bias"]
    state |= {"9.weight": torch.zeros(2, 2), "9.bias": torch.zeros(2)}
    with pytest.raises(WeightsError, match=r"missing 1.bias; left over 9.bias, 9.weight"):
        load_weights(build("mlp:8-4-4-10", generator=seeded(0)), state)


def test_a_scaling_is_fitted_and_said(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    rows = "".join(f"{i},{2 * i},{i % 2}\n" for i in range(10))
    for name in ("train.csv", "test.csv"):
        (tmp_path / name).write_text("a,b,label\n" + rows)
    torch.save(build("mlp:2-4-2", generator=seeded(0)).state_dict(), "model.pt")
    words = ["--weights", "model.pt", "--data", "train.csv", "--holdout", "test.csv", "--fit"]
    assert main(["init", *words]) == 0
    assert "as fitted here" in capsys.readouterr().out
    assert read_spec(tmp_path / "audit.yaml").mean == "4.5,9.0"
