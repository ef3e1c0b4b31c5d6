"""The first-order Taylor model of a network about given weights (Loo et al. 2024, section 3)."""

from __future__ import annotations

from collections.abc import Callable
from copy import deepcopy
from typing import Self

from torch import Tensor, nn
from torch.func import functional_call, jvp

from remnant.types import Weights


class Linearised(nn.Module):
    """f(x; start) + J(x; start) (theta - start), linear in its parameters theta, which start at the
    model's present weights, as `start` does.

    It holds copies of the base model's children under the same names, so that its state dict
    is the base model's and weights save, load and align the same way.
    """

    def __init__(self, model: nn.Module) -> None:
        super().__init__()
        theta = deepcopy(model)
        # The plain dictionaries: named_children() leaves out the second name of a shared child.
        for name, child in theta._modules.items():
            self.add_module(name, child)
        for name, parameter in theta._parameters.items():
            self.register_parameter(name, parameter)
        for name, buffer in theta._buffers.items():
            kept = name not in theta._non_persistent_buffers_set
            self.register_buffer(name, buffer, persistent=kept)
        # A tuple, so that the fixed copy stays out of parameters() and of the state dict.
        self._about = (deepcopy(model).requires_grad_(False),)
        self.train(model.training)

    @property
    def base(self) -> nn.Module:
        """The network at the weights about which it is linearised."""
        return self._about[0]

    @property
    def start(self) -> Weights:
        """The weights about which the network is linearised, by parameter name."""
        return {name: p.detach() for name, p in self.base.named_parameters()}

    def forward(self, x: Tensor) -> Tensor:
        start, buffers, slots = dict(self.start), dict(self.named_buffers()), self._slots()
        moved = {name: p - start[name] for name, p in self.named_parameters()}

        def output(theta: dict[str, Tensor]) -> Tensor:
            held = {slot: theta[name] for slot, name in slots.items()}
            value: Tensor = functional_call(self.base, (held, buffers), (x,), tie_weights=False)
            return value

        value, change = jvp(output, (start,), (moved,))[:2]
        total: Tensor = value + change
        return total

    def _slots(self) -> dict[str, str]:
        """Where each parameter sits in the base, and under which name it is known.

        functional_call ties weights itself, but on a module that is used under two names it does
        not put the old ones back; so every module is named once here.
        """
        names = {id(p): name for name, p in self.base.named_parameters()}
        return {
            f"{prefix}.{leaf}" if prefix else leaf: names[id(p)]
            for prefix, module in self.base.named_modules()
            for leaf, p in module.named_parameters(recurse=False, remove_duplicate=False)
        }

    def train(self, mode: bool = True) -> Self:
        self.base.train(mode)
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        self.base._apply(fn, recurse)  # .to() moves both copies
        return super()._apply(fn, recurse)  # type: ignore[no-any-return, no-untyped-call]
