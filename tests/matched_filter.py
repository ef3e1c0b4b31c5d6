"""The strongest adversary of the accounting, played against a private run (docs/bounds.md)."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remnant.errors import InputError, expected
from remnant.training.private import PerRecord
from remnant.training.recipes import PrivateDescent
from remnant.training.run import prepare
from remnant.types import Examples, Scaling


class MatchedFilter:
    """The best guess which of k candidates took part, by one who knows all the other records.

    A `watch` for `train` on the known records and, after them, one of the candidates. It
    subtracts the clipped gradients of those known records that were drawn, and adds up
    log-likelihood ratios against nobody (k). Whether the candidate was drawn, it does not look at:
    the ratio of a step is a mixture, 1 - q + q times that of the candidate being there.
    `scores.argmax()` is the guess.
    """

    def __init__(
        self,
        model: nn.Module,
        known: Examples,
        candidates: Examples,
        recipe: PrivateDescent,
        *,
        scaling: Scaling,
        dtype: torch.dtype | None = None,
    ) -> None:
        if recipe.noise == 0:
            raise InputError(expected("matched filter", "some noise", "noise 0"))
        self.known, self.candidates = (
            PerRecord(model=copy, inputs=inputs, labels=labels, recipe=recipe)
            for copy, inputs, labels in (
                prepare(model, records, recipe.loss, scaling, dtype)
                for records in (known, candidates)
            )
        )
        self.scores = torch.zeros(len(candidates), dtype=torch.float64)

    def __call__(self, weights: Sequence[Tensor], released: Sequence[Tensor], rows: Tensor) -> None:
        known, _ = self.known.total(weights, rows[rows < len(self.known.inputs)])
        each, _ = self.candidates.clipped(weights, torch.arange(len(self.scores)))
        recipe, fit = self.known.recipe, torch.zeros_like(self.scores)
        for seen, sum_, grads in zip(released, known, each, strict=True):
            terms = (seen - sum_ - grads / 2) * grads
            fit += terms.flatten(1).sum(1).double().cpu()
        present = fit / (recipe.noise * recipe.clip) ** 2
        q = recipe.sampling
        if q < 1:
            absent = torch.full_like(present, math.log1p(-q))
            present = torch.logaddexp(absent, math.log(q) + present)
        self.scores += present
