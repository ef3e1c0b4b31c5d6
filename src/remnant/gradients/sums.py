"""Sums of parameter gradients over inputs, and their inner products with one vector."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.func import jvp

from remnant.errors import InputError, expected
from remnant.gradients.calls import call, check, parameters
from remnant.types import Weights


def weighted_sum(
    model: nn.Module,
    inputs: Tensor,
    coefficients: Tensor,
    *,
    weights: Weights | None = None,
    create_graph: bool = False,
) -> dict[str, Tensor]:
    """sum_i sum_k coefficients[i, k] * grad_theta f_k(x_i), in one backward pass.

    Coefficients are `n x c`, or `n` where the model has one output. With `create_graph` the sum is
    differentiable in inputs, coefficients and those `weights` that ask for it.
    """
    if len(coefficients) != len(inputs):
        wanted = f"{len(inputs)}, one row an input"
        raise InputError(expected("weighted sum: coefficients", wanted, len(coefficients)))
    # A leaf of our own, so that nothing ever flows into the model's parameters.
    values = {
        name: value if create_graph and value.requires_grad else value.detach().requires_grad_()
        for name, value in parameters(model, weights).items()
    }
    if not create_graph:
        inputs, coefficients = inputs.detach(), coefficients.detach()
    with torch.enable_grad():
        mixed = _mixed(call(model, inputs, weights, values), coefficients)
    found = torch.autograd.grad(
        mixed, list(values.values()), create_graph=create_graph, materialize_grads=True
    )
    return dict(zip(values, found, strict=True))


def _mixed(outputs: Tensor, coefficients: Tensor) -> Tensor:
    if coefficients.ndim == 1:
        coefficients = coefficients.unsqueeze(1)
    if coefficients.shape != outputs.shape:
        wanted, got = tuple(outputs.shape), tuple(coefficients.shape)
        raise InputError(expected("weighted sum: coefficients", wanted, got, "give one a class"))
    return (coefficients * outputs).sum()


def inner_products(
    model: nn.Module, inputs: Tensor, vector: Weights, *, weights: Weights | None = None
) -> Tensor:
    """<grad_theta f_k(x_i), vector>, `n x c`, by forward differentiation: one pass.

    Parameters that `vector` does not name count as zero. Differentiable in inputs that ask for it.
    """
    check(model, vector, "vector")
    values = parameters(model, weights)
    moved = {name: values[name].detach() for name in values if name in vector}
    if not moved:
        got = ", ".join(vector) or "none"
        raise InputError(expected("vector", "names among the parameters", got))
    tangents = {name: vector[name] for name in moved}
    products: Tensor = jvp(lambda part: call(model, inputs, weights, part), (moved,), (tangents,))[
        1
    ]
    return products
