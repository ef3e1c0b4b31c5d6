"""Batches behind gradients that were taken through dropout."""

import copy

import pytest
import torch
from torch import nn

from remnant import Gradient, Knowledge, Status, Target, capture
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
