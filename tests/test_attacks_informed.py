"""The informed attack: what comes back, and how it says that it could not."""

import copy
import functools
from dataclasses import replace

import pytest
import torch

from remnant.attacks.about import Scene
from remnant.attacks.informed import Informed
from remnant.attacks.informed_known import fresh_starts
from remnant.attacks.made import make_attack
from remnant.data import load
from remnant.errors import InputError
from remnant.models import build
from remnant.solvers.reconstructor.reconn import RecoNN
from remnant.solvers.replay.problem import ReplaySettings
from remnant.training import SGD, Adam, AdamW, DecayTime, GradientDescent, train
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded

RECIPE = GradientDescent(lr=0.2, momentum=0.9, steps=12)
QUICK = ReplaySettings(evaluations=40, label_evaluations=6, labels_tried=2)


@functools.cache
def informed_target(recipe=RECIPE, records=31, unknown=1, activation="elu"):
    """(target, truth): a network on digits of which all but the last are known."""
    examples = load("digits")
    trained_on = examples.take(range(records))
    scaling = Scaling(mean=examples.inputs[500:].mean(0), std=torch.tensor(0.5))
    model = build(f"mlp:64-8-10:{activation}", generator=seeded(1))
    trained = train(model, trained_on, recipe, scaling=scaling, generator=seeded(9))
    known = trained_on.take(range(records - unknown)) if records > unknown else None
    knowledge = Knowledge(
        initial=trained.initial,
        recipe=recipe,
        known=known,
        public=examples.inputs[300:500],
        labels=trained_on.labels if unknown > 1 else None,
        records=records,
    )
    target = Target(
        model=trained.model, input_shape=(1, 8, 8), scaling=scaling, knowledge=knowledge
    )
    return target, trained_on.take(range(records - unknown, records))


