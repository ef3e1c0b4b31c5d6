"""Infinite-width kernels of dense networks in closed form, and regression with a kernel.

For x and x' layer l holds s = (s_xx, s_xx', s_x'x'), the covariance of two preactivations. Through
an activation it becomes E[f f'] and E[f' f''] under that Gaussian: arc-cosine kernels for ReLU (Cho
and Saul 2009), arcsine for erf (Williams 1997). The NNGP kernel is s_xx' of the output; the NTK
adds up, layer by layer, what each layer's own weights contribute (Jacot et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from remnant.errors import InputError, expected

NEAREST = 1e-12  # of 1 - rho^2 in a derivative: at equal inputs it is a pole times zero


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense network of `hidden` layers and one output, as its width grows.

    ntk: h = sqrt(weight / fan_in) W z + sqrt(bias) b with W, b ~ N(0, 1); gradients in W and b.
    standard: W ~ N(0, weight / fan_in), b ~ N(0, bias), gradients in those; the NTK then grows with
    `width`, which has to be given. PyTorch's own law is weight = 1/3, bias = 1 / (3 fan_in).
    `bias` None = no biases.
    """

    hidden: int = 2
    activation: Literal["relu", "erf"] = "relu"
    weight: float = 2.0
    bias: float | None = None
    parametrisation: Literal["ntk", "standard"] = "ntk"
    width: int | None = None

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise InputError(expected("kernel: hidden layers", "1 or more", self.hidden))
        if self.activation not in ACTIVATIONS:
            known = " or ".join(ACTIVATIONS)
            raise InputError(expected("kernel: activation", known, repr(self.activation)))
        if not 0 < self.weight < math.inf or (self.bias is not None and not self.bias >= 0):
            got = f"{self.weight} and {self.bias}"
            raise InputError(expected("kernel: variances", "weight > 0, bias >= 0 or None", got))
        if self.parametrisation == "standard" and not (self.width and self.width > 0):
            raise InputError(expected("kernel: width", "given, as it scales the NTK", self.width))


class Kernels(NamedTuple):
    """Both n x m, float64."""

    nngp: Tensor
    ntk: Tensor


class _Covariance(NamedTuple):
    """x: n x 1 variances, y: 1 x m variances, xy: n x m covariances."""

    x: Tensor
    xy: Tensor
    y: Tensor


def kernels(network: Dense, x: Tensor, y: Tensor | None = None) -> Kernels:
    """NNGP and NTK between the rows of x (n x shape) and y (m x shape; None = x itself)."""
    a = x.flatten(1).double()
    b = a if y is None else y.flatten(1).double()
    if a.shape[1] != b.shape[1]:
        raise InputError(expected("kernel: inputs", f"m x {a.shape[1]}", tuple(b.shape)))
    d, step = a.shape[1], ACTIVATIONS[network.activation]
    raw = _Covariance(a.square().sum(1)[:, None], a @ b.T, b.square().sum(1)[None])
    weight, bias = network.weight, network.bias or 0.0
    s = _Covariance(*(weight / d * part + bias for part in raw))
    ntk = _own(network, raw.xy, d, first=True)
    for _ in range(network.hidden):
        features, slopes = step(s)
        s = _Covariance(*(weight * part + bias for part in features))
        ntk = weight * slopes * ntk + _own(network, features.xy, network.width or 1, first=False)
    return Kernels(s.xy, ntk)


def _own(network: Dense, second: Tensor, fan_in: int, *, first: bool) -> Tensor:
    """What a layer's own weights add: `second` is x.x' at first, E[f f'] per input later."""
    if network.parametrisation == "standard":
        # One input's gradient is the other end's activation: a sum over fan_in of them.
        per_weight = second if first else fan_in * second
        return per_weight + (0.0 if network.bias is None else 1.0)
    scale = network.weight / fan_in if first else network.weight
    return scale * second + (network.bias or 0.0)


def _relu(s: _Covariance) -> tuple[_Covariance, Tensor]:
    scale = (s.x * s.y).sqrt()
    safe = scale.clamp(min=1e-300)
    rho = (s.xy / safe).clamp(-1.0, 1.0)
    return _Covariance(s.x / 2, scale * _arc(_Arc1, rho) / 2, s.y / 2), _arc(_Arc0, rho) / 2


def _erf(s: _Covariance) -> tuple[_Covariance, Tensor]:
    u, v = 1 + 2 * s.x, 1 + 2 * s.y
    scale = (u * v).sqrt()

    def own(variance: Tensor) -> Tensor:
        return 2 / math.pi * torch.asin(2 * variance / (1 + 2 * variance))

    slopes = 4 / math.pi / (u * v - 4 * s.xy.square()).sqrt()
    return _Covariance(own(s.x), 2 / math.pi * torch.asin(2 * s.xy / scale), own(s.y)), slopes


ACTIVATIONS = {"relu": _relu, "erf": _erf}


class _Arc0(torch.autograd.Function):
    """(pi - arccos rho) / pi; its slope has a pole at 1, held at NEAREST."""

    @staticmethod
    def forward(ctx: Any, rho: Tensor) -> Tensor:
        ctx.save_for_backward(rho)
        return 1 - torch.arccos(rho) / math.pi

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (rho,) = ctx.saved_tensors
        slope: Tensor = 1 / (math.pi * (1 - rho.square()).clamp(min=NEAREST).sqrt())
        return gradients[0] * slope


class _Arc1(torch.autograd.Function):
    """(rho (pi - arccos rho) + sqrt(1 - rho^2)) / pi; its slope is `_Arc0`, finite everywhere."""

    @staticmethod
    def forward(ctx: Any, rho: Tensor) -> Tensor:
        ctx.save_for_backward(rho)
        sine = (1 - rho.square()).clamp(min=0).sqrt()
        return (rho * (math.pi - torch.arccos(rho)) + sine) / math.pi

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        (rho,) = ctx.saved_tensors
        return gradients[0] * _arc(_Arc0, rho)


def _arc(function: type[torch.autograd.Function], rho: Tensor) -> Tensor:
    value: Tensor = function.apply(rho)  # type: ignore[no-untyped-call]
    return value


def regress(kernel: Tensor, labels: Tensor, *, ridge: float = 0.0) -> Tensor:
    """Duals alpha (n x c) with (K + ridge mean(diag K) I) alpha = y."""
    if not 0 <= ridge < math.inf:
        raise InputError(expected("kernel regression: ridge", "0 or more", ridge))
    n = len(kernel)
    y = labels.reshape(n, -1).to(kernel)
    level = ridge * kernel.diagonal().mean()
    factor, info = torch.linalg.cholesky_ex(kernel + level * torch.eye(n, dtype=kernel.dtype))
    if int(info):
        do = "two inputs are alike; add a ridge"
        raise InputError(expected("kernel", "positive definite", "one that is not", do))
    return torch.cholesky_solve(y, factor)


def predict(kernel: Tensor, duals: Tensor) -> Tensor:
    """m x c from the kernel of m new inputs with the n trained ones."""
    return kernel @ duals


def accuracy(outputs: Tensor, labels: Tensor) -> float:
    """The share of right classes: one output by its sign (labels 0, 1), several by the largest."""
    guess = outputs.argmax(1) if outputs.shape[1] > 1 else (outputs[:, 0] > 0).long()
    return float((guess == labels).double().mean())
