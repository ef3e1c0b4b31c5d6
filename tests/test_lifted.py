"""Linearised targets by linear algebra: exact, certified without truth, honest where it fails."""

import pytest
import torch
from torch import nn

from remnant.data import load, split
from remnant.evidence import weight_difference
from remnant.models import build
from remnant.scoring import greedy, squared_l2
from remnant.solvers.lifted import explain, recover_linearised, rounding, unknowns
from remnant.training import GradientDescent, solve_linearised, train
from remnant.types import Evidence, Knowledge, Scaling, Target
from seeding import seeded


def digits(records, classes, seed=0):
    examples = load("mnist")
    kept = examples.take((examples.labels < classes).nonzero().flatten())
    return split(kept, train=records, public=None, holdout=1, seed=seed).train


def evidence_of(model, initial, final):
    model.load_state_dict(model.state_dict() | final)
    target = Target(model=model, input_shape=(1, 28, 28), knowledge=Knowledge(initial=initial))
    return weight_difference(target)


def linearised(records, sizes, classes=2, dtype=torch.float64, seed=0, ridge=0.0):
    truth = digits(records, classes, seed)
    outputs = 1 if classes == 2 else classes
    model = build(
        f"mlp:784-{sizes}-{outputs}", generator=seeded(seed), init="normal", dtype=torch.float64
    )
    trained = solve_linearised(model, truth, scaling=Scaling(), ridge=ridge)
    initial, final = (
        {n: w.to(dtype).double() for n, w in ws.items()} for ws in (trained.initial, trained.final)
    )
    return model, evidence_of(model, initial, final), truth


@pytest.mark.parametrize(
    ("records", "sizes", "classes"),
    [(8, "128-128", 2), (6, "96", 2), (6, "64-64-128", 2), (6, "128-128", 5)],
)
def test_every_record_is_exact(records, sizes, classes):
    model, evidence, truth = linearised(records, sizes, classes)
    found = recover_linearised(model, evidence, generator=seeded())
    assert found.count == records  # read off the spectrum
    assert found.exact
    assert found.residual < 1e-12
    error = greedy(squared_l2(truth.inputs.flatten(1), found.inputs)).distance
    assert error.max() < 1e-18


def test_stored_weights_and_an_unfinished_training_do_not_stop_it():
    model, evidence, truth = linearised(8, "128-128", dtype=torch.float32, ridge=1.0)
    found = recover_linearised(model, evidence, generator=seeded())
    assert evidence.precision == pytest.approx(1.2e-7, rel=0.01)
    assert found.exact
    assert found.residual > 1e-9  # at the level of rounding, not below it
    error = greedy(squared_l2(truth.inputs.flatten(1), found.inputs)).distance
    assert error.max() < 1e-6


def test_a_target_that_was_not_linearised_is_not_certified():
    truth = digits(8, 2)
    model = build("mlp:784-128-128-1", generator=seeded(), init="normal", dtype=torch.float64)
    rule = GradientDescent(lr=0.02, steps=3000, momentum=0.9, loss="mse", stop_loss=1e-3)
    trained = train(model, truth, rule, scaling=Scaling(), generator=seeded())
    evidence = evidence_of(model, trained.initial, trained.final)
    found = recover_linearised(model, evidence, generator=seeded(), count=8)
    assert not found.exact
    assert found.residual > 0.05


def test_the_certificate_refits_duals_and_sees_a_wrong_record():
    model, evidence, truth = linearised(6, "96-96")
    inputs = truth.inputs.flatten(1).double()
    duals, residual = explain(model, evidence, inputs)
    assert residual < 1e-12
    assert duals.shape == (6, 1)
    wrong = inputs.clone()
    wrong[0] += 0.01
    assert explain(model, evidence, wrong)[1] > 1e4 * rounding(evidence)


def small(model, vector_scale=1.0):
    start = {n: p.detach().double() for n, p in model.named_parameters()}
    vector = {n: torch.full_like(p, vector_scale) for n, p in start.items()}
    return Evidence(vector=vector, start=start, end=start, precision=1e-16)


@pytest.mark.parametrize(
    ("layers", "words"),
    [
        ([nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 1)], "there is Tanh"),
        ([nn.Linear(4, 3, bias=False), nn.ReLU(), nn.Linear(3, 1)], "has no bias"),
        ([nn.Linear(4, 3)], "needs a hidden layer"),
        ([nn.Linear(4, 3), nn.ReLU()], "needs a hidden layer"),
    ],
)
def test_it_says_where_it_does_not_apply(layers, words):
    model = nn.Sequential(*layers)
    assert words in recover_linearised(model, small(model), generator=seeded(), count=1)


def test_it_says_how_wide_a_layer_it_needs():
    model, evidence, _ = linearised(12, "64-64")
    assert unknowns(12, 1) == 78
    said = recover_linearised(model, evidence, generator=seeded())
    assert said == "12 records and 1 outputs need a last hidden layer wider than 78; it has 64"
