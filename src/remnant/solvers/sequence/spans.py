"""What a linear layer's gradient says of its inputs: they lie in a space, and nothing else does.

A layer y = W h + b has the gradient [G | g] = sum_t delta_t [h_t; 1]^T over the tokens t. So h was
among its inputs only if [h; 1] is orthogonal to the null space of that matrix. A vector that was
not is found out by any part of the null space, so a few random combinations of it are enough.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.sequence.layouts import Linear, stacked
from remnant.solvers.sequence.tolerances import Tolerances
from remnant.solvers.spans import count_records, rounding_level
from remnant.types import Weights

Decompositions = dict[str, tuple[Tensor, Tensor]]
"""Singular vectors and values of gradients, by the name of their first layer's weight."""


@dataclass(frozen=True, kw_only=True, eq=False)
class InputSpan:
    """The space that a layer's inputs lie in, by directions that are orthogonal to it.

    probes: width (+ 1, where the layer is biased) x p, orthonormal combinations of the null space;
    none where the inputs fill the whole space, so that nothing can be told.
    """

    probes: Tensor
    biased: bool

    def residual(self, states: Tensor) -> Tensor:
        """How far states (... x width) are from being inputs of the layer: 0 for its inputs, about
        1 for anything else."""
        probes, width = self.probes.to(states.dtype), states.shape[-1]
        off = states @ probes[:width]
        if self.biased:
            off = off + probes[width]
        found: Tensor = off.norm(dim=-1) * self.unit / states.norm(dim=-1).clamp_min(1e-30)
        return found

    @property
    def unit(self) -> float:
        """Makes the residual of a random vector about 1."""
        return float((len(self.probes) / max(1, self.probes.shape[1])) ** 0.5)


def input_span(
    vector: Weights,
    layers: Sequence[Linear],
    *,
    precision: float,
    tolerances: Tolerances,
    generator: torch.Generator,
    known: Decompositions,
) -> InputSpan:
    """The space of the inputs that layers with a common input share, out of their gradients.
    known: what was decomposed before, and is from now on."""
    matrix, biased = stacked(vector, layers)
    matrix, name = matrix.double(), layers[0].weight
    if name not in known:
        full = matrix.shape[1] < matrix.shape[0]
        known[name] = torch.linalg.svd(matrix, full_matrices=full)[:2]
    left, values = known[name]
    spectrum = count_records(values, matrix, precision)
    rank = spectrum.count
    if not spectrum.clear:
        # Coarse numbers hide the end of a spectrum in their rounding: what stands above it counts.
        level = tolerances.above * rounding_level(matrix, precision)
        rank = int((values > level).sum()) if bool((values <= level).any()) else len(matrix)
    null = left[:, rank:]
    if null.shape[1] < tolerances.fewest:
        null = null[:, :0]
    elif null.shape[1] > tolerances.probes:
        shape = (null.shape[1], tolerances.probes)
        mixed = torch.randn(shape, generator=generator, dtype=torch.float64)
        null = null @ torch.linalg.qr(mixed)[0]
    return InputSpan(probes=null, biased=biased)


def cut(residuals: Tensor, tolerances: Tolerances) -> float:
    """The residual that parts inputs from others: in the widest gap below `far`, as a ratio.

    Where the smallest are as small as rounding leaves them, all up to `near` belong together.
    """
    low = residuals[residuals < tolerances.far].double().sort().values
    if not len(low):
        return tolerances.near
    steps = torch.cat([low.clamp_min(tolerances.near), low.new_tensor([tolerances.far])])
    k = int((steps[1:] / steps[:-1]).argmax())
    return float((steps[k] * steps[k + 1]).sqrt())
