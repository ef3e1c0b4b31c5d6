"""Weighted sums of gradients and inner products, against a loop over inputs."""

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.gradients import gram, inner_products, smoothed, weighted_sum


def draw(*shape, seed=0):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def network(seed=0, outputs=3):
    model = nn.Sequential(
        nn.Conv2d(1, 3, 3), nn.ReLU(), nn.MaxPool2d(2), nn.Flatten(), nn.Linear(12, outputs)
    ).double()
    with torch.no_grad():
        for number, value in enumerate(model.parameters()):
            value.copy_(draw(*value.shape, seed=seed + number))
    return model


def loop(model, inputs, coefficients):
    total = {name: torch.zeros_like(value) for name, value in model.named_parameters()}
    for i, x in enumerate(inputs):
        for k in range(coefficients.shape[1]):
            parts = torch.autograd.grad(model(x[None])[0, k], list(model.parameters()))
            for name, part in zip(total, parts, strict=True):
                total[name] += coefficients[i, k] * part
    return total


def assert_same(found, wanted):
    assert list(found) == list(wanted)
    for name, value in wanted.items():
        torch.testing.assert_close(found[name], value, rtol=1e-10, atol=1e-12)


def test_weighted_sum_is_the_sum():
    model, inputs, coefficients = network(), draw(5, 1, 6, 6, seed=9), draw(5, 3, seed=8)
    found = weighted_sum(model, inputs, coefficients)
    assert_same(found, loop(model, inputs, coefficients))
    assert not any(value.requires_grad for value in found.values())
    assert all(value.grad is None for value in model.parameters())
    with torch.no_grad():
        assert_same(weighted_sum(model, inputs, coefficients), found)


def test_weighted_sum_with_one_output_takes_a_list():
    model, inputs, coefficients = network(outputs=1), draw(4, 1, 6, 6, seed=9), draw(4, seed=8)
    found = weighted_sum(model, inputs, coefficients)
    assert_same(found, loop(model, inputs, coefficients[:, None]))


def test_weighted_sum_at_other_weights():
    model, twin = network(), network(seed=50)
    inputs, coefficients = draw(4, 1, 6, 6, seed=9), draw(4, 3, seed=8)
    wanted = loop(twin, inputs, coefficients)
    assert_same(weighted_sum(model, inputs, coefficients, weights=twin.state_dict()), wanted)
    some = {"4.weight": model[4].weight}
    own = loop(model, inputs, coefficients)
    found = weighted_sum(model, inputs, coefficients, weights=some)
    assert_same(found, {"4.weight": own["4.weight"]})


def test_weighted_sum_differentiates_in_inputs_coefficients_and_weights():
    model = smoothed(network(), beta=2.0)
    weights = {name: value.detach() for name, value in model.named_parameters()}

    def squared(inputs, coefficients, *values):
        given = dict(zip(weights, values, strict=True))
        found = weighted_sum(model, inputs, coefficients, weights=given, create_graph=True)
        return sum((value**2).sum() for value in found.values())

    leaves = [draw(2, 1, 6, 6, seed=9), draw(2, 3, seed=8), *weights.values()]
    leaves = [leaf.clone().requires_grad_() for leaf in leaves]
    assert torch.autograd.gradcheck(squared, leaves)
    assert all(value.grad is None for value in model.parameters())


def test_weighted_sum_leaves_the_models_parameters_out_of_the_graph():
    model = smoothed(network(), beta=2.0)
    inputs = draw(2, 1, 6, 6).requires_grad_()
    found = weighted_sum(model, inputs, draw(2, 3), create_graph=True)
    sum((value**2).sum() for value in found.values()).backward()
    assert float(inputs.grad.abs().max()) > 0
    assert all(value.grad is None for value in model.parameters())


def test_a_parameter_without_effect_has_gradient_zero():
    model = network()
    model.register_parameter("spare", nn.Parameter(torch.ones(2, dtype=torch.float64)))
    found = weighted_sum(model, draw(2, 1, 6, 6), draw(2, 3))
    assert torch.equal(found["spare"], torch.zeros(2, dtype=torch.float64))
    nothing = weighted_sum(model, draw(0, 1, 6, 6), draw(0, 3))
    assert all(float(value.abs().sum()) == 0 for value in nothing.values())


