"""The attack on one gradient, over networks and presets: what comes back, and what is admitted."""

import dataclasses

import pytest
import torch
from torch import nn

from remnant.attacks import Gradient
from remnant.capturing import capture
from remnant.data import load
from remnant.errors import InputError
from remnant.models import build, trap
from remnant.models.activations import Cubic
from remnant.scoring import squared_l2
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded


def digits_target(model, count, loss="ce", noise=0.0, tell=False, **known):
    """(target, truth, labels): a gradient of `count` 8 x 8 digits."""
    examples = load("digits")
    rows = torch.arange(count) * 7
    scaling = Scaling(mean=examples.inputs[1000:].mean(0))
    truth, labels = examples.inputs[rows], examples.labels[rows]
    if isinstance(model, str):
        model = build(model, generator=seeded(1))
    if loss == "bce":
        labels = labels % 2
    gradient = capture(model, loss, (scaling.to_model(truth), labels))
    for value in gradient.values() if noise else ():
        value += noise * value.std() * torch.randn(value.shape, generator=seeded(2))
    target = Target(
        model=model,
        input_shape=(1, 8, 8),
        scaling=scaling,
        knowledge=Knowledge(gradient=gradient, loss=loss if tell else None, **known),
    )
    return target, truth, labels


def nearest(truth, found):
    """Squared distance of each record to its nearest candidate, and which that is."""
    return squared_l2(truth, found.inputs).min(1)


@pytest.mark.parametrize(
    ("model", "count"),
    [
        ("mlp:64-128-128-10", 12),
        ("mlp:64-128-128-128-10", 12),
        ("mlp:64-128-128-10:leaky0.1", 8),
        ("mlp:64-128-128-10:gelu", 8),
        ("mlp:64-128-128-10:silu", 8),
        ("mlp:64-128-128-10:elu", 8),
        ("mlp:64-128-10", 8),
        ("mlp:64-128-128-10", 1),
        ("mlp:64-128-128-10:sigmoid", 1),
        ("mlp:64-300-10:tanh", 4),
        ("cnn:1x8x8-c8k3p1-128-128-10", 6),
    ],
)
def test_a_batch_comes_back_whole(model, count):
    target, truth, labels = digits_target(model, count)
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.COMPLETE, found.reason
    assert found.stated.counted == found.stated.certified == count
    distance, which = nearest(truth, found)
    assert float(distance.max()) < 1e-6
    assert found.labels[which].equal(labels)
    assert found.figures["unexplained"] < 1e-4


def test_a_smooth_layers_batch_is_counted_though_more_records_are_told():
    """An audit tells how many were trained on, and the batch is a part of them."""
    target, truth, _ = digits_target("mlp:64-300-10:tanh", 4, records=34)
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.COMPLETE, found.reason
    assert found.stated.counted == found.stated.certified == 4
    assert "the gradient holds 4 of 34 told" in found.reason
    assert float(nearest(truth, found)[0].max()) < 1e-6


def test_the_residuals_are_those_of_the_loss():
    target, truth, labels = digits_target("mlp:64-128-128-10", 6)
    found = Gradient()(target, generator=seeded())
    _, which = nearest(truth, found)
    outputs = target.model(target.scaling.to_model(truth)).detach()
    wanted = (outputs.softmax(1) - nn.functional.one_hot(labels, 10)) / 6
    got = torch.tensor(found.figures["residuals"])[which]
    assert float((got - wanted).abs().max()) < 1e-4


def test_one_output_tells_classes_only_if_the_loss_is_known():
    target, truth, labels = digits_target("mlp:64-128-128-1", 6, loss="bce")
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.COMPLETE
    assert found.labels is None
    known = dataclasses.replace(target.knowledge, loss="bce")
    found = Gradient()(dataclasses.replace(target, knowledge=known), generator=seeded())
    assert found.labels[nearest(truth, found)[1]].equal(labels)


def test_a_batch_too_large_for_the_width_is_inconclusive():
    target, _, _ = digits_target("mlp:64-48-48-10", 30)
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "30 records" in found.reason
    assert len(found) == 0
    full = Gradient()(digits_target("mlp:64-48-48-10", 60)[0], generator=seeded())
    assert "or more records need a layer wider than" in full.reason
    assert full.stated.counted is None


def test_noise_never_certifies_a_wrong_record():
    target, truth, _ = digits_target("mlp:64-128-128-10", 8, noise=0.3, records=8)
    found = Gradient(patience=2)(target, generator=seeded())
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    wrong = squared_l2(truth, found.inputs).min(0).values > 0.5
    assert found.status is not Status.COMPLETE
    assert not bool((passed & wrong).any())


