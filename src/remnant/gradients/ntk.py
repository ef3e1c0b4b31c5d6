"""Gram matrices of parameter gradients (the empirical NTK), and how far two of them are apart."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor, nn
from torch.func import jacrev, vmap

from remnant.errors import InputError, expected
from remnant.gradients.calls import blocks, call, parameters
from remnant.gradients.factors import Pass, forward, free, stranger
from remnant.gradients.rules import BLOCK, Side, add_layer
from remnant.types import Weights


def gram(
    model: nn.Module,
    inputs: Tensor,
    other: Tensor | None = None,
    *,
    weights: Weights | None = None,
    weights_other: Weights | None = None,
    per_class: bool = False,
) -> Tensor:
    """Inner products of parameter gradients at `inputs` and at `other` (None = the same inputs).

    K_ij = sum_k <grad f_k(x_i), grad f_k(x'_j)>, `n x n'`; with `per_class` every pair of outputs,
    `n x c x n' x c`. `weights_other` are those at which gradients of `other` are taken (None = the
    same). Stacks of Linear and Conv2d are computed layer by layer without a single gradient in
    memory; any other model as in `gram_autograd`.
    """
    _check_sides(model, weights, weights_other)
    if stranger(model) is not None:
        return gram_autograd(
            model,
            inputs,
            other,
            weights=weights,
            weights_other=weights_other,
            per_class=per_class,
        )
    with torch.inference_mode(False):
        with torch.enable_grad():
            left = right = forward(model, inputs, weights)
            if other is not None or weights_other is not None:
                there = weights if weights_other is None else weights_other
                right = forward(model, inputs if other is None else other, there)
        with torch.no_grad():
            return _layerwise(left, right, per_class)


def _check_sides(model: nn.Module, weights: Weights | None, weights_other: Weights | None) -> None:
    if weights_other is None:
        return
    odd = parameters(model, weights).keys() ^ parameters(model, weights_other).keys()
    if odd:
        got = f"{', '.join(sorted(odd))} on one side"
        raise InputError(expected("gram: weights", "the same parameters on both sides", got))


def _layerwise(left: Pass, right: Pass, per_class: bool) -> Tensor:
    n, c = left.outputs.shape
    rows = c if per_class else 1
    kernel = left.outputs.new_zeros(n, rows, len(right.outputs), rows)
    # The trace takes as many classes at a time as fit a block, so memory stays near n x width.
    width = sum(out.numel() for run in (left, right) for out in run.preactivations)
    for group in blocks(c, c if per_class else BLOCK // max(1, width)):
        classes = range(group.start, group.stop)
        signals = [left.signals(k) for k in classes]
        others = signals if right is left else [right.signals(k) for k in classes]
        for i, (layer, names) in enumerate(zip(left.layers, left.names, strict=True)):
            one = Side.of(layer, left.activations[i], [s[i] for s in signals], per_class)
            two = one
            if right is not left:
                two = Side.of(layer, right.activations[i], [s[i] for s in others], per_class)
            add_layer(kernel, one, two, names)
    return kernel if per_class else kernel[:, 0, :, 0]


def gram_autograd(
    model: nn.Module,
    inputs: Tensor,
    other: Tensor | None = None,
    *,
    weights: Weights | None = None,
    weights_other: Weights | None = None,
    per_class: bool = False,
    chunk: int | None = None,
) -> Tensor:
    """The same as `gram` for any model, from the gradients themselves, `chunk` inputs at a time."""
    _check_sides(model, weights, weights_other)
    alone = other is None and weights_other is None
    columns = inputs if other is None else other
    there = weights if weights_other is None else weights_other
    with torch.inference_mode(False), torch.no_grad():
        c = call(model, inputs[:1], weights).shape[1]
        size = c * sum(value.numel() for value in parameters(model, weights).values())
        step = chunk or 4 * BLOCK // size
        rows = c if per_class else 1  # a trace is one long row over all classes
        kernel = inputs.new_zeros(len(inputs), rows, len(columns), rows)
        for i in blocks(len(inputs), step):
            left = _jacobians(model, inputs[i], weights)
            for j in blocks(len(columns), step):
                if alone and j.start < i.start:  # mirrored below
                    continue
                same = alone and i == j
                right = left if same else _jacobians(model, columns[j], there)
                for name, value in left.items():
                    a, b = (v.reshape(len(v) * rows, -1) for v in (value, right[name]))
                    kernel[i, :, j] += (a @ b.T).view_as(kernel[i, :, j])
                if alone and not same:
                    kernel[j, :, i] = kernel[i, :, j].permute(2, 3, 0, 1)
    return kernel if per_class else kernel[:, 0, :, 0]


def _jacobians(model: nn.Module, inputs: Tensor, weights: Weights | None) -> dict[str, Tensor]:
    """Per parameter `n x c x size`."""
    values = {name: free(value) for name, value in parameters(model, weights).items()}
    inputs = free(inputs)

    def outputs(part: Weights, one: Tensor) -> Tensor:
        return call(model, one.unsqueeze(0), weights, part)[0]

    try:  # one class at a time: some modules cannot be mapped over classes and inputs at once
        found = vmap(jacrev(outputs, chunk_size=1), in_dims=(None, 0))(values, inputs)
    except RuntimeError:
        # Or not at all (a custom autograd.Function, say). A real fault comes up again in the loop.
        each = [_rows(outputs, values, one) for one in inputs]
        found = {name: torch.stack([rows[name] for rows in each]) for name in values}
    return {name: value.flatten(2) for name, value in found.items()}


def _rows(
    outputs: Callable[[Weights, Tensor], Tensor], values: Weights, one: Tensor
) -> dict[str, Tensor]:
    """At one input, per parameter `c x shape`, class by class."""
    leaves = {name: value.detach().requires_grad_() for name, value in values.items()}
    asked = list(leaves.values())
    with torch.enable_grad():
        each = [
            torch.autograd.grad(
                f, asked, retain_graph=True, allow_unused=True, materialize_grads=True
            )
            for f in outputs(leaves, one)
        ]
    return {
        name: torch.stack(rows) for name, rows in zip(leaves, zip(*each, strict=True), strict=True)
    }


def kernel_distance(initial: Tensor, final: Tensor) -> float:
    """1 - Tr(K0^T Kf) / (|K0| |Kf|): how far training moved the kernel (paper 000). 0 = not."""
    if initial.shape != final.shape:
        got = f"{tuple(initial.shape)} and {tuple(final.shape)}"
        raise InputError(expected("kernel distance", "two kernels of one shape", got))
    cosine = torch.cosine_similarity(initial.double().flatten(), final.double().flatten(), dim=0)
    return max(0.0, 1.0 - float(cosine))
