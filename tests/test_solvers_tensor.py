"""Moments by Stein's lemma, their components, and paper 002's attack."""

import math

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import activation, build
from remnant.solvers.tensor.components import component_weights, decompose, diagonalise
from remnant.solvers.tensor.deep import read_deep
from remnant.solvers.tensor.stein import (
    coefficient,
    head_matrix,
    head_moment,
    hermite_features,
    layer_matrix,
    layer_moment,
    leading_span,
    regress_moments,
    vanishing,
)
from remnant.solvers.tensor.two_layer import (
    BatchGradient,
    TensorSettings,
    TwoLayer,
    scales_and_signs,
    tensor_attack,
)


def generator(seed=0):
    return torch.Generator().manual_seed(seed)


def normal(*shape, seed=0):
    return torch.randn(*shape, generator=generator(seed), dtype=torch.float64)


def h3(w):
    """The third Hermite tensor of one vector, slowly."""
    eye = torch.eye(len(w), dtype=w.dtype)
    total = torch.einsum("a,b,c->abc", w, w, w)
    for rule in ("a,bc->abc", "b,ca->abc", "c,ab->abc"):
        total = total - torch.einsum(rule, w, eye)
    return total


def h4(w):
    eye = torch.eye(len(w), dtype=w.dtype)
    total = torch.einsum("a,b,c,d->abcd", w, w, w, w)
    for pair, rest in (
        ("ab", "cd"),
        ("ac", "bd"),
        ("ad", "bc"),
        ("bc", "ad"),
        ("bd", "ac"),
        ("cd", "ab"),
    ):
        total = total - torch.einsum(f"{pair},{rest[0]},{rest[1]}->abcd", eye, w, w)
    for pair, rest in (("ab", "cd"), ("ac", "bd"), ("ad", "bc")):
        total = total + torch.einsum(f"{pair},{rest}->abcd", eye, eye)
    return total


def symmetric(tensor):
    from itertools import permutations

    turned = [tensor.permute(*p) for p in permutations(range(tensor.ndim))]
    return sum(turned) / len(turned)


def two_layer(name, *, d, m, count, seed=0, scale=1.0, output_bias=0.0, inputs=None):
    """A network as the paper's, a batch of unit inputs and its gradient (sum of squares)."""
    rng = generator(seed)
    x = torch.randn(count, d, generator=rng, dtype=torch.float64) if inputs is None else inputs
    x = x / x.norm(dim=1, keepdim=True) if inputs is None else x
    y = torch.tensor([1.0, -1.0] * count, dtype=torch.float64)[:count, None]
    w = (scale * torch.randn(m, d, generator=rng, dtype=torch.float64)).requires_grad_()
    a = torch.full((1, m), 1 / m, dtype=torch.float64, requires_grad=True)
    bias = torch.tensor([output_bias], dtype=torch.float64)
    act = activation(name)
    outputs = act(x @ w.T) @ a.T + bias
    gw, ga = torch.autograd.grad((outputs - y).square().sum(), (w, a))
    network = TwoLayer(weights=w.detach(), head=a.detach(), activation=act, head_bias=bias)
    return x, y, network, BatchGradient(weights=gw, head=ga)


def rms_error(x, found):
    distance = torch.cdist(x, found)
    assert sorted(distance.argmin(1).tolist()) == list(range(len(x)))
    return float(distance.min(1).values.square().mean().sqrt())


def test_coefficients_are_those_of_polynomials_and_kinks():
    beta = torch.tensor([0.5, 2.0], dtype=torch.float64)
    cubic = activation("cubic")  # x^2 + x^3
    assert torch.allclose(coefficient(cubic, 0, beta), beta**2)
    assert torch.allclose(coefficient(cubic, 1, beta), 3 * beta**3)
    assert torch.allclose(coefficient(cubic, 2, beta), 2 * beta**2)
    assert torch.allclose(coefficient(cubic, 3, beta), 6 * beta**3)
    relu = coefficient(activation("relu"), 4, beta)  # Remark 4: -1 / sqrt(2 pi)
    assert torch.allclose(relu, -beta / math.sqrt(2 * math.pi), atol=1e-5)


@pytest.mark.parametrize(
    ("name", "zeros"), [("tanh", {2, 4}), ("sigmoid", {2, 4}), ("relu", {3}), ("gelu", {3})]
)
def test_orders_without_signal_are_known(name, zeros):
    assert {k for k in (1, 2, 3, 4) if vanishing(activation(name), k)} == zeros