def test_matching_is_a_yardstick_without_a_certificate():
    target, _, labels = digits_target("mlp:64-64-64-10", 2, records=2, tell=True)
    found = Gradient(preset="matching", steps=150)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert sorted(found.labels.tolist()) == sorted(labels.tolist())
    assert found.trace["distance"][-1] < found.trace["distance"][0]


def test_the_paper_preset_finds_pairs_on_a_wide_gaussian_network():
    d, m = 20, 5000
    model = nn.Sequential(nn.Flatten(), nn.Linear(d, m, bias=False), nn.Tanh(), nn.Linear(m, 1))
    with torch.no_grad():
        model[1].weight.normal_(generator=seeded(1))
        model[3].weight.fill_(1 / m)
        model[3].bias.fill_(30.0)
    truth = torch.eye(d)[:2]
    gradient = capture(model, "mse", (truth, torch.tensor([1.0, -1.0])))
    known = Knowledge(gradient=gradient, records=2, loss="mse")
    target = Target(model=model, input_shape=(d,), bounds=None, knowledge=known)
    found = Gradient(preset="paper", norm=1.0)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    error = torch.minimum(squared_l2(truth, found.inputs), squared_l2(truth, -found.inputs))
    assert float(error.min(1).values.sqrt().max()) < 0.3


@pytest.mark.parametrize("activation", ["relu", "leaky0.1", "sigmoid"])
def test_a_malicious_server_reads_a_deep_network_exactly(activation):
    model = trap(64, 300, 3, generator=seeded(3), activation=activation, last_activation="cubic")
    truth = load("digits").inputs[:3].flatten(1).double() / 4
    labels = torch.tensor([1.0, -1.0, 0.5]).double()
    known = Knowledge(gradient=capture(model.model, "mse", (truth, labels)), records=3)
    target = Target(model=model.model, input_shape=(64,), bounds=None, knowledge=known)
    found = Gradient()(target, generator=seeded())
    assert found.status is Status.COMPLETE
    assert float(squared_l2(truth, found.inputs).min(1).values.max()) < 1e-8


@pytest.mark.parametrize(
    ("activation", "kind"),
    [("relu", "pass-through"), ("tanh", "pass-through"), ("", "eavesdropper")],
)
def test_the_paper_preset_reads_deep_networks(activation, kind):
    """A server's pass-through layers, or random ones that an eavesdropper undoes."""
    d, m = 8, 2500
    truth = torch.nn.functional.normalize(torch.randn(2, d, generator=seeded(5)).double(), dim=1)
    if activation:
        sent = trap(d, m, 2, generator=seeded(3), activation=activation, last_activation="cubic")
        model = sent.model
    else:
        model = nn.Sequential(
            nn.Linear(d, 16), nn.Tanh(), nn.Linear(16, m, bias=False), Cubic(), nn.Linear(m, 1)
        ).double()
        with torch.no_grad():
            model[0].weight.normal_(generator=seeded(6)).div_(d**0.5)
            model[0].bias.zero_()
            model[2].weight.normal_(generator=seeded(7))
            model[4].weight.fill_(1 / m)
    gradient = capture(model, "mse", (truth, torch.tensor([1.0, -1.0]).double() * 30))
    known = Knowledge(gradient=gradient, records=2, loss="mse")
    target = Target(model=model, input_shape=(d,), bounds=None, knowledge=known)
    found = Gradient(preset="paper", norm=1.0)(target, generator=seeded())
    assert found.figures["read_as"] == kind
    assert float(squared_l2(truth, found.inputs).min(1).values.sqrt().max()) < 0.3


@pytest.mark.parametrize(
    ("settings", "known", "reason"),
    [
        ({}, {"gradient": None}, "no gradient"),
        ({"preset": "matching"}, {}, "--records and --loss"),
        ({"preset": "paper"}, {}, "ReLU cannot be undone"),
    ],
)
def test_what_is_missing_is_named(settings, known, reason):
    target, _, _ = digits_target("mlp:64-32-32-10", 3)
    target = dataclasses.replace(target, knowledge=dataclasses.replace(target.knowledge, **known))
    found = Gradient(**settings)(target, generator=seeded())
    assert found.status is Status.NOT_APPLICABLE
    assert reason in found.reason


