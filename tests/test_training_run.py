"""The loops against torch.optim, the records' basis against direct runs, and the books."""

import copy
import json
import math
from functools import partial
from itertools import pairwise

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import linearise
from remnant.progress import listening
from remnant.training import (
    SGD,
    Adam,
    DecayTime,
    GradientDescent,
    LossProportional,
    loss_named,
    recipe_from,
    train,
)
from remnant.types import Examples, Scaling

SCALING = Scaling(mean=torch.full((4, 6), 0.4), std=torch.tensor(0.5))


def seeded(seed: int = 0) -> torch.Generator:
    return torch.Generator().manual_seed(seed)


def records(n: int = 10, classes: int = 3, seed: int = 1) -> Examples:
    g = seeded(seed)
    inputs = torch.rand(n, 4, 6, generator=g, dtype=torch.float64)
    ids = tuple(f"r{i}" for i in range(n))
    return Examples(inputs=inputs, labels=torch.arange(n) % classes, ids=ids)


@torch.no_grad()
def drawn(model: nn.Module, seed: int = 2) -> nn.Module:
    """The model in float64 with weights from a seed."""
    g = seeded(seed)
    for p in model.double().parameters():
        p.copy_(torch.randn(p.shape, generator=g, dtype=p.dtype) / p.shape[-1] ** 0.5)
    return model


@torch.no_grad()
def network(c: int = 3, width: int = 16, scale: float = 1.0, activation=nn.ReLU) -> nn.Module:
    hidden = [nn.Linear(24, width), activation(), nn.Linear(width, width), activation()]
    model = drawn(nn.Sequential(nn.Flatten(), *hidden, nn.Linear(width, c)))
    model[1].weight.mul_(scale)
    model[1].bias.mul_(scale)
    return model


def run(model, examples, recipe, seed=0, **options):
    return train(model, examples, recipe, scaling=SCALING, generator=seeded(seed), **options)


def by_torch(model, examples, optimiser, loss, batches):
    """The same training by torch.optim, in place on a copy."""
    model = copy.deepcopy(model)
    optimiser = optimiser(model.parameters())
    inputs = SCALING.to_model(examples.inputs)
    for rows in batches:
        optimiser.zero_grad()
        loss_named(loss)(model(inputs[rows]), examples.labels[rows]).backward()
        optimiser.step()
    return dict(model.named_parameters())


def shuffled(n, size, epochs, seed=0):
    g = seeded(seed)
    return [rows for _ in range(epochs) for rows in torch.randperm(n, generator=g).split(size)]


def close(one, two, tolerance=1e-9):
    assert list(one) == list(two)
    for name, value in one.items():
        torch.testing.assert_close(value, two[name].detach(), rtol=0, atol=tolerance)


# n = 40 records on 24 inputs: no basis is smaller, so that the direct loop itself is tested.
@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize(("momentum", "decay"), [(0.0, 0.0), (0.0, 0.01), (0.9, 0.0), (0.9, 0.01)])
def test_gradient_descent_is_that_of_torch(n, momentum, decay):
    model, examples = network(), records(n)
    recipe = GradientDescent(lr=0.1, steps=60, momentum=momentum, weight_decay=decay)
    wanted = by_torch(
        model,
        examples,
        partial(torch.optim.SGD, lr=0.1, momentum=momentum, weight_decay=decay),
        "ce",
        [torch.arange(n)] * 60,
    )
    found = run(model, examples, recipe)
    assert found.ledger["reduced_basis"] is (n == 10)
    close(found.final, wanted)


@pytest.mark.parametrize("n", [10, 40])
@pytest.mark.parametrize("momentum", [0.0, 0.9])
def test_sgd_is_that_of_torch_over_the_same_batches(n, momentum):
    model, examples = network(), records(n)
    recipe = SGD(lr=0.05, epochs=9, batch_size=4, momentum=momentum, weight_decay=0.01, loss="mse")
    wanted = by_torch(
        model,
        examples,
        partial(torch.optim.SGD, lr=0.05, momentum=momentum, weight_decay=0.01),
        "mse",
        shuffled(n, 4, 9, seed=7),
    )
    found = run(model, examples, recipe, seed=7)
    close(found.final, wanted)
    assert found.ledger["steps"] == 9 * math.ceil(n / 4)
    assert found.trace["step"][:2] == [math.ceil(n / 4), 2 * math.ceil(n / 4)]


@pytest.mark.parametrize("size", [None, 4])
def test_adam_is_that_of_torch(size):
    model, examples = network(), records()
    recipe = Adam(lr=0.01, steps=30, betas=(0.8, 0.95), batch_size=size, weight_decay=0.1)
    rows = [torch.arange(10)] * 30 if size is None else shuffled(10, 4, 10)
    wanted = by_torch(
        model,
        examples,
        partial(torch.optim.Adam, lr=0.01, betas=(0.8, 0.95), weight_decay=0.1),
        "ce",
        rows,
    )
    found = run(model, examples, recipe)
    assert found.ledger["reduced_basis"] is False
    close(found.final, wanted)


