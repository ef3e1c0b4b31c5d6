"""Residuals and labels of a batch whose records are known, from the output layer's gradient."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn

from remnant.errors import InputError
from remnant.gradients import layer_factors
from remnant.types import Evidence


def output_residuals(model: nn.Module, evidence: Evidence, inputs: Tensor) -> Tensor | None:
    """dL/df of each record (k x c) for inputs k x shape in the model's scale.

    The output layer's gradient is sum_i r_i h_i^T, its features h_i follow from the inputs. None
    where the model is not a plain stack, or has more records than features tell apart.
    """
    model = copy.deepcopy(model).double().eval()
    try:
        layer = layer_factors(model, inputs.double(), weights=evidence.start)[-1]
    except InputError:
        return None
    h, gradient = layer.activations, evidence.vector[str(layer.weight)]
    if layer.bias is not None:
        h = torch.cat([h, torch.ones_like(h[:, :1])], dim=1)
        gradient = torch.cat([gradient, evidence.vector[layer.bias][:, None]], dim=1)
    if len(h) > h.shape[1]:
        return None
    solved: Tensor = torch.linalg.lstsq(h.T, gradient.T, driver="gelsd").solution
    return solved
