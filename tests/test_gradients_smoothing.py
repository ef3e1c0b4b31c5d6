"""ReLU smoothed in its backward pass, or as a whole."""

import pytest
import torch
from torch import nn
from torch.func import grad, jvp, vmap

from remnant.errors import InputError
from remnant.gradients import SmoothReLU, smoothed

X = torch.linspace(-40.0, 40.0, 101, dtype=torch.float64)
SLOPES = torch.sigmoid(2.5 * X)


def test_forward_is_exactly_relu():
    for x in (X, X.float() * 1e3, torch.tensor([-1e-30, 0.0, 1e-30])):
        assert torch.equal(SmoothReLU(300.0)(x), torch.relu(x))


def test_derivative_is_a_sigmoid_by_every_route():
    act = SmoothReLU(2.5)
    x = X.clone().requires_grad_()
    (backward,) = torch.autograd.grad(act(x).sum(), x)
    for found in (backward, vmap(grad(act))(X), jvp(act, (X,), (torch.ones_like(X),))[1]):
        torch.testing.assert_close(found, SLOPES, rtol=1e-12, atol=0.0)


def test_second_derivative_is_that_of_the_sigmoid():
    act, h = SmoothReLU(2.5), 1e-5
    x = torch.linspace(-2.0, 2.0, 21, dtype=torch.float64)
    second = vmap(grad(grad(act)))(x)
    slope = vmap(grad(act))
    torch.testing.assert_close(
        second, (slope(x + h) - slope(x - h)) / (2 * h), rtol=1e-7, atol=1e-9
    )
    leaf = x.clone().requires_grad_()
    (first,) = torch.autograd.grad(act(leaf).sum(), leaf, create_graph=True)
    torch.testing.assert_close(torch.autograd.grad(first.sum(), leaf)[0], second)
    torch.testing.assert_close(jvp(slope, (x,), (torch.ones_like(x),))[1], second)


def test_softplus_has_a_temperature():
    wanted = torch.log1p(torch.exp(3.0 * X[45:55])) / 3.0
    torch.testing.assert_close(nn.Softplus(beta=3.0)(X[45:55]), wanted)


def network():
    act = nn.ReLU()
    return nn.Sequential(
        nn.Linear(4, 5), act, nn.Sequential(nn.Linear(5, 5), nn.ReLU(inplace=True), nn.Tanh()),
        nn.BatchNorm1d(5), act, nn.Linear(5, 2),
    ).eval()  # fmt: skip


def test_a_smoothed_copy_shares_its_parameters():
    model = network()
    twin = smoothed(model, alpha=7.0)
    kinds = [type(m) for m in twin.modules()]
    assert nn.ReLU not in kinds
    assert kinds.count(SmoothReLU) == 3
    assert [type(m) for m in model.modules()].count(nn.ReLU) == 2  # the model itself stays
    assert not any(m.training for m in twin.modules())
    mine, shared = dict(model.named_parameters()), dict(twin.named_parameters())
    assert mine.keys() == shared.keys()
    assert all(shared[name] is value for name, value in mine.items())
    assert all(a is b for a, b in zip(model.buffers(), twin.buffers(), strict=True))
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    assert torch.equal(twin(x), model(x))


def test_softplus_approaches_relu_as_beta_grows():
    model = network()
    x = torch.randn(6, 4, generator=torch.Generator().manual_seed(0))
    with torch.no_grad():
        gaps = [(smoothed(model, beta=b)(x) - model(x)).abs().max() for b in (1.0, 10.0, 1e4)]
    assert gaps[0] > gaps[1] > gaps[2]
    assert gaps[2] < 1e-3


def test_a_bare_relu_is_replaced_too():
    assert isinstance(smoothed(nn.ReLU(), alpha=2.0), SmoothReLU)
    assert smoothed(nn.ReLU(), beta=2.0).beta == 2.0
    assert repr(SmoothReLU(2.0)) == "SmoothReLU(alpha=2.0)"


@pytest.mark.parametrize(
    ("options", "text"),
    [
        ({}, "smoothing: expected one of alpha and beta, got None and None"),
        ({"alpha": 1.0, "beta": 2.0}, "expected one of alpha and beta, got 1.0 and 2.0"),
        ({"alpha": -1.0}, "smoothing: alpha: expected a positive number, got -1.0"),
        ({"beta": 0.0}, "smoothing: beta: expected a positive number, got 0.0"),
    ],
)
def test_faults_are_told(options, text):
    with pytest.raises(InputError, match=text):
        smoothed(network(), **options)
