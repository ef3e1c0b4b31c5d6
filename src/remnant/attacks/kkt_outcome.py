"""What `kkt` says of what it found: candidates in the data's own scale, figures, status, reason."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks.outcome import model_box, nothing
from remnant.solvers.consensus import came_back, cluster, enough
from remnant.solvers.kkt.duals import Duals, Objective
from remnant.solvers.kkt.network import Balance, Layer
from remnant.solvers.kkt.paper import Descended
from remnant.solvers.kkt.scale import scaled_to_box
from remnant.solvers.kkt.search import Found, Pooled
from remnant.solvers.kkt.tolerances import TOLERANCES
from remnant.solvers.spans import Spectrum
from remnant.training.losses import predicted
from remnant.types import Candidates, Stated, Status, Target


def records_of(target: Target) -> int | None:
    """The number of records, where the adversary knows it."""
    known = target.knowledge
    if known.records is not None:
        return known.records
    return None if known.labels is None else len(known.labels)


def conclude(
    target: Target,
    layers: tuple[Layer, ...],
    spectrum: Spectrum,
    state: Balance,
    duals: Duals,
    found: Found,
    pooled: Pooled,
) -> Candidates:
    """What starts return between them in the data's own scale, what most agree on first."""
    k = len(found.inputs)
    centres = in_the_box(target, layers, duals, pooled.inputs)
    data = target.scaling.to_data(centres.reshape(-1, *target.input_shape))
    alike = pooled.starts >= max(2, enough(k))  # one start has nothing to agree with
    distinct = len(cluster(pooled.inputs[alike][None])) if alike.any() else 0
    labels, wrong = None, None
    if duals.objective != "free":
        labels = pooled.labels
        wrong = int(((predicted(pooled.outputs) != labels) & alike).sum())
    sure = int((pooled.agreement >= TOLERANCES.sure).sum())
    least = min(records_of(target) or spectrum.count, len(duals.labels))
    status, reason = outcome(
        duals.objective,
        k,
        distinct,
        state.imbalance,
        wrong or 0,
        sure,
        missing=max(0, least - len(pooled.inputs)),
        outputs=duals.outputs,
    )
    return Candidates(
        inputs=data.float(),
        confidence=pooled.agreement.float(),
        labels=labels,
        status=status,
        reason=reason,
        stated=Stated(counted=records_of(target) or spectrum.count),
        figures={
            "spectrum_count": spectrum.count,
            "gap": spectrum.gap,
            "objective": duals.objective,
            "starts": k,
            "agreed": distinct,
            "sure": sure,
            "misclassified": wrong,
            "found_by": pooled.starts.tolist(),
            "imbalance": state.imbalance,
            "bias_decayed": state.bias_decayed if any(x.bias is not None for x in layers) else None,
            "misfit": found.misfit.mean(0).tolist(),
        },
        trace={"singular_values": spectrum.values.tolist(), "misfit": found.trace},
    )


def in_the_box(target: Target, layers: tuple[Layer, ...], duals: Duals, centres: Tensor) -> Tensor:
    """m x d, clamped to the data's box; scaled to it first where the weights leave that open."""
    box = model_box(target)
    if box is None:
        return centres
    if all(layer.bias is None and layer.factor is None for layer in layers):
        told = duals.objective == "soft" and duals.outputs > 2
        centres = scaled_to_box(centres, *box, told=told)
    return centres.clamp(*(end.flatten() for end in box))


def outcome(
    objective: Objective,
    starts: int,
    agreed: int,
    imbalance: float = 0.0,
    wrong: int = 0,
    sure: int = 0,
    missing: int = 0,
    outputs: int = 2,
) -> tuple[Status, str]:
    """There is no certificate: what starts agree on is likely a record, no more.

    missing: how many fewer candidates there are, with those alike taken as one, than records. Each
    start then returns a few pictures over and over, and agrees with the others on what they are.
    outputs: of the model. With one the second layer tells no record from another, and what starts
    agree on is less often a record: only what they are sure of counts
    (docs/research/kkt-two-classes.md).
    """
    alone = "one start has nothing to agree with, and a small misfit is no evidence"
    words = alone if starts == 1 else came_back(agreed, starts)
    if imbalance > TOLERANCES.unbalanced:
        words = (
            "the model was not trained to a stationary point under weight decay (hidden neurons "
            f"are out of balance by {imbalance:.2f}), where agreement is no evidence: {words}"
        )
    elif objective == "free":
        words = f"agreement is unreliable for free duals (regression losses): {words}"
    elif starts > 1 and missing:
        words = (
            f"with those alike taken as one there are {missing} candidates fewer than records: "
            f"they may be mixtures of records, on which starts agree as well; {words}"
        )
    elif starts > 1 and agreed and outputs == 1 and not sure:
        words += (
            f", none so that two starts agree above {TOLERANCES.sure:g}: with one output less than "
            "that is no evidence"
        )
    elif starts > 1 and agreed:
        words += ", which is evidence, not a certificate"
        if sure:
            words += f" (for {sure} two starts agree above {TOLERANCES.sure:g}: strong evidence)"
        if wrong:
            words += (
                f", but the model gives {wrong} of them another label: either it does not separate "
                "its records, or these are none"
            )
        return Status.PARTIAL, words
    return Status.INCONCLUSIVE, words


def conclude_paper(
    target: Target,
    duals: Duals,
    runs: list[Descended],
    settings: list[dict[str, Any]],
    counted: int | None,
) -> Candidates:
    """All trials' candidates, as the papers pool them, those of the trial of least loss first."""
    order = sorted(range(len(runs)), key=lambda i: runs[i].loss)
    ended = [runs[i] for i in order if math.isfinite(runs[i].loss)]
    if not ended:
        reason = f"all {len(runs)} trials diverged; give a smaller --lr or more --trials"
        return nothing(target, Status.INCONCLUSIVE, reason)
    rows = [by_dual(run) for run in ended]
    inputs = torch.cat(
        [run.inputs.detach().double()[row] for run, row in zip(ended, rows, strict=True)]
    )
    box = model_box(target)
    if box is not None:
        inputs = inputs.clamp(*box)
    words = "a small loss is no evidence: fits go below that of the true records"
    if any(isinstance(m, nn.modules.batchnorm._BatchNorm) for m in target.model.modules()):
        words += "; the model has batch norm, which the theory leaves out"
    return Candidates(
        inputs=target.scaling.to_data(inputs).float(),
        confidence=torch.zeros(len(inputs)),
        labels=None if duals.objective == "free" else duals.labels[torch.cat(rows)],
        status=Status.INCONCLUSIVE,
        reason=words,
        stated=Stated(counted=counted),
        figures={
            "objective": duals.objective,
            "trials": len(runs),
            "diverged": len(runs) - len(ended),
            "loss": ended[0].loss,
            "settings": settings[order[0]],
        },
        trace={"loss": ended[0].trace},
    )


def by_dual(run: Descended) -> Tensor:
    """The rows of a trial's candidates, those of largest dual first."""
    size = run.duals.detach().double().reshape(len(run.inputs), -1).norm(dim=1)
    order: Tensor = size.argsort(descending=True, stable=True)
    return order
