"""A user's module whose forward is one chain of layers, as the nn.Sequential that it is.

Solvers read layers off an nn.Sequential. Modules that only wrap one, or that call a few layers and
functions in turn, compute the same and are taken apart here; everything else stays as it is.
"""

from __future__ import annotations

import copy
import operator
from typing import Any

import torch
from torch import Tensor, fx, nn
from torch.nn import functional as F

from remnant.models.stack import first_with_weights

FUNCTIONS: dict[Any, type[nn.Module]] = {
    **dict.fromkeys((torch.relu, F.relu, "relu"), nn.ReLU),
    **dict.fromkeys((torch.tanh, F.tanh, "tanh"), nn.Tanh),
    **dict.fromkeys((torch.sigmoid, F.sigmoid, "sigmoid"), nn.Sigmoid),
    **dict.fromkeys((torch.flatten, "flatten", "view", "reshape"), nn.Flatten),
    F.gelu: nn.GELU,
    F.elu: nn.ELU,
    F.silu: nn.SiLU,
    F.leaky_relu: nn.LeakyReLU,
    F.softplus: nn.Softplus,
    F.dropout: nn.Identity,  # the released model is in evaluation mode
}


class _Children(fx.Tracer):
    """Records calls of layers without looking into them."""

    def is_leaf_module(self, m: nn.Module, module_qualified_name: str) -> bool:
        return True


def unwrapped(model: nn.Module) -> nn.Module:
    """The chain under the model's own names, if it gives the same outputs; else the model."""
    if isinstance(model, nn.Sequential) or not list(model.children()):
        return model
    try:
        chain = _chain(copy.deepcopy(model).eval())
        same = chain is not None and _alike(model, chain)
    except KeyboardInterrupt:
        raise
    except BaseException:  # a user's forward may do, and raise, anything: it then stays as it is
        return model
    return chain.train(model.training) if same and chain is not None else model


def _chain(model: nn.Module) -> nn.Sequential | None:
    layers: dict[str, nn.Module] = {}
    value: fx.Node | None = None
    for node in _Children().trace(model).nodes:
        if node.op == "placeholder" and value is None:
            value = node
        elif node.op == "output":
            if node.args != (value,):
                return None
        elif _is_size(node):
            continue  # x.view(x.size(0), -1)
        elif not node.args or node.args[0] is not value:
            return None
        elif node.op == "call_module" and "." not in str(node.target):
            name = str(node.target)
            layer = model.get_submodule(name)
            if name in layers:  # one ReLU for all is a habit; shared weights are no chain
                if list(layer.parameters()):
                    return None
                name = node.name
            layers[name] = unwrapped(layer)
            value = node
        elif node.op in ("call_function", "call_method") and node.target in FUNCTIONS:
            layers[f"{node.name}_"] = FUNCTIONS[node.target]()
            value = node
        else:
            return None
    chain = nn.Sequential()
    for name, layer in layers.items():
        chain.add_module(name, layer)
    return chain if chain.state_dict().keys() == model.state_dict().keys() else None


def _is_size(node: fx.Node) -> bool:
    if node.op == "call_method":
        return node.target == "size"
    return node.op == "call_function" and node.target in (getattr, operator.getitem)


def _alike(model: nn.Module, chain: nn.Module) -> bool:
    """Whether both give the same outputs for random inputs."""
    model, chain = (copy.deepcopy(m).double().eval() for m in (model, chain))
    generator = torch.Generator().manual_seed(0)
    for shape in _shapes(chain):
        inputs = torch.randn(3, *shape, generator=generator, dtype=torch.float64)
        try:
            with torch.no_grad():
                outputs: Tensor = model(inputs)
        except RuntimeError:
            continue  # an image of another size
        with torch.no_grad():
            return torch.allclose(outputs, chain(inputs), rtol=1e-9, atol=1e-12)
    return False


def _shapes(
    model: nn.Module, *, sides: tuple[int, ...] = (8, 28, 32, 16, 64, 224)
) -> list[tuple[int, ...]]:
    """Shapes of one input that the first layer with weights may take; images of these sides."""
    first = first_with_weights(model)
    if isinstance(first, nn.Linear):
        return [(first.in_features,)]
    if isinstance(first, nn.Conv2d):
        return [(first.in_channels, side, side) for side in sides]
    return []