def test_moments_agree_with_whole_tensors():
    g, w, gradient, a = normal(6), normal(6, 4, seed=1), normal(6, 4, seed=2), normal(4, seed=3)
    eye = torch.eye(4, dtype=torch.float64)
    h2 = [torch.outer(v, v) - eye for v in w]
    assert torch.allclose(head_moment(g, w, 2), sum(s * h for s, h in zip(g, h2, strict=True)))
    assert torch.allclose(head_moment(g, w, 3), sum(s * h3(v) for s, v in zip(g, w, strict=True)))
    fourth = sum(s * h4(v) for s, v in zip(g, w, strict=True))
    assert torch.allclose(head_moment(g, w, 4, a), fourth @ a)
    third = sum(torch.einsum("a,bc->abc", v, h) for v, h in zip(gradient, h2, strict=True))
    assert torch.allclose(layer_moment(gradient, w, 3), symmetric(third))
    fourth = sum(torch.einsum("a,bcd->abcd", v, h3(u)) for v, u in zip(gradient, w, strict=True))
    assert torch.allclose(layer_moment(gradient, w, 4, a), symmetric(fourth) @ a)


def test_matrices_agree_with_the_moments():
    g, w, gradient, a = normal(6), normal(6, 4, seed=1), normal(6, 4, seed=2), normal(4, seed=3)
    assert torch.allclose(head_matrix(g, w, a), head_moment(g, w, 3) @ a)
    assert torch.allclose(layer_matrix(gradient, w, a), layer_moment(gradient, w, 3) @ a)


def test_the_leading_span_has_the_largest_eigenvalues_of_either_sign():
    basis = torch.linalg.qr(normal(30, 30))[0]
    values = torch.linspace(-1, 1, 30, dtype=torch.float64)
    values[4], values[9] = -5, 4
    span, wanted = leading_span(basis * values @ basis.T, 2), basis[:, [4, 9]]
    assert torch.allclose(span @ span.T, wanted @ wanted.T, atol=1e-8)


def test_regression_reads_a_polynomial_exactly():
    u = normal(2, 3)
    head, w = normal(2, 400, seed=1), normal(400, 3, seed=2)
    r = normal(2, 2, seed=3)  # class x record
    slope = 1 + 2 * (w @ u.T) + 3 * ((w @ u.T) ** 2 - u.square().sum(1))
    gradient = sum((head.T @ r[:, i] * slope[:, i])[:, None] * u[i] for i in range(2))
    one, two, three = regress_moments(gradient, head, w, [1, 2, 3])
    assert torch.allclose(one, r @ u)
    assert torch.allclose(two, 2 * torch.einsum("ki,ia,ib->kab", r, u, u))
    assert torch.allclose(three, 6 * torch.einsum("ki,ia,ib,ic->kabc", r, u, u, u))


def test_features_of_degree_three_are_hermite_tensors():
    w = normal(5, 3)
    features, places = hermite_features(w, 3)
    assert features.shape == (5, 10)
    many = [len(set(symmetric_places(p))) / 6 for p in places.tolist()]
    wanted = torch.stack([h3(v)[tuple(places.T)] for v in w])
    assert torch.allclose(features, wanted * torch.tensor(many, dtype=torch.float64))


def symmetric_places(place):
    from itertools import permutations

    return list(permutations(place))


def test_components_of_exact_tensors_come_back():
    u = torch.nn.functional.normalize(normal(5, 5), dim=1)
    weights = torch.tensor([3.0, -1.0, 0.5, 2.0, -4.0], dtype=torch.float64)
    cube = torch.einsum("i,ia,ib,ic->abc", weights, u, u, u)
    found = decompose(cube[None], generator=generator())
    cosine = (found.directions @ u.T).abs()
    assert found.off < 1e-12
    assert torch.allclose(cosine.max(0).values, torch.ones(5, dtype=torch.float64))
    sizes = component_weights(cube[None], found.directions)[0]
    assert torch.allclose(sizes.abs().sort().values, weights.abs().sort().values)
    # Several matrices with weights of their own do as well as a cube.
    squares = torch.einsum("ki,ia,ib->kab", normal(3, 5, seed=1), u, u)
    cosine = (decompose([squares], generator=generator()).directions @ u.T).abs()
    assert torch.allclose(cosine.max(0).values, torch.ones(5, dtype=torch.float64))


def test_joint_diagonalisation_beats_a_pair_under_noise():
    u = torch.nn.functional.normalize(normal(6, 6), dim=1)
    matrices = torch.einsum("ki,ia,ib->kab", normal(50, 6, seed=1), u, u)
    noise = normal(50, 6, 6, seed=2) * 0.01
    matrices = matrices + (noise + noise.mT) / 2
    joint = torch.nn.functional.normalize(torch.linalg.inv(diagonalise(matrices)).T, dim=1)
    _, pair = torch.linalg.eig(matrices[0] @ torch.linalg.inv(matrices[1]))
    pair = torch.nn.functional.normalize(pair.real.T, dim=1)
    worst = [float((1 - (v @ u.T).abs().max(0).values).max()) for v in (joint, pair)]
    assert worst[0] < 1e-3 < worst[1]


