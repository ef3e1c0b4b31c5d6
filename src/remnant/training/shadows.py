"""Shadow models that an attack asks for, without saying who trains them.

This process does by default, and keeps nothing; `training_by` hands every fleet of a block to
another function, which may spread them over workers and keep them (`sweep.fleets.spreading`).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.devices import arrived, computed_there
from remnant.seeds import generator_for
from remnant.training.fleet import MEMORY, own_starts, train_fleet
from remnant.training.recipes import PrivateDescent, Recipe
from remnant.types import Examples, Scaling, Weights


@dataclass(frozen=True, kw_only=True, eq=False)
class Fleet:
    """K models, the k-th trained on `fixed` and inputs[k] with labels[k] (data's own scale).

    order_seed: of the order of mini-batches, the same for all. initial: where all start, or K x
    shape each where every model has its own start (None: the model's own weights).
    """

    model: nn.Module
    fixed: Examples
    inputs: Tensor
    labels: Tensor
    recipe: Recipe
    scaling: Scaling
    order_seed: int = 0
    initial: Weights | None = None

    def __len__(self) -> int:
        return len(self.inputs)

    @computed_there
    def train(self, part: slice, memory: int = MEMORY) -> dict[str, Tensor]:
        """The weights (K x shape each) of those models, in float32."""
        starts = self.initial
        if starts is not None and own_starts(self.model, starts):
            starts = {name: start[part] for name, start in starts.items()}
        generator = torch.Generator().manual_seed(self.order_seed)
        if isinstance(self.recipe, PrivateDescent):
            begin = part.start or 0  # each chunk has noise of its own
            purpose = f"noise of shadow models from {begin}"
            generator = generator_for(self.order_seed, purpose)
        return train_fleet(
            self.model,
            self.fixed,
            self.inputs[part],
            self.labels[part],
            self.recipe,
            scaling=self.scaling,
            generator=generator,
            initial=starts,
            dtype=torch.float32,
            memory=memory,
        )


Trainer = Callable[[Fleet], dict[str, Tensor]]
_trainer: ContextVar[Trainer | None] = ContextVar("trainer", default=None)


@contextmanager
def training_by(trainer: Trainer) -> Iterator[None]:
    """Have `trainer` train the fleets that are asked for inside the block."""
    token = _trainer.set(trainer)
    try:
        yield
    finally:
        _trainer.reset(token)


def trained(fleet: Fleet) -> dict[str, Tensor]:
    """The weights of all models, K x shape each."""
    trainer = _trainer.get()
    return fleet.train(slice(None)) if trainer is None else arrived(trainer(fleet))
