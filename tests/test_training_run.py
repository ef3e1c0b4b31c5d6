"""The loops against torch.optim, and the records' basis against direct runs."""

import copy
import math
from functools import partial

import pytest
import torch
from torch import nn

from remnant.models import Linearised
from remnant.training import SGD, Adam, DecayTime, GradientDescent, LossProportional, loss_named
from remnant.types import Examples
from training_case import SCALING, drawn, network, records, run, seeded


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


def test_a_linearised_model_trains_by_its_own_gradient():
    model, examples = Linearised(network()), records()
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
