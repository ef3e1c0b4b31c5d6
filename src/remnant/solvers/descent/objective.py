"""|vector - sum_j sum_k alpha_jk grad f_k(x_j)|^2 (000, Eq. 7, 18), differentiable in x and alpha.

No gradient of a single candidate is ever formed. In a dense layer candidate j adds the outer
product of one signal s_j (backward, alpha mixed in) and one activation a_j, so that layer's part is

    |D - S^T A|^2 = |D|^2 - 2 sum(S * (A D^T)) + sum((A A^T) * (S S^T))

from m x in and m x out numbers (D^T in factors where it is of low rank). Where candidates are so
many that the layer's own size is less, and for all other parameters, the sum itself is formed.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.gradients import smoothed, weighted_sum
from remnant.gradients.calls import call
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Objective:
    """The loss at inputs m x shape and duals m x (p c), for features at p points of weight space.

    model: a smooth copy that belongs to the objective. dense: layers whose part is evaluated from
    their activations and signals, by module name.
    """

    model: nn.Module
    points: Sequence[Weights]
    vector: Weights
    dense: Sequence[str]
    sizes: Mapping[str, float]  # |vector|^2 of each parameter
    thin: dict[str, tuple[Tensor, Tensor]]  # weight -> factors (out x r, in x r) of its vector
    importance: dict[str, float] = field(default_factory=dict)  # of a bias; 1 where not named

    @property
    def square(self) -> float:
        """|vector|^2, biases by their importance."""
        return sum(self.importance.get(name, 1.0) * size for name, size in self.sizes.items())

    def loss(self, inputs: Tensor, duals: Tensor) -> Tensor:
        """The whole residual's square; divide by `square` to compare models."""
        parts = duals.chunk(len(self.points), dim=1)
        runs = [self._run(inputs, a, w) for a, w in zip(parts, self.points, strict=True)]
        total = inputs.new_zeros(())
        for name in self.dense:
            into = torch.cat([seen[name][0] for seen, _ in runs])
            signals = torch.cat([seen[name][1] for seen, _ in runs])
            total = total + self._dense_part(name, into, signals)
        for name in runs[0][1]:
            found = torch.stack([sums[name] for _, sums in runs]).sum(0)
            total = total + (self.vector[name] - found).square().sum()
        return total

    def against(self, vector: Weights) -> Objective:
        """The same with another vector in place of its own."""
        values = {name: vector[name].detach() for name in self.vector}
        return replace(self, vector=values, sizes=sizes(values), thin={})

    def sums(self, inputs: Tensor, duals: Tensor, chunk: int | None = None) -> dict[str, Tensor]:
        """sum_j sum_k alpha_jk grad f_k(x_j) itself, by name, `chunk` candidates at a time."""
        total: dict[str, Tensor] = {}
        for part, weights in zip(duals.chunk(len(self.points), dim=1), self.points, strict=True):
            for name, value in weighted_sum(
                self.model, inputs, part, weights=weights, chunk=chunk
            ).items():
                total[name] = total[name] + value if name in total else value
        return total

    def forms_sum(self, weight: str, count: int) -> bool:
        """Whether the sum itself is less than `count` candidates' activations and signals."""
        change = self.vector[weight]
        return count * sum(change.shape) >= change.numel()

    def anneal(self, temperature: float) -> None:
        """Sharpen every softplus that stands for a ReLU."""
        for module in self.model.modules():
            if isinstance(module, nn.Softplus) and getattr(module, "stands_for_relu", False):
                module.beta = temperature

    def balanced(self, inputs: Tensor) -> Objective:
        """A dense layer's bias counts as much as its weights do, which meet whole activations.

        Where biases begin at 0 a network is homogeneous, and only what biases change by tells how
        large an input is: a share that gets lost among hundreds of weights.
        """
        with torch.no_grad():
            _, seen = watched(self.model, self.dense, inputs, self.points[0])
        counts = {f"{n}.bias": float(seen[n][0][0].square().sum(1).mean()) for n in self.dense}
        importance = {
            name: max(1.0, count) for name, count in counts.items() if name in self.vector
        }
        return replace(self, importance=importance)

    def spread(self, inputs: Tensor) -> float:
        """The least standard deviation of what enters a softplus that stands for a ReLU."""
        names = [n for n, m in self.model.named_modules() if getattr(m, "stands_for_relu", False)]
        with torch.no_grad():
            _, seen = watched(self.model, names, inputs, self.points[0])
        spreads = [float(given.std()) for calls in seen.values() for given, _ in calls]
        return min((s for s in spreads if s > 0), default=1.0)

    def _run(
        self, inputs: Tensor, duals: Tensor, weights: Weights
    ) -> tuple[dict[str, tuple[Tensor, Tensor]], dict[str, Tensor]]:
        """Activations and mixed signals of each dense layer; gradient sums of the rest."""
        inside = {key for name in self.dense for key in (f"{name}.weight", f"{name}.bias")}
        leaves = {
            name: weights[name].detach().requires_grad_()
            for name in self.vector
            if name not in inside
        }
        outputs, seen = watched(self.model, self.dense, inputs, {**weights, **leaves})
        found = torch.autograd.grad(
            (duals * outputs).sum(),
            [seen[name][0][1] for name in self.dense] + list(leaves.values()),
            create_graph=True,
            materialize_grads=True,
        )
        signals, sums = found[: len(self.dense)], found[len(self.dense) :]
        factors = {n: (seen[n][0][0], s) for n, s in zip(self.dense, signals, strict=True)}
        return factors, dict(zip(leaves, sums, strict=True))

    def _dense_part(self, name: str, into: Tensor, signals: Tensor) -> Tensor:
        weight, bias = f"{name}.weight", f"{name}.bias"
        total = into.new_zeros(())
        if bias in self.vector:
            missing = (self.vector[bias] - signals.sum(0)).square().sum()
            total = total + self.importance.get(bias, 1.0) * missing
        if weight not in self.vector:
            return total
        change = self.vector[weight]
        if self.forms_sum(weight, len(into)):
            return total + (change - signals.T @ into).square().sum()
        if weight in self.thin:
            left, right = self.thin[weight]
            cross = ((into @ right) * (signals @ left)).sum()
        else:
            cross = ((into @ change.T) * signals).sum()
        gram = ((into @ into.T) * (signals @ signals.T)).sum()
        return total + self.sizes[weight] - 2 * cross + gram


