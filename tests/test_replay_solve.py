"""Replay: what it recovers of a run, and that it says when it did not."""

from dataclasses import replace

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.models import build
from remnant.solvers.replay.chart import chart_of
from remnant.solvers.replay.run import Observation, end_of_run
from remnant.solvers.replay.solve import replay, replay_update
from remnant.training import SGD, Adam, GradientDescent
from remnant.training.fleet import share
from remnant.types import Scaling
from replay_case import QUICK, RECIPE, a_run, seeded, starts_of, worst


def test_records_and_labels_come_back_and_nothing_is_told():
    run, released, truth, labels = a_run()
    found = replay(run, released, starts=starts_of(run), settings=QUICK)
    assert torch.equal(found.labels, labels)
    assert worst(found, truth) < 1e-7
    assert found.matched.all()
    assert found.determined.all()
    assert found.trace[-1] < 1e-6 < found.trace[0]


def test_convolutions_are_matched_to_a_smaller_residual():
    gentle = replace(RECIPE, lr=0.05)
    run, released, _, labels = a_run(gentle, spec="cnn:1x8x8-c4k3s2-10:elu", targets=2)
    settings = replace(QUICK, labels_tried=1, evaluations=32)
    found = replay(run, released, starts=starts_of(run), settings=settings)
    assert torch.equal(found.labels, labels)
    assert bool((found.residual > 1e-6).any())  # else this shows nothing
    assert bool((found.residual < 1e-4).all())
    assert torch.equal(found.matched, found.residual <= 1e-6)
    assert found.evaluations == settings.evaluations


@pytest.mark.parametrize("what", ["initial weights", "order", "noise"])
def test_a_wrong_run_is_told_by_its_residual(what):
    recipe = SGD(lr=0.1, epochs=4, batch_size=10) if what == "order" else RECIPE
    run, released, truth, labels = a_run(recipe)
    assumed = {"initial weights": {"init": 2}, "order": {"order": 4}, "noise": {}}[what]
    other = a_run(recipe, **assumed)[0]
    if what == "noise":
        noise = {n: torch.randn(w.shape, generator=seeded(0)) for n, w in released.items()}
        released = {n: w + 0.01 * noise[n] for n, w in released.items()}
    starts = starts_of(run)[labels]
    found = replay(other, released, starts=starts, labels=labels, settings=QUICK)
    assert not found.matched.any()
    assert worst(found, truth) > 1e-3


def test_several_unknown_records_and_known_batches():
    for recipe, extra in [(RECIPE, 3), (SGD(lr=0.1, epochs=4, batch_size=10), 1)]:
        run, released, truth, labels = a_run(recipe, extra=extra, targets=1)
        starts = starts_of(run)[labels]
        found = replay(
            run, released, starts=starts, labels=labels, settings=replace(QUICK, evaluations=80)
        )
        assert found.matched.all()
        assert worst(found, truth) < 1e-5


def test_chosen_layers_and_logits():
    run, released, truth, labels = a_run(targets=1)
    starts = starts_of(run)[labels]
    probes = Observation(probes=load("digits").inputs[200:300])
    settings = replace(QUICK, evaluations=150)
    found = replay(
        run, released, starts=starts, labels=labels, observation=probes, settings=settings
    )
    assert found.determined
    assert float(found.residual) < 1e-6
    assert worst(found, truth) < 1e-3
    last = Observation(layers=("3.",))  # 90 numbers, which hold few directions of 64
    found = replay(run, released, starts=starts, labels=labels, observation=last, settings=QUICK)
    assert found.matched.all()
    assert worst(found, truth) > 1e-3
    assert not found.determined.any()
    few = Observation(layers=("3.bias",))
    assert few.chosen(run.names) == ("3.bias",)
    found = replay(run, released, starts=starts, labels=labels, observation=few, settings=QUICK)
    assert not found.determined  # ten numbers cannot tell sixty-four
    with pytest.raises(InputError, match=r"the beginning of some of 1\.weight"):
        Observation(layers=("7",)).chosen(run.names)


def test_a_federated_update_with_nothing_known():
    examples = load("digits")
    recipe = GradientDescent(lr=0.1, steps=5)
    model = build("mlp:64-40-10:elu", generator=seeded(1), dtype=torch.float64)
    run = share(model, examples.take([]), recipe, scaling=Scaling(), extra=2)
    truth, labels = examples.inputs[5:7].double(), examples.labels[5:7]
    released = {n: w[0] for n, w in run.named(end_of_run(run, truth[None], labels[None])).items()}
    found = replay_update(
        run, released, labels, shape=examples.shape, generator=seeded(0), restarts=2,
        settings=replace(QUICK, evaluations=150),
    )  # fmt: skip
    assert found.matched[0]
    assert found.residual[0] <= found.residual[1]
    assert float((found.records[0] - truth).square().mean()) < 1e-6


