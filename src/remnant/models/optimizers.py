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

State = Mapping[Any, Any]


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
    before = {name: p.detach().clone() for name, p in model.named_parameters()}
    gradient = {name: value * 0 for name, value in before.items()}
    whose = "SGD's momentum_buffer"
    names = _names(path, model, states, [index for group in groups for index in group["params"]])
    for group in groups:
        for index in group["params"]:
            name, state = names[index], states.get(index, {})
            total = _sum_of(state)
            if total is None:
                continue
            _check_kind(path, groups, state)
            if total.shape != before[name].shape:
                shape, got = tuple(before[name].shape), tuple(total.shape)
                raise WeightsError(expected(f"{path}: {name}", shape, got))
            undone = _undone(group, state, before[name].double(), total.float().double())
            before[name], gradient[name] = (value.float() for value in undone)
            if total is state.get("exp_avg") and whose.startswith("SGD"):
                step = int(_number(state.get("step")))
                whose = f"Adam's exp_avg, saved after {step} step{'' if step == 1 else 's'}"
    if not any(bool(value.any()) for value in gradient.values()):
        raise WeightsError(expected(f"{path}", "an optimizer with exp_avg", "one without sums"))
    return Saved(gradient=gradient, before=before, whose=whose)


def _sum_of(state: State) -> Tensor | None:
    return next((state[key] for key in _SUMS if isinstance(state.get(key), Tensor)), None)


def _check_kind(path: object, groups: Sequence[State], state: State) -> None:
    """Refuse optimizers whose sums are of something else than the gradients: divided by their size
    (RMSprop), of a gradient turned round, or undone otherwise (NAdam, RAdam, Adamax)."""
    own = {"exp_avg", "exp_avg_sq"} <= state.keys() and all("amsgrad" in g for g in groups)
    plain = "momentum_buffer" in state and all("nesterov" in g for g in groups)
    if not (own or plain) or any(g.get("maximize") for g in groups):
        wanted = "an optimizer of Adam, AdamW or SGD with momentum that minimises"
        raise WeightsError(expected(f"{path}", wanted, "another kind"))


def _optimizer_in(held: object) -> State | None:
    """The optimizer's own table, out of a checkpoint or as the whole file."""
    for key in _WRAPPERS:
        inner = held.get(key) if isinstance(held, Mapping) else None
        if isinstance(inner, list) and len(inner) == 1:
            inner = inner[0]
        held = inner if isinstance(inner, Mapping) else held
    match held:
        case {"state": Mapping() as states, "param_groups": list() as groups}:
            tables = [*states.values(), *groups]
            lists = [g.get("params", None) for g in groups if isinstance(g, Mapping)]
            good = all(isinstance(table, Mapping) for table in tables) and all(
                isinstance(own, list) and all(type(index) is int for index in own) for own in lists
            )
            return {"state": states, "param_groups": groups} if good else None
    return None


def _names(path: object, model: nn.Module, states: State, order: Sequence[int]) -> dict[int, str]:
    """Which parameter each number stands for: all in the model's order, or matrices first and
    vectors (biases, norms), which do not decay, in a second group."""
    trained = {name: p for name, p in model.named_parameters() if p.requires_grad}
    split = sorted(trained, key=lambda name: trained[name].ndim < 2)
    for names in (list(trained), split):
        if len(names) == len(order) == len(set(order)):
            found = dict(zip(order, names, strict=True))
            sums = {name: _sum_of(states.get(index, {})) for index, name in found.items()}
            if all(total is None or total.shape == trained[n].shape for n, total in sums.items()):
                return found
    do = "give the optimizer that was saved beside the model"
    wanted = f"a state for each of the model's {len(trained)} parameters, in their order"
    raise WeightsError(expected(f"{path}", wanted, f"{len(order)} others", do))


def _undone(group: State, state: State, value: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
    """A parameter before the last step, and its sum of gradients less what decay added to it. Both
    follow exactly from what Adam, AdamW or SGD keep, the second after a single step."""
    rate, decay = (_number(group.get(key)) for key in ("lr", "weight_decay"))
    if isinstance(state.get("momentum_buffer"), Tensor):
        ahead = 1.0 + _number(group.get("momentum")) if group.get("nesterov") else 1.0
        before = value + rate * ahead * total
        return before, total - decay * before
    mean, square, betas = state["exp_avg"], state["exp_avg_sq"], group.get("betas")
    pair = isinstance(betas, tuple | list) and len(betas) == 2
    if not isinstance(square, Tensor) or not pair:
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
