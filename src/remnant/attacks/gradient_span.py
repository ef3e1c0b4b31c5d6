"""The part of attack `gradient` for one hidden layer with a smooth activation."""

from __future__ import annotations

import torch
from torch import nn

from remnant.attacks.outcome import in_data_scale, stated_errors, status_of, worst_of
from remnant.solvers.dense.certificate import spread_of
from remnant.solvers.dense.one_gradient import leak_of
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.layers import labels_from
from remnant.solvers.tensor.deep import Deep
from remnant.solvers.tensor.span_lm import SpanResult
from remnant.types import Candidates, Evidence, Stated, Target


def span_tolerance(precision: float) -> float:
    """The misfit that certifies. Right records left up to 2.3 times single precision's rounding,
    and 0.35 times that of coarser ones, where wrong ones were seen to leave 1."""
    return max(1e-7, min(20 * precision, 2.5e-6), precision / 2)


def smooth_end(deep: Deep) -> bool:
    """Whether the last hidden layer is smooth and sees the batch itself."""
    activation = deep.network.activation
    rough = isinstance(activation, nn.Module) and leak_of(activation) is not None
    return deep.kind != "eavesdropper" and not rough


def conclude_span(target: Target, evidence: Evidence, found: SpanResult) -> Candidates:
    """One hidden layer with a smooth activation: all records or none are certified, since one that
    is held loosely moves others."""
    count = len(found.inputs)
    inputs = found.inputs.reshape(-1, *target.input_shape)
    certified = found.certified and found.sign_known
    words = f"the equations hold to {found.misfit:.1e}"
    if not found.sign_known:
        words += "; x and -x explain the gradient alike, give --bounds to tell them apart"
    data = in_data_scale(target, inputs)
    error = found.error.square()
    certified &= bool((error < TOLERANCES.sure * spread_of(inputs.flatten(1))).all())
    passed = torch.full((count,), certified)
    stated, sure = stated_errors(target, data, error, passed), int(passed.sum())
    if sure:
        words += f", {worst_of(stated)}"
    return Candidates(
        inputs=data,
        confidence=passed.float(),
        labels=labels_from(target, found.residuals, inputs) if certified else None,
        status=status_of(sure, count),
        reason=f"{sure} of {count} records found and certified without the truth: {words}",
        stated=Stated(counted=count, certified=sure, passed=passed.tolist(), error=stated),
        figures={
            "found": count,
            "unexplained": found.misfit,
            "sign_known": found.sign_known,
            "residuals": found.residuals.tolist(),
        },
    )
