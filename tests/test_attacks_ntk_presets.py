"""The presets of `ntk` beyond the exact solver: the paper's, the fallback, what auto chooses."""

import dataclasses

import pytest
import torch
from torch import nn

from remnant.attacks import NTK
from remnant.data import load, split
from remnant.errors import InputError
from remnant.models import Linearised, build
from remnant.scoring import centred_correlation, squared_l2
from remnant.solvers.descent.paper import SHARPENED, Descent
from remnant.solvers.descent.projected import Projected
from remnant.training import Adam, GradientDescent, solve_linearised, train
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded
from targets import faces_target

SIDES = split(load("digits"), train=8, public=None, holdout=8, seed=0)
SCALING = Scaling(mean=SIDES.public.inputs.mean(0))


def trained(recipe, model="mlp:64-128-128-10", freeze=0, **known):
    network = build(model, generator=seeded(1))
    for layer in list(network)[:freeze]:
        layer.requires_grad_(False)
    result = train(network, SIDES.train, recipe, scaling=SCALING, generator=seeded(2))
    known = Knowledge(initial=result.initial, **known)
    return Target(model=result.model, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)


GD = GradientDescent(lr=0.1, momentum=0.9, steps=2000, stop_loss=0.05)


def test_auto_is_exact_where_that_works():
    target, truth, _ = faces_target()
    found = NTK()(target, generator=seeded())
    assert found.status is Status.COMPLETE
    assert float(squared_l2(truth, found.inputs).min(1).values.max()) < 1e-3


def test_after_adam_auto_says_why_and_gives_approximate_candidates():
    target = trained(Adam(steps=150), records=8)
    found = NTK(runs=2, steps=60)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "no gap" in found.reason or "not exact" in found.reason
    assert "no proof" in found.reason
    assert len(found) > 0
    assert float(found.confidence.max()) <= 1
    narrow = trained(Adam(steps=150), "mlp:64-96-96-10")
    bare = NTK()(narrow, generator=seeded())
    assert bare.status is Status.INCONCLUSIVE
    assert "give --records" in bare.reason


def test_the_paper_preset_lowers_its_loss_and_proves_nothing():
    target = trained(GD, records=8)
    found = NTK(preset="paper", steps=60, features="hybrid")(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert len(found) == 16
    assert found.trace["loss"][-1] < found.trace["loss"][0]


def test_the_words_of_help_have_the_steps_that_are_taken():
    words = {f.name: f.metadata["help"] for f in dataclasses.fields(NTK) if f.metadata}
    assert f"{SHARPENED.steps}; 000 takes {Descent().steps}" in words["steps"]
    assert f"{Projected().steps}" in words["steps"]


def test_projected_candidates_look_like_records():
    target = trained(GD, records=8)
    found = NTK(preset="projected", runs=2, steps=250)(target, generator=seeded())
    near = centred_correlation(SIDES.train.inputs, found.inputs).max(1).values
    null = centred_correlation(SIDES.holdout.inputs, found.inputs).max(1).values
    assert int((near > 0.8).sum()) > int((null > 0.8).sum()) + 2


def test_a_linearised_network_is_solved_by_the_lifted_equations():
    model = build("mlp:64-128-128-1", generator=seeded(1), dtype=torch.float64)
    examples = dataclasses.replace(SIDES.train, labels=(SIDES.train.labels % 2))
    line = Linearised(model)
    solved = solve_linearised(line, examples, scaling=SCALING)
    known = Knowledge(initial=solved.initial)
    final = build("mlp:64-128-128-1", generator=seeded(1), dtype=torch.float64)
    final.load_state_dict(solved.final)
    target = Target(model=final, input_shape=(1, 8, 8), scaling=SCALING, knowledge=known)
    found = NTK(preset="exact")(target, generator=seeded())
    assert found.status is Status.COMPLETE
    assert float(squared_l2(examples.inputs, found.inputs).min(1).values.max()) < 1e-6


def test_frozen_convolutions_are_undone():
    target = trained(GD, "cnn:1x8x8-c8k3p1-512-512-10", freeze=1)
    found = NTK(preset="exact")(target, generator=seeded())
    assert "the convolutions determine" in found.reason
    distance = squared_l2(SIDES.train.inputs, found.inputs)
    assert int((distance.min(1).values < 1e-3).sum()) >= 6  # features of ReLU are not centred
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    assert not bool((passed & (distance.min(0).values > 1e-2)).any())


def test_bad_presets_and_missing_numbers_are_named():
    with pytest.raises(InputError, match="preset: expected auto or exact"):
        NTK(preset="best")
    with pytest.raises(InputError, match="features"):
        NTK(features="hybrid")
    target = trained(GD)
    for preset in ("paper", "projected"):
        found = NTK(preset=preset)(target, generator=seeded())
        assert found.status is Status.NOT_APPLICABLE
        assert "--records" in found.reason
    same = dataclasses.replace(target, knowledge=Knowledge(initial=target.weights))
    assert "no training lies between" in NTK()(same, generator=seeded()).reason
    assert isinstance(target.model, nn.Module)
