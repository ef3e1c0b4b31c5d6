"""Batches behind gradients through batch norm, in training and in evaluation mode."""

import copy
from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant import Gradient, GradientHook, Knowledge, Status, Target, capture, capture_step
from remnant.evidence import one_gradient
from remnant.models import read_weights
from seeding import seeded

WIDTH, FEATURES, RECORDS = 192, 40, 12


def network(*, after_next=True, biased=True, seed=0):
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        layers = [nn.Linear(FEATURES, WIDTH, bias=biased), nn.BatchNorm1d(WIDTH), nn.ReLU()]
        layers += [nn.Linear(WIDTH, WIDTH)]
        layers += [nn.BatchNorm1d(WIDTH)] if after_next else []
        return nn.Sequential(*layers, nn.ReLU(), nn.Linear(WIDTH, 5))


def batch(seed=1, records=RECORDS):
    generator = torch.Generator().manual_seed(seed)
    inputs = torch.rand(records, FEATURES, generator=generator)
    return inputs, torch.randint(5, (records,), generator=generator)


def target_of(model, gradient):
    known = Knowledge(gradient=gradient, loss="ce")
    return Target(model=model.eval(), input_shape=(FEATURES,), bounds=(0, 1), knowledge=known)


def captured(model, records, *, training=True):
    """What the server sent, and what a client sends back."""
    sent = copy.deepcopy(model)
    return sent, capture(model.train(training), "ce", records)


def distances(found, inputs):
    return torch.cdist(found.inputs.double(), inputs.double()).square().min(0)


@pytest.mark.parametrize(
    "kind", [{}, {"after_next": False}, {"biased": False}, {"seed": 3}], ids=str
)
def test_a_batch_through_training_mode_comes_back_whole(kind):
    inputs, labels = batch()
    model, gradient = captured(network(**kind), (inputs, labels))
    found = Gradient()(target_of(model, gradient), generator=seeded())
    assert found.status is Status.COMPLETE, found.reason
    nearest = distances(found, inputs)
    assert sorted(nearest.indices.tolist()) == list(range(RECORDS))
    assert float(nearest.values.max()) < 1e-6
    errors = nearest.values / FEATURES
    stated = torch.tensor(found.stated.error)[nearest.indices]
    assert bool((errors.sqrt() < stated).all())
    assert found.labels[nearest.indices].tolist() == labels.tolist()


def test_after_some_training_too():
    """Then gamma and beta are no longer one and zero, and the running ones no longer fresh."""
    model = network()
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    for seed in range(5):
        inputs, labels = batch(seed + 10)
        descent.zero_grad()
        nn.functional.cross_entropy(model.train()(inputs), labels).backward()
        descent.step()
    inputs, labels = batch()
    model, gradient = captured(model, (inputs, labels))
    found = Gradient()(target_of(model, gradient), generator=seeded())
    assert found.status is Status.COMPLETE, found.reason
    assert float(distances(found, inputs).values.max()) < 1e-6


def test_dropout_beside_it_is_named_as_what_is_in_the_way():
    layers = list(network(after_next=False))
    model = nn.Sequential(*layers[:3], nn.Dropout(0.3), *layers[3:])
    with torch.random.fork_rng():
        torch.manual_seed(0)
        model, gradient = captured(model, batch(records=4))
    found = Gradient()(target_of(model, gradient), generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "the network has dropout too" in found.reason


def test_evaluation_mode_is_folded():
    inputs, labels = batch()
    model = network()
    model.train()(torch.rand(50, FEATURES, generator=seeded()))  # other records' statistics
    sent, gradient = captured(model, (inputs, labels), training=False)
    assert not any("running" in name for name in gradient)
    found = Gradient()(target_of(sent, gradient), generator=seeded())
    assert found.status is Status.COMPLETE, found.reason
    assert float(distances(found, inputs).values.max()) < 1e-6


def test_without_the_statistics_the_reason_asks_for_them():
    model, gradient = captured(network(), batch())
    bare = {name: value for name, value in gradient.items() if "running" not in name}
    found = Gradient()(target_of(model, bare), generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert not found.stated.certified
    assert "running statistics after the step" in found.reason


def test_a_narrow_layer_leaves_the_common_shift_open():
    """Fewer neurons than inputs: what records differ by is exact, nothing is certified."""
    with torch.random.fork_rng():
        torch.manual_seed(0)
        wide = 300
        model = nn.Sequential(
            nn.Linear(wide, WIDTH), nn.BatchNorm1d(WIDTH), nn.ReLU(),
            nn.Linear(WIDTH, WIDTH), nn.ReLU(), nn.Linear(WIDTH, 5),
        )  # fmt: skip
    inputs = torch.rand(RECORDS, wide, generator=seeded())
    model, gradient = captured(model, (inputs, torch.arange(RECORDS) % 5))
    target = replace(target_of(model, gradient), input_shape=(wide,))
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "shifted" in found.reason
    assert not any(found.stated.passed)
    centred, truth = (part - part.mean(0) for part in (found.inputs, inputs))
    assert float(torch.cdist(centred, truth).square().min(0).values.max()) < 1e-5


@pytest.mark.parametrize("wrong", ["another batch", "other weights", "noise"])
def test_what_does_not_belong_together_is_not_certified(wrong):
    model, gradient = captured(network(), batch())
    if wrong == "another batch":  # statistics of one, gradient of the other
        other = captured(network(), batch(7))[1]
        gradient = {n: other[n] if "running" in n else v for n, v in gradient.items()}
    elif wrong == "other weights":
        model = network(seed=9)
    else:
        made = seeded()
        gradient = {
            n: v if "running" in n else v + 0.05 * v.std() * torch.randn(v.shape, generator=made)
            for n, v in gradient.items()
        }
    found = Gradient()(target_of(model, gradient), generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert not any(found.stated.passed)


@pytest.mark.parametrize("how", ["step", "hook"])
def test_a_loop_of_ones_own_is_captured_with_its_statistics(tmp_path, how):
    model, (inputs, labels) = network().train(), batch()
    sent, path = copy.deepcopy(model), tmp_path / "update.safetensors"
    descent = torch.optim.SGD(model.parameters(), lr=0.1)
    watched = capture_step(model, path) if how == "step" else GradientHook(path, model, descent)
    with watched:
        nn.functional.cross_entropy(model(inputs), labels).backward()
        descent.step()
    found = Gradient()(target_of(sent, read_weights(path)), generator=seeded())
    assert found.status is Status.COMPLETE, found.reason


def test_capture_keeps_the_statistics_that_a_step_left():
    model = network()
    before = model[1].running_mean.clone()
    gradient = capture(model.train(), "ce", batch())
    assert torch.equal(gradient["1.running_mean"], model[1].running_mean)
    assert not torch.equal(gradient["1.running_mean"], before)
    evidence = one_gradient(target_of(model, gradient))
    assert evidence.vector.keys() == dict(model.named_parameters()).keys()
