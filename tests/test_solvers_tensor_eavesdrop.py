"""Inputs from features behind random layers."""

from itertools import pairwise

import pytest
import torch
from torch import nn

from remnant.solvers.tensor.eavesdrop import undo_directions, undo_layers, why_not_undone
from remnant.solvers.tensor.span_lm import SpanSettings, recover_span
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def random_layers(widths, make, *, bias=False, seed=0):
    """Dense layers with weights N(0, 1/fan in), each with the activation after it."""
    rng, layers = generator(seed), []
    for before, after in pairwise(widths):
        linear = nn.Linear(before, after, bias=bias).double()
        with torch.no_grad():
            for p in linear.parameters():
                p.copy_(torch.randn(p.shape, generator=rng, dtype=p.dtype) / before**0.5)
        layers.append((linear, make()))
    return layers


def forward(layers, x):
    with torch.no_grad():
        for linear, act in layers:
            x = act(linear(x))
    return x


def unit_inputs(count, d):
    x = torch.randn(count, d, generator=generator(1), dtype=torch.float64)
    return nn.functional.normalize(x, dim=1)


@pytest.mark.parametrize("make", [nn.Tanh, nn.Sigmoid, nn.Softplus, nn.ELU, nn.LeakyReLU])
@pytest.mark.parametrize("bias", [False, True])
def test_layers_are_undone(make, bias):
    layers = random_layers([6, 8, 9], make, bias=bias)
    x = unit_inputs(4, 6)
    inputs, gap = undo_layers(layers, forward(layers, x))
    assert torch.allclose(inputs, x)
    assert float(gap.max()) < 1e-10


def test_wrong_features_leave_a_gap():
    layers = random_layers([6, 8, 9], nn.Tanh)
    features = 0.5 * torch.rand(4, 9, generator=generator(), dtype=torch.float64)
    assert float(undo_layers(layers, features)[1].min()) > 0.01


@pytest.mark.parametrize("make", [nn.Tanh, nn.Sigmoid])
@pytest.mark.parametrize("norm", [1.0, None])
def test_the_length_of_the_features_is_found(make, norm):
    layers = random_layers([6, 8, 9], make)
    x = unit_inputs(3, 6)
    h = forward(layers, x)
    directions = h / h.norm(dim=1, keepdim=True)
    found = undo_directions(layers, directions, norm=norm)
    if make is nn.Tanh:  # odd: the sign is open
        found = found * (found * x).sum(1, keepdim=True).sign()
    assert torch.allclose(found, x, atol=1e-5)


def test_an_eavesdropper_on_a_deep_random_network():
    layers = random_layers([20, 24], nn.Sigmoid)
    x = unit_inputs(3, 20)
    h = forward(layers, x)
    rng = generator(4)
    w = torch.randn(400, 24, generator=rng, dtype=torch.float64)
    a = torch.randn(1, 400, generator=rng, dtype=torch.float64)
    r = torch.tensor([[1.0], [-0.5], [0.7]], dtype=torch.float64)
    slope = 1 - torch.tanh(h @ w.T) ** 2
    gradient = BatchGradient(weights=(r @ a * slope).T @ h)
    network = TwoLayer(weights=w, head=a, activation=torch.tanh)
    found = recover_span(
        network,
        gradient,
        SpanSettings(),
        generator=generator(),
        count=3,
        box=(torch.zeros(1), torch.ones(1)),  # features of a sigmoid
    )
    assert found.certified
    inputs, gap = undo_layers(layers, found.inputs)
    assert float(torch.cdist(x, inputs).min(1).values.max()) < 1e-6
    assert float(gap.max()) < 1e-6


def test_what_cannot_be_undone():
    assert "ReLU cannot be undone" in why_not_undone(random_layers([6, 8], nn.ReLU))
    assert "6 to 4 cannot be undone" in why_not_undone(random_layers([6, 4], nn.Tanh))
    assert why_not_undone(random_layers([6, 8], nn.Tanh)) is None
