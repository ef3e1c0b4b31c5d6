"""The attack on models as users have them: what it returns, and when it says that it cannot."""

import copy
import dataclasses

import pytest
import torch
from torch import nn

from remnant.attacks import NTK
from remnant.data import load
from remnant.scoring import centred_correlation
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded
from targets import faces_target


def attack(target, **settings):
    return NTK(**{"preset": "exact"} | settings)(target, generator=torch.Generator().manual_seed(0))


def with_initial(target, initial):
    return dataclasses.replace(target, knowledge=Knowledge(initial=initial))


def test_every_record_comes_back_with_its_label_and_without_public_data():
    target, truth, labels = faces_target()
    before = {name: p.clone() for name, p in target.weights.items()}
    found = attack(target)
    assert found.status is Status.COMPLETE
    assert found.stated.counted == found.stated.certified == len(truth) == len(found)
    correlation = centred_correlation(truth, found.inputs)
    assert float(correlation.max(1).values.min()) > 0.9999
    assert found.labels[correlation.argmax(1)].equal(labels)
    assert float(found.confidence.min()) > 0.8
    assert all(torch.equal(before[name], p) for name, p in target.weights.items())


def test_the_same_seed_gives_the_same_bytes():
    target, _, _ = faces_target()
    first, second = attack(target), attack(target)
    assert first.inputs.numpy().tobytes() == second.inputs.numpy().tobytes()
    assert first.confidence.equal(second.confidence)


def test_a_third_hidden_layer_changes_nothing():
    target, truth, _ = faces_target(depth=3)
    found = attack(target)
    assert found.status is Status.COMPLETE
    assert float(centred_correlation(truth, found.inputs).max(1).values.min()) > 0.9999


def test_adam_leaves_no_gap_and_that_is_said():
    target, _, _ = faces_target(optimiser="adam")
    found = attack(target)
    assert found.status is Status.INCONCLUSIVE
    assert "no gap" in found.reason
    assert "Adam" in found.reason
    assert len(found) == 0
    assert found.stated.counted is None


def test_a_wrong_count_given_by_hand_certifies_nothing():
    target, _, _ = faces_target(optimiser="adam")
    known = dataclasses.replace(target.knowledge, records=12)
    found = attack(dataclasses.replace(target, knowledge=known), patience=2)
    assert found.status is Status.INCONCLUSIVE
    assert found.stated.certified == 0


@pytest.mark.parametrize("bounds", [None, (0.0, 1.0)])
def test_uncentred_inputs_never_certify_a_wrong_record(bounds):
    """All records share a large part there, so that masks hardly tell them apart."""
    target, truth, _ = faces_target(records=15, width=256, centred=False)
    found = attack(dataclasses.replace(target, bounds=bounds), patience=3)
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    right = centred_correlation(truth, found.inputs).max(0).values > 0.95
    assert not bool((passed & ~right).any())


def test_a_count_that_contradicts_the_spectrum_is_mentioned():
    target, _, _ = faces_target()
    known = dataclasses.replace(target.knowledge, records=7)
    found = attack(dataclasses.replace(target, knowledge=known))
    assert found.stated.counted == 12
    assert "counts 12 records where 7 were given" in found.reason


def test_adam_on_data_with_dead_inputs_is_no_count_either():
    digits = load("digits").inputs[:20].flatten(1)
    labels = load("digits").labels[:20]
    model = stack_of(64, 128)
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = torch.optim.Adam(model.parameters(), lr=1e-3)
    for _ in range(30):
        steps.zero_grad()
        nn.functional.cross_entropy(model(digits), labels).backward()
        steps.step()
    target = Target(model=model, input_shape=(64,), knowledge=Knowledge(initial=initial))
    found = attack(target)
    assert found.status is Status.INCONCLUSIVE
    assert found.stated.counted is None


