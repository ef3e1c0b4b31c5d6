"""Layerwise Gram matrices against the gradients themselves."""

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.gradients import gram, gram_autograd, kernel_distance, rules, smoothed
from remnant.gradients.factors import forward, stranger

RELU = nn.ReLU()  # one module in many places, as people write it

STACKS = {
    "mlp": lambda: nn.Sequential(nn.Linear(12, 9), RELU, nn.Linear(9, 7), RELU, nn.Linear(7, 3)),
    "mlp without biases": lambda: nn.Sequential(
        nn.Flatten(), nn.Linear(12, 9, bias=False), nn.Tanh(), nn.Linear(9, 3, bias=False)
    ),
    "one output": lambda: nn.Sequential(nn.Linear(12, 9), nn.GELU(), nn.Linear(9, 1)),
    "linear": lambda: nn.Linear(12, 3),
    "nested, in place, dropout": lambda: nn.Sequential(
        nn.Sequential(nn.Linear(12, 9), nn.ReLU(inplace=True)),
        nn.Dropout(0.5),
        nn.Sequential(nn.Identity(), nn.Sequential(nn.Linear(9, 3), nn.ELU(inplace=True))),
    ).eval(),
    "dense at positions": lambda: nn.Sequential(
        nn.Linear(6, 5), nn.Softplus(), nn.Flatten(), nn.Linear(20, 2)
    ),
    "smoothed": lambda: smoothed(
        nn.Sequential(nn.Linear(12, 9), nn.ReLU(), nn.Linear(9, 3)), alpha=3.0
    ),
    "cnn": lambda: nn.Sequential(
        nn.Conv2d(2, 4, 3, padding=1), RELU, nn.MaxPool2d(2), nn.Conv2d(4, 5, 3, stride=2), RELU,
        nn.Flatten(), nn.Linear(20, 3),
    ),
    "cnn, average pool": lambda: nn.Sequential(
        nn.Conv2d(2, 4, (4, 3), stride=(2, 1), padding=(1, 2), bias=False), nn.Sigmoid(),
        nn.AvgPool2d(2), nn.Conv2d(4, 6, 2), nn.SiLU(), nn.AdaptiveAvgPool2d(1), nn.Flatten(),
        nn.Linear(6, 2),
    ),
    "cnn, dilated, same": lambda: nn.Sequential(
        nn.Conv2d(2, 3, 2, padding="same", dilation=3), nn.LeakyReLU(),
        nn.Conv2d(3, 3, 3, padding="valid"), nn.Conv2d(3, 2, 3, padding=1, padding_mode="reflect"),
        nn.Flatten(), nn.Linear(128, 2),
    ),
    "cnn, whole image": lambda: nn.Sequential(
        nn.Conv2d(2, 5, 10), RELU, nn.Flatten(), nn.Linear(5, 2)
    ),
}  # fmt: skip
SHAPES = {"mlp without biases": (3, 4), "dense at positions": (4, 6)}


def made(name, seed=0):
    model = STACKS[name]().double()
    fill(model, seed)
    return model


def fill(model, seed):
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for value in model.parameters():
            value.copy_(torch.randn(value.shape, generator=generator, dtype=torch.float64) / 2)


def inputs_for(name, n, seed=1):
    shape = SHAPES.get(name, (2, 10, 10) if "cnn" in name else (12,))
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(n, *shape, generator=generator, dtype=torch.float64)


def assert_close(found, wanted):
    assert found.shape == wanted.shape
    assert float((found - wanted).abs().max()) <= 1e-10 * float(wanted.abs().max())
    assert float(wanted.abs().max()) > 0


@pytest.fixture(params=["pairs", "gradients", "cheaper"])
def rule(request, monkeypatch):
    """Each closed rule alone, in blocks too small for the whole, then the cheaper of the two."""
    if request.param == "cheaper":
        return
    monkeypatch.setattr(rules, "BLOCK", 2000)

    def add_layer(kernel, left, right, names):
        weight, bias = (name is not None for name in names)
        if weight and request.param == "pairs":
            rules._add_pairs(kernel, left, right, 0.0)
        elif weight:
            rules._add_gradients(kernel, left, right)
        if bias:
            rules._add_products(kernel, left.signals.sum(2), right.signals.sum(2))

    monkeypatch.setattr("remnant.gradients.ntk.add_layer", add_layer)


