"""Smooth networks whose training is run again from the records."""

import pytest
import torch
from torch import nn

from remnant.attacks import NTK
from remnant.data import load
from remnant.models import build
from remnant.training import GradientDescent, train
from remnant.types import Knowledge, Scaling, Status, Target

STOPPED = GradientDescent(lr=0.2, momentum=0.8, steps=3000, stop_loss=0.06)


def test_a_network_that_is_no_plain_stack_keeps_its_labels_and_its_records():
    """A layer norm between: duals cannot be read, and the training is run again all the same."""
    truth = load("digits").take(range(6))
    scaling = Scaling(mean=load("digits").inputs[500:].mean(0))
    layers = [nn.Flatten(), nn.Linear(64, 128), nn.Tanh(), nn.Linear(128, 128), nn.Tanh()]
    model = nn.Sequential(*layers, nn.LayerNorm(128), nn.Linear(128, 10))
    generator = torch.Generator().manual_seed(0)
    for parameter in model.parameters():
        bound = parameter.shape[-1] ** -0.5
        parameter.data = bound * (2 * torch.rand(parameter.shape, generator=generator) - 1)
    recipe = GradientDescent(lr=0.1, momentum=0.5, steps=10)
    result = train(model, truth, recipe, scaling=scaling, generator=generator)
    target = Target(
        model=result.model,
        input_shape=truth.shape,
        scaling=scaling,
        knowledge=Knowledge(initial=result.initial),
    )
    found = NTK(preset="exact")(target, generator=torch.Generator().manual_seed(0))
    assert found.status is Status.COMPLETE, found.reason
    away = torch.cdist(found.inputs.flatten(1).double(), truth.inputs.flatten(1).double())
    assert float(away.min(1).values.max()) < 0.03
    said = result.model(scaling.to_model(found.inputs)).argmax(1)
    assert torch.equal(found.labels, said)


@pytest.mark.parametrize("told", [None, STOPPED])
def test_a_training_that_stopped_by_its_loss_is_run_again(told):
    digits = load("digits")
    scaling, truth = Scaling(mean=digits.inputs[500:].mean(0)), digits.take(range(8))
    model = build("mlp:64-128-128-10:tanh", generator=torch.Generator().manual_seed(2))
    result = train(model, truth, STOPPED, scaling=scaling, generator=torch.Generator())
    target = Target(
        model=result.model,
        input_shape=truth.shape,
        scaling=scaling,
        knowledge=Knowledge(initial=result.initial, recipe=told),
    )
    found = NTK(preset="exact")(target, generator=torch.Generator().manual_seed(0))
    assert found.status is Status.COMPLETE, found.reason
    assert "rerun" in found.figures
    nearest = torch.cdist(found.inputs.flatten(1), truth.inputs.flatten(1)).argmin(1)
    assert torch.equal(found.labels, truth.labels[nearest])
