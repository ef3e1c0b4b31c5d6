"""The outputs of K models of one kind at once, from their stacked weights (K x shape each)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from remnant.gradients.factors import elementwise
from remnant.training.losses import loss_named

Forward = Callable[[Sequence[Tensor], Tensor, bool], Tensor]
"""(stacked weights, inputs, shared) -> K x c x n. Shared inputs are n x shape, own ones K x n x
shape. Outputs come before records: products then need no transposing, and a softmax over ten
entries that lie apart is twenty times as fast as over ten that lie together."""


def stacked_forward(model: nn.Module) -> Forward:
    """Batched matrix products for dense networks, `vmap` for any other model."""
    layers = dense_layers(model)
    if layers is None:
        return _mapped(model)

    def forward(weights: Sequence[Tensor], inputs: Tensor, shared: bool) -> Tensor:
        features = inputs.flatten(1).T if shared else inputs.flatten(2).transpose(1, 2)
        left = list(weights)
        for layer in layers:
            if not isinstance(layer, nn.Linear):
                features = layer(features)
                continue
            weight = left.pop(0)
            features = product(weight, features)
            if layer.bias is not None:
                features = features + left.pop(0)[:, :, None]
        return features

    return forward


def stacked_loss(name: str, outputs: Tensor, labels: Tensor) -> Tensor:
    """The sum of K models' mean losses (outputs K x c x b, labels K x b): one gradient serves all,
    since each sees its own weights only."""
    if name == "ce":
        mean = F.cross_entropy(outputs, labels)
    else:
        mean = loss_named(name)(outputs.transpose(1, 2).flatten(0, 1), labels.flatten(0, 1))
    return mean * len(outputs)


def product(weight: Tensor, features: Tensor) -> Tensor:
    """K x h x d times d x n, as one product, or times K x d x n."""
    if features.ndim == 3:
        return torch.bmm(weight, features)
    count, wide, deep = weight.shape
    return (weight.reshape(count * wide, deep) @ features).view(count, wide, -1)


def dense_layers(model: nn.Module) -> list[nn.Module] | None:
    """The layers of an nn.Sequential of Flatten, Linear and elementwise activations, else None."""
    if type(model) is not nn.Sequential:
        return None
    layers = list(model)
    if layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    if not all(type(layer) is nn.Linear or elementwise(layer) for layer in layers):
        return None
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    tied = len({id(layer) for layer in linear}) < len(linear)
    return None if tied or not layers or layers[0] is not linear[0] else layers


def _mapped(model: nn.Module) -> Forward:
    names = [name for name, _ in model.named_parameters()]

    def one(weights: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, dict(zip(names, weights, strict=True)), (inputs,))
        return outputs

    def forward(weights: Sequence[Tensor], inputs: Tensor, shared: bool) -> Tensor:
        mapped: Tensor = vmap(one, in_dims=(0, None if shared else 0))(tuple(weights), inputs)
        return mapped.transpose(1, 2)

    return forward