@pytest.mark.parametrize(("records", "counted"), [(52, 52), (70, None)])
def test_a_nearly_full_spectrum_counts_only_if_all_records_come_back(records, counted):
    """Of 62 live inputs: 70 records look like about 55, of which a few would be certified."""
    digits = load("digits")
    order = torch.randperm(len(digits), generator=torch.Generator().manual_seed(0))[:records]
    inputs = digits.inputs[order].flatten(1) - digits.inputs.flatten(1).mean(0)
    torch.manual_seed(0)
    model = stack_of(64, 384)
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for _ in range(70):
        steps.zero_grad()
        nn.functional.cross_entropy(model(inputs), digits.labels[order]).backward()
        steps.step()
    knowledge = Knowledge(initial=initial)
    target = Target(model=model, input_shape=(64,), bounds=None, knowledge=knowledge)
    found = attack(target)
    assert found.stated.counted == counted
    assert len(found) == (counted or 0)
    if counted:
        assert float(torch.cdist(inputs, found.inputs).min(1).values.max()) < 0.01


def stack_of(inputs, width):
    torch.manual_seed(0)
    layers = [nn.Linear(inputs, width), nn.ReLU(), nn.Linear(width, width), nn.ReLU()]
    return nn.Sequential(*layers, nn.Linear(width, 10))


def test_weights_that_did_not_move_are_inconclusive():
    target, _, _ = faces_target()
    found = attack(with_initial(target, target.weights))
    assert found.status is Status.INCONCLUSIVE
    assert "no training" in found.reason


def test_initial_weights_of_another_run_are_inconclusive():
    target, _, _ = faces_target()
    other, _, _ = faces_target(seed=1)
    found = attack(with_initial(target, other.knowledge.initial))
    assert found.status is Status.INCONCLUSIVE


def stack(activation, bias=True):
    layers = [nn.Linear(4, 8, bias=bias), activation(), nn.Linear(8, 8), activation()]
    return nn.Sequential(*layers, nn.Linear(8, 2))


def nothing(model, shape, initial=True):
    weights = {name: p.detach().clone() for name, p in model.named_parameters()}
    knowledge = Knowledge(initial=weights if initial else None)
    return Target(model=model, input_shape=shape, knowledge=knowledge)


@pytest.mark.parametrize(
    ("model", "initial", "reason"),
    [
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.Linear(8, 2)), False, "initial weights"),
        (stack(nn.Softsign), True, "it is Softsign"),
        (stack(nn.ReLU, bias=False), True, "no bias"),
        (nn.Sequential(nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(8, 2)), True, "Linear"),
        (nn.Sequential(nn.Linear(4, 8), nn.ReLU(), nn.BatchNorm1d(8)), True, "BatchNorm1d does"),
        (nn.Bilinear(2, 2, 2), True, "begins with Bilinear"),
    ],
)
def test_what_is_not_met_is_named(model, initial, reason):
    found = attack(nothing(model, (4,), initial))
    assert found.status is Status.NOT_APPLICABLE
    assert reason in found.reason
    assert len(found) == 0


def test_a_single_hidden_layer_comes_back_exactly():
    target, truth, labels = faces_target(depth=1, width=256)
    found = attack(target)
    assert found.status is Status.COMPLETE
    correlation = centred_correlation(truth, found.inputs)
    assert float(correlation.max(1).values.min()) > 0.9999
    assert found.labels[correlation.argmax(1)].equal(labels)


def test_a_single_narrow_hidden_layer_certifies_nothing_wrong():
    target, truth, _ = faces_target(depth=1, width=48)
    found = attack(target, patience=2)
    assert found.stated.counted == len(truth)
    right = centred_correlation(truth, found.inputs).max(0).values > 0.95
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    assert found.stated.certified == int((passed & right).sum())


def test_a_single_smooth_hidden_layer_is_said_not_to_apply():
    model = nn.Sequential(nn.Linear(4, 8), nn.Tanh(), nn.Linear(8, 2))
    found = attack(nothing(model, (4,)))
    assert found.status is Status.NOT_APPLICABLE
    assert "single hidden layer" in found.reason


