"""A target and its evidence without batch norm, where that is an affine part of other layers."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from remnant.models.folding import fold
from remnant.types import Evidence, Target

UNBIASED = "neither the layer before batch norm nor batch norm itself has a bias that is trained"


def without_norms(target: Target, evidence: Evidence) -> tuple[Target, Evidence] | str | None:
    """The same with batch norm folded into the layers before it; why that is no help; or None
    where nothing is to be folded."""
    folding = fold(target.model)
    if folding is None:
        return None
    held, weights = target.knowledge, target.weights
    vector = folding.gradients(evidence.vector, evidence.start)
    for layer, _, _ in folding.norms:
        dense = vector[f"{layer}weight"].ndim == 2
        if (
            dense
            and bool(vector[f"{layer}weight"].any())
            and not bool(vector[f"{layer}bias"].any())
        ):
            return UNBIASED
    gradient, initial = held.gradient, held.initial
    known = replace(
        held,
        initial=None if initial is None else folding.weights(initial),
        gradient=None if gradient is None else folding.gradients(gradient, weights),
    )
    plain = replace(
        evidence,
        vector=vector,
        start=folding.weights(evidence.start),
        end=folding.weights(evidence.end),
    )
    return replace(target, model=folding.model, knowledge=known), plain


def folded_model(model: nn.Module) -> nn.Module:
    """The network without its batch norm, or as it is."""
    folding = fold(model)
    return model if folding is None else folding.model
