"""Records of a smooth network made nearly exact: their training is run again, recipe and all."""

from __future__ import annotations

import copy
from dataclasses import replace

import torch
from torch import Tensor, nn

from remnant.models.stack import leaves
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.exact import Recovery, duals_of
from remnant.solvers.dense.polish import Polished, polish
from remnant.solvers.dense.rerun import Training
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.labels import read_labels
from remnant.solvers.layers import Pair
from remnant.solvers.spans import Span
from remnant.training.recipes import SGD, GradientDescent
from remnant.types import Evidence, Target


def polished(
    target: Target, evidence: Evidence, pair: Pair, span: Span, recovery: Recovery
) -> Recovery:
    """The recovery with better points, if all were found and full-batch descent from them ends at
    the released weights; else the recovery itself."""
    told = target.knowledge.recipe
    tail = tail_after(target.model, pair)
    if recovery.duals is None or tail is None:
        return recovery
    if not isinstance(told, GradientDescent | SGD | None):
        return recovery
    y = torch.nn.functional.pad(recovery.inputs, (0, 1), value=1.0) @ span.right.T
    training = training_of(tail, evidence, pair, span, torch.zeros(len(y), dtype=torch.long))
    inputs = recovery.inputs.reshape(-1, *target.input_shape)
    read = read_labels(target.model, evidence, inputs, recovery.duals)
    known = target.knowledge.loss if told is None else told.loss
    outputs = final_outputs(training, y)
    losses = ("bce", "mse") if outputs.shape[1] == 1 else ("ce", "mse")
    for labels in likely_labels(outputs, read):
        for loss in losses if known is None else (known,):
            better = polish(
                pair.activation,
                replace(training, labels=labels),
                pair.next.affine(evidence.vector),
                span.right[:, -1],
                y,
                loss=loss,
                # The order of mini-batches is not known: small steps are those of a full batch.
                told=told if isinstance(told, GradientDescent) else None,
            )
            if better is not None and better.error < float(recovery.error.max()):
                told_apart = labels if outputs.shape[1] > 1 else None
                result = replace(with_points(recovery, better, span), labels=told_apart)
                if int(result.passed.sum()) >= int(recovery.passed.sum()):
                    return result
    return recovery


def final_outputs(training: Training, y: Tensor) -> Tensor:
    """n x c: what the released model says of points y (n x n)."""
    with torch.no_grad():
        return training.outputs(training.end, y.to(training.end[0]))


def likely_labels(outputs: Tensor, read: Tensor | None) -> list[Tensor]:
    """What the final model says of the records that it was fitted to, and what duals say."""
    if outputs.shape[1] == 1:
        return [(outputs[:, 0] > 0).long()]
    said = outputs.argmax(1)
    return [said] if read is None or torch.equal(said, read) else [said, read]


def with_points(recovery: Recovery, better: Polished, span: Span) -> Recovery:
    """The recovery with the polished points, and the error that these are stated with."""
    error = torch.full_like(recovery.confidence, better.error)
    sure = error < TOLERANCES.sure * spread_of(better.y)
    return replace(
        recovery,
        inputs=(better.y @ span.right)[:, :-1],
        duals=duals_of(span.left, span.scale, better.y),
        passed=sure,
        confidence=(1 - better.fit.gap) * (0.5 + 0.5 * sure),
        error=error,
        rerun=better.fit,
    )


def tail_after(model: nn.Module, pair: Pair) -> nn.Sequential | None:
    """The layers after the first dense one, in float32; None where others are trained before it."""
    if next(iter(model.named_parameters()))[0] != pair.first.weight:
        return None
    layers = list(leaves(model))
    first = next(
        i for i, (prefix, _) in enumerate(layers) if f"{prefix}weight" == pair.first.weight
    )
    return (
        copy.deepcopy(nn.Sequential(*(module for _, module in layers[first + 1 :]))).float().eval()
    )


def training_of(
    tail: nn.Sequential, evidence: Evidence, pair: Pair, span: Span, labels: Tensor
) -> Training:
    """Both ends of the training, the first layer seen from the records' span. In float32, which is
    twice as fast and exact enough to tell how a run ends."""
    later = [n for n in evidence.start if n not in (pair.first.weight, pair.first.bias)]
    ends = [
        [(pair.first.affine(weights) @ span.right.T).float(), *(weights[n].float() for n in later)]
        for weights in (evidence.start, evidence.end)
    ]
    names = tuple(name for name, _ in tail.named_parameters())
    return Training(tail=tail, names=names, start=ends[0], end=ends[1], labels=labels)
