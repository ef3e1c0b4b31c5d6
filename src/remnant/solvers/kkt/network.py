"""What the attack on final weights needs of a model: its layers in order, and how they stand.

At a stationary point under weight decay, for every hidden neuron of a ReLU network,

    |incoming weights|^2 + bias^2 = |outgoing weights|^2

(both sides are sum_i lambda_i d_ij z_ij; without the bias where biases were not decayed; batch norm
behind the neuron adds its shift times its own bias to the left). This needs no data, so `imbalance`
tells an adversary, and an auditor, how far off the model is.

Batch norm that was frozen is an affine map of what a layer computes, z -> factor z + shift. It is
kept apart from the weights, not multiplied into them: decay pulls at the weights W, of which a
record wrote factor times what it would have written into factor W. In training mode weights before
it have no scale (W and 2W compute the same), so that decay leaves no stationary point; such a model
is out of balance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from itertools import pairwise

import torch
from torch import Tensor, nn

from remnant.models.stack import leaves

IDLE = (nn.Flatten, nn.Identity, nn.Dropout, nn.Dropout2d)
FROZEN = (nn.BatchNorm1d, nn.BatchNorm2d)
NORMS = (nn.modules.batchnorm._BatchNorm, nn.LayerNorm, nn.GroupNorm)


@dataclass(frozen=True, kw_only=True, eq=False)
class Layer:
    """Weights in float64: o x i (dense) or o x channels x height x width (a convolution).

    factor, shift: o, of the batch norm behind it, None where there is none. own_bias: o, of that.
    """

    weight: Tensor
    bias: Tensor | None
    factor: Tensor | None = None
    shift: Tensor | None = None
    own_bias: Tensor | None = None
    stride: tuple[int, int] = (1, 1)
    padding: tuple[int, int] = (0, 0)

    @property
    def conv(self) -> bool:
        return self.weight.ndim == 4


def read_network(model: nn.Module) -> tuple[Layer, ...] | str:
    """Convolutions, then dense layers, with ReLUs between; or in a sentence what else there is."""
    layers: list[Layer] = []
    relu = True
    for _, module in leaves(model):
        if isinstance(module, nn.Linear | nn.Conv2d):
            if not relu:
                return "two layers follow each other without a ReLU between them"
            if isinstance(module, nn.Conv2d):
                if layers and not layers[-1].conv:
                    return "a convolution follows a dense layer"
                if module.groups != 1 or module.dilation != (1, 1) or _padding(module) is None:
                    return "a convolution has groups, dilation or a padding other than zeros"
            layers.append(_layer(module))
            relu = False
        elif isinstance(module, nn.ReLU):
            relu = True
        elif isinstance(module, FROZEN) and not relu and layers[-1].factor is None:
            if module.running_mean is None or module.running_var is None:
                return "batch norm has no running statistics: it computes with the batch's own"
            layers[-1] = _normed(layers[-1], module)
        elif isinstance(module, NORMS):
            return f"the model has {type(module).__name__}: weights before it have no scale"
        elif not isinstance(module, IDLE):
            kind = type(module).__name__
            return f"layers must be Linear, Conv2d, ReLU and Flatten in order; one is {kind}"
    if len(layers) < 2 or relu or layers[-1].conv or layers[-1].factor is not None:
        return "the model must end with a dense layer after at least one hidden layer"
    return tuple(layers)


def _layer(module: nn.Linear | nn.Conv2d) -> Layer:
    weight = module.weight.detach().double()
    bias = None if module.bias is None else module.bias.detach().double()
    if isinstance(module, nn.Linear):
        return Layer(weight=weight, bias=bias)
    rows, columns = module.stride
    padding = _padding(module)
    assert padding is not None
    return Layer(weight=weight, bias=bias, stride=(rows, columns), padding=padding)


def _normed(layer: Layer, norm: nn.BatchNorm1d | nn.BatchNorm2d) -> Layer:
    """The layer with what frozen batch norm makes of its outputs."""
    assert norm.running_mean is not None
    assert norm.running_var is not None
    factor = 1 / norm.running_var.double().add(norm.eps).sqrt()
    if norm.affine:
        factor = factor * norm.weight.detach().double()
    own = torch.zeros_like(factor)
    if norm.affine:
        own = norm.bias.detach().double()
    shift = own - factor * norm.running_mean.double()
    return replace(layer, factor=factor, shift=shift, own_bias=own)


def _padding(conv: nn.Conv2d) -> tuple[int, int] | None:
    if isinstance(conv.padding, str):
        return (0, 0) if conv.padding == "valid" else None
    if conv.padding_mode != "zeros" and any(conv.padding):
        return None
    return conv.padding[0], conv.padding[1]


@dataclass(frozen=True, kw_only=True)
class Balance:
    """How far hidden neurons are from the balance of a stationary point: 0 = balanced, 1 = not.

    `imbalance` counts biases as decayed or not, whichever balances better; `bias_decayed` says.
    """

    imbalance: float
    bias_decayed: bool


def balance(layers: Sequence[Layer]) -> Balance:
    """sum_j |in_j - out_j| / sum_j (in_j + out_j) over the neurons of all hidden layers."""
    found = {}
    for decayed in (True, False):
        gap = total = 0.0
        for layer, after in pairwise(layers):
            entering = layer.weight.flatten(1).square().sum(1)
            if decayed and layer.bias is not None:
                entering = entering + layer.bias.square()
            if decayed and layer.shift is not None and layer.own_bias is not None:
                entering = entering + layer.shift * layer.own_bias
            leaving = _outgoing(after.weight, len(entering))
            gap += float((entering - leaving).abs().sum())
            total += float((entering + leaving).sum())
        found[decayed] = gap / max(total, torch.finfo(torch.float64).tiny)
    decayed = found[True] <= found[False]
    return Balance(imbalance=found[decayed], bias_decayed=decayed)


def _outgoing(weight: Tensor, count: int) -> Tensor:
    """Squared norms of what leaves each of `count` neurons or channels (flattened by channel)."""
    if weight.ndim == 4:
        return weight.square().sum((0, 2, 3))
    return weight.view(len(weight), count, -1).square().sum((0, 2))
