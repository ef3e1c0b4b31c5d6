"""Exact recovery in the span: one smooth hidden layer, one gradient."""

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import build
from remnant.solvers.numerics import slope_and_curvature
from remnant.solvers.tensor.deep import read_deep
from remnant.solvers.tensor.span_equations import (
    misfit,
    normal_equations,
    pose,
    with_best_residuals,
)
from remnant.solvers.tensor.span_lm import SpanSettings, recover_span
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def batch(text, count, *, seed=0, positive=True, init="standard"):
    """A network, a batch with pixel-like inputs, and the gradient of its loss."""
    rng = generator(seed)
    model = build(text, generator=rng, dtype=torch.float64, init=init)
    d, c = model[1].in_features, model[3].out_features
    x = torch.rand(count, d, generator=rng, dtype=torch.float64)
    x = x if positive else 2 * x - 1
    y = torch.randint(max(c, 2), (count,), generator=rng)
    if c == 1:
        loss = (model(x)[:, 0] - (2 * y - 1)).square().mean()
    else:
        loss = nn.functional.cross_entropy(model(x), y)
    names = [name for name, _ in model.named_parameters()]
    gradient = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    read = read_deep(model, gradient)
    network, seen = read.network, read.gradient
    return x, y, network, seen


def errors(x, found):
    distance = torch.cdist(x, found)
    match = distance.argmin(1)
    assert sorted(match.tolist()) == list(range(len(x)))
    return distance.min(1).values, match


def test_derivatives_of_any_activation():
    z = torch.linspace(-2, 2, 9, dtype=torch.float64)
    slope, curvature = slope_and_curvature(torch.tanh, z)
    assert torch.allclose(slope, 1 - torch.tanh(z) ** 2)
    assert torch.allclose(curvature, -2 * torch.tanh(z) * slope)
    assert float(slope_and_curvature(torch.relu, z)[1].abs().max()) == 0
    assert float(slope_and_curvature(lambda t: 3 * t, z)[1].abs().max()) == 0


@pytest.mark.parametrize("text", ["mlp:7-9-3:gelu", "mlp:7-9-1:tanh:nobias"])
def test_normal_equations_agree_with_autograd(text):
    _, _, network, gradient = batch(text, 3)
    eq, _ = pose(network, gradient, 3)
    outputs = len(network.head)
    flat = torch.randn(9 + 3 * outputs, generator=generator(5), dtype=torch.float64)

    def residual(p):
        c, r = p[:9].reshape(3, 3), p[9:].reshape(3, outputs)
        z = eq.w @ c.T
        slope = torch.func.vmap(torch.func.grad(eq.activation))(z.reshape(-1)).reshape(z.shape)
        return torch.cat([f.reshape(-1) for f in misfit(eq, c, r, slope)])

    jacobian = torch.func.jacfwd(residual)(flat)
    matrix, right = normal_equations(eq, flat[:9].reshape(3, 3), flat[9:].reshape(3, outputs))
    assert torch.allclose(matrix, jacobian.T @ jacobian)
    assert torch.allclose(right, jacobian.T @ residual(flat))


def test_the_truth_solves_the_equations():
    x, _, network, gradient = batch("mlp:12-40-4:silu", 5)
    eq, right = pose(network, gradient, 5)
    c = torch.cat([x, torch.ones(5, 1, dtype=torch.float64)], dim=1) @ right.T
    assert with_best_residuals(eq, c).cost < 1e-26


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "gelu", "silu", "softplus", "elu"])
def test_a_batch_comes_back_to_rounding(name):
    x, y, network, gradient = batch(f"mlp:30-150-10:{name}", 6)
    found = recover_span(network, gradient, SpanSettings(), generator=generator(), count=len(x))
    error, match = errors(x, found.inputs)
    assert found.certified
    assert found.sign_known
    assert float(error.max()) < 1e-9
    residuals = (network.outputs(x).softmax(1) - nn.functional.one_hot(y, 10)) / len(x)
    assert torch.allclose(found.residuals[match], residuals, atol=1e-9)


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "gelu", "cubic"])
def test_one_output_without_biases(name):
    x, y, network, gradient = batch(f"mlp:30-200-1:{name}:nobias", 5)
    box = (torch.zeros(1), torch.ones(1))
    found = recover_span(network, gradient, SpanSettings(), generator=generator(), count=5, box=box)
    error, match = errors(x, found.inputs)
    assert found.certified
    assert float(error.max()) < 1e-8
    residuals = 2 * (network.outputs(x)[:, 0] - (2 * y - 1)) / len(x)
    assert torch.allclose(found.residuals[match, 0], residuals)


