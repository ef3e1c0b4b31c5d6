"""Labels of recovered records, from what the output layer learned of each."""

from __future__ import annotations

import copy

import torch
from torch import Tensor, nn
from torch.func import functional_call

from remnant.types import Evidence, Weights


def read_labels(model: nn.Module, evidence: Evidence, inputs: Tensor) -> Tensor | None:
    """Class of each record in `inputs` (k x shape, the model's scale); None without a dense output.

    The output layer's change is sum_i r_i h_i^T, r_i the residual of record i added up over the
    training: largest at the record's own class, or of the class' sign with a single output.
    """
    model = copy.deepcopy(model).double().eval()
    layers = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)]
    if not layers:
        return None
    name, layer = layers[-1]
    features = [_features(model, layer, at, inputs) for at in (evidence.start, evidence.end)]
    h = (features[0] + features[1]) / 2  # the training moved between the two
    change = evidence.vector[f"{name}.weight"]
    if layer.bias is not None:
        h = torch.cat([h, torch.ones(len(h), 1, dtype=h.dtype)], dim=1)
        change = torch.cat([change, evidence.vector[f"{name}.bias"][:, None]], dim=1)
    residuals: Tensor = torch.linalg.lstsq(h.T, change.T, driver="gelsd").solution  # k x c
    if residuals.shape[1] == 1:
        return (residuals[:, 0] > 0).long()
    return residuals.argmax(1)


def _features(model: nn.Module, layer: nn.Linear, weights: Weights, inputs: Tensor) -> Tensor:
    """What enters the output layer."""
    seen: list[Tensor] = []
    hook = layer.register_forward_pre_hook(lambda _, arguments: seen.append(arguments[0]))
    try:
        with torch.no_grad():
            functional_call(model, dict(weights), (inputs.double(),))
    finally:
        hook.remove()
    return seen[-1]
