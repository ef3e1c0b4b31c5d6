"""Deep dense networks as the two-layer network that they end in (paper 002, section 4.2).

The last hidden layer and the output are a two-layer network whose inputs are what the layers
before them make of the batch. A malicious server sends layers that pass the batch through
(`models.malicious`): what was recovered is the batch itself. Behind random layers with invertible
activations an eavesdropper undoes them one by one (`eavesdrop`).
"""

from __future__ import annotations

import copy
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import cast

import torch
from torch import Tensor, nn

from remnant.models.stack import working
from remnant.solvers.dense.one_gradient import leak_of
from remnant.solvers.tensor.eavesdrop import Layer, undo_directions, undo_layers, why_not_undone
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

    @property
    def smooth_end(self) -> bool:
        """Whether the last hidden layer is smooth and sees the batch itself."""
        activation = self.network.activation
        rough = isinstance(activation, nn.Module) and leak_of(activation) is not None
        return self.kind != "eavesdropper" and not rough

    def to_inputs(self, seen: Tensor) -> Tensor:
        """k x d from what the last hidden layer sees, k x d'."""
        return undo_layers(self.front, seen)[0] / self.scale

    def directions_to_inputs(self, seen: Tensor, norm: float | None) -> Tensor:
        """The same where the lengths are estimates: behind layers they are searched for.

        norm: the inputs' common one, needed where a layer has no more neurons than inputs.
        """
        return undo_directions(self.front, seen, norm=norm) if self.front else self.to_inputs(seen)


def read_deep(model: nn.Module, gradient: Weights) -> Deep | str:
    """A dense network of any depth and its gradient, or in a sentence why it cannot be read."""
    layers = working(model, nn.Flatten)
    dense = [m for _, m in layers[::2]]
    if len(layers) % 2 == 0 or len(layers) < 3 or not all(isinstance(m, nn.Linear) for m in dense):
        return "the model must be dense layers with one activation between each two of them"
    modules = [m for _, m in layers[:-3]]
    front = tuple(zip(cast("list[nn.Linear]", modules[::2]), modules[1::2], strict=True))
    read = _last_two(layers, gradient)
    if not front:
        return read
    weights, d = read.network.weights, front[0][0].in_features
    scale = _pair_scale(front, weights, d)
    if scale is not None:
        return _narrowed(replace(read, scale=scale), d, lambda g: g[:, :d] - g[:, d : 2 * d])
    why = why_not_undone(front)
    if why:
        return why
    if bool(weights[:, d:].any()):
        return replace(read, front=front, kind="eavesdropper")
    # Nothing is seen of neurons past the d-th: a server's identity layers.
    front = tuple(_square(layer, d) for layer in front)
    return _narrowed(replace(read, front=front), d, lambda g: g[:, :d])


def _last_two(layers: list[tuple[str, nn.Module]], gradient: Weights) -> Deep:
    (before, hidden), (_, activation), (last, head) = layers[-3:]

    def double(value: Tensor | None) -> Tensor | None:
        return None if value is None else value.detach().double()

    weights, top = double(hidden.weight), double(head.weight)  # type: ignore[arg-type]
    assert weights is not None
    assert top is not None
    network = TwoLayer(
        weights=weights,
        head=top,
        activation=activation,
        bias=double(hidden.bias),  # type: ignore[arg-type]
        head_bias=double(head.bias),  # type: ignore[arg-type]
    )
    seen = BatchGradient(
        weights=double(gradient.get(f"{before}weight")),
        head=double(gradient.get(f"{last}weight")),
        bias=double(gradient.get(f"{before}bias")),
        head_bias=double(gradient.get(f"{last}bias")),
    )
    return Deep(network=network, gradient=seen, kind="two layers")


def _narrowed(read: Deep, d: int, change: Callable[[Tensor], Tensor]) -> Deep:
    """A server's network, of what its last hidden layer sees of the inputs."""
    seen = read.gradient.weights
    gradient = replace(read.gradient, weights=None if seen is None else change(seen))
    network = replace(read.network, weights=read.network.weights[:, :d])
    return replace(read, network=network, gradient=gradient, kind="pass-through")


def _pair_scale(front: tuple[Layer, ...], weights: Tensor, d: int) -> float | None:
    """The factor c of a server's network whose layers hand x on as pairs of opposite sign, so that
    the last hidden layer sees c x and -c x; None where this network does not."""
    if weights.shape[1] < 2 * d or bool(weights[:, 2 * d :].any()):
        return None
    if not torch.allclose(weights[:, d : 2 * d], -weights[:, :d]):
        return None
    probe = torch.linspace(-2, 2, 3 * d, dtype=torch.float64).reshape(3, d)
    layers = copy.deepcopy(nn.Sequential(*(module for layer in front for module in layer)))
    with torch.no_grad():
        h = layers.double()(probe)
    passed = h[:, :d] - h[:, d : 2 * d]
    scale = float((passed * probe).sum() / probe.square().sum())
    return scale if scale > 0 and torch.allclose(passed, scale * probe, atol=1e-5) else None


def _square(layer: Layer, d: int) -> Layer:
    """The first d neurons of a layer, on its first d inputs."""
    linear, activation = layer
    cut = nn.Linear(d, d, bias=linear.bias is not None, dtype=torch.float64)
    with torch.no_grad():
        cut.weight.copy_(linear.weight[:d, :d])
        if linear.bias is not None:
            cut.bias.copy_(linear.bias[:d])
    return cut, activation
