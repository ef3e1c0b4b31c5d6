"""How a training ends, what its ledger and trace say of that, and what it refuses."""

import json
import math
from itertools import pairwise

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.progress import listening
from remnant.training import (
    SGD,
    Adam,
    DecayTime,
    GradientDescent,
    LossProportional,
    loss_named,
    recipe_from,
)
from training_case import SCALING, network, records, run


def test_the_ledger_is_json_and_true():
    examples = records()
    recipe = GradientDescent(lr=0.2, steps=1500, momentum=0.9, stop_loss=1e-2)
    found = run(network(), examples, recipe)
    ledger = json.loads(json.dumps(found.ledger, allow_nan=False))
    assert recipe_from(ledger["recipe"]) == recipe
    assert (ledger["outcome"], ledger["stopped"]) == ("complete", "stop_loss")
    assert (ledger["records"], ledger["accuracy"]) == (10, 1.0)
    outputs = found.model(SCALING.to_model(examples.inputs))
    assert ledger["loss"] == pytest.approx(loss_named("ce")(outputs, examples.labels).item())
    assert ledger["loss"] <= 1e-2 < found.trace["loss"][-2]
    assert found.trace["step"][-1] == ledger["steps"] < 1500
    assert found.trace["step"][0] == 0


def test_a_long_trace_is_thinned():
    found = run(network(), records(), GradientDescent(lr=0.01, steps=603))
    steps = found.trace["step"]
    assert len(steps) == len(found.trace["loss"]) <= 501
    assert steps[:3] == [0, 2, 4]
    assert steps[-1] == 603
    assert found.trace["loss"] == sorted(found.trace["loss"], reverse=True)


def test_steps_that_run_out_leave_it_unfinished():
    for recipe in (
        GradientDescent(lr=0.01, steps=3, stop_loss=1e-9),
        SGD(lr=0.01, epochs=2, batch_size=5, stop_loss=1e-9),
        DecayTime(steps=7),
        LossProportional(loss="ce", steps=7),
    ):
        assert run(network(), records(), recipe).ledger["outcome"] == "unfinished"


@pytest.mark.parametrize(
    "recipe",
    [
        GradientDescent(lr=1e3, steps=100, loss="mse"),
        SGD(lr=1e3, epochs=100, batch_size=3, loss="mse", momentum=0.9),
        DecayTime(lr=1e4, warmup=0, decay_time=1e6, loss="mse"),
        Adam(lr=1e30, steps=100, loss="mse"),
    ],
    ids=lambda r: type(r).__name__,
)
def test_divergence_is_an_outcome_with_finite_weights(recipe):
    found = run(network(), records(), recipe, dtype=torch.float32)
    assert (found.ledger["outcome"], found.ledger["stopped"]) == ("diverged", "diverged")
    assert all(bool(value.isfinite().all()) for value in found.final.values())
    json.dumps(found.ledger, allow_nan=False)


class Root(nn.Module):
    """Finite at its start, with an infinite slope."""

    def __init__(self):
        super().__init__()
        self.weight = nn.Parameter(torch.zeros(3, dtype=torch.float64))

    def forward(self, x):
        return x.flatten(1)[:, :3] + self.weight.sqrt()


def test_an_infinite_gradient_leaves_the_last_finite_weights():
    for recipe, stopped, outcome in (
        (GradientDescent(lr=0.1, steps=9), "diverged", "diverged"),
        (LossProportional(loss="ce"), "stalled", "unfinished"),
    ):
        found = run(Root(), records(), recipe)
        assert (found.ledger["stopped"], found.ledger["outcome"]) == (stopped, outcome)
        assert found.ledger["steps"] == 0
        assert torch.equal(found.final["weight"], torch.zeros(3).double())
        assert found.trace["loss"] == [found.ledger["loss"]]