@pytest.mark.usefixtures("rule")
@pytest.mark.parametrize("per_class", [False, True])
@pytest.mark.parametrize("name", STACKS)
def test_layerwise_agrees_with_autograd(name, per_class):
    model, inputs, other = made(name), inputs_for(name, 5), inputs_for(name, 4, seed=2)
    assert stranger(model) is None
    for second in (None, other):
        wanted = gram_autograd(model, inputs, second, per_class=per_class)
        assert_close(gram(model, inputs, second, per_class=per_class), wanted)


def test_autograd_is_the_product_of_gradients():
    model, inputs = made("cnn"), inputs_for("cnn", 3)
    rows = []
    for x in inputs:
        for k in range(3):
            parts = torch.autograd.grad(model(x[None])[0, k], list(model.parameters()))
            rows.append(torch.cat([part.flatten() for part in parts]))
    wanted = (torch.stack(rows) @ torch.stack(rows).T).view(3, 3, 3, 3)
    for chunk in (None, 1, 2):
        assert_close(gram_autograd(model, inputs, per_class=True, chunk=chunk), wanted)
    assert_close(gram_autograd(model, inputs), torch.einsum("ikjk->ij", wanted))


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_weights_stand_in_for_the_models_own(name):
    model, twin, inputs = made(name), made(name, seed=5), inputs_for(name, 4)
    before = {key: value.clone() for key, value in model.state_dict().items()}
    weights = dict(twin.named_parameters())
    assert_close(gram(model, inputs, weights=weights), gram(twin, inputs))
    hybrid = gram(model, inputs, weights_other=weights)
    assert_close(hybrid, gram_autograd(model, inputs, weights_other=weights))
    assert_close(hybrid.T, gram(model, inputs, weights=weights, weights_other=before))
    assert all(torch.equal(value, before[key]) for key, value in model.state_dict().items())


@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_gradients_are_for_the_parameters_that_weights_names(name):
    model, inputs = made(name), inputs_for(name, 4)
    weights = dict(model.named_parameters())
    some = {key: weights[key] for key in list(weights) if key not in {"0.weight", "3.bias"}}
    rest = {key: value for key, value in weights.items() if key not in some}
    assert_close(gram(model, inputs, weights=some), gram_autograd(model, inputs, weights=some))
    both = gram(model, inputs, weights=some) + gram(model, inputs, weights=rest)
    assert_close(both, gram(model, inputs))


class Residual(nn.Module):
    def __init__(self):
        super().__init__()
        self.inner = nn.Linear(6, 6)
        self.norm = nn.BatchNorm1d(6)

    def forward(self, x):
        return x + torch.relu(self.norm(self.inner(x)))


class Doubled(nn.Linear):
    def forward(self, x):
        return 2 * super().forward(x)


class Cube(torch.autograd.Function):
    """No rule for vmap, as in code older than it."""

    @staticmethod
    def forward(ctx, x):
        ctx.save_for_backward(x)
        return x**3

    @staticmethod
    def backward(ctx, grad):
        return 3 * ctx.saved_tensors[0] ** 2 * grad


class Cubed(nn.Module):
    def forward(self, x):
        return Cube.apply(x)


def strangers():
    shared = nn.Linear(6, 6)
    hooked = nn.Sequential(nn.Linear(6, 6))
    hooked.register_forward_hook(lambda module, args, out: out**2)
    return {
        "Residual (0)": nn.Sequential(Residual(), nn.Linear(6, 2)).eval(),
        "Doubled (1)": nn.Sequential(nn.Linear(6, 6), Doubled(6, 2)),
        "a parameter that two layers share": nn.Sequential(shared, nn.Tanh(), shared),
        "Sequential (the model)": hooked,
        "Conv2d (1)": nn.Sequential(
            nn.Unflatten(1, (2, 3, 1)), nn.Conv2d(2, 4, 1, groups=2), nn.Flatten()
        ),
        "Cubed (1)": nn.Sequential(nn.Linear(6, 3), Cubed(), nn.Linear(3, 2)),
        "PReLU (1)": nn.Sequential(nn.Linear(6, 3), nn.PReLU(), nn.Linear(3, 2)),
    }


