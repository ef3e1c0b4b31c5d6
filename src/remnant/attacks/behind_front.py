"""Networks that end in dense layers behind anything else: residual blocks, pooling, batch norm.

The front is what stands before the dense layers, the head these layers. First the features of each
record, what enters the head, are found exactly: by the attack itself where the head has two layers,
from the output layer's own equations where it has one (`solvers.dense.output_layer`). Then images
are sought that have these features and, where a gradient is held, whose gradient in the front is
the observed one. The certificate is of the features; that the images are right is not proved.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks.outcome import model_box, nothing
from remnant.models.fronts import Parts, before_dense
from remnant.solvers.dense.output_layer import Features, recover_output
from remnant.solvers.dense.output_run import recover_output_run
from remnant.solvers.descent.features import FeatureInversion, invert_by_descent
from remnant.solvers.descent.front import FrontMatching, match_front
from remnant.solvers.layers import Pair, first_pair
from remnant.types import Candidates, Evidence, Stated, Status, Target, Weights

NO_BIAS = "the output layer has no bias"
Solve = Callable[[Target], Candidates]


def has_head(model: nn.Module, shape: Sequence[int]) -> bool:
    """Whether the network ends in at least two dense layers and something else stands before
    them. shape: of an input."""
    parts = before_dense(model, shape)
    return parts is not None and isinstance(first_pair(parts.rest), Pair)


def tuned_head(model: nn.Module, shape: Sequence[int], before: Weights, after: Weights) -> bool:
    """Whether one dense layer ends the network and moved, and no other weights: features stayed."""
    parts = before_dense(model, shape)
    if parts is None or len([m for m in parts.rest.modules() if isinstance(m, nn.Linear)]) != 1:
        return False

    def moved(old: Weights, new: Weights) -> bool:
        return any(not torch.equal(old[k].to(new[k]), new[k]) for k in new if k in old)

    front, rest = parts.of_front, parts.of_rest
    return moved(rest(before), rest(after)) and not moved(front(before), front(after))


def head_target(target: Target, parts: Parts) -> Target:
    """The target whose model is the dense layers at the end alone, and whose records are
    features."""
    held = target.knowledge
    initial, gradient = (
        None if side is None else parts.of_rest(side) for side in (held.initial, held.gradient)
    )
    first = next(m for m in parts.rest.modules() if isinstance(m, nn.Linear))
    return Target(
        model=parts.rest,
        input_shape=(first.in_features,),
        bounds=None,
        knowledge=replace(held, initial=initial, gradient=gradient, gradient_of="", public=None),
    )


def through_front(
    target: Target,
    evidence: Evidence,
    solve: Solve,
    generator: torch.Generator,
    *,
    otherwise: str,
    settings: FrontMatching | None = None,
) -> Candidates:
    """Images whose features in the front are those that the dense layers give away.

    solve: the attack on a target of dense layers, which finds the features. otherwise: the reason
    to return where the network does not end in dense layers.
    """
    parts = before_dense(target.model, target.input_shape)
    if parts is None:
        return nothing(target, Status.NOT_APPLICABLE, otherwise)
    head = head_target(target, parts)
    dense = [module for module in parts.rest.modules() if isinstance(module, nn.Linear)]
    solve_one = from_output if target.knowledge.gradient is not None else from_tuning
    single = len(dense) == 1
    found = solve_one(head, evidence, parts, generator) if single else solve(head)
    if not len(found):
        reason = f"no features at the dense layers: {found.reason}"
        return replace(found, inputs=torch.zeros(0, *target.input_shape), reason=reason)
    images, figures = images_of(target, parts, found, settings or FrontMatching(), generator)
    certified = found.stated.certified or 0
    return Candidates(
        inputs=target.scaling.to_data(images).float(),
        confidence=torch.zeros(len(images)),
        labels=found.labels,
        status=Status.INCONCLUSIVE,
        reason=f"features at the dense layers: {found.reason}; the images that were found for them "
        "are not proved to be the records'",
        stated=Stated(counted=found.stated.counted, certified=0),
        figures={"features": certified, "found": len(found)} | figures,
    )


def from_output(
    head: Target, evidence: Evidence, parts: Parts, generator: torch.Generator
) -> Candidates:
    """Features from the gradient of a lone output layer under cross-entropy."""
    held = head.knowledge
    if held.loss not in (None, "ce"):
        reason = "a lone output layer is solved under cross-entropy only"
        return nothing(head, Status.INCONCLUSIVE, reason)
    layer = lone_layer(evidence, parts)
    if layer is None:
        return nothing(head, Status.INCONCLUSIVE, NO_BIAS)
    found = recover_output(
        *layer,
        precision=evidence.precision,
        generator=generator,
        count=held.records,
        labels=held.labels,
    )
    return features_of(head, found)


def from_tuning(
    head: Target, evidence: Evidence, parts: Parts, generator: torch.Generator
) -> Candidates:
    """Features from the training of a lone output layer, by full-batch descent on cross-entropy."""
    held, layer = head.knowledge, lone_layer(evidence, parts)
    if held.loss not in (None, "ce") or layer is None:
        reason = "a lone output layer is solved under cross-entropy only" if layer else NO_BIAS
        return nothing(head, Status.INCONCLUSIVE, reason)
    found = recover_output_run(
        *layer,
        precision=evidence.precision,
        generator=generator,
        count=held.records,
        labels=held.labels,
    )
    return features_of(head, found)


def lone_layer(evidence: Evidence, parts: Parts) -> tuple[Tensor, Tensor, Tensor] | None:
    """Weight and bias of the output layer at the start, and the evidence of both; None: no bias."""
    weights, vector = parts.of_rest(evidence.start), parts.of_rest(evidence.vector)
    name = next(name for name in weights if name.endswith("weight"))
    bias = name.removesuffix("weight") + "bias"
    if bias not in vector:
        return None
    return weights[name], weights[bias], torch.cat([vector[name], vector[bias][:, None]], dim=1)


def features_of(head: Target, found: Features | str) -> Candidates:
    """What the output layer's equations say of the features."""
    if isinstance(found, str):
        return nothing(head, Status.INCONCLUSIVE, found)
    n = len(found.inputs)
    sure = n if found.exact else 0
    return Candidates(
        inputs=found.inputs,
        confidence=torch.full((n,), float(found.exact)),
        labels=found.labels,
        status=Status.COMPLETE if found.exact else Status.INCONCLUSIVE,
        reason=f"{sure} of {n} exact, by the output layer's equations, which hold to "
        f"{found.residual:.0e}",
        stated=Stated(counted=n, certified=sure),
    )


def images_of(
    target: Target,
    parts: Parts,
    found: Candidates,
    settings: FrontMatching,
    generator: torch.Generator,
) -> tuple[Tensor, dict[str, Any]]:
    """Images (k x shape, the model's scale) that have the features found, and figures of how
    well they fit."""
    front, box = parts.front.requires_grad_(True), model_box(target)
    gradient, held = target.knowledge.gradient, target.knowledge
    features = found.inputs.to(next(front.parameters()))
    if gradient is not None and found.labels is not None and found.stated.certified == len(found):
        matched = match_front(
            parts,
            parts.of_front(gradient),
            features,
            found.labels,
            loss=held.loss or "ce",
            shape=target.input_shape,
            settings=settings,
            generator=generator,
            bounds=box,
            training=any(name.endswith("running_mean") for name in gradient),
        )
        return matched.inputs, {"misfit": matched.misfit, "unexplained": matched.distance}
    images, misfit = invert_by_descent(
        front.eval(),
        features,
        FeatureInversion(evaluations=settings.evaluations),
        shape=target.input_shape,
        generator=generator,
        bounds=box,
    )
    return images, {"misfit": float(misfit.median())}
