"""The layers before a network's first dense one: a piecewise linear map with sparse Jacobian."""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.errors import InputError, expected
from remnant.models.stack import working

Step = nn.Conv2d | nn.ReLU | nn.LeakyReLU | nn.MaxPool2d
LAYERS = "Conv2d, ReLU, LeakyReLU, MaxPool2d, AvgPool2d and Flatten before the first Linear"


@dataclass(frozen=True, kw_only=True, eq=False)
class Prefix:
    """The layers before the features, their last activation taken off where that is possible.

    slope: of that activation's negative side, None where none was taken off. affine: no mask or
    maximum is left inside, so equations are linear in the image.
    """

    steps: Sequence[Step]
    maps: Sequence[sp.csr_matrix | None]  # a convolution's matrix, outputs x inputs
    slope: float | None
    shape: tuple[int, ...]  # of an image
    outputs: tuple[int, ...]  # of the features before they are flattened

    @property
    def affine(self) -> bool:
        return all(isinstance(step, nn.Conv2d) for step in self.steps)


def read_prefix(model: nn.Module, input_shape: tuple[int, ...]) -> Prefix:
    """What stands before the first Linear of a (nested) nn.Sequential, in float64."""
    if len(input_shape) != 3:
        raise InputError(expected("input shape", "channels x height x width", input_shape))
    steps: list[Step] = []
    maps: list[sp.csr_matrix | None] = []
    x = torch.zeros(1, *input_shape, dtype=torch.float64)
    for layer in _before_dense(model):
        step = _as_step(layer, x.shape[1])
        maps.append(matrix(step, tuple(x.shape[1:])) if isinstance(step, nn.Conv2d) else None)
        steps.append(step)
        x = step(x)
    if not any(isinstance(step, nn.Conv2d) for step in steps):
        raise InputError(expected("model", "a convolution before the first Linear", "none"))
    # ReLU is monotone: it commutes with a maximum, and behind it it can be taken off.
    last = max(i for i, step in enumerate(steps) if not isinstance(step, nn.MaxPool2d))
    slope = None
    if isinstance(steps[last], nn.ReLU | nn.LeakyReLU):
        slope = float(getattr(steps[last], "negative_slope", 0.0))
        del steps[last], maps[last]
    return Prefix(
        steps=steps, maps=maps, slope=slope, shape=input_shape, outputs=tuple(x.shape[1:])
    )


def _before_dense(model: nn.Module) -> list[nn.Module]:
    """The layers before the first Linear, in order, without those that do nothing there."""
    layers = [m for _, m in working(model, nn.Flatten)] if isinstance(model, nn.Sequential) else []
    for i, layer in enumerate(layers):
        if isinstance(layer, nn.Linear):
            return layers[:i]
    raise InputError(expected("model", f"an nn.Sequential with {LAYERS}", type(model).__name__))


def _as_step(layer: nn.Module, channels: int) -> Step:
    """The layer in float64, apart from the model's; average pooling as a convolution."""
    if isinstance(layer, nn.AvgPool2d):
        if layer.ceil_mode or layer.padding not in (0, (0, 0)) or layer.divisor_override:
            raise InputError(expected("AvgPool2d", "no padding and no ceil_mode", layer))
        mean = nn.Conv2d(
            channels, channels, layer.kernel_size, layer.stride, groups=channels, bias=False
        )
        mean.weight.data.fill_(1).div_(mean.weight[0].numel())
        return mean.double().requires_grad_(False)
    if isinstance(layer, nn.Conv2d | nn.ReLU | nn.LeakyReLU | nn.MaxPool2d):
        if isinstance(layer, nn.LeakyReLU) and not layer.negative_slope > 0:
            raise InputError(expected("LeakyReLU", "a positive slope", layer.negative_slope))
        step = copy.deepcopy(layer).double().requires_grad_(False)
        if isinstance(step, nn.MaxPool2d):
            step.return_indices = False
        elif not isinstance(step, nn.Conv2d):
            step.inplace = False
        return step
    raise InputError(expected("model", LAYERS, type(layer).__name__))


def matrix(conv: nn.Conv2d, shape: tuple[int, ...]) -> sp.csr_matrix:
    """The convolution without its bias as a sparse matrix, outputs x inputs of that shape."""
    count = int(np.prod(shape))
    index = torch.arange(1, count + 1, dtype=torch.float64).view(1, *shape)  # 0 is padding
    mode = "constant" if conv.padding_mode == "zeros" else conv.padding_mode
    index = F.pad(index, conv._reversed_padding_repeated_twice, mode=mode)
    met = F.unfold(index, conv.kernel_size, conv.dilation, stride=conv.stride)[0].long() - 1
    taps, positions = met.shape
    out, groups = conv.out_channels, conv.groups
    met = met.view(groups, 1, taps // groups, positions)
    kernel = conv.weight.detach().double().view(groups, out // groups, taps // groups, 1)
    rows = torch.arange(out * positions).view(groups, out // groups, 1, positions)
    columns, values, rows = torch.broadcast_tensors(met, kernel, rows)
    inside = columns >= 0
    entries = (values[inside].numpy(), (rows[inside].numpy(), columns[inside].numpy()))
    return sp.csr_matrix(entries, shape=(out * positions, count))


def jacobian(prefix: Prefix, values: Sequence[Tensor], rows: NDArray[np.bool_]) -> sp.csr_matrix:
    """Of the chosen features in the image at one estimate: rows x pixels, sparse."""
    found: sp.csr_matrix | None = None
    last = len(prefix.steps) - 1
    for i, (step, map_, value) in enumerate(
        zip(prefix.steps, prefix.maps, values[:-1], strict=True)
    ):
        if map_ is not None:
            map_ = map_[rows] if i == last else map_
            found = map_ if found is None else map_ @ found
            continue
        if found is None:
            found = sp.eye(value.numel(), format="csr")
        if isinstance(step, nn.MaxPool2d):
            chosen = _argmax(step, value)
            found = found[chosen[rows] if i == last else chosen]
        else:
            slope = float(getattr(step, "negative_slope", 0.0))
            factor = np.where(value.flatten().numpy() > 0, 1.0, slope)
            keep = factor.nonzero()[0]
            scale = sp.csr_matrix((factor[keep], (keep, keep)), shape=(len(factor), len(factor)))
            found = scale @ found
            found = found[rows] if i == last else found
    assert found is not None
    return found


def _argmax(step: nn.MaxPool2d, value: Tensor) -> NDArray[np.int64]:
    """Which input each output of a maximum came from."""
    _, inside = F.max_pool2d(
        value,
        step.kernel_size,
        step.stride,
        step.padding,
        step.dilation,
        step.ceil_mode,
        return_indices=True,
    )
    plane = value.shape[2] * value.shape[3]
    chosen: NDArray[np.int64] = (
        (inside + plane * torch.arange(value.shape[1]).view(1, -1, 1, 1)).flatten().numpy()
    )
    return chosen
