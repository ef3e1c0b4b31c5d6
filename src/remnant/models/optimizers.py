"""A saved optimizer: its running mean of gradients, and the weights before its last step.

Adam keeps `exp_avg` for each parameter, SGD with momentum `momentum_buffer`: both are weighted sums
of the gradients that it was given. The file is read as weights are, without running code of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import Any

from torch import Tensor, nn

from remnant.errors import WeightsError, expected
from remnant.models.weights import TORCH_SUFFIXES, read_saved

_WRAPPERS = ("optimizer", "optimizer_state_dict", "optimizer_states")
_SUMS = ("exp_avg", "momentum_buffer")

State = Mapping[str, Any]


def read_optimizer(
    path: str | os.PathLike[str], model: nn.Module
) -> tuple[dict[str, Tensor], dict[str, Tensor] | None] | None:
    """The sum of gradients by the model's parameter names, and the weights before the last step of
    AdamW, if that was it; None where the file holds no optimizer."""
    if not str(path).lower().endswith(TORCH_SUFFIXES):
        return None
    held = _optimizer_in(read_saved(path))
    if held is None:
        return None
    states, groups = held["state"], held["param_groups"]
    order = [index for group in groups for index in group["params"]]
    names = _names(path, model, states, groups)
    gradient = dict[str, Tensor]()
    own = dict(model.named_parameters())
    for index in order:
        name, state = names[index], states.get(index, {})
        found = next((state[key] for key in _SUMS if isinstance(state.get(key), Tensor)), None)
        gradient[name] = own[name].detach() * 0 if found is None else found.float()
        if tuple(gradient[name].shape) != tuple(own[name].shape):
            what, got = f"{path}: {name}", tuple(gradient[name].shape)
            raise WeightsError(expected(what, tuple(own[name].shape), got))
    if not any(bool(value.any()) for value in gradient.values()):
        raise WeightsError(expected(f"{path}", "an optimizer with exp_avg", "one without sums"))
    rest = {name: p.detach() * 0 for name, p in own.items() if name not in gradient}
    return gradient | rest, _before(model, states, groups, names)


def _optimizer_in(held: object) -> State | None:
    for key in _WRAPPERS:
        inner = held.get(key) if isinstance(held, Mapping) else None
        if isinstance(inner, list) and len(inner) == 1:
            inner = inner[0]
        held = inner if isinstance(inner, Mapping) else held
    if not isinstance(held, Mapping) or not {"state", "param_groups"} <= held.keys():
        return None
    groups, states = held["param_groups"], held["state"]
    good = isinstance(groups, list) and isinstance(states, Mapping)
    good = good and all(isinstance(state, Mapping) for state in states.values())
    return held if good and all(_is_group(group) for group in groups) else None


def _is_group(group: object) -> bool:
    return isinstance(group, Mapping) and isinstance(group.get("params"), list) and all(
        type(index) is int for index in group["params"]
    )  # fmt: skip


def _names(
    path: object, model: nn.Module, states: State, groups: Sequence[State]
) -> dict[int, str]:
    """Which parameter each number stands for: all in the model's order, or matrices first and
    vectors (biases, norms), which do not decay, in a second group."""
    trained = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    split = [n for n, p in trained if p.ndim > 1] + [n for n, p in trained if p.ndim < 2]
    order = [index for group in groups for index in group["params"]]
    shapes = {name: tuple(p.shape) for name, p in trained}
    for names in ([name for name, _ in trained], split):
        if len(names) == len(order) == len(set(order)):
            pairs = zip(order, names, strict=True)
            if all(_shape(states.get(i)) in (None, shapes[name]) for i, name in pairs):
                return dict(zip(order, names, strict=True))
    do = "give the optimizer that was saved beside the model"
    wanted = f"a state for each of the model's {len(trained)} parameters, in their order"
    raise WeightsError(expected(f"{path}", wanted, f"{len(order)} others", do))


def _shape(state: State | None) -> tuple[int, ...] | None:
    value = next((state[key] for key in _SUMS if key in state), None) if state else None
    return tuple(value.shape) if isinstance(value, Tensor) else None


def _before(
    model: nn.Module, states: State, groups: Sequence[State], names: Mapping[int, str]
) -> dict[str, Tensor] | None:
    """The weights before AdamW's last step, which its state and settings tell exactly."""
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    for group in groups:
        rate, decay, eps, betas = (group.get(k) for k in ("lr", "weight_decay", "eps", "betas"))
        if not isinstance(rate, float) or not isinstance(eps, float):
            return None
        if not isinstance(betas, tuple | list) or len(betas) != 2:
            return None
        for index in group["params"]:
            state = states.get(index, {})
            mean, square, step = (state.get(k) for k in ("exp_avg", "exp_avg_sq", "step"))
            if not isinstance(mean, Tensor) or not isinstance(square, Tensor) or step is None:
                continue
            first, second = (1 - float(beta) ** float(step) for beta in betas)
            value = before[names[index]].double()
            move = mean.double() / first / ((square.double() / second).sqrt() + eps)
            shrunk = 1 - rate * float(decay or 0)
            before[names[index]] = ((value + rate * move) / shrunk).float()
    return before
