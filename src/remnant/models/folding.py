"""Batch norm in evaluation mode made part of the dense layer or convolution before it.

There it is an affine map of each output, z -> F z + s with F = gamma / sqrt(running variance): the
network computes the same without it, with weights F W. What a gradient or a training wrote into W
is F times what it would have written into F W, so that sums of gradients are divided by F.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

from remnant.models.stack import leaves

NORMS = (nn.BatchNorm1d, nn.BatchNorm2d)


@dataclass(frozen=True, kw_only=True, eq=False)
class Folding:
    """A stack of layers without its batch norm, in float64, and where each norm stood: the prefixes
    of the layer's names and of the norm's."""

    model: nn.Module
    norms: tuple[tuple[str, str, nn.Module], ...]

    def weights(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The parameters of `model` from those of the network with its norms."""
        weights = self._others(held)
        for layer, norm, module in self.norms:
            weight, factor = held[f"{layer}weight"].double(), _factor(module, norm, held)
            bias = held.get(f"{layer}bias", torch.zeros_like(factor)).double()
            shift = held.get(f"{norm}bias", torch.zeros_like(factor)).double()
            weights[f"{layer}weight"] = _along(factor, weight) * weight
            weights[f"{layer}bias"] = factor * (bias - _mean(module)) + shift
        return weights

    def gradients(self, held: Mapping[str, Tensor], at: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """A sum of gradients by the parameters of `model`, from one by those of the network with
        its norms at the weights `at`; a bias that was not trained has none."""
        sums = self._others(held)
        for layer, norm, module in self.norms:
            factor = _factor(module, norm, at)
            inverse = torch.where(factor == 0, 0.0, 1 / factor)  # a silent output learned nothing
            name = f"{layer}weight"
            weight = held[name].double() if name in held else torch.zeros_like(at[name]).double()
            sums[name] = _along(inverse, weight) * weight
            own, shift = held.get(f"{layer}bias"), held.get(f"{norm}bias")
            if own is not None and bool(own.any()):  # the norm's is not the same sum once it moved
                sums[f"{layer}bias"] = inverse * own.double()
            else:
                sums[f"{layer}bias"] = torch.zeros_like(factor) if shift is None else shift.double()
        return sums

    def _others(self, held: Mapping[str, Tensor]) -> dict[str, Tensor]:
        own = dict(self.model.named_parameters())
        return {name: value.double() for name, value in held.items() if name in own}


def fold(model: nn.Module) -> Folding | None:
    """The stack without batch norm; None where none follows a dense layer or a convolution."""
    found = []
    for (layer, first), (norm, then) in pairwise(leaves(model)):
        if isinstance(then, NORMS) and isinstance(first, nn.Linear | nn.Conv2d):
            if then.running_mean is None or then.running_var is None:
                return None
            found.append((layer, norm, then))
    if not found:
        return None
    other = copy.deepcopy(model).double()
    for layer, norm, _ in found:
        kept = other.get_submodule(layer.removesuffix("."))
        weight = kept.weight
        assert isinstance(weight, Tensor)
        kept.bias = nn.Parameter(weight.new_zeros(len(weight)))
        parent, _, name = norm.removesuffix(".").rpartition(".")
        setattr(other.get_submodule(parent), name, nn.Identity())
    folding = Folding(model=other, norms=tuple(found))
    whole = dict(model.named_parameters())
    with torch.no_grad():
        for name, value in folding.weights(whole).items():
            other.get_parameter(name).copy_(value)
    return folding


def statistics_moved(model: nn.Module, before: Mapping[str, Tensor]) -> bool:
    """Whether batch norm's running statistics are others than those, as far as these tell."""
    return any(
        name in before and not torch.equal(before[name].to(value), value)
        for name, value in model.named_buffers()
        if name.endswith(("running_mean", "running_var"))
    )


def _factor(module: nn.Module, norm: str, held: Mapping[str, Tensor]) -> Tensor:
    variance = module.running_var
    assert isinstance(variance, Tensor)
    assert isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d)
    scale = held.get(f"{norm}weight", torch.ones_like(variance)).double()
    return scale.detach() / variance.double().add(module.eps).sqrt()


def _mean(module: nn.Module) -> Tensor:
    mean = module.running_mean
    assert isinstance(mean, Tensor)
    return mean.double()


def _along(factor: Tensor, weight: Tensor) -> Tensor:
    """w x 1 ..., to multiply the rows of a weight."""
    return factor.reshape(-1, *(1 for _ in weight.shape[1:]))
