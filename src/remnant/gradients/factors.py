"""What parameter gradients of a stack are made of: activations into and signals out of each layer.

For a dense layer, the gradient of f_k(x_i) in its weight is the outer product of one signal and one
activation, so `n` gradients are `n x (in + out)` numbers where they would be `n x in x out`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remnant.errors import InputError, expected
from remnant.gradients.calls import parameters
from remnant.gradients.smoothing import SmoothReLU
from remnant.types import Weights

# Without parameters, and each input of a batch on its own. A module of another room joins them by
# saying `elementwise = True` in its class.
_ELEMENTWISE = {
    *(nn.Identity, nn.ReLU, nn.LeakyReLU, nn.ReLU6, nn.ELU, nn.SELU, nn.CELU, nn.GELU, nn.SiLU),
    *(nn.Mish, nn.Tanh, nn.Sigmoid, nn.LogSigmoid, nn.Softplus, nn.Softsign, nn.Tanhshrink),
    *(nn.Hardtanh, nn.Hardsigmoid, nn.Hardswish, SmoothReLU),
}
_POOLING = {nn.AvgPool2d, nn.AdaptiveAvgPool2d}


def elementwise(module: nn.Module) -> bool:
    """Whether the module is an activation, each number of its input on its own."""
    kind = type(module)
    return kind in _ELEMENTWISE or getattr(kind, "elementwise", False) is True


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """A forward pass through a stack, its graph alive: per layer with parameters, and the end.

    names: of each layer's weight and bias, None where there is none or it is held still.
    """

    names: Sequence[tuple[str | None, str | None]]
    layers: Sequence[nn.Linear | nn.Conv2d]
    activations: Sequence[Tensor]  # into each layer
    preactivations: Sequence[Tensor]  # out of each layer
    outputs: Tensor  # n x c

    def signals(self, k: int) -> tuple[Tensor, ...]:
        """The derivative of every f_k(x_i) in what each layer puts out, shaped like that."""
        ones = torch.zeros_like(self.outputs)  # inputs do not meet, so one pass serves all
        ones[:, k] = 1.0
        return torch.autograd.grad(
            self.outputs, list(self.preactivations), grad_outputs=ones, retain_graph=True
        )


def stranger(model: nn.Module) -> str | None:
    """The first module that layerwise rules do not know, or None where the model is a stack."""
    # Containers come before what they hold, and a Sequential runs in the order in which it lists.
    for name, module in model.named_modules(remove_duplicate=False):
        hooked = module._forward_hooks or module._forward_pre_hooks
        if hooked or not _known(module):
            return f"{type(module).__name__} ({name or 'the model'})"
    if len(list(model.parameters())) != len(list(model.named_parameters(remove_duplicate=False))):
        return "a parameter that two layers share"
    return None


def _known(module: nn.Module) -> bool:
    kind = type(module)  # a subclass may do anything
    if isinstance(module, nn.Sequential):
        return kind.forward is nn.Sequential.forward
    if isinstance(module, nn.Conv2d):
        return kind is nn.Conv2d and module.groups == 1
    if isinstance(module, nn.MaxPool2d):
        return kind is nn.MaxPool2d and not module.return_indices
    if isinstance(module, nn.Flatten):
        return kind is nn.Flatten and module.start_dim >= 1
    if isinstance(module, nn.Dropout | nn.Dropout2d):
        return kind in {nn.Dropout, nn.Dropout2d} and not module.training
    return kind is nn.Linear or kind in _POOLING or elementwise(module)


def forward(model: nn.Module, inputs: Tensor, weights: Weights | None) -> Pass:
    """Run a stack (see `stranger`) so that signals can be asked for; call it with grad enabled."""
    asked = parameters(model, weights)
    given = dict(model.named_parameters()) | asked
    names, layers, into, out = [], [], [], []
    hidden = free(inputs)
    for name, module in model.named_modules(remove_duplicate=False):
        if isinstance(module, nn.Linear | nn.Conv2d):
            full = {key: f"{name}.{key}" if name else key for key in ("weight", "bias")}
            own = {key: free(given[full[key]]) for key, _ in module.named_parameters()}
            names.append((_among(asked, full["weight"]), _among(asked, full["bias"])))
            layers.append(module)
            into.append(hidden.detach())
            hidden = functional_call(module, own, (hidden,))
            if not hidden.requires_grad:  # the first layer: nothing before it needs a graph
                hidden.requires_grad_()
            out.append(hidden)
        elif not isinstance(module, nn.Sequential):
            # A clone, because what a layer puts out must survive an activation in place.
            hidden = module(hidden.clone() if getattr(module, "inplace", False) else hidden)
    if hidden.ndim != 2 or not layers:
        got = f"{tuple(hidden.shape)} from {len(layers)} layers"
        raise InputError(expected("model outputs", "n x c from layers with parameters", got))
    return Pass(names=names, layers=layers, activations=into, preactivations=out, outputs=hidden)


def _among(asked: Weights, name: str) -> str | None:
    return name if name in asked else None


def free(value: Tensor) -> Tensor:
    """Without a graph; a tensor from inference mode has to be copied before a graph may hold it."""
    return value.detach().clone() if value.is_inference() else value.detach()
