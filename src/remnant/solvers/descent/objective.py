"""|vector - sum_j sum_k alpha_jk grad f_k(x_j)|^2 (000, Eq. 7, 18), differentiable in x and alpha.

The sum of all candidates' parameter gradients is one backward pass; its own derivative is another.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from remnant.errors import InputError, expected
from remnant.gradients import smoothed, weighted_sum
from remnant.gradients.calls import call
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """The loss at inputs m x shape and duals m x (p c), for features at p points of weight space.

    model: a smooth copy that belongs to the objective. relus: the softplus in place of each ReLU.
    """

    model: nn.Module
    relus: Sequence[nn.Softplus]
    points: Sequence[Weights]
    vector: Weights
    importance: Mapping[str, float] = field(default_factory=dict)  # of a bias; 1 where not named

    @property
    def square(self) -> float:
        """|vector|^2, biases by their importance."""
        return self._squared(self.vector).item()

    def loss(self, inputs: Tensor, duals: Tensor) -> Tensor:
        """The whole residual's square; divide by `square` to compare models."""
        sums = self.sums(inputs, duals, create_graph=True)
        return self._squared({name: value - sums[name] for name, value in self.vector.items()})

    def sums(self, inputs: Tensor, duals: Tensor, *, create_graph: bool = False) -> Weights:
        """sum_j sum_k alpha_jk grad f_k(x_j) itself, by name."""
        total: dict[str, Tensor] = {}
        for part, point in zip(duals.chunk(len(self.points), dim=1), self.points, strict=True):
            found = weighted_sum(self.model, inputs, part, weights=point, create_graph=create_graph)
            total = {name: total.get(name, 0.0) + value for name, value in found.items()}
        return total

    def _squared(self, values: Weights) -> Tensor:
        parts = [self.importance.get(n, 1.0) * v.square().sum() for n, v in values.items()]
        return torch.stack(parts).sum()

    def anneal(self, temperature: float) -> None:
        """Sharpen every softplus that stands for a ReLU."""
        for softplus in self.relus:
            softplus.beta = temperature

    def balanced(self, inputs: Tensor) -> Objective:
        """A dense layer's bias counts as much as its weights do, which meet whole activations.

        Where biases begin at 0 a network is homogeneous, and only what biases change by tells how
        large an input is: a share that gets lost among hundreds of weights.
        """
        dense = {n: m for n, m in self.model.named_modules() if type(m) is nn.Linear}
        counts = {
            f"{name}.bias": max(1.0, float(given[0].square().sum(1).mean()))
            for name, given in zip(dense, self._entering(dense.values(), inputs), strict=True)
            if f"{name}.bias" in self.vector and given[0].ndim == 2
        }
        return replace(self, importance=counts)

    def spread(self, inputs: Tensor) -> float:
        """The least standard deviation of what enters a softplus that stands for a ReLU."""
        spreads = [float(z.std()) for given in self._entering(self.relus, inputs) for z in given]
        return min((s for s in spreads if s > 0), default=1.0)

    @torch.no_grad()
    def _entering(self, modules: Iterable[nn.Module], inputs: Tensor) -> list[list[Tensor]]:
        """What enters each of these modules at the first point, at each of its calls."""
        seen: dict[nn.Module, list[Tensor]] = {module: [] for module in modules}
        hooks = [
            module.register_forward_pre_hook(lambda mine, given: seen[mine].append(given[0]))
            for module in seen
        ]
        call(self.model, inputs, self.points[0])
        for hook in hooks:
            hook.remove()
        return list(seen.values())


def objective(
    model: nn.Module,
    vector: Weights,
    points: Sequence[Weights],
    *,
    temperature: float,
    dtype: torch.dtype = torch.float32,
) -> Objective:
    """The objective of a model at `points`; every nn.ReLU becomes a softplus of that temperature.

    A parameter whose `vector` is zero was frozen: its gradients say nothing and are not taken.
    """
    own = {name for name, module in model.named_modules() if isinstance(module, nn.Softplus)}
    twin = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)
    twin = smoothed(twin, beta=temperature)
    values = {name: value.detach().to(dtype) for name, value in vector.items() if value.any()}
    if not values:
        raise InputError(expected("descent: evidence", "numbers other than zero", "zeros"))
    twin.load_state_dict({n: v for n, v in points[0].items() if n not in values}, strict=False)
    held = dict(twin.named_parameters())
    cast = [{n: point.get(n, held[n]).detach().to(dtype) for n in values} for point in points]
    relus = [
        module
        for name, module in twin.named_modules()
        if isinstance(module, nn.Softplus) and name not in own
    ]
    return Objective(model=twin, relus=relus, points=cast, vector=values)


def hours_of(
    model: nn.Module,
    shape: tuple[int, ...],
    count: int,
    steps: int,
    *,
    projected: bool = False,
    rate: float = 5e9,
) -> float:
    """An estimate: hours that so many steps of so many candidates of that shape take on one core.

    rate: operations of the model's own evaluation a second, at which a step, some six times as
    much work, was measured. projected: duals are solved for in each, by a kernel of all classes.
    """
    twin = copy.deepcopy(model).eval()
    probe = torch.zeros(2, *shape, dtype=next(twin.parameters()).dtype)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        outputs = twin(probe)
    more = 1 + outputs.shape[1] / 3 if projected else 1.0
    return float(counter.get_total_flops() / 2 * count * steps * more / rate / 3600)
