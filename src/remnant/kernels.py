"""Infinite-width kernels of dense networks in closed form, and regression with a kernel.

For x and x' layer l holds s = (s_xx, s_xx', s_x'x'), the covariance of two preactivations. Through
a ReLU it becomes E[f f'] and E[f' f''] under that Gaussian, arc-cosine kernels (Cho and Saul 2009).
The NTK adds up, layer by layer, what each layer's own weights contribute (Jacot et al. 2018).
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal, NamedTuple

import torch
from torch import Tensor

from remnant.errors import InputError, expected


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense ReLU network of `hidden` layers and one output, as its width grows.

    ntk: h = sqrt(weight / fan_in) W z + sqrt(bias) b with W, b ~ N(0, 1); gradients in W and b.
    standard: W ~ N(0, weight / fan_in), b ~ N(0, bias), gradients in those; the NTK then grows with
    `width`, which has to be given. PyTorch's own law is weight = 1/3, bias = 1 / (3 fan_in).
    `bias` None = no biases.
    """

    hidden: int = 2
    weight: float = 2.0
    bias: float | None = None
    parametrisation: Literal["ntk", "standard"] = "ntk"
    width: int | None = None

    def __post_init__(self) -> None:
        if self.hidden < 1:
            raise InputError(expected("kernel: hidden layers", "1 or more", self.hidden))
        if not 0 < self.weight < math.inf or (self.bias is not None and not self.bias >= 0):
            got = f"{self.weight} and {self.bias}"
            raise InputError(expected("kernel: variances", "weight > 0, bias >= 0 or None", got))
        if self.parametrisation == "standard" and not (self.width and self.width > 0):
            raise InputError(expected("kernel: width", "given, as it scales the NTK", self.width))


class _Covariance(NamedTuple):
    """x: n x 1 variances, y: 1 x m variances, xy: n x m covariances."""

    x: Tensor
    xy: Tensor
    y: Tensor


def ntk(network: Dense, x: Tensor, y: Tensor | None = None) -> Tensor:
    """The NTK, n x m, between the rows of x (n x shape) and y (m x shape; None = x itself)."""
    a = x.flatten(1).double()
    b = a if y is None else y.flatten(1).double()
    if a.shape[1] != b.shape[1]:
        raise InputError(expected("kernel: inputs", f"m x {a.shape[1]}", tuple(b.shape)))
    return ntk_of_products(network, a @ b.T, squares(a), squares(b), a.shape[1])


def squares(x: Tensor) -> Tensor:
    """n squared lengths of the rows."""
    return x.square().sum(1)


def ntk_of_products(network: Dense, xy: Tensor, xx: Tensor, yy: Tensor, d: int) -> Tensor:
    """The same from x.y (n x m) and the squared lengths of x (n) and y (m) in d dimensions."""
    raw = _Covariance(xx[:, None], xy, yy[None])
    s = _next(network, raw, 1 / d)
    kernel = _own(network, raw.xy, s.xy, 1)
    for _ in range(network.hidden):
        features, slopes = _relu(s)
        s = _next(network, features, 1.0)
        own = _own(network, features.xy, s.xy, network.width or 1)
        kernel = torch.addcmul(own, slopes, kernel, value=network.weight)
    return kernel


def _next(network: Dense, features: _Covariance, scale: float) -> _Covariance:
    """The covariance after a layer's weights and biases."""
    return _Covariance(*(_affine(part, scale * network.weight, network.bias) for part in features))


def _own(network: Dense, second: Tensor, after: Tensor, fan_in: int) -> Tensor:
    """What a layer's own weights and biases add, from the covariances before and after it.

    `second` is x.x' at first (fan_in 1: it is a sum already), then E[f f'] per input.
    """
    if network.parametrisation == "ntk":
        return after
    # One weight's gradient is the other end's activation: a sum over fan_in of them.
    return _affine(second, fan_in, None if network.bias is None else 1.0)


def _affine(value: Tensor, scale: float, shift: float | None) -> Tensor:
    """scale * value + shift; what changes nothing is left out, since n x m may be all the work."""
    scaled = value if scale == 1 else scale * value
    return scaled + shift if shift else scaled


def _relu(s: _Covariance) -> tuple[_Covariance, Tensor]:
    """E[f f'] = r (rho (pi - t) + sin t) / 2 pi and E[slope slope'] = (pi - t) / 2 pi.

    r = sqrt(s_xx s_x'x'), rho = cos t = s_xx' / r. Where rho is 1 (an input and itself; beyond it
    there is only rounding) t is 0 and stays so: arccos and the root have no derivative there.
    """
    scale = s.x.sqrt() * s.y.sqrt()
    rho = s.xy / scale.clamp(min=torch.finfo(scale.dtype).tiny)
    inside = rho.abs() < 1
    turned = torch.where(inside, rho, 0.0)
    angle = torch.where(inside, torch.arccos(turned), torch.where(rho > 0, 0.0, math.pi))
    sine = torch.where(inside, (1 - turned.square()).sqrt(), 0.0)
    slopes = 0.5 - angle / (2 * math.pi)
    features = scale * (rho.clamp(-1.0, 1.0) * slopes + sine / (2 * math.pi))
    return _Covariance(s.x / 2, features, s.y / 2), slopes


def regress(kernel: Tensor, labels: Tensor, *, ridge: float = 0.0) -> Tensor:
    """Duals alpha (n x c) with (K + ridge mean(diag K) I) alpha = y."""
    if not 0 <= ridge < math.inf:
        raise InputError(expected("kernel regression: ridge", "0 or more", ridge))
    n = len(kernel)
    y = labels.reshape(n, -1).to(kernel)
    if ridge:
        kernel = kernel + ridge * kernel.diagonal().mean() * torch.eye(n, dtype=kernel.dtype)
    factor, info = torch.linalg.cholesky_ex(kernel)
    if int(info):
        do = "two inputs are alike; add a ridge"
        raise InputError(expected("kernel", "positive definite", "one that is not", do))
    return torch.cholesky_solve(y, factor)
