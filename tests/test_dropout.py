"""Batches behind gradients that were taken through dropout."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant import Gradient, Knowledge, Status, Target, capture
from remnant.solvers.dense.dropout import Tolerances, recover_dropped, resimulate, settle
from remnant.solvers.dense.one_gradient import Layers
from seeding import seeded

RECORDS, FEATURES, WIDTH = 8, 30, 256


def found_through(p, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = nn.Sequential(
            nn.Linear(FEATURES, WIDTH), nn.ReLU(), nn.Dropout(p),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Dropout(p), nn.Linear(WIDTH, 5),
        )  # fmt: skip
        inputs = torch.rand(RECORDS, FEATURES) - 0.5
        labels = torch.arange(RECORDS) % 5
        gradient = capture(copy.deepcopy(model).train(), "ce", (inputs, labels))
    known = Knowledge(gradient=gradient, loss="ce")
    target = Target(model=model.eval(), input_shape=(FEATURES,), bounds=None, knowledge=known)
    return inputs, Gradient()(target, generator=seeded())


@pytest.mark.parametrize("p", [0.1, 0.3, 0.5])
def test_the_batch_comes_back_with_the_masks_unknown(p):
    inputs, found = found_through(p)
    assert found.status is Status.COMPLETE, found.reason
    error = torch.cdist(inputs, found.inputs).min(1)
    assert float(error.values.max()) < 1e-3
    stated = torch.tensor(found.stated.error)[error.indices]
    assert bool((error.values / FEATURES**0.5 <= stated).all())
    assert found.labels is None  # what the later layers dropped is not known


def test_nothing_is_certified_behind_dropout_of_the_inputs():
    with torch.random.fork_rng():
        torch.manual_seed(1)
        model = nn.Sequential(
            nn.Dropout(0.3), nn.Linear(FEATURES, WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5),
        )  # fmt: skip
        batch = (torch.rand(RECORDS, FEATURES) - 0.5, torch.arange(RECORDS) % 5)
        gradient = capture(copy.deepcopy(model).train(), "ce", batch)
    known = Knowledge(gradient=gradient, loss="ce")
    target = Target(model=model.eval(), input_shape=(FEATURES,), bounds=None, knowledge=known)
    found = Gradient()(target, generator=seeded())
    assert len(found) == RECORDS
    assert found.status is Status.INCONCLUSIVE
    assert not any(found.stated.passed)
    assert "dropout before the first dense layer" in found.reason


def planted(records=4, inputs=9, width=64, following=32):
    """(layers, records n x (d+1), masks n x w): gradients that obey the equations exactly."""
    draws = seeded(5)

    def draw(*shape):
        return torch.randn(*shape, generator=draws, dtype=torch.float64)

    x = nn.functional.pad(draw(records, inputs), (0, 1), value=1.0)
    first, next_weight, signals = draw(width, inputs + 1), draw(following, width), draw(4, 32)
    first[0] -= (first[0] @ x[1] - 1e-6) / x[1].square().sum() * x[1]  # a kink of record 1
    t = x @ first.T
    fires = ((t > 0) & (torch.rand(t.shape, generator=draws) > 0.3)).double()
    layers = Layers(
        first=first,
        first_gradient=(fires * (signals @ next_weight)).T @ x,
        next_weight=next_weight,
        next_gradient=signals.T @ (fires * t),
        activation=nn.ReLU(),
        bias=True,
        last=False,
        precision=1e-12,
    )
    return layers, x, fires


def worst(layers, records, fires):
    again = resimulate(layers, records, fires, Tolerances().kink)
    return max(again.first, again.next)


def test_records_and_masks_that_give_back_both_gradients_are_told_from_others():
    layers, records, fires = planted()
    allowed = Tolerances().returned
    assert worst(layers, records, fires) < 1e-9
    mixed = records.clone()
    mixed[2] = 0.98 * records[2] + 0.02 * records[3]
    assert worst(layers, mixed, fires) > allowed
    t = (records @ layers.first.T).abs()
    other = fires.clone()
    other[0, t[0].argmax()] = 1 - fires[0, t[0].argmax()]  # as if dropout had treated it otherwise
    assert worst(layers, records, other) > allowed
    within = fires.clone()
    within[1, 0] = 1 - fires[1, 0]  # within rounding of its kink: either side is right
    assert worst(layers, records, within) < allowed


def test_points_are_settled_with_the_masks_that_they_tell():
    layers, records, fires = planted()
    t = records @ layers.first.T
    frames = [torch.linalg.qr(side.T)[0] for side in (t, fires * t)]
    t = t * (8 / t.norm(dim=1, keepdim=True))
    noise = [0.01 * torch.randn(t.shape, generator=seeded(k)).double() for k in (1, 2)]
    got = settle(*frames, t + noise[0], fires * t + noise[1], Tolerances())
    assert float(got.residual.max()) < Tolerances().exact
    clear = t.abs() > 0.1
    assert torch.equal(got.fires[clear], fires[clear])
    assert float((got.y @ frames[0].T - t).abs().max()) < 1e-6


def test_dropout_is_left_to_others_where_the_layers_do_not_tell_masks():
    layers, _, _ = planted()
    for change in ({"last": True}, {"bias": False}, {"next_weight": torch.zeros(3, 64)}):
        assert recover_dropped(replace(layers, **change), generator=seeded()) is None
    assert recover_dropped(layers, generator=seeded(), count=32) is None
    found = recover_dropped(layers, generator=seeded(), count=4)
    assert found is not None
    assert found.counted == 4
