"""What of the released model is matched: all weights, chosen layers, or logits on probes."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.errors import InputError, expected
from remnant.solvers.replay.unroll import Observe
from remnant.training.fleet import SharedRun
from remnant.types import Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Observation:
    """layers: prefixes of parameter names (None = all). probes: p x shape, in the model's scale;
    where given, the black box's outputs on them are seen and no weights."""

    layers: tuple[str, ...] | None = None
    probes: Tensor | None = None

    @property
    def whole(self) -> bool:
        """Whether all weights are seen."""
        return self.layers is None and self.probes is None

    def chosen(self, names: Sequence[str]) -> tuple[str, ...]:
        """The parameters that are seen."""
        if self.layers is None:
            return tuple(names)
        found = tuple(name for name in names if name.startswith(self.layers))
        if not found:
            wanted = f"the beginning of some of {', '.join(names)}"
            raise InputError(expected("layers", wanted, ", ".join(self.layers)))
        return found

    def of(self, run: SharedRun) -> Observe:
        """K x q from stacked weights in the run's order."""
        if self.probes is not None:
            probes = self.probes.to(run.inputs)
            return lambda weights: run.forward(weights, probes, True).flatten(1)
        chosen = set(self.chosen(run.names))
        places = [i for i, name in enumerate(run.names) if name in chosen]
        return lambda weights: torch.cat([weights[i].flatten(1) for i in places], 1)

    def seen(self, run: SharedRun, released: Weights) -> Tensor:
        """K x q from released weights, K x shape each."""
        with torch.no_grad():
            return self.of(run)([released[name].to(run.inputs) for name in run.names])

    def without_first_weight(self, run: SharedRun) -> Observation:
        """What tells the label best: the first weight matrix says more about pixels."""
        first = next((n for n in run.names if run.start[run.names.index(n)].ndim > 1), None)
        rest = tuple(name for name in self.chosen(run.names) if name != first)
        return replace(self, layers=rest) if self.probes is None and rest else self


def stacked(weights: Weights) -> dict[str, Tensor]:
    """One released model as a stack of one."""
    return {name: value[None] for name, value in weights.items()}