RECIPES = [
    GradientDescent(lr=0.1, steps=200, momentum=0.9, weight_decay=0.01),
    GradientDescent(lr=0.2, steps=200, weight_decay=0.01, loss="power2.5"),
    SGD(lr=0.05, epochs=50, batch_size=3, momentum=0.5, weight_decay=0.02, loss="huber1"),
    DecayTime(lr=0.3, weight_decay=0.01, decay_time=1.0, warmup=20, check_every=10),
    # So long a step that the penalised loss rises and the cuts must fall on the same steps.
    DecayTime(lr=0.5, weight_decay=0.02, decay_time=2, warmup=1, check_every=3, loss="mse"),
    LossProportional(loss="ce", lr=0.3, stop_loss=1e-4),
]


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{type(r).__name__}-{r.loss}")
@pytest.mark.parametrize("doubled", [False, True], ids=["distinct", "duplicates"])
def test_the_records_basis_is_the_same_training(recipe, doubled):
    model, examples = network(scale=0.3), records(8)
    if doubled:
        inputs = torch.cat([examples.inputs, examples.inputs[:3], torch.zeros(1, 4, 6).double()])
        labels = torch.cat([examples.labels, examples.labels[:3], torch.tensor([1])])
        ids = tuple(f"r{i}" for i in range(12))
        examples = Examples(inputs=inputs, labels=labels, ids=ids)
    small, direct = run(model, examples, recipe), run(model, examples, recipe, reduce=False)
    assert (small.ledger["reduced_basis"], direct.ledger["reduced_basis"]) == (True, False)
    close(small.final, direct.final)
    assert small.ledger["steps"] == direct.ledger["steps"]
    assert small.ledger.get("lr_cuts") == direct.ledger.get("lr_cuts")
    if isinstance(recipe, DecayTime):
        assert (small.ledger["lr_cuts"] > 0) is (recipe.loss == "mse")
    assert small.ledger["outcome"] == "complete"


def test_outside_the_span_weights_only_decay():
    model, examples = network(), records(5)
    found = run(model, examples, GradientDescent(lr=0.1, steps=40, weight_decay=0.05))
    x = SCALING.to_model(examples.inputs).flatten(1)
    outside = torch.eye(24).double() - torch.linalg.pinv(x) @ x
    start, end = (w["1.weight"] @ outside for w in (found.initial, found.final))
    torch.testing.assert_close(end, start * (1 - 0.1 * 0.05) ** 40, rtol=0, atol=1e-12)


SHARED = nn.Linear(24, 24)


@pytest.mark.parametrize(
    ("layers", "reduced"),
    [
        ([nn.Identity(), nn.Sequential(nn.Flatten(), nn.Linear(24, 5)), nn.Linear(5, 3)], True),
        ([nn.Flatten(), nn.Linear(24, 24), nn.Tanh(), SHARED, nn.Tanh(), SHARED], True),
        ([nn.Flatten(), SHARED, nn.Tanh(), SHARED, nn.Linear(24, 3)], False),
        ([nn.Flatten(), nn.ReLU(), nn.Linear(24, 3)], False),
        ([nn.Unflatten(1, (1, 4)), nn.Conv2d(1, 2, 3), nn.Flatten(), nn.Linear(16, 3)], False),
    ],
    ids=["nested", "shared later", "shared first", "activation first", "convolution"],
)
def test_the_basis_is_used_only_where_it_holds(layers, reduced):
    model = drawn(nn.Sequential(*layers))
    recipe = GradientDescent(lr=0.1, steps=5, weight_decay=0.1)
    found = run(model, records(5), recipe)
    assert found.ledger["reduced_basis"] is reduced
    optimiser = partial(torch.optim.SGD, lr=0.1, weight_decay=0.1)
    close(found.final, by_torch(model, records(5), optimiser, "ce", [torch.arange(5)] * 5))


def test_frozen_parameters_stay():
    model = network()
    model[3].weight.requires_grad_(False)
    model[1].weight.requires_grad_(False)
    found = run(model, records(), GradientDescent(lr=0.1, steps=5, weight_decay=0.1))
    assert found.ledger["reduced_basis"] is False
    for name in ("1.weight", "3.weight"):
        assert torch.equal(found.final[name], found.initial[name])
    assert not torch.equal(found.final["5.weight"], found.initial["5.weight"])


def test_the_callers_model_is_not_touched():
    model = network().train()
    before = copy.deepcopy(model.state_dict())
    found = run(model, records(), GradientDescent(lr=0.1, steps=5))
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
    assert all(p.grad is None for p in model.parameters())
    assert model.training
    close(found.initial, before, 0)
    close(found.final, dict(found.model.named_parameters()), 0)
    assert not any(value.requires_grad for value in found.final.values())


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_same_seed_gives_the_same_bytes(dtype):
    recipe = SGD(lr=0.1, epochs=5, batch_size=3, momentum=0.9)
    one, two, other = (run(network(), records(), recipe, seed=s, dtype=dtype) for s in (4, 4, 5))
    assert all(torch.equal(value, two.final[name]) for name, value in one.final.items())
    assert (one.trace, one.ledger) == (two.trace, two.ledger)
    assert not torch.equal(one.final["1.weight"], other.final["1.weight"])
    assert one.final["1.weight"].dtype == dtype
    assert one.ledger["dtype"] == str(dtype).removeprefix("torch.")


def test_float32_follows_float64():
    recipe = GradientDescent(lr=0.1, steps=50, momentum=0.9)
    wide, narrow = (run(network(), records(), recipe, dtype=d) for d in (None, torch.float32))
    close({k: v.double() for k, v in narrow.final.items()}, wide.final, 1e-4)


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


def test_a_linearised_model_trains_by_its_own_gradient():
    model, examples = linearise(network()), records()
    recipe = GradientDescent(lr=0.02, steps=20, momentum=0.9, loss="mse")
    wanted = by_torch(
        model,
        examples,
        partial(torch.optim.SGD, lr=0.02, momentum=0.9),
        "mse",
        [torch.arange(10)] * 20,
    )
    found = run(model, examples, recipe)
    assert list(found.final) == [name for name, _ in network().named_parameters()]
    close(found.final, wanted)
    assert found.ledger["loss"] < found.trace["loss"][0]


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
