"""ReLU made smooth, so that a parameter gradient can be differentiated in the input.

The second derivative of ReLU is zero almost everywhere: descent on gradients would never see how a
pattern of active units changes. Paper 003 smooths the backward pass only, paper 000 the function.
"""

from __future__ import annotations

import copy
from itertools import chain

import torch.nn.functional as F
from torch import Tensor, nn

from remnant.errors import InputError, expected


class SmoothReLU(nn.Module):
    """Exactly ReLU; its derivative is sigmoid(alpha x), which can be differentiated again."""

    def __init__(self, alpha: float) -> None:
        super().__init__()
        if not alpha > 0:
            raise InputError(expected("smoothing: alpha", "a positive number", alpha))
        self.alpha = alpha

    def forward(self, x: Tensor) -> Tensor:
        # Beyond the threshold torch draws a straight line: at 50, unlike its default of 20, that is
        # the same in double precision.
        smooth = F.softplus(x, beta=self.alpha, threshold=50.0)
        return F.relu(x).detach() + (smooth - smooth.detach())

    def extra_repr(self) -> str:
        return f"alpha={self.alpha}"


def smoothed(
    model: nn.Module, *, alpha: float | None = None, beta: float | None = None
) -> nn.Module:
    """A copy of the model that shares its parameters, each nn.ReLU replaced.

    `alpha`: by SmoothReLU(alpha). `beta`: by softplus(beta x) / beta. Other activations, and ReLUs
    called as functions inside a module's own forward, stay as they are.
    """
    _smooth(alpha, beta)  # before anything is copied
    # What deepcopy believes to be copied already, it shares.
    shared = {id(value): value for value in chain(model.parameters(), model.buffers())}
    twin: nn.Module = copy.deepcopy(model, shared)
    for name, module in list(twin.named_modules(remove_duplicate=False)):
        if isinstance(module, nn.ReLU):
            smooth = _smooth(alpha, beta).train(module.training)
            if name == "":
                return smooth
            twin.set_submodule(name, smooth)
    return twin


def _smooth(alpha: float | None, beta: float | None) -> nn.Module:
    if (alpha is None) == (beta is None):
        raise InputError(expected("smoothing", "one of alpha and beta", f"{alpha} and {beta}"))
    if alpha is not None:
        return SmoothReLU(alpha)
    if beta is None or not beta > 0:
        raise InputError(expected("smoothing: beta", "a positive number", beta))
    return nn.Softplus(beta=beta)
