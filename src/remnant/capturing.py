"""The gradient that an adversary would see: computed for a batch, or taken from a training loop.

    gradient = capture(model, "ce", (inputs, labels))
    save_gradient("gradient.safetensors", gradient)

or in one's own loop, where nothing else changes:

    with capture_step(model, "gradient.safetensors"):
        loss_function(model(inputs), labels).backward()

A gradient file holds one tensor per parameter, named as in the state dict. It gives the batch away,
as the attacks show: it is written readable by the owner alone.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.models import save_weights
from remnant.training.batch_gradient import batch_gradient as capture
from remnant.training.batch_gradient import moved_statistics, running_statistics, trained_parameters
from remnant.types import Weights

__all__ = ["GradientHook", "capture", "capture_step", "save_gradient"]


def save_gradient(path: str | os.PathLike[str], gradient: Weights) -> None:
    """Write safetensors whole or not at all, readable by the owner alone."""
    for name, value in gradient.items():
        if not bool(torch.isfinite(value).all()):
            do = "look for a diverged or overflowed step"
            raise InputError(expected(f"gradient: {name}", "finite numbers", "NaN or infinity", do))
    save_weights(path, gradient)


@contextmanager
def capture_step(model: nn.Module, path: str | os.PathLike[str]) -> Iterator[None]:
    """Write the gradient that the block adds to the model: one backward(), or several summed.

    What the parameters held before the block is taken off again, so gradients accumulated earlier
    do not matter. The block must not clear them (call zero_grad before it). Frozen parameters are
    left out; batch norm's running statistics are there as the block left them, if it moved them.
    Nothing is written if the block raises.
    """
    trained, statistics = trained_parameters(model), running_statistics(model)
    before = {name: p.grad.detach().clone() for name, p in trained.items() if p.grad is not None}
    yield
    if all(parameter.grad is None for parameter in trained.values()):
        do = "call loss.backward() inside the block"
        raise InputError(expected("capture", "a gradient after the block", "none", do))
    added = {n: _added(p, before.get(n)) for n, p in trained.items()}
    save_gradient(path, added | moved_statistics(model, statistics))


class GradientHook(AbstractContextManager["GradientHook"]):
    """Writes the gradient that an optimiser's chosen step uses; a training loop stays as it is.

        with GradientHook("gradient.safetensors", model, optimizer, step=10):
            train(model, optimizer)

    Steps count from 0. The gradient is read when `optimizer.step()` begins, so whatever the loop
    did before (accumulation over several backward passes, clipping, unscaling) is in it. `written`
    tells whether that step came. Leave the block or call `remove` to take the hook away.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        model: nn.Module,
        optimizer: torch.optim.Optimizer,
        *,
        step: int = 0,
    ) -> None:
        if step < 0:
            raise InputError(expected("capture: step", "0 or more", step))
        self.path, self.step = path, step
        self.seen, self.written = 0, False
        self._model, self._trained = model, trained_parameters(model)
        self._statistics = running_statistics(model)
        held = {id(p) for group in optimizer.param_groups for p in group["params"]}
        if not held & {id(parameter) for parameter in self._trained.values()}:
            raise InputError(
                expected("capture: optimizer", "one of the model's parameters", "others")
            )
        handle = optimizer.register_step_pre_hook(lambda *_: self._before_step())
        self.remove: Callable[[], None] = handle.remove

    def _before_step(self) -> None:
        if self.seen == self.step:
            held = {n: _added(p, None) for n, p in self._trained.items()}
            save_gradient(self.path, held | moved_statistics(self._model, self._statistics))
            self.written = True
        self._statistics = running_statistics(self._model)
        self.seen += 1

    def __exit__(self, *raised: object) -> None:
        self.remove()


def _added(parameter: nn.Parameter, before: Tensor | None) -> Tensor:
    if parameter.grad is None:
        return torch.zeros_like(parameter)
    after = parameter.grad.detach()
    return after if before is None else after - before
