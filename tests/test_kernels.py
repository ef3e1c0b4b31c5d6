"""Infinite-width kernels against hand computation, wide networks and finite differences."""

import math

import pytest
import torch

from remnant.errors import InputError
from remnant.gradients import gram
from remnant.kernels import Dense, ntk, regress
from remnant.models import build
from remnant.training import accuracy
from seeding import seeded


def inputs(n, d, seed=0):
    return torch.randn(n, d, generator=seeded(seed), dtype=torch.float64)


def test_one_hidden_relu_layer_by_hand():
    x = torch.tensor([[1.0, 0.0], [0.0, 2.0]], dtype=torch.float64)  # a right angle
    # s = x.x' = [[1, 0], [0, 4]]; E[relu relu] = |s| / (2 pi) at a right angle, s / 2 on itself.
    last = 2 * torch.tensor([[0.5, 1 / math.pi], [1 / math.pi, 2.0]]).double()  # the output's own
    # NTK = 2 * P(both fire) * s + that: the angle leaves a quarter, times s = 0.
    wanted = last + torch.tensor([[1.0, 0], [0, 4.0]]).double()
    assert torch.allclose(ntk(Dense(hidden=1, weight=2.0), x), wanted)


@pytest.mark.parametrize("bias", [None, 0.0, 0.3])
def test_networks_without_biases_are_homogeneous(bias):
    x = inputs(4, 6)
    one, two = (ntk(Dense(hidden=3, bias=bias), scale * x) for scale in (1.0, 3.0))
    assert torch.allclose(two, 9 * one) == (not bias)


@pytest.mark.parametrize("hidden", [1, 2])
def test_wide_networks_average_to_the_kernel(hidden):
    x, d, draws = inputs(4, 6), 6, 24
    errors = []
    for width in (64, 512):
        spec = f"mlp:{'-'.join(map(str, [d] + [width] * hidden + [1]))}:nobias"
        networks = (
            build(spec, generator=seeded(k), dtype=torch.float64, init="normal")
            for k in range(draws)
        )
        seen = torch.stack([gram(network, x) for network in networks])
        wanted = ntk(Dense(hidden=hidden, weight=1.0, parametrisation="standard", width=width), x)
        deviation = seen.std(0) / draws**0.5
        assert float(((seen.mean(0) - wanted).abs() / deviation).max()) < 5
        errors.append(float((seen - wanted).square().mean().sqrt() / wanted.square().mean().sqrt()))
    assert errors[1] < 0.6 * errors[0]


def test_derivatives_agree_with_differences():
    network = Dense(hidden=2, bias=0.1)
    x, y = inputs(2, 3).requires_grad_(), inputs(3, 3, seed=1)
    assert torch.autograd.gradcheck(lambda z: ntk(network, z, y), (x,))


def test_gradients_at_equal_inputs_are_finite_and_right():
    x = inputs(3, 4)
    x[1] = x[0]
    x.requires_grad_()
    ntk(Dense(hidden=2), x).diagonal().sum().backward()
    # NTK(x, x) = (hidden + 1) * 2 |x|^2 / d for weight 2, whose slope is 4 (hidden + 1) x / d.
    assert torch.allclose(x.grad, 3 * 4 * x.detach() / 4, rtol=1e-5)
    x.grad = None
    ntk(Dense(hidden=2), x).sum().backward()
    assert bool(torch.isfinite(x.grad).all())
    zero = torch.zeros(1, 4, dtype=torch.float64, requires_grad=True)
    assert float(ntk(Dense(hidden=2), zero.detach())) == 0


def test_regression_interpolates_and_predicts():
    x = inputs(20, 5)
    labels = (x[:, 0] > 0).long()
    targets = 2.0 * labels - 1
    kernel = ntk(Dense(), x)
    duals = regress(kernel, targets)
    assert torch.allclose((kernel @ duals)[:, 0], targets.double())
    assert accuracy(kernel @ duals, labels) == 1
    assert accuracy(torch.eye(3).double(), torch.tensor([0, 1, 1])) == pytest.approx(2 / 3)
    shrunk = (kernel @ regress(kernel, targets, ridge=1.0))[:, 0]
    assert float(shrunk.norm()) < float(targets.norm())


def test_bad_input_is_refused():
    with pytest.raises(InputError, match="hidden layers: expected 1 or more"):
        Dense(hidden=0)
    with pytest.raises(InputError, match="width: expected given"):
        Dense(parametrisation="standard")
    with pytest.raises(InputError, match="variances"):
        Dense(weight=-1.0)
    with pytest.raises(InputError, match="expected m x 3"):
        ntk(Dense(), inputs(2, 3), inputs(2, 4))
    with pytest.raises(InputError, match="positive definite"):
        regress(torch.ones(2, 2).double(), torch.ones(2))
    with pytest.raises(InputError, match="ridge"):
        regress(torch.eye(2).double(), torch.ones(2), ridge=-1)
