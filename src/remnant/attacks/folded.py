"""Batch norm in evaluation mode is a fixed affine map, so it can be multiplied into the layer
before it: the attacks on dense layers then see a network, and evidence, without it."""

from __future__ import annotations

from dataclasses import replace

from torch import nn

from remnant.models.folding import fold
from remnant.types import Evidence, Target

UNBIASED = "neither the layer before batch norm nor batch norm itself has a bias that is trained"


def without_norms(target: Target, evidence: Evidence) -> tuple[Target, Evidence] | str | None:
    """Target and evidence with batch norm multiplied into the layers before it.

    None where the network has no batch norm to fold. A sentence where folding does not make an
    attack possible.
    """
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
    """The network with its batch norm multiplied into other layers, or itself where it has none
    to fold."""
    folding = fold(model)
    return model if folding is None else folding.model