@pytest.mark.parametrize("training", [False, True, None])
def test_replay_through_batch_norm_that_was_frozen_and_in_training_mode(training):
    """None: its scale and shift are frozen too."""
    examples = load("digits").take(range(13))
    torch.manual_seed(4)
    norm = torch.nn.BatchNorm1d(8)
    norm.running_mean.uniform_(-1, 1)
    norm.running_var.uniform_(0.5, 2)
    model = torch.nn.Sequential(
        torch.nn.Flatten(), torch.nn.Linear(64, 8), norm, torch.nn.ELU(), torch.nn.Linear(8, 10)
    ).eval()
    norm.requires_grad_(training is not None)
    before = copy.deepcopy(model.state_dict())
    model.train(bool(training))
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.5)
    for _ in range(10):
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(model(examples.inputs), examples.labels).backward()
        optimizer.step()
    held = Knowledge(
        initial=before,
        recipe=GradientDescent(lr=0.1, momentum=0.5, steps=10),
        known=examples.take(range(12)),
        records=13,
    )
    target = Target(model=model.eval(), input_shape=(1, 8, 8), knowledge=held)
    attack = Informed(double=True)
    assert attack.why_not(Scene(target=target, records=13, loss="ce")) is None
    found = attack(target, generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert (found.inputs - examples.inputs[12:]).square().mean() < 1e-4
    if training:
        scene = Scene(target=target, records=13, loss="ce")
        twin = attack.twin(scene, examples, seeded(0))
        for name, value in model.named_parameters():  # the same run, in single precision
            torch.testing.assert_close(twin.weights[name], value.detach(), atol=1e-5, rtol=1e-4)
        refused = Informed(probes=3)(target, generator=seeded(0))
        assert "training mode" in refused.reason


def knowing(target, **changes):
    return replace(target, knowledge=replace(target.knowledge, **changes))


def test_replay_finds_and_certifies_the_record_and_its_label():
    target, truth = informed_target()
    found = Informed(replaying=QUICK)(target, generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert found.labels.tolist() == truth.labels.tolist()
    assert (found.inputs - truth.inputs).square().mean() < 1e-4
    assert found.figures["residual"] < 1e-4
    assert found.stated.certified == 1
    again = Informed(replaying=QUICK)(target, generator=seeded(0))
    assert torch.equal(found.inputs, again.inputs)


def test_mini_batches_with_a_known_seed_and_with_a_wrong_one():
    target, truth = informed_target(SGD(lr=0.1, epochs=4, batch_size=10))
    attack = Informed(replaying=replace(QUICK, evaluations=60), order_seed=9)
    right = attack(target, generator=seeded(0))
    assert right.status is Status.COMPLETE, right.reason
    assert (right.inputs - truth.inputs).square().mean() < 1e-3
    wrong = replace(attack, order_seed=8, replaying=QUICK)(target, generator=seeded(0))
    assert wrong.status is Status.INCONCLUSIVE
    assert "was not matched" in wrong.reason
    assert wrong.figures["residual"] > 1e-3
    assert float(wrong.confidence) == 0.0
    unknown = replace(attack, order_seed=None)(target, generator=seeded(0))
    assert unknown.status is Status.NOT_APPLICABLE
    assert "mini-batches" in unknown.reason


def test_adam_in_batches_is_certified():
    recipe = Adam(lr=2e-3, steps=20, batch_size=25)
    target, truth = informed_target(recipe, records=100)
    found = Informed(replaying=QUICK, order_seed=9)(target, generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert found.labels.tolist() == truth.labels.tolist()
    assert (found.inputs - truth.inputs).square().mean() < 1e-8
    short = replace(QUICK, evaluations=6)
    lost = Informed(replaying=short, order_seed=8)(target, generator=seeded(0))
    assert lost.status is Status.INCONCLUSIVE


def test_the_wrong_start_is_inconclusive():
    target, _ = informed_target()
    other = build("mlp:64-8-10:elu", generator=seeded(2))
    guessed = knowing(target, initial={n: p.detach() for n, p in other.named_parameters()})
    found = Informed(replaying=QUICK)(guessed, generator=seeded(0))
    assert found.status is Status.INCONCLUSIVE
    assert "initial weights" in found.reason
    assert found.figures["residual"] > 1e-3


def test_too_little_seen_is_inconclusive_even_if_it_fits():
    target, _ = informed_target()
    found = Informed(layers=("3.bias",), replaying=replace(QUICK, labels_tried=1))(
        target, generator=seeded(0)
    )
    assert found.status is Status.INCONCLUSIVE
    assert not found.figures["determined"]


@pytest.mark.parametrize("alive", [True, False])
def test_a_record_that_the_run_does_not_depend_on_is_not_certified(alive):
    examples = load("digits")
    known = examples.take(range(30))
    model = build("mlp:64-3-10:relu", generator=seeded(1), dtype=torch.float64)
    weight, bias = (p.detach() for p in list(model.parameters())[:2])
    level = 1.0 if alive else -3.0  # of every unit before training
    record = (torch.linalg.pinv(weight) @ (level - bias)).view(1, 1, 8, 8)
    everything = replace(examples.take(range(31)), inputs=torch.cat([known.inputs, record.float()]))
    recipe = replace(RECIPE, steps=4)
    trained = train(model, everything, recipe, scaling=Scaling(), generator=seeded(9))
    target = Target(
        model=trained.model, input_shape=(1, 8, 8), scaling=Scaling(), bounds=None,
        knowledge=Knowledge(
            initial=trained.initial, recipe=recipe, known=known, labels=everything.labels
        ),
    )  # fmt: skip
    settings = replace(QUICK, bends=(3.0, 10.0, 30.0, 0.0, 0.0))
    found = Informed(replaying=settings, double=True)(target, generator=seeded(0))
    assert found.figures["residual"] < 1e-4, found.reason
    assert found.figures["determined"] is alive
    if alive:
        assert found.status is Status.COMPLETE, found.reason
        assert (found.inputs - record).square().mean() < 1e-4
    else:
        assert found.status is Status.INCONCLUSIVE
        assert "the run does not depend on the record: " in found.reason
        assert found.stated.certified == 0
        assert float(found.confidence) == 0.0
        assert (found.inputs - record).square().mean() > 1e-3


def test_two_unknown_records_with_their_labels():
    target, truth = informed_target(unknown=2)
    found = Informed(replaying=replace(QUICK, evaluations=80), double=True)(
        target, generator=seeded(0)
    )
    assert found.status is Status.COMPLETE, found.reason
    assert (found.inputs - truth.inputs).square().mean() < 1e-3
    silent = Informed()(knowing(target, labels=None), generator=seeded(0))
    assert silent.status is Status.NOT_APPLICABLE
    assert "needs their labels" in silent.reason


def test_an_update_of_a_client_with_no_known_record():
    target, truth = informed_target(GradientDescent(lr=0.1, steps=3), records=2, unknown=2)
    assert target.knowledge.known is None
    attack = Informed(replaying=replace(QUICK, evaluations=150), restarts=2)
    found = attack(target, generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert found.labels.tolist() == truth.labels.tolist()
    assert (found.inputs - truth.inputs).square().mean() < 1e-6


def test_labels_of_a_client_are_read_off_the_outputs_bias():
    target, truth = informed_target(GradientDescent(lr=0.1, steps=3), records=2, unknown=2)
    attack = Informed(replaying=replace(QUICK, evaluations=150), restarts=2)
    found = attack(knowing(target, labels=None), generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert sorted(found.labels.tolist()) == sorted(truth.labels.tolist())
    nearest = torch.cdist(truth.inputs.flatten(1), found.inputs.flatten(1)).min(1).values
    assert float(nearest.max()) < 1e-2


def test_rounded_weights_of_a_client_are_not_matched_and_nothing_is_claimed():
    target, _ = informed_target(GradientDescent(lr=0.1, steps=3), records=2, unknown=2)
    coarse = replace(target, model=copy.deepcopy(target.model).to(torch.bfloat16).float())
    attack = Informed(replaying=replace(QUICK, evaluations=30), restarts=1)
    found = attack(coarse, generator=seeded(0))
    assert found.status is Status.INCONCLUSIVE
    assert "the run was not matched" in found.reason
    assert found.stated.certified == 0


@pytest.mark.parametrize("method", ["ridge", "reconn"])
def test_learned_reconstructions_beat_the_mean_and_certify_nothing(method):
    target, truth = informed_target()
    attack = Informed(method=method, network=RecoNN(width=64, epochs=30, batch_size=32))
    found = attack(target, generator=seeded(0))
    assert found.status is Status.INCONCLUSIVE
    assert "no certificate" in found.reason
    mean = load("digits").inputs[300:500].mean(0)
    assert (found.inputs - truth.inputs).square().mean() < (mean - truth.inputs).square().mean()
    assert found.figures["shadows"] == 200
    assert found.inputs.min() >= 0
    assert found.inputs.max() <= 1


def test_what_is_missing_is_said():
    target, _ = informed_target()
    for changes, words in [
        ({"initial": None}, "give --initial"),
        ({"recipe": None}, "GradientDescent, SGD, Adam or PrivateDescent"),
        ({"recipe": DecayTime()}, "got DecayTime"),
        ({"known": None}, "needs --labels, those of all"),
        ({"records": 30}, "all are known"),
        ({"labels": torch.tensor([10])}, "labels must be classes 0 to 9; they are [10]"),
    ]:
        found = Informed()(knowing(target, **changes), generator=seeded(0))
        assert found.status is Status.NOT_APPLICABLE
        assert words in found.reason
        assert len(found) == 0
    found = Informed(method="ridge")(knowing(target, public=None), generator=seeded(0))
    assert "shadow models need public inputs" in found.reason
    with pytest.raises(InputError, match="replay or ridge or reconn"):
        Informed(method="guess")


def test_an_audit_is_told_which_methods_work_without_the_initial_weights():
    target, _ = informed_target()
    scene = Scene(target=knowing(target, initial=None, known=None), records=31, loss="ce")
    assert "give --initial" in Informed().why_not(scene)
    attack = Informed(method="ridge")
    assert attack.why_not(scene) is None
    twin = attack.twin(scene, load("digits").take(range(600, 631)), seeded(3))
    assert twin.knowledge.initial is None
    assert not torch.equal(twin.weights["1.weight"], target.weights["1.weight"])
    shadows = fresh_starts(target.model, 2, seeded(4))["1.weight"]
    assert not torch.equal(*shadows)


def test_the_papers_own_network_is_a_flag_of_reconn():
    target, _ = informed_target()
    asked = make_attack("informed", {"method": "reconn", "paper": True, "shadows": 20})
    found = asked(target, generator=seeded(0))
    meant = Informed(method="reconn", network=RecoNN.paper(), shadows=20)
    assert torch.equal(found.inputs, meant(target, generator=seeded(0)).inputs)
    ours = Informed(method="reconn", shadows=20)
    assert not torch.equal(found.inputs, ours(target, generator=seeded(0)).inputs)
    with pytest.raises(InputError, match="paper: expected method reconn"):
        Informed(method="ridge", paper=True)


def test_several_records_of_a_short_training_by_adam_come_near_and_are_not_vouched_for():
    every, generator = load("digits"), seeded(1)
    order = torch.randperm(len(every), generator=generator)
    records, others = every.take(order[:3]), every.take(order[3:])
    recipe, model = AdamW(steps=4), build("mlp:64-128-10", generator=generator)
    trained = train(model, records, recipe, scaling=Scaling(), generator=generator)
    held = Knowledge(initial=trained.initial, recipe=recipe, records=3)
    target = Target(model=trained.model, input_shape=every.shape, bounds=(0, 1), knowledge=held)
    blind = Informed()(target, generator=seeded())
    assert blind.status is Status.NOT_APPLICABLE
    assert "--labels" in blind.reason
    target = replace(target, knowledge=replace(held, labels=records.labels))
    found = Informed(restarts=1)(target, generator=seeded())
    assert found.status is Status.INCONCLUSIVE
    assert "Adam moves a weight by whole steps" in found.reason
    near = (found.inputs - records.inputs).flatten(1).norm(dim=1)
    strangers = torch.cdist(records.inputs.flatten(1), others.inputs.flatten(1)).min(1).values
    assert bool((near < strangers / 2).all())
