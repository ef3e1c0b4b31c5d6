"""A saved optimizer: its running sum of gradients, and the weights before its last step.

Adam keeps `exp_avg` for each parameter, SGD with momentum `momentum_buffer`: both are weighted sums
of the gradients that it was given, after one step that step's gradient. The file is read as weights
are, without running code of it.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from torch import Tensor, nn

from remnant.errors import WeightsError, expected
from remnant.models.weights import TORCH_SUFFIXES, read_saved

_WRAPPERS = ("optimizer", "optimizer_state_dict", "optimizer_states")
_SUMS = ("exp_avg", "momentum_buffer")

State = Mapping[str, Any]


@dataclass(frozen=True, kw_only=True, eq=False)
class Saved:
    """What an optimizer kept of the training, by the model's parameter names."""

    gradient: dict[str, Tensor]  # the sum of gradients
    before: dict[str, Tensor]  # the weights before the last step
    whose: str  # what that sum is, in words


def read_optimizer(path: str | os.PathLike[str], model: nn.Module) -> Saved | None:
    """What the file's optimizer kept; None where the file holds none. model: at the weights that
    were saved with it."""
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
        _check_kind(path, groups, state)
        found = next((state[key] for key in _SUMS if isinstance(state.get(key), Tensor)), None)
        gradient[name] = own[name].detach() * 0 if found is None else found.float()
        if tuple(gradient[name].shape) != tuple(own[name].shape):
            what, got = f"{path}: {name}", tuple(gradient[name].shape)
            raise WeightsError(expected(what, tuple(own[name].shape), got))
    if not any(bool(value.any()) for value in gradient.values()):
        raise WeightsError(expected(f"{path}", "an optimizer with exp_avg", "one without sums"))
    rest = {name: p.detach() * 0 for name, p in own.items() if name not in gradient}
    before = {name: p.detach().clone() for name, p in own.items()}
    for group in groups:
        for index in group["params"]:
            name, state = names[index], states.get(index, {})
            undone = _undone(group, state, before[name].double(), gradient[name].double())
            before[name], gradient[name] = (value.float() for value in undone)
    return Saved(gradient=gradient | rest, before=before, whose=_whose(states))


def _check_kind(path: object, groups: Sequence[State], state: State) -> None:
    """Refuse optimizers whose sums are of something else than the gradients: divided by their size
    (RMSprop), of a gradient turned round, or undone otherwise (NAdam, RAdam, Adamax)."""
    own = {"exp_avg", "exp_avg_sq"} <= state.keys() and all("amsgrad" in g for g in groups)
    plain = "momentum_buffer" in state and all("nesterov" in g for g in groups)
    kept = any(isinstance(state.get(key), Tensor) for key in _SUMS)
    if kept and (not (own or plain) or any(g.get("maximize") for g in groups)):
        wanted = "an optimizer of Adam, AdamW or SGD with momentum that minimises"
        raise WeightsError(expected(f"{path}", wanted, "another kind"))


def _whose(states: State) -> str:
    for state in states.values():
        if isinstance(state.get("exp_avg"), Tensor):
            step = int(state.get("step", 0))
            return f"Adam's exp_avg, saved after {step} step{'' if step == 1 else 's'}"
    return "SGD's momentum_buffer"


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


def _undone(group: State, state: State, value: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """A parameter before the last step, and its sum of gradients less what decay added to it. Both
    follow exactly from what Adam, AdamW or SGD keep, the second after a single step."""
    rate, decay = (_number(group.get(key)) for key in ("lr", "weight_decay"))
    if isinstance(state.get("momentum_buffer"), Tensor):
        ahead = 1.0 + _number(group.get("momentum")) if group.get("nesterov") else 1.0
        before = value + rate * ahead * total
        return before, total - decay * before
    mean, square, betas = state.get("exp_avg"), state.get("exp_avg_sq"), group.get("betas")
    pair = isinstance(betas, tuple | list) and len(betas) == 2
    if not isinstance(mean, Tensor) or not isinstance(square, Tensor) or not pair:
        return value, total
    steps = _number(state.get("step"))
    first, second = (1 - _number(beta) ** steps for beta in betas or ())
    move = mean.double() / first / ((square.double() / second).sqrt() + _number(group.get("eps")))
    if group.get("decoupled_weight_decay", True):  # AdamW; older versions do not say
        return (value + rate * move) / (1 - rate * decay), total
    before = value + rate * move
    return before, total - first * decay * before


def _number(value: object) -> float:
    """Plain numbers and tensors of one, as newer versions keep them; 0 for anything else."""
    plain = isinstance(value, int | float) or (isinstance(value, Tensor) and value.numel() == 1)
    return float(value) if plain else 0.0  # type: ignore[arg-type]
