"""What solvers read off a user's network: the consecutive dense layers that the exact ones work on,
and the labels of recovered records, from what its first and last layer learned of each."""

from __future__ import annotations

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remnant.models.stack import working
from remnant.solvers.numerics import best_fit, with_one
from remnant.types import Evidence, Target, Weights

_NOT_DENSE = (nn.Flatten, nn.Conv2d, nn.ReLU, nn.LeakyReLU, nn.MaxPool2d, nn.AvgPool2d)


@dataclass(frozen=True, kw_only=True)
class Dense:
    """A dense layer by its parameters' names."""

    weight: str
    bias: str | None

    def affine(self, weights: Weights) -> Tensor:
        """w x (d+1): weights with the bias as last column (w x d where there is none)."""
        if self.bias is None:
            return weights[self.weight]
        return torch.cat([weights[self.weight], weights[self.bias][:, None]], dim=1)


@dataclass(frozen=True, kw_only=True)
class Pair:
    """Two consecutive dense layers and the activation between them."""

    first: Dense
    activation: nn.Module
    next: Dense
    last: bool  # `next` is the output layer


def first_pair(model: nn.Module, *, after_convolutions: bool = False) -> Pair | str:
    """The first two dense layers with the activation between them, or a sentence on why the model
    does not begin so.

    after_convolutions: other layers, such as convolutions, may come before them.
    """
    every = layers = working(model)
    skipped = nn.Flatten if not after_convolutions else _NOT_DENSE
    while layers and isinstance(layers[0][1], skipped):
        layers = layers[1:]
    kinds = [module for _, module in layers[:3]]
    if len(kinds) < 3 or not isinstance(kinds[0], nn.Linear):
        found = type(kinds[0]).__name__ if kinds else "nothing"
        begun = len(every) - len(layers)
        where = (
            f"behind its first {type(every[0][1]).__name__} comes" if begun else "it begins with"
        )
        return (
            f"the model must begin with dense layers in an nn.Sequential; {where} {found} "
            "(a factory may return the nn.Sequential that a module wraps)"
        )
    if not isinstance(kinds[2], nn.Linear):
        kind = type(kinds[2]).__name__
        return f"a second dense layer must follow the first activation; {kind} does"
    return Pair(
        first=_dense(layers[0][0], kinds[0]),
        activation=kinds[1],
        next=_dense(layers[2][0], kinds[2]),
        last=len(layers) == 3,
    )


def _dense(prefix: str, layer: nn.Linear) -> Dense:
    return Dense(weight=f"{prefix}weight", bias=None if layer.bias is None else f"{prefix}bias")


def read_labels(
    model: nn.Module, evidence: Evidence, inputs: Tensor, duals: Tensor
) -> Tensor | None:
    """The class of each recovered record, from what the first dense layer learned of it; None where
    that does not tell.

    inputs: k x shape in the model's scale. duals: k x w. A record's dual is sum_c r_c s_c, where
    s_c is the derivative of output c by the first layer's pre-activations and r_c the record's
    residual in that output, added up over the training: it is largest at the record's own class.
    Each record is read from its own dual alone. A model with a single output may be a regression,
    so its duals tell no class.
    """
    ends = [class_signals(model, weights, inputs) for weights in (evidence.start, evidence.end)]
    signals = (ends[0] + ends[1]) / 2  # k x c x w; the training moved between the two
    if signals.shape[1] < 2:
        return None
    return best_fit(signals.mT, duals[:, :, None])[:, :, 0].argmax(1)


def class_signals(model: nn.Module, weights: Weights, inputs: Tensor) -> Tensor:
    """k x c x w: derivatives of each output by the pre-activations of the first dense layer."""
    outputs, layers = seen(model, weights, inputs)
    first = layers[0][1]
    columns = [
        torch.autograd.grad(outputs[:, c].sum(), first, retain_graph=True)[0]
        for c in range(outputs.shape[1])
    ]
    return torch.stack(columns, dim=1)


def output_residuals(
    model: nn.Module, evidence: Evidence, inputs: Tensor, *, training: bool = False
) -> Tensor | None:
    """dL/df of each record (k x c) for inputs k x shape in the model's scale; of a batch that the
    model saw in training mode, where batch norm mixes it.

    The output layer's gradient is sum_i r_i h_i^T, its features h_i follow from the inputs. None
    where the last dense layer is not the output, or there are more records than features tell
    apart.
    """
    outputs, layers = seen(model, evidence.start, inputs, training=training)
    h, last, name = layers[-1]
    if last is not outputs:
        return None
    h, gradient = h.detach(), evidence.vector[f"{name}.weight"]
    if f"{name}.bias" in evidence.vector:
        h = with_one(h)
        gradient = torch.cat([gradient, evidence.vector[f"{name}.bias"][:, None]], dim=1)
    if len(h) > h.shape[1]:
        return None
    return best_fit(h.T, gradient.T)


def labels_from(target: Target, residuals: Tensor | None, inputs: Tensor) -> Tensor | None:
    """Labels of records from the residuals dL/df (k x c) at inputs (k x shape, the model's scale).

    Classes; under the square loss of one output, the numbers that the outputs were compared with.
    None where nothing tells them: one output whose loss is not known.
    """
    if residuals is None:
        return None
    loss = target.knowledge.loss
    if loss == "mse":
        model = copy.deepcopy(target.model).double().eval()
        with torch.no_grad():
            outputs = model(inputs.reshape(-1, *target.input_shape).double())
        wanted: Tensor = outputs - residuals * len(inputs) / 2  # dL/df = 2 (f - y) / k
        return wanted[:, 0] if wanted.shape[1] == 1 else wanted.argmax(1)
    if residuals.shape[1] > 1:
        return residuals.argmin(1)
    return (residuals[:, 0] < 0).long() if loss == "bce" else None


def seen(
    model: nn.Module, weights: Weights, inputs: Tensor, *, training: bool = False
) -> tuple[Tensor, list[tuple[Tensor, Tensor, str]]]:
    """The outputs at inputs (k x shape), and of every dense layer, in order of evaluation, what
    enters it, what leaves it, and its name. In double precision."""
    model, inputs = copy.deepcopy(model).double().train(training), inputs.detach().double()
    layers: list[tuple[Tensor, Tensor, str]] = []
    for name, module in model.named_modules():
        if isinstance(module, nn.Linear):
            module.register_forward_hook(
                lambda _, entered, left, name=name: layers.append((entered[0], left, name))
            )
    with torch.enable_grad():
        outputs: Tensor = functional_call(model, dict(weights), (inputs.requires_grad_(),))
    return outputs, layers
