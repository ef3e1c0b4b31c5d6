"""Labels of recovered records, from what the first layer learned of each."""

from __future__ import annotations

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from remnant.errors import InputError
from remnant.gradients import LayerFactors, layer_factors
from remnant.types import Evidence


def read_labels(
    model: nn.Module, evidence: Evidence, inputs: Tensor, duals: Tensor
) -> Tensor | None:
    """Class of each record: inputs k x shape in the model's scale, duals k x w, None if unknown.

    A record's dual is sum_c r_c s_c, s_c the signal of class c at the first layer and r_c the
    record's residual added up over the training, which is largest at its own class. Each record is
    read from its own dual alone. A single output tells no class (it may be a regression).
    """
    model = copy.deepcopy(model).double().eval()
    try:
        ends = [
            _first_dense(layer_factors(model, inputs.double(), weights=weights))
            for weights in (evidence.start, evidence.end)
        ]
    except InputError:  # not a plain stack
        return None
    signals = (ends[0] + ends[1]) / 2  # k x c x w; the training moved between the two
    if signals.shape[1] < 2:
        return None
    solved = torch.linalg.lstsq(signals.mT, duals[:, :, None], driver="gelsd")
    residuals: Tensor = solved.solution
    return residuals[:, :, 0].argmax(1)


def _first_dense(layers: Sequence[LayerFactors]) -> Tensor:
    """Signals k x c x w of the first layer that is dense."""
    return next(layer.signals for layer in layers if layer.signals.ndim == 3)