def shared(kind):
    layer = nn.Linear(6, 6).double()
    model = nn.Sequential(layer, nn.Tanh(), layer)
    if kind == "parameter":
        model[2] = nn.Linear(6, 6).double()
        model[2].weight = layer.weight
    return model


@pytest.mark.parametrize("kind", ["module", "parameter"])
def test_what_is_shared_is_summed_and_the_model_stays_as_it_was(kind):
    model, inputs, coefficients = shared(kind), draw(3, 6), draw(3, 6, seed=1)
    before = {name: (value, value.clone()) for name, value in model.named_parameters()}
    moved = {name: value.detach() + 1 for name, value in model.named_parameters()}
    found = weighted_sum(model, inputs, coefficients, weights=moved)
    products = inner_products(model, inputs, found, weights=moved)
    kernel = gram(model, inputs, weights=moved, per_class=True)
    torch.testing.assert_close(products, torch.einsum("ikjl,jl->ik", kernel, coefficients))
    for name, value in model.named_parameters():
        assert value is before[name][0]
        assert torch.equal(value, before[name][1])
    assert_same(weighted_sum(model, inputs, coefficients), loop(model, inputs, coefficients))
    model.load_state_dict(moved, strict=False)
    assert_same(found, loop(model, inputs, coefficients))


def test_weighted_sum_tells_faults():
    model, inputs = network(), draw(4, 1, 6, 6)
    with pytest.raises(InputError, match="expected 4, one row an input, got 3"):
        weighted_sum(model, inputs, draw(3, 3))
    with pytest.raises(InputError, match=r"expected \(4, 3\), got \(4, 1\); give one a class"):
        weighted_sum(model, inputs, draw(4))
    with pytest.raises(InputError, match="model outputs: expected n x c with n = 4"):
        weighted_sum(nn.Identity(), inputs, draw(4, 1))


def test_inner_products_are_the_jacobian_times_the_vector():
    model, inputs = network(), draw(4, 1, 6, 6, seed=9)
    vector = {name: draw(*p.shape, seed=3) for name, p in model.named_parameters()}
    found = inner_products(model, inputs, vector)
    assert found.shape == (4, 3)
    assert not found.requires_grad
    for i in range(4):
        for k in range(3):
            parts = torch.autograd.grad(model(inputs[i : i + 1])[0, k], list(model.parameters()))
            wanted = sum((part * v).sum() for part, v in zip(parts, vector.values(), strict=True))
            torch.testing.assert_close(found[i, k], wanted.detach(), rtol=1e-10, atol=1e-12)


def test_inner_products_with_a_weighted_sum_are_the_gram_matrix():
    model, twin, inputs = network(), network(seed=50), draw(4, 1, 6, 6, seed=9)
    weights = twin.state_dict()
    coefficients = draw(4, 3, seed=8)
    vector = weighted_sum(model, inputs, coefficients, weights=weights)
    found = inner_products(model, inputs, vector, weights=weights)
    kernel = gram(model, inputs, weights=weights, per_class=True)
    torch.testing.assert_close(found, torch.einsum("ikjl,jl->ik", kernel, coefficients))


def test_inner_products_take_part_of_a_vector_and_differentiate_in_inputs():
    model = smoothed(network(), alpha=2.0)
    vector = {"0.weight": draw(3, 1, 3, 3, seed=3)}
    whole = {name: torch.zeros_like(p.detach()) for name, p in model.named_parameters()} | vector
    inputs = draw(2, 1, 6, 6, seed=9).requires_grad_()
    found = inner_products(model, inputs, vector)
    torch.testing.assert_close(found, inner_products(model, inputs, whole))
    slope = torch.autograd.grad(found.sum(), inputs)[0]
    (by_sum,) = torch.autograd.grad(
        (weighted_sum(model, inputs, torch.ones(2, 3), create_graph=True)["0.weight"]
         * vector["0.weight"]).sum(),
        inputs,
    )  # fmt: skip
    torch.testing.assert_close(slope, by_sum)


def test_inner_products_tell_faults():
    model, inputs = network(), draw(2, 1, 6, 6)
    with pytest.raises(InputError, match="vector: other: expected a parameter of the model"):
        inner_products(model, inputs, {"other": draw(2)})
    with pytest.raises(InputError, match="vector: expected names among the parameters, got none"):
        inner_products(model, inputs, {})
