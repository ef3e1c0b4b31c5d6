"""The part of attack `gradient` that knows batch norm behind the first dense layer.

In evaluation mode batch norm is a part of the layer before it (`attacks.folded`). In training mode
it mixes the batch, and `solvers.batch_norm` takes the batch apart again, given the running
statistics that the step left behind.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn

from remnant.attacks.outcome import in_box, nothing, seen, stated_errors, worst_of
from remnant.evidence import one_gradient
from remnant.models.foreign import real_outputs
from remnant.models.stack import working
from remnant.solvers.batch_norm import NextLayer, NormedLayer, NormedRecovery, recover_normed
from remnant.solvers.layers import Dense
from remnant.training.batch_gradient import batch_gradient
from remnant.types import Candidates, Evidence, Stated, Status, Target, Weights

STATISTICS = (
    "batch norm in training mode hides the batch's mean and spread from its gradient; give the "
    "running statistics after the step in the gradient's file too, as remnant.capture writes them"
)
UNPLACED = (
    "what they differ by is exact; how all of them are shifted is not, since a first layer with "
    "fewer neurons than inputs does not tell it"
)


@dataclass(frozen=True, kw_only=True, eq=False)
class NormedPair:
    """Two dense layers, with batch norm after the first and perhaps after the second."""

    first: Dense
    norm: str  # the prefix of its parameters' names
    module: nn.BatchNorm1d
    activation: nn.Module
    next: Dense
    next_norm: tuple[str, nn.BatchNorm1d] | None
    last: bool  # `next` is the output layer


def normed_pair(model: nn.Module) -> NormedPair | None:
    """The first layers, where batch norm follows the first dense one; None for other networks."""
    layers = working(model, nn.Flatten)
    kinds = [module for _, module in layers]
    if len(kinds) < 4 or not isinstance(kinds[1], nn.BatchNorm1d):
        return None
    if not isinstance(kinds[0], nn.Linear) or not isinstance(kinds[3], nn.Linear):
        return None
    after = layers[4] if len(layers) > 4 else None
    return NormedPair(
        first=_dense(layers[0][0], kinds[0]),
        norm=layers[1][0],
        module=kinds[1],
        activation=kinds[2],
        next=_dense(layers[3][0], kinds[3]),
        next_norm=(after[0], after[1])
        if after is not None and isinstance(after[1], nn.BatchNorm1d)
        else None,
        last=len(layers) == 4,
    )


def _dense(prefix: str, layer: nn.Linear) -> Dense:
    return Dense(weight=f"{prefix}weight", bias=None if layer.bias is None else f"{prefix}bias")


def norm_names(model: nn.Module) -> set[str]:
    """The names of batch norm's parameters."""
    kinds = (nn.BatchNorm1d, nn.BatchNorm2d)
    modules = [(name, m) for name, m in model.named_modules() if isinstance(m, kinds)]
    return {f"{name}.{leaf}" for name, m in modules for leaf, _ in m.named_parameters()}


def in_training(target: Target, pair: NormedPair) -> bool:
    """Whether the gradient was taken in training mode, as far as the running statistics tell."""
    gradient = target.knowledge.gradient or {}
    return _batch_statistics(target.model, gradient, pair.norm, pair.module) is not None


def recover_through_norm(
    target: Target, pair: NormedPair, generator: torch.Generator
) -> Candidates:
    """Training mode, where a record's gradient depends on the batch; count found, not given."""
    evidence, gradient = one_gradient(target), target.knowledge.gradient or {}
    batch = _batch_statistics(target.model, gradient, pair.norm, pair.module)
    after = pair.next_norm
    beyond = None if after is None else _batch_statistics(target.model, gradient, *after)
    if batch is None or (after is not None and beyond is None):
        return nothing(target, Status.INCONCLUSIVE, STATISTICS)
    if not isinstance(pair.activation, nn.ReLU):
        kind = type(pair.activation).__name__
        return nothing(target, Status.INCONCLUSIVE, f"batch norm before {kind} is not solved")
    start, vector = evidence.start, evidence.vector
    weight = start[pair.first.weight]
    first = NormedLayer(
        weight=weight,
        bias=weight.new_zeros(len(weight)) if pair.first.bias is None else start[pair.first.bias],
        scale=_own(start, f"{pair.norm}weight", 1.0, len(weight)),
        shift=_own(start, f"{pair.norm}bias", 0.0, len(weight)),
        eps=pair.module.eps,
        mean=batch[0],
        variance=batch[1],
        gradient=vector[pair.first.weight],
        shift_gradient=vector.get(f"{pair.norm}bias"),
    )
    following = NextLayer(
        weight=start[pair.next.weight],
        gradient=vector[pair.next.weight],
        mean=None
        if beyond is None
        else beyond[0] - (start[pair.next.bias] if pair.next.bias else 0.0),
    )
    found = recover_normed(
        first,
        following,
        precision=evidence.precision,
        generator=generator,
        count=target.knowledge.records,
    )
    if isinstance(found, str):
        return nothing(target, Status.INCONCLUSIVE, found)
    return _conclude(target, evidence, found)


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