def watched(
    model: nn.Module, names: Iterable[str], inputs: Tensor, weights: Weights
) -> tuple[Tensor, dict[str, list[tuple[Tensor, Tensor]]]]:
    """The outputs, and what went into and came out of the named modules at each of their calls."""
    seen: dict[str, list[tuple[Tensor, Tensor]]] = {name: [] for name in names}

    def keeper(name: str) -> Any:
        def keep(module: nn.Module, given: tuple[Tensor, ...], out: Tensor) -> None:
            if not out.requires_grad:  # nothing before it asks for a graph
                out.requires_grad_()
            seen[name].append((given[0], out))

        return keep

    hooks = [model.get_submodule(n).register_forward_hook(keeper(n)) for n in seen]
    try:
        return call(model, inputs, weights), seen
    finally:
        for hook in hooks:
            hook.remove()


def objective(
    model: nn.Module,
    vector: Weights,
    points: Sequence[Weights],
    probe: Tensor,
    *,
    temperature: float,
    dtype: torch.dtype = torch.float32,
    rank: int = 0,
) -> Objective:
    """The objective of a model at `points`; `probe` (1 x shape) shows which layers are dense.

    Every nn.ReLU becomes a softplus. A change of weights of rank at most `rank` is kept in factors.
    """
    twin = _smooth_twin(model, temperature, dtype)
    # A parameter that did not change at all was frozen, and its gradients say nothing.
    values = {name: value.detach().to(dtype) for name, value in vector.items() if value.any()}
    if not values:
        raise InputError(expected("descent: evidence", "numbers other than zero", "zeros"))
    cast = [{n: v.detach().to(dtype) for n, v in point.items()} for point in points]
    linear = [n for n, m in twin.named_modules() if type(m) is nn.Linear and n]
    _, seen = watched(twin, linear, probe.to(dtype), cast[0])
    # A layer that is called twice, or on sequences, has no single signal a candidate.
    dense = [n for n in linear if len(seen[n]) == 1 and seen[n][0][0].ndim == 2]
    thin = {}
    for name in (f"{layer}.weight" for layer in dense):
        factors = _factors(values[name], rank) if name in values else None
        if factors is not None:
            thin[name] = factors
    return Objective(
        model=twin, points=cast, vector=values, dense=dense, sizes=sizes(values), thin=thin
    )


def _smooth_twin(model: nn.Module, temperature: float, dtype: torch.dtype) -> nn.Module:
    twin = copy.deepcopy(model).to(dtype).eval().requires_grad_(False)
    own = {name for name, m in twin.named_modules() if isinstance(m, nn.Softplus)}
    twin = smoothed(twin, beta=temperature)
    for name, module in twin.named_modules():
        if isinstance(module, nn.Softplus) and name not in own:
            module.stands_for_relu = True  # type: ignore[assignment]
        if getattr(module, "inplace", False):
            module.inplace = False  # what a layer puts out is kept
    return twin


def sizes(values: Weights) -> dict[str, float]:
    """The square of every tensor."""
    return {name: float(value.double().square().sum()) for name, value in values.items()}


def _factors(change: Tensor, rank: int) -> tuple[Tensor, Tensor] | None:
    """change (out x in) = left @ right.T in `rank` columns, if that holds to rounding and pays."""
    out, into = change.shape
    if rank < 1 or 2 * rank * (out + into) > out * into:
        return None
    # Probes of our own: they find a row space, and any will do.
    probes = torch.randn(into, rank, generator=torch.Generator().manual_seed(0), dtype=change.dtype)
    left = torch.linalg.qr(change @ probes)[0]
    right = change.T @ left
    missing = (change - left @ right.T).norm() / change.norm().clamp(min=1e-300)
    return (left, right) if missing < 30 * torch.finfo(change.dtype).eps else None
