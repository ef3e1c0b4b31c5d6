"""RKIP-finite: distilled images out of a trained network alone (paper 000, section 7).

A reconstruction of fewer images than there were records cannot return them all; it returns the few
that explain the change of weights best, and Theorem 2 says that these are distilled images. Their
labels are what regression with their duals says of them: y_R = K_RR alpha_R, with the kernel at the
weights where features were taken.
"""

from __future__ import annotations

from dataclasses import replace

import torch

from remnant.devices import computed_there
from remnant.distill.search import Distilled
from remnant.errors import InputError, expected
from remnant.evidence import weight_difference
from remnant.gradients import gram
from remnant.models import Linearised
from remnant.solvers.descent.paper import Descent, descend
from remnant.types import Target


@computed_there
def distil_network(
    target: Target, settings: Descent, *, images: int, generator: torch.Generator
) -> Distilled:
    """`images` inputs and labels from the target's weights and the initial ones it knows.

    A linearised model's features stand still: they are taken at the initial weights, whatever the
    settings say.
    """
    if settings.features == "hybrid":
        raise InputError(expected("rkip-finite: features", "initial or final", "hybrid"))
    model, evidence = target.model, weight_difference(target)
    if isinstance(model, Linearised):
        model, settings = model.base, replace(settings, features="initial")
    found = descend(
        model,
        evidence,
        replace(settings, per_record=1.0),
        shape=target.input_shape,
        records=images,
        generator=generator,
    )
    inputs, duals = found.inputs.double(), found.duals.double()
    (point,) = settings.points(evidence)
    kernel = gram(model, inputs, weights=point, per_class=True)
    return Distilled(
        images=inputs.flatten(1),
        labels=torch.tensordot(kernel, duals, dims=2),
        loss=found.loss,
        trace=found.trace,
    )
