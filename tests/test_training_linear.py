"""The closed form of linearised training against descent, against ridge, and on duplicates."""

import json

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import Linearised
from remnant.training import GradientDescent, solve_linearised, targets, train
from remnant.types import Examples, Scaling
from seeding import seeded

SCALING = Scaling(mean=torch.tensor(0.5))


def records(n: int = 5, classes: int = 3) -> Examples:
    inputs = torch.rand(n, 12, generator=seeded(1), dtype=torch.float64)
    ids = tuple(f"r{i}" for i in range(n))
    return Examples(inputs=inputs, labels=torch.arange(n) % classes, ids=ids)


@torch.no_grad()
def network(c: int) -> nn.Module:
    model = nn.Sequential(nn.Flatten(), nn.Linear(12, 40), nn.ReLU(), nn.Linear(40, c)).double()
    for p in model.parameters():
        p.copy_(torch.randn(p.shape, generator=seeded(2), dtype=p.dtype) / p.shape[-1] ** 0.5)
    return model


def jacobian(model: Linearised, x: torch.Tensor) -> torch.Tensor:
    """All gradients as rows, n c x parameters."""
    rows = []
    for output in model(x).reshape(-1):
        grads = torch.autograd.grad(output, list(model.parameters()), retain_graph=True)
        rows.append(torch.cat([g.reshape(-1) for g in grads]))
    return torch.stack(rows)


def flat(weights) -> torch.Tensor:
    return torch.cat([value.reshape(-1) for value in weights.values()])


@pytest.mark.parametrize(("c", "classes"), [(1, 2), (3, 3)])
def test_it_is_where_descent_ends(c, classes):
    model, examples = Linearised(network(c)), records(classes=classes)
    solved = solve_linearised(model, examples, scaling=SCALING)
    assert solved.ledger["loss"] < 1e-20
    assert solved.ledger["accuracy"] == 1.0
    descent = GradientDescent(lr=0.03, momentum=0.95, steps=3000, loss="mse", stop_loss=1e-14)
    walked = train(model, examples, descent, scaling=SCALING, generator=seeded(0))
    assert walked.ledger["outcome"] == "complete"
    torch.testing.assert_close(flat(solved.final), flat(walked.final), rtol=0, atol=1e-5)


@pytest.mark.parametrize("ridge", [0.0, 0.3])
def test_it_is_the_regression_on_gradients(ridge):
    model, examples = network(3), records()
    solved = solve_linearised(model, examples, scaling=SCALING, ridge=ridge)
    line, x = Linearised(model), SCALING.to_model(examples.inputs)
    j = jacobian(line, x)
    missing = (targets(line(x), examples.labels) - line(x)).detach().reshape(-1)
    square = j.T @ j + ridge * torch.eye(j.shape[1]).double()
    wanted = torch.linalg.lstsq(square, j.T @ missing, driver="gelsd").solution
    torch.testing.assert_close(flat(solved.final) - flat(solved.initial), wanted, rtol=0, atol=1e-8)
    assert isinstance(solved.model, Linearised)
    assert json.loads(json.dumps(solved.ledger))["recipe"]["ridge"] == ridge


def test_a_linearised_model_goes_on_from_where_it_is():
    model, examples = Linearised(network(3)), records()
    with torch.no_grad():
        for p in model.parameters():
            p.add_(0.1)
    solved = solve_linearised(model, examples, scaling=SCALING)
    assert torch.equal(solved.initial["1.weight"], model.get_parameter("1.weight"))
    assert solved.ledger["loss"] < 1e-20
    moved = flat(solved.final) - flat(solved.initial)
    j = jacobian(model, SCALING.to_model(examples.inputs))
    torch.testing.assert_close(j.T @ torch.linalg.pinv(j.T) @ moved, moved, rtol=0, atol=1e-9)


def test_duplicates_with_different_labels_meet_in_the_middle():
    once = records(4)
    examples = Examples(
        inputs=torch.cat([once.inputs, once.inputs[:1]]),
        labels=torch.cat([once.labels, torch.tensor([1])]),
        ids=("a", "b", "c", "d", "e"),
    )
    solved = solve_linearised(network(3), examples, scaling=SCALING)
    assert solved.ledger["rank"] == 4 * 3
    outputs = solved.model(SCALING.to_model(examples.inputs)).detach()
    wanted = targets(outputs, examples.labels)
    wanted[[0, 4]] = (wanted[0] + wanted[4]) / 2
    torch.testing.assert_close(outputs, wanted, rtol=0, atol=1e-8)


def test_frozen_parameters_stay():
    model = network(3)
    model[1].weight.requires_grad_(False)
    solved = solve_linearised(model, records(), scaling=SCALING)
    assert torch.equal(solved.final["1.weight"], solved.initial["1.weight"])
    assert solved.ledger["loss"] < 1e-18


def test_float32_models_are_solved_in_float64():
    solved = solve_linearised(network(3).float(), records(), scaling=SCALING)
    assert solved.ledger["dtype"] == "float64"
    assert solved.ledger["loss"] < 1e-20


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"loss": "ce"}, "solve_linearised: loss: expected mse, got ce; train by a recipe"),
        ({"ridge": -1.0}, "solve_linearised: ridge: expected 0 or more, got -1.0"),
    ],
)
def test_what_has_no_closed_form_is_refused(options, says):
    with pytest.raises(InputError, match=says):
        solve_linearised(network(3), records(), scaling=SCALING, **options)
