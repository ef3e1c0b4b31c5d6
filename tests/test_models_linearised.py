"""The Taylor model: value and slope at its start, linear everywhere, named as its base."""

from copy import deepcopy

import pytest
import torch
from torch import nn
from torch.func import functional_call, grad, jacrev, vmap

from remnant.models import ACTIVATIONS, Linearised, build, load_weights, read_weights, save_weights
from seeding import seeded

MODELS = [f"mlp:6-5-3:{name}" for name in ACTIVATIONS]
MODELS += ["cnn:2x6x6-c3k3-m2-4-2", "cnn:2x6x6-c3k3p1-a2-4-2:tanh:nobias"]


def made(text, seed=0):
    generator = seeded(seed)
    model = build(text, generator=generator, dtype=torch.float64)
    shape = (6,) if text.startswith("mlp") else (2, 6, 6)
    x = torch.randn(4, *shape, generator=generator, dtype=torch.float64)
    step = {
        n: torch.randn(p.shape, generator=generator, dtype=p.dtype)
        for n, p in model.named_parameters()
    }
    return model, x, step


def shifted(model, start, step, scale, x):
    return functional_call(model, {n: start[n] + scale * step[n] for n in step}, (x,))


@pytest.mark.parametrize("text", MODELS)
def test_it_has_the_base_models_value_and_slope(text):
    model, x, step = made(text)
    linear = Linearised(model)
    start = {name: p.detach() for name, p in model.named_parameters()}
    assert torch.equal(linear(x), model(x))
    h = 1e-6
    slope = (shifted(model, start, step, h, x) - shifted(model, start, step, -h, x)) / (2 * h)
    change = shifted(linear, start, step, 1.0, x) - linear(x)
    torch.testing.assert_close(change, slope, rtol=1e-6, atol=1e-8)


@pytest.mark.parametrize("text", MODELS)
def test_it_is_linear_in_its_parameters(text):
    model, x, step = made(text)
    linear = Linearised(model)
    start = linear.start
    one = shifted(linear, start, step, 1.0, x) - linear(x)
    torch.testing.assert_close(shifted(linear, start, step, -30.0, x) - linear(x), -30 * one)
    assert not torch.allclose(shifted(model, start, step, -30.0, x) - model(x), -30 * one)


@pytest.mark.parametrize("text", ["mlp:6-5-3", "cnn:2x6x6-c3k3-m2-4-2"])
def test_its_gradient_is_the_base_models_at_the_start_wherever_it_is(text):
    model, x, step = made(text)
    linear = Linearised(model)
    with torch.no_grad():
        for name, p in linear.named_parameters():
            p += step[name]
    mine = torch.autograd.grad(linear(x)[:, 0].sum(), list(linear.parameters()))
    base = torch.autograd.grad(model(x)[:, 0].sum(), list(model.parameters()))
    for got, wanted in zip(mine, base, strict=True):
        torch.testing.assert_close(got, wanted)
    jacobian = jacrev(lambda theta: functional_call(linear, theta, (x,)))(
        dict(linear.named_parameters())
    )
    one = vmap(
        grad(lambda theta, row: functional_call(linear, theta, (row[None],))[0, 0]), (None, 0)
    )
    per_record = one(dict(linear.named_parameters()), x)
    for (name, _), wanted in zip(model.named_parameters(), base, strict=True):
        torch.testing.assert_close(jacobian[name][:, 0].sum(0), wanted)
        torch.testing.assert_close(per_record[name].sum(0), wanted)


def test_training_it_leaves_the_base_alone():
    model, x, _ = made("mlp:6-5-3")
    linear = Linearised(model)
    kept = deepcopy(model.state_dict())
    optimiser = torch.optim.SGD(linear.parameters(), lr=0.01)
    losses = []
    for _ in range(20):
        optimiser.zero_grad()
        loss = (linear(x) - 1).square().sum()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0]
    for name, value in kept.items():
        assert torch.equal(model.state_dict()[name], value)
        assert torch.equal(linear.start[name], value)
        assert not torch.equal(linear.state_dict()[name], value)


def test_its_weights_save_and_load_as_the_base_models(tmp_path):
    model, x, step = made("cnn:2x6x6-c3k3-m2-4-2")
    linear = Linearised(model)
    assert list(linear.state_dict()) == list(model.state_dict())
    assert [n for n, _ in linear.named_parameters()] == [n for n, _ in model.named_parameters()]
    theta = {name: p.detach() + step[name] for name, p in model.named_parameters()}
    save_weights(tmp_path / "w.safetensors", theta)
    load_weights(linear, read_weights(tmp_path / "w.safetensors"))
    assert torch.equal(linear(x), functional_call(Linearised(model), theta, (x,)))
    load_weights(model, linear.state_dict())
    assert torch.equal(model[0].weight, theta["0.weight"])


def test_it_moves_and_copies_whole():
    model, x, step = made("mlp:6-5-3")
    linear = Linearised(model)
    load_weights(linear, {name: p + step[name] for name, p in model.named_parameters()})
    copy = deepcopy(linear).float()
    assert copy(x.float()).dtype == torch.float32
    assert all(value.dtype == torch.float32 for value in copy.start.values())
    torch.testing.assert_close(copy(x.float()).double(), linear(x), rtol=1e-4, atol=1e-4)
    assert linear(x).dtype == torch.float64


class Own(nn.Module):
    """Parameters and buffers of its own, a module used twice, tied weights, batch normalisation."""

    def __init__(self):
        super().__init__()
        self.scale = nn.Parameter(torch.tensor(2.0))
        self.register_buffer("shift", torch.tensor(0.5))
        self.register_buffer("scratch", torch.tensor(0.0), persistent=False)
        self.inner = nn.Linear(3, 3)
        self.again = self.inner
        self.third = nn.Linear(3, 3)
        self.third.weight = self.inner.weight
        self.norm = nn.BatchNorm1d(3)

    def forward(self, x):
        x = self.third(torch.tanh(self.again(torch.tanh(self.inner(x)))))
        return self.scale * self.norm(x) + self.shift


def test_it_takes_any_module():
    torch.manual_seed(0)
    model = Own().double().eval()
    model.norm.running_mean += 1
    linear = Linearised(model)
    x = torch.linspace(-1, 1, 12, dtype=torch.float64).reshape(4, 3)
    assert list(linear.state_dict()) == list(model.state_dict())
    assert not linear.training
    assert not linear.base.training
    value = model(x).detach()
    for _ in range(2):  # a call leaves nothing behind
        assert torch.equal(linear(x), value)

    def moved(by, module):
        copy = deepcopy(module)
        with torch.no_grad():
            for p in copy.parameters():
                p += by
            return copy(x)

    slope = (moved(1e-6, model) - moved(-1e-6, model)) / 2e-6
    torch.testing.assert_close(moved(1.0, linear) - value, slope, rtol=1e-6, atol=1e-8)