@pytest.mark.parametrize(
    "activation", ["sigmoid", "softplus", "silu", "tanh", "celu", "selu", "gelu", "identity"]
)
def test_the_activations_of_the_papers_table(activation):
    run, released, truth, labels = a_run(spec=f"mlp:64-8-10:{activation}", targets=2)
    found = replay(run, released, starts=starts_of(run)[labels], labels=labels, settings=QUICK)
    assert worst(found, truth) < 1e-12
    assert (found.matched & found.determined).all()


def test_relu_records_come_back_though_the_run_jumps():
    run, released, truth, labels = a_run(spec="mlp:64-10-10", records=99, targets=4)
    starts, settings = starts_of(run)[labels], replace(QUICK, evaluations=30)
    found = replay(run, released, starts=starts, labels=labels, settings=settings)
    assert int(found.matched.sum()) >= 3
    assert worst(replace(found, records=found.records[found.matched]), truth[found.matched]) < 1e-8


def test_relu_with_one_layer_seen():
    run, released, truth, labels = a_run(spec="mlp:64-10-10", records=40, targets=2)
    starts = starts_of(run)[labels]
    seen = Observation(layers=("1.",))
    found = replay(run, released, starts=starts, labels=labels, observation=seen, settings=QUICK)
    before = (starts - truth).square().flatten(1).mean(1)
    assert ((found.records - truth).square().flatten(1).mean(1) < 0.5 * before).all()


def test_adam_is_replayed_column_by_column():
    run, released, truth, labels = a_run(Adam(lr=2e-3, steps=10), records=99, targets=3)
    chart = chart_of(run, released)
    never = run.inputs.flatten(1).abs().amax(0) == 0
    assert int(never.sum()) > 5
    hidden = truth.flatten(1) == 0
    assert torch.equal(chart.scale == 0, never.expand_as(hidden) & hidden)
    found = replay(run, released, starts=starts_of(run), settings=QUICK)
    assert torch.equal(found.labels, labels)
    assert worst(found, truth) < 1e-12
    assert (found.matched & found.determined).all()


def test_adam_in_batches_and_single_precision():
    recipe = Adam(lr=2e-3, steps=12, batch_size=20, weight_decay=1e-3)
    run, released, truth, labels = a_run(recipe, records=99, spec="mlp:64-8-10:tanh", targets=2)
    single = {name: weight.float() for name, weight in released.items()}
    found = replay(run, single, starts=starts_of(run)[labels], labels=labels, settings=QUICK)
    assert found.matched.all()
    assert worst(found, truth) < 1e-6


def silencing(run, deep):
    """1 x shape: a record for which the first layer's units all are at -deep before training."""
    weight, bias = run.start[0], run.start[1]
    return (torch.linalg.pinv(weight) @ (-deep - bias)).view(1, *run.inputs.shape[1:])


def test_a_record_that_silences_every_unit_matches_and_is_not_determined():
    run, _, truth, labels = a_run(spec="mlp:64-8-10", extra=2, targets=1)
    dead = torch.stack([truth[0, 0], silencing(run, 5.0)[0]])[None]
    released = run.named(end_of_run(run, dead, labels))
    moved = dead + 0.1 * torch.tensor([0.0, 1.0]).view(1, 2, 1, 1, 1)
    for end, same in zip(end_of_run(run, moved, labels), released.values(), strict=True):
        assert torch.equal(end, same)  # the run does not see where the second record is
    found = replay(run, released, starts=moved, labels=labels, settings=QUICK)
    assert found.matched.all()
    assert found.idle.tolist() == [[False, True]]
    assert not found.determined.any()
    assert worst(found, dead) > 1e-3


def test_labels_that_do_not_fit_the_run_are_refused():
    run, released, _, labels = a_run(extra=2, targets=1)
    with pytest.raises(InputError, match="one unknown record, or the labels of all"):
        replay(run, released, starts=starts_of(run))
    with pytest.raises(InputError, match="K x 2"):
        replay(run, released, starts=starts_of(run)[labels][:, :1], labels=labels)
