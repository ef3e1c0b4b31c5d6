"""The objective's slopes in closed form, for dense layers with softplus between them.

What automatic differentiation finds, in a third of its time. Layer l takes A_l and has the signal
S_l, the last of which are the duals:

    z_l = A_l W_l^T + b_l    A_{l+1} = softplus(z_l)
    T_l = S_{l+1} W_{l+1}    S_l = T_l softplus'(z_l)

The loss is a sum over layers of functions of A_l and S_l. Its slopes go back along the signals to
the duals, and from there along the activations to the inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.solvers.descent.objective import Objective
from remnant.types import Weights

Layers = list[tuple[str, nn.Softplus | None]]
BEFORE = (nn.Flatten, nn.Identity, nn.Dropout)  # may stand before the first layer


@dataclass(frozen=True, kw_only=True, eq=False)
class Pass:
    """Of each layer its inputs and signals; of all but the last what a softplus needs."""

    weights: Sequence[Tensor]
    inputs: Sequence[Tensor]
    signals: Sequence[Tensor]
    pulled: Sequence[Tensor]  # T_l
    first: Sequence[Tensor]  # derivatives of the softplus at z_l
    second: Sequence[Tensor]


@torch.no_grad()
def stack_slopes(
    goal: Objective, inputs: Tensor, duals: Tensor
) -> tuple[float, Tensor, Tensor] | None:
    """The loss and its slopes in inputs and duals; None where the model is no plain stack."""
    layers = stack_of(goal.model)
    # A layer that takes sequences is none of the objective's dense ones.
    if layers is None or [name for name, _ in layers] != list(goal.dense):
        return None
    parts = duals.chunk(len(goal.points), dim=1)
    runs = [
        _run(goal.model, layers, point, inputs, part)
        for part, point in zip(parts, goal.points, strict=True)
    ]
    loss = 0.0
    into: list[list[Tensor]] = [[] for _ in runs]  # slopes of each layer's inputs, by point
    signals: list[list[Tensor]] = [[] for _ in runs]
    for at, (name, _) in enumerate(layers):
        part, by_input, by_signal = _layer_slopes(
            goal,
            name,
            torch.cat([run.inputs[at] for run in runs]),
            torch.cat([run.signals[at] for run in runs]),
        )
        loss += part
        for slopes, whole in ((into, by_input), (signals, by_signal)):
            for mine, share in zip(slopes, whole.chunk(len(runs)), strict=True):
                mine.append(share)
    ends = [_back(*each) for each in zip(runs, into, signals, strict=True)]
    by_inputs = torch.stack([x for x, _ in ends]).sum(0).reshape(inputs.shape)
    return loss, by_inputs, torch.cat([a for _, a in ends], dim=1)


def stack_of(model: nn.Module) -> Layers | None:
    """Every dense layer by name with the softplus behind it, none behind the last."""
    if not isinstance(model, nn.Sequential):
        return None
    layers: Layers = []
    for name, module in model.named_children():  # a module that stands twice comes once
        if type(module) is nn.Linear and (not layers or layers[-1][1] is not None):
            layers.append((name, None))
        elif type(module) is nn.Softplus and layers and layers[-1][1] is None:
            layers[-1] = (layers[-1][0], module)
        elif layers or not isinstance(module, BEFORE):
            return None
    alone = sum(1 for name, _ in layers for _ in model.get_submodule(name).parameters())
    tied = alone != len(list(model.parameters()))
    return layers if layers and layers[-1][1] is None and not tied else None


def _run(model: nn.Module, layers: Layers, point: Weights, inputs: Tensor, duals: Tensor) -> Pass:
    """Forward through all layers but the last, whose outputs nothing asks for, and back."""
    given = dict(model.named_parameters()) | dict(point)
    weights = [given[f"{name}.weight"] for name, _ in layers]
    into, first, second = [inputs.flatten(1)], [], []
    for (name, softplus), weight in zip(layers, weights, strict=True):
        if softplus is not None:
            before = nn.functional.linear(into[-1], weight, given.get(f"{name}.bias"))
            scaled = softplus.beta * before
            # Beyond its threshold PyTorch's softplus is a straight line.
            slope = torch.sigmoid(scaled).masked_fill_(scaled > softplus.threshold, 1.0)
            into.append(softplus(before))
            first.append(slope)
            second.append((slope - slope.square()).mul_(softplus.beta))
    signals, pulled = [duals], []
    for weight, slope in zip(reversed(weights[1:]), reversed(first), strict=True):
        pulled.append(signals[-1] @ weight)
        signals.append(pulled[-1] * slope)
    return Pass(
        weights=weights, inputs=into, signals=signals[::-1], pulled=pulled[::-1], first=first,
        second=second,
    )  # fmt: skip


def _layer_slopes(
    goal: Objective, name: str, into: Tensor, signals: Tensor
) -> tuple[float, Tensor, Tensor]:
    """A layer's part of the loss, as in `Objective.loss`, and its slopes in inputs and signals."""
    weight, bias = f"{name}.weight", f"{name}.bias"
    loss, by_input, by_signal = 0.0, torch.zeros_like(into), torch.zeros_like(signals)
    if weight in goal.vector and goal.forms_sum(weight, len(into)):
        missing = goal.vector[weight] - signals.T @ into
        loss = missing.square().sum().item()
        by_input, by_signal = signals @ missing, into @ missing.T
    elif weight in goal.vector:
        if weight in goal.thin:
            left, right = goal.thin[weight]
            by_input, by_signal = (signals @ left) @ right.T, (into @ right) @ left.T
        else:
            by_input, by_signal = signals @ goal.vector[weight], into @ goal.vector[weight].T
        cross = (by_signal * signals).sum().item()
        alike, same = into @ into.T, signals @ signals.T
        loss = goal.sizes[weight] - 2 * cross + (alike * same).sum().item()
        by_input.addmm_(same, into, alpha=-1)
        by_signal.addmm_(alike, signals, alpha=-1)
    if bias in goal.vector:
        lacking = goal.vector[bias] - signals.sum(0)
        counts = goal.importance.get(bias, 1.0)
        loss += counts * lacking.square().sum().item()
        by_signal.add_(lacking, alpha=counts)
    return loss, by_input.mul_(-2), by_signal.mul_(-2)


def _back(
    run: Pass, by_input: Sequence[Tensor], by_signal: Sequence[Tensor]
) -> tuple[Tensor, Tensor]:
    """Slopes in the first inputs and in the duals, from those in every layer's own."""
    down, up, bent = list(by_input), list(by_signal), []
    for at, (slope, pulled) in enumerate(zip(run.first, run.pulled, strict=True)):
        bent.append(up[at] * pulled)
        up[at + 1] = torch.addmm(up[at + 1], up[at] * slope, run.weights[at + 1].T)
    for at in reversed(range(len(run.first))):
        before = (down[at + 1] * run.first[at]).addcmul_(bent[at], run.second[at])
        down[at] = torch.addmm(down[at], before, run.weights[at])
    return down[0], up[-1]