def _own(start: Weights, name: str, otherwise: float, width: int) -> Tensor:
    """A parameter of batch norm, or what stands for it where it has none."""
    value = start.get(name)
    return torch.full((width,), otherwise, dtype=torch.float64) if value is None else value


def _batch_statistics(
    model: nn.Module, after: Weights, prefix: str, norm: nn.BatchNorm1d
) -> tuple[Tensor, Tensor] | None:
    """Mean and variance (over n - 1) of the batch behind one step, from what the running ones were
    and have become; None where they are not known or have not moved."""
    names = [f"{prefix}{name}" for name in ("running_mean", "running_var")]
    held = dict(model.named_buffers())
    if not all(name in after and name in held for name in names):
        return None
    steps = norm.num_batches_tracked
    share = norm.momentum
    if share is None:  # a plain average over all steps so far
        share = 1.0 / (1 + int(steps)) if steps is not None else 1.0
    old, new = ([part[name].double() for name in names] for part in (held, after))
    if share == 0 or all(torch.equal(a, b) for a, b in zip(old, new, strict=True)):
        return None
    mean, variance = (b.detach() - (1 - share) * a.detach() for a, b in zip(old, new, strict=True))
    return mean / share, variance / share


def _conclude(target: Target, evidence: Evidence, found: NormedRecovery) -> Candidates:
    basics = seen(found.spectrum, found.counted)
    count = f"{found.found} of {found.counted} records found"
    if not len(found.inputs):
        return nothing(target, Status.INCONCLUSIVE, count, **basics)
    inputs = found.inputs.reshape(-1, *target.input_shape)
    data = target.scaling.to_data(inputs)
    sure = found.complete and found.placed and bool(in_box(data, target.bounds).all())
    passed = torch.full((len(data),), sure)
    stated = stated_errors(target, data, found.error, passed)
    reason = f"all {found.counted} records, which give back the gradient through batch norm"
    if not found.complete:
        reason = f"{count}, which do not give back the gradient"
    elif not found.placed:
        reason += f"; {UNPLACED}"
    elif sure:
        reason += f", {worst_of(stated)}"
    return Candidates(
        inputs=data.float(),
        confidence=torch.full((len(data),), 1.0 if sure else 0.5 if found.complete else 0.0),
        labels=_labels(target, evidence, inputs) if found.complete else None,
        status=Status.COMPLETE if sure else Status.INCONCLUSIVE,
        reason=reason,
        stated=Stated(
            counted=found.counted,
            certified=found.counted if sure else 0,
            passed=passed.tolist(),
            error=stated,
        ),
        figures=basics["figures"] | {"found": found.found, "unexplained": found.unexplained},
        trace=basics["trace"],
    )


def _labels(target: Target, evidence: Evidence, inputs: Tensor) -> Tensor | None:
    """Classes from the output layer's gradient, sum_i r_i h_i^T: the residual of a class is the
    only negative one. None for one output, or more records than features."""
    model = copy.deepcopy(target.model).double().train()
    name, layer = [(n, m) for n, m in model.named_modules() if isinstance(m, nn.Linear)][-1]
    features: list[Tensor] = []
    layer.register_forward_hook(lambda module, given, out: features.append(given[0].detach()))
    with torch.no_grad():
        real_outputs(model(inputs.double()), len(inputs), "model")
    gradient = evidence.vector[f"{name}.weight"]
    if len(gradient) < 2 or len(inputs) > gradient.shape[1]:
        return None
    solved: Tensor = torch.linalg.lstsq(features[0].T, gradient.T, driver="gelsd").solution
    return solved.argmin(1)
