"""Frozen batch norm: a part of the layer before it, for gradients and for two checkpoints."""

import copy

import pytest
import torch
from torch import nn

from remnant import NTK, Gradient, Knowledge, Status, Target, capture
from remnant.models.folding import fold
from seeding import seeded

RECORDS = 10


def network(kind="dense", *, bias=True, seed=0):
    """With statistics of other records, and scales and shifts that are not one and zero."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        if kind == "dense":
            front = [nn.Linear(36, 160, bias=bias), nn.BatchNorm1d(160), nn.ReLU()]
        else:
            front = [nn.Conv2d(1, 8, 3, padding=1, bias=False), nn.BatchNorm2d(8), nn.ReLU()]
            front += [nn.Flatten(), nn.Linear(288, 160, bias=bias), nn.BatchNorm1d(160), nn.ReLU()]
        after = [nn.Linear(160, 160), nn.BatchNorm1d(160), nn.ReLU(), nn.Linear(160, 5)]
        model = nn.Sequential(*front, *after)
        for module in model.modules():
            if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
                nn.init.normal_(module.weight, 1.0, 0.2)
                nn.init.normal_(module.bias, 0.0, 0.2)
        for _ in range(20):
            model.train()(torch.rand(64, *shape_of(kind)))
    return model.eval()


def shape_of(kind):
    return (36,) if kind == "dense" else (1, 6, 6)


def batch(kind):
    inputs = torch.rand(RECORDS, *shape_of(kind), generator=seeded())
    return inputs, torch.arange(RECORDS) % 5


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_the_folded_network_and_its_gradients_are_those_of_the_network(kind):
    model, (inputs, labels) = network(kind).double(), batch(kind)
    folding = fold(model)
    assert not any("Norm" in type(m).__name__ for m in folding.model.modules())
    assert torch.allclose(folding.model(inputs.double()), model(inputs.double()), atol=1e-12)
    gradients = []
    for network_ in (model, folding.model):
        nn.functional.cross_entropy(network_(inputs.double()), labels).backward()
        gradients.append({name: p.grad for name, p in network_.named_parameters()})
    folded = folding.gradients(gradients[0], dict(model.named_parameters()))
    for name, value in gradients[1].items():
        assert torch.allclose(folded[name], value, atol=1e-12), name


@pytest.mark.parametrize("bias", [True, False])
@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_a_gradient_in_evaluation_mode_gives_the_batch(kind, bias):
    model, records = network(kind, bias=bias), batch(kind)
    gradient = capture(model, "ce", records)
    known = Knowledge(gradient=gradient, loss="ce")
    target = Target(model=model, input_shape=shape_of(kind), bounds=(0, 1), knowledge=known)
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.COMPLETE, found.reason
    far = torch.cdist(records[0].flatten(1), found.inputs.flatten(1)).min(1).values
    assert float(far.max()) < 1e-3


@pytest.mark.parametrize("told", [True, False])
def test_convolutions_in_training_mode_certify_no_image(told):
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model = nn.Sequential(
            nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
            nn.Linear(288, 160), nn.ReLU(), nn.Linear(160, 160), nn.ReLU(), nn.Linear(160, 5),
        )  # fmt: skip
    sent = copy.deepcopy(model).eval()
    gradient = capture(model.train(), "ce", batch("conv"))
    gradient = {n: v for n, v in gradient.items() if told or "running" not in n}
    known = Knowledge(gradient=gradient, loss="ce")
    target = Target(model=sent, input_shape=(1, 6, 6), bounds=(0, 1), knowledge=known)
    found = Gradient(steps=2)(target, generator=seeded())
    assert not found.stated.certified, found.reason
    assert not told or found.figures["features"] == RECORDS, found.reason


def tuned(model, records, steps, *, training=False):
    """Fine-tuned with batch norm frozen, as `model.eval()` and `requires_grad_(False)` do."""
    model = copy.deepcopy(model).train(training)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.BatchNorm1d | nn.BatchNorm2d):
            module.requires_grad_(False)
    trained = [p for p in model.parameters() if p.requires_grad]
    descent = torch.optim.SGD(trained, lr=0.05, momentum=0.9)
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.cross_entropy(model(records[0] - 0.5), records[1]).backward()
        descent.step()
    return model.eval()


@pytest.mark.parametrize("kind", ["dense", "conv"])
def test_two_checkpoints_with_frozen_batch_norm_give_the_records(kind):
    model, records = network(kind), batch(kind)
    after = tuned(model, records, 30)
    target = Target(
        model=after, input_shape=shape_of(kind), bounds=None,
        knowledge=Knowledge(initial=model.state_dict()),
    )  # fmt: skip
    found = NTK()(target, generator=seeded())
    passed = torch.tensor(found.stated.passed)
    assert found.figures["found"] == RECORDS, found.reason
    assert int(passed.sum()) >= (RECORDS if kind == "dense" else 3)  # convolutions fix not all
    far = torch.cdist(found.inputs[passed].flatten(1), records[0].flatten(1) - 0.5).min(1).values
    assert float(far.max()) < 1e-2


def test_batch_norm_that_was_not_frozen_is_named():
    model, records = network(), batch("dense")
    target = Target(
        model=tuned(model, records, 3, training=True), input_shape=(36,), bounds=None,
        knowledge=Knowledge(initial=model.state_dict()),
    )  # fmt: skip
    found = NTK()(target, generator=seeded())
    assert found.status is Status.NOT_APPLICABLE
    assert "running statistics moved" in found.reason
