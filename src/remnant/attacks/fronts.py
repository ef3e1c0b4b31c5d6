"""Convolutions before the dense layers that the exact solvers work on: from features to images."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from remnant.attacks.outcome import model_box
from remnant.solvers.convolutions.convolution import Inversion, invert_features
from remnant.types import Target

SILENT = 32.0  # times the rounding: features of float32 gradients were seen 2e-7 off


def undo_convolutions(
    target: Target,
    features: Tensor,
    passed: Tensor,
    error: Tensor,
    *,
    precision: float,
    generator: torch.Generator,
) -> tuple[Tensor, Tensor, Tensor, str]:
    """Inputs from what enters the first dense layer, which of them to trust, their squared errors
    (k) from those of the features, and a word on it.

    A network without convolutions is its own inverse: everything comes back as it is. precision:
    rounding of the evidence; a unit that it alone lifts above zero must not pass for an active one.
    """
    convolved = any(isinstance(m, nn.Conv2d) for m in target.model.modules())
    if not convolved or not len(features):
        return features, passed, error, ""
    images = invert_features(
        target.model,
        features.clamp(min=0),
        input_shape=target.input_shape,
        bounds=model_box(target),
        settings=Inversion(silent=SILENT * precision, fits=max(1e-6, SILENT * precision)),
        generator=generator,
    )
    determined = int(images.determined.sum())
    words = f"; the convolutions determine {determined} of {len(passed)} images"
    return images.inputs, passed & images.determined, images.off(error), words