@pytest.mark.parametrize("name", strangers())
def test_any_other_model_falls_back(name):
    model = strangers()[name].double()
    fill(model, 0)
    assert stranger(model) == ("Unflatten (0)" if "Conv2d" in name else name)
    inputs = torch.randn(3, 6, generator=torch.Generator().manual_seed(1), dtype=torch.float64)
    rows = []
    for x in inputs:
        for k in range(model(inputs).shape[1]):
            parts = torch.autograd.grad(model(x[None])[0, k], list(model.parameters()))
            rows.append(torch.cat([part.flatten() for part in parts]))
    jacobian = torch.stack(rows)
    c = len(rows) // 3
    assert_close(gram(model, inputs, per_class=True), (jacobian @ jacobian.T).view(3, c, 3, c))


class Wave(nn.Module):
    elementwise = True

    def forward(self, x):
        return torch.sin(x)


def test_a_module_may_say_that_it_is_elementwise():
    model = nn.Sequential(nn.Linear(12, 5), Wave(), nn.Linear(5, 2)).double()
    fill(model, 0)
    assert stranger(model) is None
    inputs = inputs_for("mlp", 3)
    assert_close(gram(model, inputs), gram_autograd(model, inputs))


def test_dropout_and_flatten_that_mix_inputs_are_no_stack():
    assert stranger(nn.Sequential(nn.Linear(3, 3), nn.Dropout())) == "Dropout (1)"
    assert stranger(nn.Sequential(nn.Flatten(0), nn.Linear(3, 3))) == "Flatten (0)"
    assert stranger(nn.Sequential(nn.Conv2d(2, 2, 1, groups=2))) == "Conv2d (0)"


@pytest.mark.parametrize("compute", [gram, gram_autograd])
@pytest.mark.parametrize("name", ["mlp", "cnn"])
def test_no_graph_is_left_and_inference_mode_is_fine(compute, name):
    model, inputs = made(name), inputs_for(name, 3)
    wanted = compute(model, inputs.clone().requires_grad_())
    assert not wanted.requires_grad
    assert all(value.grad is None for value in model.parameters())
    with torch.inference_mode():
        assert_close(compute(made(name), inputs * 1.0), wanted)
    with torch.no_grad():
        assert_close(compute(model, inputs), wanted)


def test_a_trace_over_many_classes_comes_in_groups(monkeypatch):
    model, inputs = made("cnn"), inputs_for("cnn", 4)
    monkeypatch.setattr("remnant.gradients.ntk.BLOCK", 1)
    assert_close(gram(model, inputs), gram_autograd(model, inputs))


def test_activations_and_signals_of_dense_layers_make_the_gradients():
    model, inputs = made("mlp"), inputs_for("mlp", 4)
    run = forward(model, inputs, None)
    assert run.names == [("0.weight", "0.bias"), ("2.weight", "2.bias"), ("4.weight", "4.bias")]
    parts = torch.autograd.grad(model(inputs)[2, 1], list(model.parameters()))
    pairs = zip(run.activations, run.signals(1), parts[::2], parts[1::2], strict=True)
    for activations, signals, weight, bias in pairs:
        assert_close(torch.outer(signals[2], activations[2]), weight)
        assert_close(signals[2], bias)
    assert forward(model, inputs, {"4.bias": model[4].bias}).names[2] == (None, "4.bias")


def test_faults_are_told():
    model, inputs = made("mlp"), inputs_for("mlp", 2)
    with pytest.raises(InputError, match=r"weights: 9.bias: expected a parameter of the model"):
        gram(model, inputs, weights={"9.bias": torch.zeros(1)})
    with pytest.raises(InputError, match=r"weights: 0.bias: expected \(9,\), got \(1,\)"):
        gram(model, inputs, weights={"0.bias": torch.zeros(1)})
    with pytest.raises(InputError, match="the same parameters on both sides"):
        gram(model, inputs, weights_other={"0.bias": model[0].bias})
    with pytest.raises(InputError, match="model outputs: expected n x c"):
        gram(nn.Sequential(nn.Linear(12, 2)), torch.zeros(2, 3, 12))


def test_kernel_distance():
    kernel = gram(made("mlp"), inputs_for("mlp", 5))
    assert kernel_distance(kernel, 3 * kernel) == pytest.approx(0.0, abs=1e-14)
    assert kernel_distance(torch.eye(2), torch.tensor([[0.0, 1.0], [1.0, 0.0]])) == 1.0
    assert kernel_distance(torch.eye(2), torch.ones(2, 2)) == pytest.approx(1 - 2 / (2**0.5 * 2))
    with pytest.raises(InputError, match="two kernels of one shape"):
        kernel_distance(torch.eye(2), torch.eye(3))