@pytest.mark.parametrize(
    ("name", "source", "most"),
    [
        ("cubic", "layer", 0.2),
        ("cubic", "head", 0.6),
        ("tanh", "layer", 0.15),
        ("sigmoid", "layer", 0.3),
        ("relu", "layer", 0.15),
    ],
)
def test_the_papers_attack_finds_the_two_unit_vectors(name, source, most):
    x = torch.eye(20, dtype=torch.float64)[:2]  # Figure 2: B = 2, x_i = e_i, y = 1, -1, M = 30
    _, _, network, gradient = two_layer(name, d=20, m=5000, count=2, output_bias=30.0, inputs=x)
    settings = TensorSettings(source=source, residual_sign=1)
    found = tensor_attack(network, gradient, 2, settings, generator=generator())
    assert rms_error(x, found.inputs) < most
    assert found.sign_known
    assert torch.allclose(found.residuals, torch.tensor(60.0, dtype=torch.float64), rtol=0.15)


def test_the_fourth_order_serves_relu_from_the_head_too():
    x, _, network, gradient = two_layer("relu", d=10, m=40000, count=2, output_bias=10.0)
    settings = TensorSettings(source="head")
    found = tensor_attack(network, gradient, 2, settings, generator=generator())
    assert rms_error(x, found.inputs) < 0.3


def test_weights_of_another_scale_and_norms():
    """First layer of deviation 0.5, so that the network sees inputs of half the norm."""
    x, _, network, gradient = two_layer(
        "cubic", d=20, m=20000, count=2, scale=0.5, output_bias=-2.0
    )
    for norm in (1.0, None):
        settings = TensorSettings(norm=norm)
        found = tensor_attack(network, gradient, 2, settings, generator=generator())
        assert rms_error(x, found.inputs) < 0.15
        assert torch.allclose(found.inputs.norm(dim=1), torch.tensor(1.0).double(), rtol=0.1)


def test_an_odd_activation_leaves_the_sign_open():
    x, _, network, gradient = two_layer("tanh", d=20, m=5000, count=2)
    found = tensor_attack(network, gradient, 2, TensorSettings(), generator=generator())
    assert not found.sign_known
    both = torch.cat([found.inputs, -found.inputs])
    assert float(torch.cdist(x, both).min(1).values.max()) < 0.25


def test_noise_on_the_gradient_changes_little():
    x, _, network, clean = two_layer("tanh", d=20, m=5000, count=2, output_bias=30.0)
    noise = normal(5000, 20, seed=9) * clean.weights.std()
    noisy = BatchGradient(weights=clean.weights + 0.3 * noise)
    found = tensor_attack(network, noisy, 2, TensorSettings(residual_sign=1), generator=generator())
    assert rms_error(x, found.inputs) < 0.15


def test_scales_and_signs_of_exact_weights():
    act = activation("cubic")
    beta, sign, r = (
        torch.tensor([0.7, 1.3, 2.0]).double(),
        torch.tensor([1.0, -1, 1]).double(),
        normal(3),
    )
    sizes = {k: (r * sign**k * coefficient(act, k, beta))[None] for k in (1, 2, 3)}
    fit = scales_and_signs(act, sizes)
    assert torch.allclose(fit.signed_norm, sign * beta, rtol=0.02)
    assert torch.allclose(fit.residuals[:, 0], r, rtol=0.1)


def test_what_the_attack_refuses():
    network = TwoLayer(weights=normal(9, 3), head=normal(2, 9), activation=torch.tanh)
    with pytest.raises(InputError, match="expected a network with one output, got 2 outputs"):
        tensor_attack(network, BatchGradient(), 2, TensorSettings(), generator=generator())
    network = TwoLayer(weights=normal(9, 3), head=normal(1, 9), activation=torch.tanh)
    with pytest.raises(InputError, match="expected the first layer's gradient, got none"):
        tensor_attack(network, BatchGradient(), 2, TensorSettings(), generator=generator())


def test_reading_a_model_and_its_gradient():
    model = build("mlp:6-5-3:tanh", generator=generator(), dtype=torch.float64)
    x = normal(4, 6)
    loss = nn.functional.cross_entropy(model(x), torch.tensor([0, 1, 2, 0]))
    names = [name for name, _ in model.named_parameters()]
    gradient = dict(zip(names, torch.autograd.grad(loss, list(model.parameters())), strict=True))
    read = read_deep(model, gradient)
    network, seen = read.network, read.gradient
    assert torch.allclose(network.outputs(x), model(x))
    assert seen.head_bias.shape == (3,)
    assert read_deep(model, {}).gradient.weights is None
    deeper = build("mlp:6-5-4-3", generator=generator())
    assert "ReLU cannot be undone" in read_deep(deeper, {})
    narrow = build("mlp:6-5-4-3:tanh", generator=generator())
    assert "from 6 to 5 cannot be undone" in read_deep(narrow, {})
    assert "one activation between" in read_deep(nn.Linear(2, 2), {})
