"""The outputs and gradients of K models of one kind at once, from their stacked weights (K x shape
each)."""

from __future__ import annotations

from collections.abc import Callable, Sequence

import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap
from torch.nn import functional as F

from remnant.errors import InputError, expected
from remnant.gradients.factors import elementwise
from remnant.models.stack import leaves
from remnant.training.losses import loss_named
from remnant.training.private import clip_factors
from remnant.training.recipes import PrivateDescent

Forward = Callable[[Sequence[Tensor], Tensor, bool], Tensor]
"""(stacked weights, inputs, shared) -> K x c x n. Shared inputs are n x shape, own ones K x n x
shape. Outputs come before records: products then need no transposing, and a softmax over ten
entries that lie apart is twenty times as fast as over ten that lie together."""


def stacked_forward(model: nn.Module) -> Forward:
    """Batched matrix products for dense networks, `vmap` for any other model. Weights are of the
    parameters that are trained, in the model's order."""
    layers, names = dense_stack(model), trained_names(model)
    if layers is None or len(names) < len(list(model.parameters())):
        return _mapped(model, names)

    def forward(weights: Sequence[Tensor], inputs: Tensor, shared: bool) -> Tensor:
        features, left = _columns(inputs, shared), list(weights)
        for layer in layers:
            features = _through(layer, left, features)
        return features

    return forward


def _columns(inputs: Tensor, shared: bool) -> Tensor:
    """d x n, or K x d x n."""
    return inputs.flatten(1).T if shared else inputs.flatten(2).transpose(1, 2)


def _through(layer: nn.Module, left: list[Tensor], features: Tensor) -> Tensor:
    """A layer's outputs; a dense one takes its weights from the front of `left`."""
    if not isinstance(layer, nn.Linear):
        outputs: Tensor = layer(features)
        return outputs
    outputs = product(left.pop(0), features)
    return outputs if layer.bias is None else outputs + left.pop(0)[:, :, None]


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


def dense_stack(model: nn.Module) -> list[nn.Module] | None:
    """The layers of a Sequential of Flatten, Linear and elementwise activations, else None."""
    blocks = [m for m in model.modules() if isinstance(m, nn.Sequential)]
    layers = [layer for _, layer in leaves(model)]
    while layers and type(layers[0]) is nn.Flatten:
        layers = layers[1:]
    linear = [layer for layer in layers if isinstance(layer, nn.Linear)]
    known = all(type(layer) is nn.Linear or elementwise(layer) for layer in layers)
    tied = len({id(layer) for layer in linear}) < len(linear)
    plain = all(type(block) is nn.Sequential for block in blocks) and known and not tied
    return layers if plain and linear and layers[0] is linear[0] else None


def trained_names(model: nn.Module) -> list[str]:
    """Of the parameters that are not frozen, in the model's order."""
    return [name for name, parameter in model.named_parameters() if parameter.requires_grad]


def _mapped(model: nn.Module, names: Sequence[str]) -> Forward:
    def one(weights: tuple[Tensor, ...], inputs: Tensor) -> Tensor:
        outputs: Tensor = functional_call(model, dict(zip(names, weights, strict=True)), (inputs,))
        return outputs

    def forward(weights: Sequence[Tensor], inputs: Tensor, shared: bool) -> Tensor:
        mapped: Tensor = vmap(one, in_dims=(0, None if shared else 0))(tuple(weights), inputs)
        return mapped.transpose(1, 2)

    return forward


def check_private(model: nn.Module, recipe: PrivateDescent) -> list[nn.Module]:
    """The layers of a dense network, or an error if many private runs of the recipe on this model
    cannot be done at once."""
    if recipe.sampling < 1:
        raise InputError(expected("private fleet: sampling", "1, full batches", recipe.sampling))
    layers = dense_stack(model)
    if layers is None or len(trained_names(model)) < len(list(model.parameters())):
        wanted = "dense layers and activations, all trained"
        raise InputError(expected("private fleet: model", wanted, type(model).__name__))
    return layers


def clipped_sum(
    model: nn.Module,
    recipe: PrivateDescent,
    weights: Sequence[Tensor],
    inputs: Tensor,
    labels: Tensor,
    *,
    graph: bool = False,
) -> list[Tensor]:
    """For each of K dense networks (K x shape each) the sum of its records' clipped gradients.

    A record's gradient in a dense layer is d a^T, signal times input, so that its norm is |d| |a|
    and its clipped sum one matrix product: no gradient of a single record is ever written down.
    labels: n, or K x n with inputs K x n x shape. graph: keep it for differentiation.
    """
    features, left = _columns(inputs, labels.ndim == 1), list(weights)
    seen, before, biased = [], [], []
    for layer in check_private(model, recipe):
        if isinstance(layer, nn.Linear):
            seen.append(features)
            biased.append(layer.bias is not None)
        features = _through(layer, left, features)
        if isinstance(layer, nn.Linear):
            if not features.requires_grad:
                features.requires_grad_()
            before.append(features)
    wanted = labels.expand(len(weights[0]), -1)
    summed = stacked_loss(recipe.loss, features, wanted) * wanted.shape[1]
    signals = torch.autograd.grad(summed, before, create_graph=graph)
    if not graph:
        seen = [a.detach() for a in seen]
    squares = [
        d.square().sum(1) * (a.square().sum(-2) + float(bias))
        for d, a, bias in zip(signals, seen, biased, strict=True)
    ]
    factors = torch.ones_like(squares[0])[:, None]
    if recipe.clipping:  # a root has no slope at 0
        norms = torch.stack(squares).sum(0).clamp(min=1e-30).sqrt()
        factors = clip_factors(norms, recipe.clip)[:, None]
    sums = []
    for d, a, bias in zip(signals, seen, biased, strict=True):
        # What is not finite belongs to a record whose factor is 0, and 0 times infinity is not.
        cut = torch.where(factors > 0, factors * d, 0.0)
        sums.append(product(cut, a.nan_to_num(0.0, 0.0, 0.0).transpose(-2, -1)))
        if bias:
            sums.append(cut.sum(2))
    return sums