def test_a_zero_gradient_proves_nothing_and_a_wrong_preset_is_refused():
    target, _, _ = digits_target("mlp:64-32-32-10", 3)
    zeros = {name: torch.zeros_like(w) for name, w in target.weights.items()}
    known = dataclasses.replace(target.knowledge, gradient=zeros)
    found = Gradient()(dataclasses.replace(target, knowledge=known), generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    with pytest.raises(InputError, match="preset: expected exact or paper or matching"):
        Gradient(preset="best")


def gaussian_pair(activation, d=20, m=3000):
    """The paper's network under a large output bias, told in its target, and the batch's truth."""
    model = nn.Sequential(nn.Linear(d, m, bias=False), activation, nn.Linear(m, 1)).double()
    with torch.no_grad():
        model[0].weight.normal_(generator=seeded(1))
        model[2].weight.fill_(1 / m)
        model[2].bias.fill_(30.0)
    truth, labels = torch.eye(d).double()[:2], torch.tensor([1.0, -1.0]).double()
    gradient = capture(model, "mse", (truth, labels))
    known = Knowledge(gradient=gradient, records=2, loss="mse")
    return Target(model=model, input_shape=(d,), bounds=None, knowledge=known), truth, labels


@pytest.mark.parametrize("activation", [nn.Tanh(), nn.Sigmoid()])
def test_the_residuals_sign_tells_a_record_from_its_negative(activation):
    target, truth, _ = gaussian_pair(activation, m=5000)
    settings = {"preset": "paper", "norm": 1.0}
    found = Gradient(**settings, residuals="positive")(target, generator=seeded())
    assert float(squared_l2(truth, found.inputs).min(1).values.sqrt().max()) < 0.5
    flipped = Gradient(**settings, residuals="negative")(target, generator=seeded())
    assert float(squared_l2(truth, -flipped.inputs).min(1).values.sqrt().max()) < 0.5


def test_labels_come_back_under_square_loss():
    target, truth, labels = gaussian_pair(nn.Tanh(), m=300)
    found = Gradient(residuals="positive")(target, generator=seeded())
    order = squared_l2(truth, found.inputs).argmin(1)
    torch.testing.assert_close(found.labels[order], labels, atol=1e-8, rtol=0)


def test_the_heads_gradient_alone_is_enough_for_the_paper():
    target, truth, _ = gaussian_pair(Cubic(), m=5000)
    head = {"2.weight": target.knowledge.gradient["2.weight"]}
    target = dataclasses.replace(target, knowledge=Knowledge(gradient=head, records=2, loss="mse"))
    found = Gradient(preset="paper", source="head", norm=1.0)(target, generator=seeded())
    assert float(squared_l2(truth, found.inputs).min(1).values.sqrt().max()) < 0.6
    refused = [Gradient(), Gradient(preset="paper")]
    assert {a(target, generator=seeded()).status for a in refused} == {Status.NOT_APPLICABLE}


def test_a_known_norm_counts_behind_layers_that_pass_inputs_through():
    d = 20
    sent = trap(d, 3000, 2, generator=seeded(3), output_bias=30.0)
    truth = torch.eye(d).double()[:2]
    gradient = capture(sent.model, "mse", (truth, torch.tensor([1.0, -1.0]).double()))
    known = Knowledge(gradient=gradient, records=2, loss="mse")
    target = Target(model=sent.model, input_shape=(d,), bounds=None, knowledge=known)
    found = Gradient(preset="paper", norm=1.0)(target, generator=seeded())
    sizes = found.inputs.flatten(1).norm(dim=1)
    torch.testing.assert_close(sizes, torch.ones(2).to(sizes), atol=1e-6, rtol=0)
    assert float(squared_l2(truth, found.inputs).min(1).values.sqrt().max()) < 0.3
    with pytest.raises(InputError, match="norm with preset exact: expected none"):
        Gradient(norm=1.0)


def test_a_network_without_biases_that_fixes_the_size_is_not_called_up_to_scale():
    x, y = load("digits").inputs[:3], torch.tensor([0, 1, 2])
    reasons = {}
    for activation in ("relu", "tanh"):
        model = build(f"mlp:64-96-64-10:nobias:{activation}", generator=seeded(1))
        known = Knowledge(gradient=capture(model, "ce", (x, y)), loss="ce")
        target = Target(model=model, input_shape=(1, 8, 8), knowledge=known)
        reasons[activation] = Gradient()(target, generator=seeded()).reason
    assert "up to scale" in reasons["relu"]
    assert "up to scale" not in reasons["tanh"]
    assert "sign" in reasons["tanh"]
