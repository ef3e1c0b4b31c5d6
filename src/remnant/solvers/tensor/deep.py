"""Deep dense networks as the two-layer network that they end in (paper 002, section 4.2).

The last hidden layer and the output are a two-layer network whose inputs are what the layers
before them make of the batch. A malicious server sends layers that pass the batch through
(`models.malicious`): what was recovered is the batch itself. Behind random layers with invertible
activations an eavesdropper undoes them one by one (`eavesdrop`).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from remnant.models.stack import working
from remnant.solvers.tensor.eavesdrop import BIJECTIONS, Layer, undo_directions, undo_layers
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Deep:
    """The two-layer network at the end, its gradient, and the way back to inputs.

    What the last hidden layer sees is scale * x after the layers of `front`.
    kind: "two layers", "pass-through" or "eavesdropper".
    """

    network: TwoLayer
    gradient: BatchGradient
    kind: str
    front: tuple[Layer, ...] = ()
    scale: float = 1.0

    def to_inputs(self, seen: Tensor) -> Tensor:
        """k x d from what the last hidden layer sees, k x d'."""
        return undo_layers(self.front, seen).inputs / self.scale

    def directions_to_inputs(self, seen: Tensor, norm: float | None) -> Tensor:
        """The same where the lengths are estimates: behind layers they are searched for.

        norm: the inputs' common one, needed where a layer has no more neurons than inputs.
        """
        if not self.front:
            return self.to_inputs(seen)
        return undo_directions(self.front, seen, norm=norm).inputs


def read_deep(model: nn.Module, gradient: Weights) -> Deep | str:
    """A dense network of any depth and its gradient, or in a sentence why it cannot be read."""
    layers = working(model, nn.Flatten)
    dense = [m for _, m in layers[::2]]
    if len(layers) % 2 == 0 or len(layers) < 3 or not all(isinstance(m, nn.Linear) for m in dense):
        return "the model must be dense layers with one activation between each two of them"
    modules = [m for _, m in layers[:-3]]
    front = tuple(zip(cast("list[nn.Linear]", modules[::2]), modules[1::2], strict=True))
    network, seen = _last_two(layers, gradient)
    if not front:
        return Deep(network=network, gradient=seen, kind="two layers")
    d = front[0][0].in_features
    scale = _pair_scale(front, network.weights, d)
    if scale is not None:
        network, seen = _narrowed(network, d), _with(seen, lambda g: g[:, :d] - g[:, d : 2 * d])
        return Deep(network=network, gradient=seen, scale=scale, kind="pass-through")
    why = _not_invertible(front)
    if why:
        return why
    if bool(network.weights[:, d:].any()):
        return Deep(network=network, gradient=seen, front=front, kind="eavesdropper")
    # Nothing is seen of neurons past the d-th: a server's identity layers.
    network, seen = _narrowed(network, d), _with(seen, lambda g: g[:, :d])
    front = tuple(_square(layer, d) for layer in front)
    return Deep(network=network, gradient=seen, front=front, kind="pass-through")


def _last_two(
    layers: list[tuple[str, nn.Module]], gradient: Weights
) -> tuple[TwoLayer, BatchGradient]:
    (before, hidden), (_, activation), (last, head) = layers[-3:]

    def held(layer: nn.Module, name: str) -> Tensor | None:
        value = getattr(layer, name)
        return None if value is None else value.detach().double()

    def seen(prefix: str, name: str) -> Tensor | None:
        value = gradient.get(prefix + name)
        return None if value is None else value.detach().double()

    weights, top = held(hidden, "weight"), held(head, "weight")
    assert weights is not None
    assert top is not None
    network = TwoLayer(
        weights=weights,
        head=top,
        activation=activation,
        bias=held(hidden, "bias"),
        head_bias=held(head, "bias"),
    )
    return network, BatchGradient(
        weights=seen(before, "weight"),
        head=seen(last, "weight"),
        bias=seen(before, "bias"),
        head_bias=seen(last, "bias"),
    )


def _pair_scale(front: tuple[Layer, ...], weights: Tensor, d: int) -> float | None:
    """c, where the last hidden layer sees c (x, -x) through [z, -z, 0]; None where it does not."""
    if weights.shape[1] < 2 * d or bool(weights[:, 2 * d :].any()):
        return None
    z = weights[:, :d]
    if not torch.allclose(weights[:, d : 2 * d], -z):
        return None
    probe = torch.linspace(-2, 2, 3 * d, dtype=torch.float64).reshape(3, d)
    with torch.no_grad():
        h = probe
        for linear, activation in front:
            h = activation(nn.functional.linear(h, linear.weight.double(), _bias(linear)))
    passed = h[:, :d] - h[:, d : 2 * d]
    scale = float((passed * probe).sum() / probe.square().sum())
    return scale if scale > 0 and torch.allclose(passed, scale * probe, atol=1e-5) else None


def _bias(linear: nn.Linear) -> Tensor | None:
    return None if linear.bias is None else linear.bias.double()


def _narrowed(network: TwoLayer, d: int) -> TwoLayer:
    return replace(network, weights=network.weights[:, :d])


def _with(seen: BatchGradient, change: Callable[[Tensor], Tensor]) -> BatchGradient:
    return seen if seen.weights is None else replace(seen, weights=change(seen.weights))


def _not_invertible(front: tuple[Layer, ...]) -> str | None:
    for linear, activation in front:
        if type(activation) not in BIJECTIONS:
            return f"{type(activation).__name__} cannot be undone behind the first layers"
        if linear.out_features < linear.in_features:
            sizes = f"{linear.in_features} to {linear.out_features}"
            return f"a layer from {sizes} cannot be undone: it has fewer neurons than inputs"
    return None


def _square(layer: Layer, d: int) -> Layer:
    """The first d neurons of a layer, on its first d inputs."""
    linear, activation = layer
    cut = nn.Linear(d, d, bias=linear.bias is not None, dtype=torch.float64)
    with torch.no_grad():
        cut.weight.copy_(linear.weight[:d, :d])
        if linear.bias is not None:
            cut.bias.copy_(linear.bias[:d])
    return cut, activation
