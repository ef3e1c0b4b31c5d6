"""Models that a malicious server sends: one gradient of them gives the batch away (paper 002, 4.2).

All layers but the last hidden one pass the input through, so that a network of any depth is the
attackable two-layer network f(x) = (1/m) sum_j s(z_j.x) + M with Gaussian z_j.

- Activations with s(x) - s(-x) = c x (ReLU, GELU, SiLU and softplus with c = 1, leaky ReLU with
  c = 1 + slope): the first layer is [I, -I, 0]^T, so that s(x) and s(-x) come out of it. Layers in
  between take their difference over c and split it again (for ReLU the same as the identity), and
  the last hidden one is [z, -z, 0], which sees c x.
- Activations that are one-to-one (tanh, sigmoid, ELU): the identity, and the last hidden layer sees
  h(x) = s(s(..(x))).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.models.activations import activation as named_activation

ONE_TO_ONE = ("tanh", "sigmoid", "elu")
"""Activations by name that the identity passes through."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Trap:
    """The model to send. `solvers.tensor.deep` reads the gradient that comes back.

    directions: m x d, the rows z_j of the two-layer network in which the model amounts. scale: the
    last hidden layer sees scale * x; 1 but for leaky ReLU.
    """

    model: nn.Sequential
    directions: Tensor
    scale: float


def trap(
    inputs: int,
    width: int,
    hidden: int,
    *,
    generator: torch.Generator,
    activation: str = "relu",
    last_activation: str = "",
    output_bias: float = 0.0,
) -> Trap:
    """A network of `hidden` layers of `width` neurons and one output, to be sent to a client.

    last_activation: of the last hidden layer, `activation` without one. output_bias: the M of
    Remark 1; large, it keeps every residual away from 0 and of one sign.
    """
    split, scale = _rule(activation) if hidden > 1 else (False, 1.0)
    room = 2 * inputs if split else inputs
    if hidden < 1 or (hidden > 1 and width < room):
        wanted = f"one hidden layer or more, {room} wide or more for {inputs} inputs"
        raise InputError(expected("malicious model", wanted, f"{hidden}, {width} wide"))
    z = torch.randn(width, inputs, generator=generator, dtype=torch.float64)
    eye = torch.eye(inputs, dtype=torch.float64)
    pair = torch.cat([eye, -eye]) if split else eye
    through = [pair, *[pair @ pair.T / scale if split else eye] * (hidden - 2)][: hidden - 1]
    blocks = [*through, torch.cat([z, -z], dim=1) if split else z]
    sizes = [inputs, *[width] * hidden]
    modules: list[nn.Module] = [nn.Flatten()]
    names = [activation] * (hidden - 1) + [last_activation or activation]
    for block, name, before in zip(blocks, names, sizes, strict=False):
        weight = torch.zeros(width, before, dtype=torch.float64)
        weight[: block.shape[0], : block.shape[1]] = block
        modules += [_layer(weight, 0.0), named_activation(name)]
    head = torch.full((1, width), 1 / width, dtype=torch.float64)
    model = nn.Sequential(*modules, _layer(head, output_bias))
    return Trap(model=model, directions=z, scale=scale)


def _rule(name: str) -> tuple[bool, float]:
    """Whether the input passes as a pair (x, -x), and c of s(x) - s(-x) = c x."""
    if name in ONE_TO_ONE:
        return False, 1.0
    act = named_activation(name)
    x = torch.linspace(0.5, 4, 8, dtype=torch.float64)
    slopes = (act(x) - act(-x)) / x
    if float(slopes.max() - slopes.min()) > 1e-6:
        wanted = f"{', '.join(ONE_TO_ONE)}, or one with s(x) - s(-x) linear (relu, leaky, gelu ..)"
        raise InputError(expected("activation to pass through", wanted, name))
    return True, float(slopes[0])


@torch.no_grad()
def _layer(weight: Tensor, bias: float) -> nn.Linear:
    """A dense layer of these weights, all its biases alike."""
    layer = (
        nn.Linear(weight.shape[1], weight.shape[0], device="meta").to_empty(device="cpu").double()
    )
    layer.weight.copy_(weight)
    layer.bias.fill_(bias)
    return layer
