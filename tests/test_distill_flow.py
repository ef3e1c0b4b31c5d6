"""Gradient flow in large steps against descent in small ones, and the judges of a distilled set."""

import pytest
import torch

from remnant.distill import flow, infinite_accuracy, judge, linearised_accuracy
from remnant.errors import InputError
from remnant.gradients import gram
from remnant.kernels import Dense
from remnant.models import build
from remnant.training import GradientDescent, accuracy, train
from remnant.types import Examples, Scaling
from seeding import seeded


@pytest.fixture(scope="module")
def case():
    x = torch.randn(8, 5, generator=seeded(1), dtype=torch.float64)
    y = torch.sign(x[:, :1]) * 1.0
    model = build("mlp:5-200-200-1", generator=seeded(2), dtype=torch.float64, init="normal")
    other = torch.randn(200, 5, generator=seeded(3), dtype=torch.float64)
    return model, x, y, other


def test_it_ends_where_descent_with_a_small_rate_does(case):
    model, x, y, other = case
    ids = tuple(map(str, range(8)))
    records = Examples(inputs=x, labels=y, ids=ids, bounds=None)
    recipe = GradientDescent(lr=0.01, steps=4000, loss="mse", stop_loss=1e-7)
    slow = train(model, records, recipe, scaling=Scaling(), generator=seeded())
    assert slow.ledger["outcome"] == "complete"
    gaps = []
    with torch.no_grad():
        wanted, start = slow.model(other), model(other)
        for tolerance in (0.2, 0.02):
            found = flow(model, x, y, tolerance=tolerance)
            assert found.loss < 1e-6
            gaps.append(float((found.model(other) - wanted).norm() / (wanted - start).norm()))
        about = model(x)
    assert gaps[1] < gaps[0]
    assert gaps[1] < 0.01
    assert found.steps < 100
    assert float((about - y).square().mean()) > 0.1  # the model that came is as it was


def test_classes_flow_together(case):
    _, x, _, _ = case
    model = build("mlp:5-100-3", generator=seeded(4), dtype=torch.float64)
    y = torch.eye(3, dtype=torch.float64)[torch.arange(8) % 3]
    found = flow(model, x, y)
    assert torch.allclose(found.model(x), y, atol=0.01)
    with pytest.raises(InputError, match="flow: tolerance"):
        flow(model, x, y, tolerance=0.0)


def test_a_flow_that_cannot_get_there_says_so():
    x = torch.ones(2, 3, dtype=torch.float64)  # one input, two answers
    model = build("mlp:3-10-1", generator=seeded(), dtype=torch.float64)
    found = flow(model, x, torch.tensor([[1.0], [-1.0]], dtype=torch.float64))
    assert found.loss > 0.9


def test_judges_agree_with_kernel_regression_by_hand(case):
    model, x, y, other = case
    classes = (other[:, 0] > 0).long()
    judged = judge(model.float(), Dense(), x, y, test=other, classes=classes)
    assert judged.standard_loss < 1e-5
    with torch.no_grad():
        twin = model.double()
        duals = torch.linalg.solve(gram(twin, x), y - twin(x))
        outputs = twin(other) + gram(twin, other, x) @ duals
    assert judged.linearised == pytest.approx(accuracy(outputs, classes), abs=0.01)
    assert judged.linearised == linearised_accuracy(twin, x, y, test=other, classes=classes)
    assert judged.infinite == infinite_accuracy(Dense(), x, y, test=other, classes=classes)
    assert min(judged.standard, judged.linearised, judged.infinite) > 0.7
