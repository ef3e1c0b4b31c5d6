"""The part of attack `gradient` that knows batch norm behind the first dense layer.

In evaluation mode batch norm is a part of the layer before it (`attacks.folded`). In training mode
it mixes the batch, and `solvers.batch_norm` takes the batch apart again, given the running
statistics that the step left behind.
"""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import nn

from remnant.attacks.folded import without_norms
from remnant.attacks.outcome import in_box, nothing, seen, vouched
from remnant.solvers.batch_norm import read_normed, recover_normed, statistics_of
from remnant.solvers.dense.dropout import drops
from remnant.solvers.layers import output_residuals
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Evidence, Stated, Status, Target

STATISTICS = (
    "batch norm in training mode hides the batch's mean and spread from its gradient; give the "
    "running statistics after the step in the gradient's file too, as remnant.capture writes them"
)
UNPLACED = (
    "what they differ by is exact; how all of them are shifted is not, since a first layer with "
    "fewer neurons than inputs does not tell it"
)
DROPPED = (
    "the network has dropout too, which is not solved beside batch norm in training mode; if it "
    "was off, give a --model whose dropout has p = 0"
)


def in_training(target: Target) -> bool:
    """Whether batch norm follows the first dense layer and the gradient was taken in training mode,
    as far as the running statistics tell."""
    return statistics_of(target.model, target.knowledge.gradient or {}, 1) is not None


def unnormed(target: Target, evidence: Evidence) -> tuple[Target, Evidence] | str | None:
    """Target and evidence with batch norm multiplied into the layers before it
    (`without_norms`), or "training" where it mixed the batch, so that this cannot be done."""
    return "training" if in_training(target) else without_norms(target, evidence)


def recover_through_norm(
    target: Target, evidence: Evidence, generator: torch.Generator
) -> Candidates:
    """The records of a batch that batch norm in training mode mixed, so that each record's
    gradient depends on all others."""
    layers = read_normed(target.model, evidence, target.knowledge.gradient or {})
    if layers is None:
        return nothing(target, Status.INCONCLUSIVE, STATISTICS)
    if isinstance(layers, str):
        return nothing(target, Status.INCONCLUSIVE, layers)
    count = target.knowledge.records
    found = recover_normed(layers, evidence.precision, generator=generator, count=count)
    if isinstance(found, str):
        return nothing(target, Status.INCONCLUSIVE, found)
    basics = seen(found.spectrum, found.counted)
    reason = f"{found.found} of {found.counted} records found"
    reason += f"; {DROPPED}" if drops(target.model) and not found.complete else ""
    if not len(found.inputs):
        return nothing(target, Status.INCONCLUSIVE, reason, **basics)
    inputs = found.inputs.reshape(-1, *target.input_shape)
    inside = bool(in_box(target.scaling.to_data(inputs), target.bounds).all())
    if not found.complete:
        reason += ", which do not give back the gradient"
    else:
        reason = f"all {found.counted} records, which give back the gradient through batch norm"
        reason += "{worst}" if found.placed else f"; {UNPLACED}"
    residuals = output_residuals(target.model, evidence, inputs, training=True)
    told = found.complete and residuals is not None and residuals.shape[1] > 1
    return vouched(
        target,
        inputs,
        found.error,
        torch.full((len(inputs),), found.complete and found.placed and inside),
        found.counted,
        reason,
        confidence=torch.full((len(inputs),), float(found.complete)),
        labels=residuals.argmin(1) if told and residuals is not None else None,
        figures=basics["figures"] | {"found": found.found, "unexplained": found.unexplained},
        trace=basics["trace"],
    )


def unless_refuted(target: Target, evidence: Evidence, found: Candidates) -> Candidates:
    """Images behind convolutions with batch norm are certified only if they give back these layers'
    gradient: its mode cannot be told from the dense layers, whose features are right in either."""
    convolutions = [n for n, m in target.model.named_modules() if isinstance(m, nn.Conv2d)]
    if not convolutions or not found.stated.certified:
        return found
    if found.labels is not None and len(found) == found.stated.counted:
        inputs = target.scaling.to_model(found.inputs.double())
        model = copy.deepcopy(target.model).double().eval()
        loss = target.knowledge.loss or "ce"
        again = batch_gradient(model, loss, (inputs, found.labels))
        names = [f"{n}.weight" for n in convolutions if f"{n}.weight" in evidence.vector]
        rest = sum(float((again[n] - evidence.vector[n]).square().sum()) for n in names)
        if rest < 1e-3 * sum(float(evidence.vector[n].square().sum()) for n in names):
            return found
    none = Stated(counted=found.stated.counted, certified=0)
    why = "their images do not give back the convolutions' gradient"
    return replace(
        found, status=Status.INCONCLUSIVE, stated=none, reason=f"{found.reason}; but {why}"
    )
