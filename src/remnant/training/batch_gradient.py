"""The gradient of the training loss over a batch, as a client of federated learning sends it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.models.foreign import real_outputs
from remnant.models.tokens import is_causal, outputs_for
from remnant.training.losses import Loss, check_labels, loss_named, next_token
from remnant.types import Examples


def batch_gradient(
    model: nn.Module, loss: str | Loss, batch: Examples | tuple[Tensor, Tensor]
) -> dict[str, Tensor]:
    """The gradient of the loss over a batch at the model's weights, by parameter name.

    loss: a name from remnant.training.LOSSES, or a function (outputs, labels) -> one number.
    batch: inputs in the model's own scale and labels. Inputs may be tokens, n x length whole
    numbers, -1 after a sequence's end; the labels of a language model are then n x length tokens
    (negative = no loss there; its own inputs if the batch is Examples), and a model that sees only
    what came before is trained on the next token. The model's mode (training or evaluation),
    its `requires_grad` flags and any gradients it holds stay as they are; frozen parameters are
    left out, and parameters that the loss does not reach have gradient zero. A forward pass in
    training mode moves batch norm's running statistics, as it does in training: what they became
    is there too, by name, since a client sends them with its update.
    """
    inputs, labels = (batch.inputs, batch.labels) if isinstance(batch, Examples) else batch
    if len(inputs) != len(labels) or not len(inputs):
        got = f"{len(inputs)} inputs and {len(labels)} labels"
        raise InputError(expected("batch", "one label an input, at least one", got))
    trained, before = trained_parameters(model), running_statistics(model)
    with torch.enable_grad():
        outputs = real_outputs(outputs_for(model, inputs), len(inputs), "model")
        if outputs.ndim == 3 and isinstance(batch, Examples):
            labels = inputs
        value = batch_loss(model, loss, inputs, outputs, labels)
        if value.numel() != 1:
            raise InputError(expected("loss", "one number", tuple(value.shape), "take its mean"))
        found = torch.autograd.grad(value.sum(), list(trained.values()), allow_unused=True)
    return moved_statistics(model, before) | {
        name: torch.zeros_like(parameter) if gradient is None else gradient.detach()
        for (name, parameter), gradient in zip(trained.items(), found, strict=True)
    }


def running_statistics(model: nn.Module) -> dict[str, Tensor]:
    """Copies of batch norm's running means and variances, by name."""
    held = dict(model.named_buffers())
    ends = ("running_mean", "running_var")
    return {name: held[name].detach().clone() for name in held if name.endswith(ends)}


def batch_loss(
    model: nn.Module, loss: str | Loss, inputs: Tensor, outputs: Tensor, labels: Tensor
) -> Tensor:
    """The loss of a batch by its outputs: of tokens at each place, or one a record."""
    if not isinstance(loss, str):
        return loss(outputs, labels)
    if outputs.ndim == 3 and not inputs.is_floating_point():
        if loss != "ce":
            raise InputError(expected("loss of a language model", "ce", loss))
        return next_token(outputs, labels, shifted=is_causal(model, inputs))
    check_labels(loss, outputs, labels)
    return loss_named(loss)(outputs, labels)


def trained_parameters(model: nn.Module) -> dict[str, nn.Parameter]:
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    if not trained:
        do = "set requires_grad on those that are trained"
        raise InputError(expected("model", "parameters that are trained", "none", do))
    return trained


def moved_statistics(model: nn.Module, before: dict[str, Tensor]) -> dict[str, Tensor]:
    """Batch norm's running statistics that are no longer what they were before."""
    now = running_statistics(model)
    return {name: value for name, value in now.items() if not torch.equal(value, before[name])}