def trained(activation, width=256, records=8, weight_decay=0.0, undecayed=()):
    """Faces through plain PyTorch: (target, truth)."""
    examples = load("faces")
    truth, labels = examples.inputs[:records], examples.labels[:records]
    mean = examples.inputs[50:].mean(0)
    torch.manual_seed(0)
    layers = [nn.Flatten(), nn.Linear(625, width), activation(), nn.Linear(width, width)]
    model = nn.Sequential(*layers, activation(), nn.Linear(width, 10))
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    groups = [
        {
            "params": [p for n, p in model.named_parameters() if n.endswith(undecayed) == free],
            "weight_decay": 0.0 if free else weight_decay,
        }
        for free in (False, True)
    ]
    steps = torch.optim.SGD(groups, lr=0.05, momentum=0.9)
    for _ in range(1000):
        loss = nn.functional.cross_entropy(model(truth - mean), labels)
        if loss.item() < 0.02:
            break
        steps.zero_grad()
        loss.backward()
        steps.step()
    knowledge = Knowledge(initial=initial)
    scaling = Scaling(mean=mean)
    shape = (1, 25, 25)
    return Target(model=model, input_shape=shape, scaling=scaling, knowledge=knowledge), truth


@pytest.mark.parametrize(("undecayed", "worst"), [((), 1e-4), (("bias",), 1.0)])
def test_weight_decay_is_taken_out_with_or_without_the_biases(undecayed, worst):
    """Undecayed biases weigh the steps otherwise than the weights do: the scale is a little off."""
    target, truth = trained(nn.ReLU, weight_decay=5e-3, undecayed=undecayed)
    found = attack(target)
    assert found.stated.counted == found.stated.certified == len(truth)
    assert 0.5 < found.figures["decay"] < 0.999
    error = torch.cdist(truth.flatten(1), found.inputs.flatten(1)).square().min(1).values
    assert float(error.max()) < worst
    assert float(centred_correlation(truth, found.inputs).max(1).values.min()) > 0.99


@pytest.mark.parametrize("activation", [nn.GELU, nn.LeakyReLU, nn.ELU])
def test_other_activations_come_back_nearly_and_say_how_nearly(activation):
    target, truth = trained(activation, width=400)
    found = attack(target)
    assert found.status is Status.COMPLETE
    assert "root mean square, in the model's scale" in found.reason
    distance, match = torch.cdist(found.inputs.flatten(1), truth.flatten(1)).square().min(1)
    assert sorted(match.tolist()) == list(range(len(truth)))
    assert float(distance.max()) < 0.1
    stated = torch.tensor(found.stated.error)  # of the mean of 625 squares
    assert bool((distance <= 625 * stated.square()).all())
    assert float(stated.max()) < 0.04


def test_a_nearly_linear_network_proves_nothing():
    """Sigmoids of small arguments are straight lines: every point of the span fits as well."""
    target, _ = trained(nn.Sigmoid, width=128, records=6)
    found = attack(target, patience=2)
    assert found.status is Status.INCONCLUSIVE
    assert found.stated.counted == 6
    assert found.stated.certified == 0


def test_half_precision_is_counted_and_comes_back_roughly():
    target, truth, _ = faces_target()
    halves = {name: p.half().float() for name, p in target.knowledge.initial.items()}
    model = copy.deepcopy(target.model).half().float()
    found = attack(dataclasses.replace(target, model=model, knowledge=Knowledge(initial=halves)))
    assert found.stated.counted == len(truth)
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    error = torch.cdist(found.inputs.flatten(1), truth.flatten(1)).square().min(1).values
    assert int(passed.sum()) > 0
    assert float(error[passed].max()) < 0.1


@pytest.mark.parametrize("preset", ["auto", "paper", "projected"])
def test_a_descent_of_many_hours_is_not_begun(preset):
    model = nn.Sequential(
        nn.Conv2d(1, 8, 3, padding=1), nn.BatchNorm2d(8), nn.ReLU(), nn.Flatten(),
        nn.Linear(6272, 10),
    ).eval()  # fmt: skip
    initial = {n: p.detach() + 0.1 for n, p in model.named_parameters()}
    known = Knowledge(initial=initial, records=10, loss="ce")
    target = Target(model=model, input_shape=(1, 28, 28), knowledge=known)
    found = NTK(preset=preset, hours=1e-3)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert len(found) == 0
    assert "hours by an estimate" in found.reason
    assert "--hours" in found.reason
