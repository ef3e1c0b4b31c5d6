"""Models that a malicious server sends, and what comes back from one gradient of them."""

from dataclasses import replace

import pytest
import torch

from remnant.errors import InputError
from remnant.models import activation
from remnant.models.malicious import trap
from remnant.solvers.tensor.deep import read_deep
from remnant.solvers.tensor.span_lm import SpanSettings, recover_span
from remnant.solvers.tensor.two_layer import TensorSettings, tensor_attack
from seeding import seeded


def generator(seed=0):
    return seeded(seed)


def inputs(count, d, seed=1):
    return torch.randn(count, d, generator=generator(seed), dtype=torch.float64)


@pytest.mark.parametrize("name", ["relu", "leaky", "leaky0.1", "gelu", "silu", "softplus"])
@pytest.mark.parametrize("hidden", [1, 2, 4])
def test_the_input_passes_through_in_pairs(name, hidden):
    made = trap(6, 20, hidden, generator=generator(), activation=name, output_bias=3.0)
    x = inputs(5, 6)
    slope = {"leaky": 1.01, "leaky0.1": 1.1}.get(name, 1.0) if hidden > 1 else 1.0
    assert made.scale == pytest.approx(slope)
    wanted = activation(name)(made.scale * x @ made.directions.T).mean(1, keepdim=True) + 3
    assert torch.allclose(made.model(x), wanted)


def test_the_first_layer_is_the_papers():
    made = trap(3, 8, 3, generator=generator())
    eye, zero = torch.eye(3).double(), torch.zeros(2, 3).double()
    assert torch.equal(made.model[1].weight, torch.cat([eye, -eye, zero]))
    z = made.directions
    assert torch.equal(made.model[5].weight[:, :6], torch.cat([z, -z], dim=1))
    assert not made.model[5].weight[:, 6:].any()


@pytest.mark.parametrize("name", ["tanh", "sigmoid", "elu"])
def test_the_identity_serves_one_to_one_activations(name):
    made = trap(6, 9, 3, generator=generator(), activation=name)
    x = inputs(5, 6)
    act = activation(name)
    seen = act(act(x))
    assert torch.allclose(made.model(x), act(seen @ made.directions.T).mean(1, keepdim=True))


def two_layer_gradient(made, x, y):
    """The client's answer, read as the gradient of a two-layer network by the weights alone."""
    model = made.model
    loss = (model(x) - y[:, None]).square().mean()
    names = [name for name, _ in model.named_parameters()]
    gradient = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    read = read_deep(model, gradient)
    assert read.kind == "pass-through"
    assert torch.equal(read.network.weights, made.directions)
    return read


def test_a_deep_relu_network_gives_its_batch_away_to_the_papers_attack():
    made = trap(8, 3000, 3, generator=generator(), output_bias=10.0)
    x = torch.nn.functional.normalize(inputs(2, 8), dim=1)
    read = two_layer_gradient(made, x, torch.tensor([1.0, -1.0]).double())
    seen = replace(read.network, bias=None), read.gradient
    found = tensor_attack(*seen, 2, TensorSettings(), generator=generator())
    assert float(torch.cdist(x, read.to_inputs(found.inputs)).min(1).values.max()) < 0.15


@pytest.mark.parametrize(("name", "last"), [("leaky", "tanh"), ("tanh", "gelu"), ("relu", "silu")])
def test_a_deep_network_gives_its_batch_away_exactly(name, last):
    made = trap(
        12, 200, 3, generator=generator(), activation=name, last_activation=last, output_bias=5.0
    )
    x = 0.3 * inputs(4, 12)
    read = two_layer_gradient(made, x, torch.tensor([1.0, -1.0, 1.0, -1.0]).double())
    seen = read.network, read.gradient
    found = recover_span(*seen, SpanSettings(), generator=generator(), count=4, residual_sign=1)
    assert found.certified
    assert float(torch.cdist(x, read.to_inputs(found.inputs)).min(1).values.max()) < 1e-7


def test_what_cannot_be_built():
    with pytest.raises(InputError, match="12 wide or more for 6 inputs, got 2, 11 wide"):
        trap(6, 11, 2, generator=generator())
    with pytest.raises(InputError, match="activation to pass through: expected tanh"):
        trap(6, 30, 2, generator=generator(), activation="cubic")


def test_the_callers_randomness_is_left_alone():
    before = torch.random.get_rng_state()
    one, two = (trap(4, 9, 2, generator=generator(7)) for _ in range(2))
    assert torch.equal(before, torch.random.get_rng_state())
    assert torch.equal(one.directions, two.directions)
