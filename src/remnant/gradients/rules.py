"""Closed rules: what one layer adds to a Gram matrix, from its activations and signals.

Dense or convolutional, a layer applies one weight at `p` positions of its input (a dense layer at
one). The gradient of f_k(x_i) in it is sum_p s_ikp a_ip^T with patches a (`n x p x d`) and signals
s (`n x c x p x o`), so an inner product of two gradients is either

    pairs      sum_pq <a_ip, a'_jq> <s_ikp, s'_jlq>    no gradient is formed; cheap at few positions
    gradients  the small o x d matrices themselves     cheap at many positions, few channels

and the cheaper is taken, in blocks that bound memory.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from remnant.gradients.calls import blocks

BLOCK = 2**23
"""How many numbers a block of temporary results may hold: 64 MB in double precision."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Side:
    """One layer's factors on one side of a Gram matrix."""

    layer: nn.Linear | nn.Conv2d
    activations: Tensor  # n x channels x height x width, or n x positions x channels
    signals: Tensor  # n x c x positions x o

    @classmethod
    def of(
        cls,
        layer: nn.Linear | nn.Conv2d,
        activations: Tensor,
        signals: Sequence[Tensor],
        per_class: bool,
    ) -> Side:
        """From what a pass gave, one tensor of signals a class.

        For a trace over classes they are laid side by side as if they were more outputs:
        sum_k <s_k, s'_k> is the inner product of the row (s_1 .. s_c) with (s'_1 .. s'_c).
        """
        if isinstance(layer, nn.Conv2d):
            flat = [s.flatten(2).transpose(1, 2) for s in signals]
        else:
            activations, flat = _positions(activations), [_positions(s) for s in signals]
        joint = torch.stack(flat, dim=1) if per_class else torch.cat(flat, dim=-1).unsqueeze(1)
        return cls(layer=layer, activations=activations, signals=joint)

    @property
    def channels(self) -> int:
        return self.activations.shape[1 if isinstance(self.layer, nn.Conv2d) else 2]

    @property
    def taps(self) -> int:
        """How many numbers of one channel a patch holds."""
        layer = self.layer
        return layer.kernel_size[0] * layer.kernel_size[1] if isinstance(layer, nn.Conv2d) else 1

    def patches(self, rows: slice, channels: slice) -> Tensor:
        """What the weight met at each position: rows x positions x (channels * taps)."""
        layer = self.layer
        if isinstance(layer, nn.Linear):
            return self.activations[rows, :, channels]
        padded = _padded(self.activations[rows, channels], layer)
        unfolded = F.unfold(padded, layer.kernel_size, layer.dilation, stride=layer.stride)
        return unfolded.transpose(1, 2)


def _positions(values: Tensor) -> Tensor:
    """n x d or n x anything x d -> n x positions x d."""
    return values.unsqueeze(1) if values.ndim == 2 else values.flatten(1, -2)


def _padded(maps: Tensor, layer: nn.Conv2d) -> Tensor:
    if layer.padding in {"valid", (0, 0)}:
        return maps
    if layer.padding == "same":
        spare = [d * (k - 1) for d, k in zip(layer.dilation, layer.kernel_size, strict=True)]
        ends = [(s // 2, s - s // 2) for s in spare]
    else:
        ends = [(int(p), int(p)) for p in layer.padding]
    mode = "constant" if layer.padding_mode == "zeros" else layer.padding_mode
    return F.pad(maps, (*ends[1], *ends[0]), mode=mode)


def add_layer(
    kernel: Tensor, left: Side, right: Side, names: tuple[str | None, str | None]
) -> None:
    """Add one layer's inner products to `kernel`, n x c x n' x c, in place.

    `names` are its weight and bias, None where no gradient is taken for them.
    """
    weight, bias = (name is not None for name in names)
    n, c, p, o = left.signals.shape
    m, _, q, _ = right.signals.shape
    d = left.channels * left.taps
    pairs = n * m * p * q * (d + c * c * (o + 1))
    gradients = (n * p + m * q) * c * d * o + n * m * c * c * d * o
    if weight and pairs <= gradients:
        _add_pairs(kernel, left, right, 1.0 if bias else 0.0)
        return
    if weight:
        _add_gradients(kernel, left, right)
    if bias:
        _add_products(kernel, left.signals.sum(2), right.signals.sum(2))


def _add_pairs(kernel: Tensor, left: Side, right: Side, constant: float) -> None:
    """(A A'^T + constant) * (S S'^T), summed over pairs of positions; constant 1 is the bias."""
    n, c, p, _ = left.signals.shape
    m, _, q, _ = right.signals.shape
    pair = p * q * (1 + c * c)
    columns = max(1, min(m, BLOCK // pair))
    everything = slice(None)
    for i in blocks(n, BLOCK // (pair * columns)):
        a, s = left.patches(i, everything), left.signals[i].flatten(0, 2)
        for j in blocks(m, columns):
            b, t = right.patches(j, everything), right.signals[j].flatten(0, 2)
            inputs = (a.flatten(0, 1) @ b.flatten(0, 1).T).add_(constant)
            inputs = inputs.view(len(a), 1, p, len(b), 1, q)
            outputs = (s @ t.T).view(len(a), c, p, len(b), c, q)
            kernel[i, :, j] += outputs.mul_(inputs).sum((2, 5))


def _add_gradients(kernel: Tensor, left: Side, right: Side) -> None:
    """Gradients of some input channels at a time: no gradient is needed twice, none is whole."""
    n, c, p, o = left.signals.shape
    m, _, q, _ = right.signals.shape
    channel = left.taps * (n * (p + c * o) + m * (q + c * o))
    for part in blocks(left.channels, BLOCK // channel):
        found = _gradients(left, part)
        _add_products(kernel, found, found if left is right else _gradients(right, part))


def _gradients(side: Side, channels: slice) -> Tensor:
    patches = side.patches(slice(None), channels)
    return (side.signals.transpose(2, 3) @ patches.unsqueeze(1)).flatten(2)


def _add_products(kernel: Tensor, left: Tensor, right: Tensor) -> None:
    """Inner products of n x c x size with n' x c x size."""
    kernel += (left.flatten(0, 1) @ right.flatten(0, 1).T).view(kernel.shape)
