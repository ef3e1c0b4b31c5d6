"""Inputs and labels of a batch from one gradient of a two-layer network: paper 002, as it is.

f(x) = sum_j a_j s(w_j.x) + M with a_j = 1/m and Gaussian w_j. Span from a second moment (or a
contracted third, Remark 3), third moment in the span (fourth for piecewise linear activations,
Remark 4), its components (`components`), then signs, norms and residuals from all moments together.
The error falls as sqrt(d / m): `span_lm` goes from such a start to rounding.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import factorial
from typing import Literal

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.solvers.tensor.components import component_weights, decompose
from remnant.solvers.tensor.stein import (
    Activation,
    coefficient,
    head_matrix,
    head_moment,
    layer_matrix,
    layer_moment,
    leading_span,
    vanishing,
)

Source = Literal["head", "layer"]


@dataclass(frozen=True, kw_only=True, eq=False)
class TwoLayer:
    """f(x) = head s(weights x + bias) + head_bias, float64. weights: m x d. head: c x m."""

    weights: Tensor
    head: Tensor
    activation: Activation
    bias: Tensor | None = None  # m
    head_bias: Tensor | None = None  # c

    def outputs(self, inputs: Tensor) -> Tensor:
        """n x c for inputs n x d."""
        hidden = inputs @ self.weights.T
        if self.bias is not None:
            hidden = hidden + self.bias
        outputs = self.activation(hidden) @ self.head.T
        return outputs if self.head_bias is None else outputs + self.head_bias


@dataclass(frozen=True, kw_only=True, eq=False)
class BatchGradient:
    """One gradient of a batch at a `TwoLayer`, shapes as there; None where it was not seen."""

    weights: Tensor | None = None
    head: Tensor | None = None
    bias: Tensor | None = None
    head_bias: Tensor | None = None


@dataclass(frozen=True, kw_only=True)
class TensorSettings:
    """Paper 002's choices. norm=None: inputs are not normalised, norms come from the moments.

    residual_sign: +1 or -1 where every residual's sign is known, as with a large output bias
    (Remark 1); it settles the sign that an odd activation leaves open.
    """

    source: Source = "layer"
    norm: float | None = 1.0
    residual_sign: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class TensorResult:
    """inputs: B x d. residuals: B, dL/df of each record. off: what the components do not explain.

    sign_known: False where (x, r) and (-x, -r) give the same gradient and nothing told them apart.
    """

    inputs: Tensor
    residuals: Tensor
    off: float
    sign_known: bool


def tensor_attack(
    network: TwoLayer,
    gradient: BatchGradient,
    count: int,
    settings: TensorSettings,
    *,
    generator: torch.Generator,
) -> TensorResult:
    """The paper's attack. First-layer weights of another scale than N(0, I) are rescaled."""
    observed, w, scale = _standardised(network, gradient, settings.source)
    matrix = head_matrix if settings.source == "head" else layer_matrix
    moment = head_moment if settings.source == "head" else layer_moment
    act = network.activation
    first = moment(observed, w, 1)
    vector = first / first.norm()  # what Remarks 3 and 4 contract with
    along = vector if vanishing(act, 2) else None
    span = leading_span(matrix(observed, w, along), count)
    inner, seen = w @ span, observed if settings.source == "head" else observed @ span
    order = 4 if vanishing(act, 3) else 3
    # Along the span only: what the vector has outside adds noise and no signal.
    top = moment(seen, inner, order, vector=vector @ span if order == 4 else None)
    components = decompose(top[None], generator=generator)
    u = components.directions
    sizes = {1: component_weights((first @ span)[None], u)}
    sizes |= {k: component_weights(moment(seen, inner, k)[None], u) for k in (2, 3)}
    norm = None if settings.norm is None else settings.norm * scale
    fit = scales_and_signs(act, sizes, norm=norm, residual_sign=settings.residual_sign)
    return TensorResult(
        inputs=(fit.signed_norm[:, None] * u) @ span.T / scale,
        residuals=fit.residuals[:, 0],
        off=components.off,
        sign_known=fit.sign_known,
    )


def _standardised(
    network: TwoLayer, gradient: BatchGradient, source: Source
) -> tuple[Tensor, Tensor, float]:
    """The gradient with the neurons' weights in, weights of unit variance, and their scale."""
    if len(network.head) != 1:
        got = f"{len(network.head)} outputs"
        raise InputError(expected("tensor attack", "a network with one output", got))
    if network.bias is not None and bool(network.bias.any()):
        raise InputError(
            expected(
                "tensor attack", "no biases in the first layer", "some", "use the exact solver"
            )
        )
    scale = float(network.weights.square().mean().sqrt())
    w = network.weights / scale
    head = network.head[0]
    if source == "head":
        if gradient.head is None:
            raise InputError("tensor attack: expected the head's gradient, got none")
        return gradient.head[0] / len(w), w, scale
    if gradient.weights is None:
        raise InputError("tensor attack: expected the first layer's gradient, got none")
    # dL/d(scaled w) = scale dL/dw is of the scaled input.
    return head[:, None] * gradient.weights * scale / head.square().sum(), w, scale


@dataclass(frozen=True, kw_only=True, eq=False)
class Fit:
    """x_i = signed_norm_i u_i, residuals B x c."""

    signed_norm: Tensor
    residuals: Tensor
    sign_known: bool


def scales_and_signs(
    activation: Activation,
    sizes: Mapping[int, Tensor],
    *,
    norm: float | None = None,
    residual_sign: int = 0,
) -> Fit:
    """Norm, sign and residual of each record from its weights in the moments of several orders.

    sizes[k]: c x B, weights r_i s_i^k c_k(beta_i) of u_i^(x k). For each beta of a grid the best r
    is linear; the best pair (beta, sign) wins. Where only odd orders speak, both signs fit alike
    and the one that gives `residual_sign` is taken.
    """
    grid = torch.logspace(-2, 1.5, 351, dtype=torch.float64)
    if norm is not None:
        grid = torch.tensor([norm], dtype=torch.float64)
    orders = [k for k in sizes if not vanishing(activation, k)]
    unit = [1 / factorial(k - 1) ** 0.5 for k in orders]  # equal noise in every order
    c = torch.stack(
        [f * coefficient(activation, k, grid) for k, f in zip(orders, unit, strict=True)]
    )
    z = torch.stack([f * sizes[k] for k, f in zip(orders, unit, strict=True)])  # o x c x B
    signs = torch.tensor([[s**k for k in orders] for s in (1.0, -1.0)], dtype=torch.float64)
    residuals = torch.einsum("so,og,ocb->sgbc", signs, c, z) / c.square().sum(0)[:, None, None]
    gain = residuals.square().sum(-1) * c.square().sum(0)[:, None]  # 2 x grid x B
    open_sign = all(k % 2 == 1 for k in orders)
    if open_sign and residual_sign:
        gain = gain * (residuals.sum(-1) * residual_sign > 0)
    best = gain.flatten(0, 1).argmax(0)
    s, g = best // len(grid), best % len(grid)
    index = torch.arange(z.shape[2])
    return Fit(
        signed_norm=grid[g] * (1 - 2 * s.double()),
        residuals=residuals[s, g, index],
        sign_known=not open_sign or residual_sign != 0,
    )