def test_without_a_box_an_odd_activation_is_known_up_to_sign():
    x, _, network, gradient = batch("mlp:30-200-1:tanh:nobias", 5)
    found = recover_span(network, gradient, SpanSettings(), generator=generator(), count=len(x))
    assert found.certified
    assert not found.sign_known
    both = torch.cat([found.inputs, -found.inputs])
    assert float(torch.cdist(x, both).min(1).values.max()) < 1e-8


def test_sums_decide_the_sign_where_the_head_or_its_bias_tells():
    x, _, network, gradient = batch("mlp:30-200-1:sigmoid:nobias", 5, positive=False)
    found = recover_span(network, gradient, SpanSettings(), generator=generator(), count=len(x))
    assert found.sign_known  # s(0) = 1/2: the head's mean counts the residuals
    assert float(errors(x, found.inputs)[0].max()) < 1e-8
    x, _, network, _ = batch("mlp:30-200-1:tanh:nobias", 5, positive=False)
    outputs = network.outputs(x)
    # An output bias' gradient is the sum of the residuals.
    y = torch.tensor([1.0, -1, 1, 1, -1], dtype=torch.float64)[:, None]
    r = 2 * (outputs - y) / 5
    slope = 1 - torch.tanh(x @ network.weights.T) ** 2
    told = BatchGradient(
        weights=(r @ network.head * slope).T @ x,
        head=r.T @ torch.tanh(x @ network.weights.T),
        head_bias=r.sum(0),
    )
    found = recover_span(network, told, SpanSettings(), generator=generator(), count=5)
    assert found.sign_known
    assert float(errors(x, found.inputs)[0].max()) < 1e-8


def test_a_known_sign_of_the_residuals_decides():
    x, _, network, _ = batch("mlp:30-200-1:tanh:nobias", 5, positive=False)
    r = torch.tensor([1.0, 2, 1.5, 0.5, 3], dtype=torch.float64)[:, None]
    slope = 1 - torch.tanh(x @ network.weights.T) ** 2
    gradient = BatchGradient(weights=(r @ network.head * slope).T @ x)
    found = recover_span(
        network, gradient, SpanSettings(), generator=generator(), count=5, residual_sign=1
    )
    assert found.sign_known
    assert bool((found.residuals > 0).all())
    assert float(errors(x, found.inputs)[0].max()) < 1e-8


def test_the_first_layer_alone_is_enough():
    x, _, network, gradient = batch("mlp:30-200-3:tanh", 5)
    only = BatchGradient(weights=gradient.weights, bias=gradient.bias)
    found = recover_span(network, only, SpanSettings(), generator=generator(), count=5)
    assert found.certified
    assert float(errors(x, found.inputs)[0].max()) < 1e-7


def test_one_record():
    x, _, network, gradient = batch("mlp:10-30-1:tanh", 1)
    found = recover_span(network, gradient, SpanSettings(), generator=generator(), count=len(x))
    assert float(errors(x, found.inputs)[0].max()) < 1e-10


def test_noise_is_answered_by_an_error_of_its_size_and_no_certificate():
    x, _, network, gradient = batch("mlp:30-400-10:tanh", 5)
    noisy = {}
    for i, part in enumerate(("weights", "bias", "head", "head_bias")):
        value = getattr(gradient, part)
        noise = torch.randn(value.shape, generator=generator(i), dtype=torch.float64)
        noisy[part] = value + 1e-3 * value.std() * noise
    found = recover_span(
        network, BatchGradient(**noisy), SpanSettings(), generator=generator(), count=5
    )
    error, match = errors(x, found.inputs)
    assert not found.certified
    assert float(error.max()) < 1
    assert bool((error < 5 * found.error[match]).all())


def test_a_batch_too_large_for_the_width_is_not_certified():
    _, _, network, gradient = batch("mlp:30-8-1:tanh", 6)
    settings = SpanSettings(attempts=1, iterations=50)
    found = recover_span(network, gradient, settings, generator=generator(), count=6)
    assert not found.certified


def test_the_same_seed_gives_the_same_numbers():
    _, _, network, gradient = batch("mlp:20-60-1:gelu", 4)
    one, two = (
        recover_span(network, gradient, SpanSettings(), generator=generator(3), count=4)
        for _ in range(2)
    )
    assert torch.equal(one.inputs, two.inputs)


def test_the_first_layers_gradient_is_needed():
    network = TwoLayer(
        weights=torch.ones(4, 3).double(), head=torch.ones(1, 4).double(), activation=torch.tanh
    )
    with pytest.raises(InputError, match="expected the first layer's gradient, got none"):
        recover_span(network, BatchGradient(), SpanSettings(), generator=generator(), count=2)
