"""The records' own basis for a dense first layer.

Every gradient step changes W1 by a sum of delta_i x_i^T, so the part of W1 orthogonal to the n
records only decays: it is one number c times what it was. With Q (d x n) from the QR
decomposition of X^T, training W1 Q on X Q, and c by the same rule, is the same training in fewer
numbers. Householder's Q is orthonormal whatever the rank of X, so duplicates need no care.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn


@dataclass(frozen=True, kw_only=True, eq=False)
class Basis:
    """Where the reduced weight stands, Q (d x n) and W1's part outside its range (float64, CPU)."""

    weight: str
    q: Tensor
    outside: Tensor

    def expand(self, reduced: Tensor, c: Tensor) -> Tensor:
        """W1 (w x d, float64) from the reduced weight (w x n) and the outside part's factor."""
        return reduced.detach().double() @ self.q.T + c * self.outside


def reduced(model: nn.Module, inputs: Tensor) -> tuple[nn.Module, Tensor, Basis] | None:
    """A copy of the model on X Q (n x n), that input and the way back; None if it does not apply.

    It applies to an nn.Sequential that begins (after Flatten) with a trainable nn.Linear that
    shares its weight with no other layer, on fewer records than inputs.
    """
    name = _first_linear(model)
    x = inputs.flatten(1).double()
    if name is None or len(x) >= x.shape[1]:
        return None
    linear = model.get_submodule(name)
    assert isinstance(linear, nn.Linear)
    holders = [p for _, p in model.named_parameters(remove_duplicate=False) if p is linear.weight]
    if linear.in_features != x.shape[1] or not linear.weight.requires_grad or len(holders) > 1:
        return None
    q = torch.linalg.qr(x.T).Q
    w1 = linear.weight.detach().double()
    small = copy.deepcopy(model)
    layer = small.get_submodule(name)
    assert isinstance(layer, nn.Linear)
    layer.in_features = q.shape[1]
    layer.weight = nn.Parameter((w1 @ q).to(inputs))
    outside = w1 - (w1 @ q) @ q.T
    return small, (x @ q).to(inputs), Basis(weight=f"{name}.weight", q=q, outside=outside)


def _first_linear(module: nn.Module) -> str | None:
    """The name of the linear layer that the inputs reach first, unchanged but for their shape."""
    if type(module).forward is not nn.Sequential.forward:
        return None
    for name, child in module.named_children():
        if type(child) is nn.Linear:
            return name
        if type(child) is nn.Flatten and (child.start_dim, child.end_dim) == (1, -1):
            continue
        if type(child) is nn.Identity:
            continue
        inner = _first_linear(child)
        return f"{name}.{inner}" if inner else None
    return None