def test_weights_that_are_not_numbers_diverge_at_once():
    model = network()
    model[5].bias.data.fill_(math.nan)
    for recipe in (GradientDescent(lr=0.1, steps=9), LossProportional(loss="ce")):
        ledger = run(model, records(), recipe).ledger
        assert (ledger["outcome"], ledger["steps"], ledger["loss"]) == ("diverged", 0, None)


def test_decay_time_takes_the_steps_that_it_says():
    recipe = DecayTime(lr=0.5, weight_decay=0.01, decay_time=1.0, warmup=20)
    found = run(network(), records(), recipe)
    # The 20 steps of the warmup count as 10.5, and 200 whole ones are needed.
    assert found.ledger["steps"] == math.ceil(20 + 200 - 10.5)
    assert found.ledger["stopped"] == "decay_time"
    assert found.ledger["decay_time_reached"] == pytest.approx(1.0, abs=0.005)


def test_decay_time_ends_near_a_stationary_point():
    examples, decay = records(), 0.05
    model = network(activation=nn.Tanh)  # smooth: descent rests, where on a ReLU's kink it ripples
    found = run(model, examples, DecayTime(lr=0.4, weight_decay=decay, decay_time=20, warmup=5))
    outputs = found.model(SCALING.to_model(examples.inputs))
    loss = loss_named("ce")(outputs, examples.labels)
    parameters = list(found.model.parameters())
    for p, g in zip(parameters, torch.autograd.grad(loss, parameters), strict=True):
        assert (g + decay * p).norm() < 0.02 * decay * p.norm()


def test_loss_proportional_steps_reach_tiny_losses():
    model, examples = network(c=1, width=64, scale=1e-3), records(classes=2)
    found = run(model, examples, LossProportional(lr=0.1, stop_loss=1e-8))
    assert found.ledger["stopped"] == "stop_loss"
    assert found.ledger["loss"] <= 1e-8
    assert found.ledger["steps"] < 1000
    assert all(b <= 1.02 * a for a, b in pairwise(found.trace["loss"]))


def test_loss_proportional_takes_bad_steps_back():
    model, examples = network(c=1, width=64), records(classes=2)
    found = run(model, examples, LossProportional(lr=30.0, stop_loss=1e-6))
    assert found.ledger["rejected"] > 0
    assert (found.ledger["outcome"], found.ledger["accuracy"]) == ("complete", 1.0)


def test_progress_is_told():
    heard = []

    def listener(name, total):
        heard.append((name, total))
        return lambda amount=1.0, *, note="": heard.append((amount, note)), lambda: heard.append(
            "end"
        )

    with listening(listener):
        run(network(), records(), GradientDescent(lr=0.1, steps=3))
        run(network(), records(), DecayTime(decay_time=0.01, warmup=0))
    assert heard[0] == ("training", 3)
    assert [amount for amount, _ in heard[1:4]] == [1.0] * 3
    assert heard[1][1].startswith("loss ")
    assert heard[4] == "end"
    assert heard[5] == ("training", 0.01)
    assert sum(amount for amount, _ in heard[6:-1]) == pytest.approx(0.01)


@pytest.mark.parametrize(
    ("model", "examples", "says"),
    [
        (network(c=1), records(), "loss ce: expected two outputs or more, got one output; use bce"),
        (network(c=2), records(), "loss ce: labels: expected classes 0 to 1, got 0 to 2"),
        (
            nn.Sequential(nn.Flatten(), nn.Linear(9, 3)),
            records(),
            r"inputs of shape \(4, 6\) do not",
        ),
        (nn.Linear(6, 3), records(), r"model: outputs: expected n x c, got \(1, 4, 3\)"),
        (nn.Flatten(), records(), "model: expected parameters that require a gradient, got none"),
        (network(), records(0), "data: records: expected one or more, got 0"),
    ],
)
def test_what_does_not_fit_is_said_in_one_line(model, examples, says):
    with pytest.raises(InputError, match=says) as caught:
        run(model, examples, GradientDescent(lr=0.1, steps=1))
    assert "\n" not in str(caught.value)
