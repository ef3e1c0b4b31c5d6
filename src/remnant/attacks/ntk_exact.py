"""The exact solver of `ntk`: records through the first two dense layers, and a certificate."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.attacks.outcome import (
    in_box,
    nothing,
    seen,
    stated_errors,
    status_of,
    undo_convolutions,
    worst_of,
)
from remnant.progress import task
from remnant.solvers.dense.exact import Recovery, recover, recover_smooth
from remnant.solvers.dense.polish import polished
from remnant.solvers.dense.problem import pose, pose_output
from remnant.solvers.dense.rounds import Search, barren_in
from remnant.solvers.dense.smooth import pose_smooth
from remnant.solvers.layers import Pair, first_pair, read_labels
from remnant.solvers.spans import (
    BLENDS,
    Decomposition,
    Spectrum,
    count_records,
    decompose,
    hides_more,
    noise_precision,
    rounding_level,
    span_of,
    told_apart,
    without_decay,
)
from remnant.training.recipes import describe
from remnant.types import Candidates, Evidence, Stated, Status, Target

# Those with a shape that tells records apart; exact zeros, and exact records, come with ReLU alone.
ACTIVATIONS = (nn.ReLU, nn.LeakyReLU, nn.ELU, nn.GELU, nn.SiLU, nn.Softplus, nn.Tanh, nn.Sigmoid)

UNMOVED = "initial and final weights are the same: no training lies between them"


def recover_exactly(
    target: Target, evidence: Evidence, search: Search, generator: torch.Generator
) -> Candidates:
    """Candidates with certificates; or none, and in status and reason why that cannot be done."""
    pair = applicable(target)
    if isinstance(pair, str):
        return nothing(target, Status.NOT_APPLICABLE, pair)
    if not bool(pair.first.affine(evidence.vector).any()):
        return nothing(target, Status.INCONCLUSIVE, UNMOVED)
    if not bool(evidence.vector[pair.next.weight].any()):
        reason = "the second dense layer did not change, so nothing tells records apart"
        return nothing(target, Status.INCONCLUSIVE, reason)
    with task("counting records"):
        evidence, parts, spectrum, decay = count_between(evidence, pair)
    count = spectrum.count if spectrum.clear else target.knowledge.records
    if count is None:
        return nothing(target, Status.INCONCLUSIVE, no_gap(spectrum), **seen(spectrum, None))
    width = len(evidence.vector[pair.first.weight])
    live = int(pair.first.affine(evidence.vector).any(0).sum())
    # A gap so far down may be that of inputs that hardly vary, so the count is believed only if as
    # many records are certified.
    full = spectrum.clear and count > 0.75 * live
    if 2 * count > width and not full:
        reason = f"{count} records at width {width}: past width / 2 they are not determined"
        return nothing(target, Status.INCONCLUSIVE, reason, **seen(spectrum, count))
    if not spectrum.clear:  # perhaps noise was added; then tolerances are those of the noise
        level = noise_precision(parts.values, pair.first.affine(evidence.end))
        evidence = replace(evidence, precision=max(evidence.precision, level))

    def recovered(how: Search) -> Candidates:
        span = span_of(parts, count)
        recovery = solve(evidence, pair, parts, count, how, generator)
        if recovery.certificate is None:
            recovery = polished(target, evidence, pair, span, recovery)
        if target.knowledge.records != count:
            apart = told_apart(pair.first.affine(evidence.start), recovery.inputs)
            ends = pair.first.affine(evidence.end)
            apart &= not hides_more(spectrum, ends, evidence.precision)
            blends = int((recovery.passed & ~apart).sum())
            recovery = replace(recovery, passed=recovery.passed & apart, blends=blends)
        return conclude(target, evidence, spectrum, decay, recovery, count, generator)

    if not full:
        return recovered(search)
    if 2 * count <= width:
        found = recovered(replace(search, patience=min(search.patience, 2)))
        if found.status == Status.COMPLETE:
            return found
    reason = (
        f"the first layer's change has rank {count} with {live} live inputs: nearly full, as after "
        "Adam, or of too many records to tell apart; so many were not found"
    )
    return nothing(target, Status.INCONCLUSIVE, reason, **seen(spectrum, None))


def solve(
    evidence: Evidence,
    pair: Pair,
    parts: Decomposition,
    count: int,
    search: Search,
    generator: torch.Generator,
) -> Recovery:
    """The records, `count` of them: exact for ReLU, nearly so for other activations. parts: of the
    first layer's change."""
    start, end = pair.first.affine(evidence.start), pair.first.affine(evidence.end)
    if isinstance(pair.activation, nn.ReLU):
        weight, precision, span = pair.next.weight, evidence.precision, span_of(parts, count)
        with task("decomposing layers"):
            if pair.last:
                ends = evidence.start[weight], evidence.end[weight]
                problem = pose_output(span, start, end, *ends, precision=precision)
            else:
                change = evidence.vector[weight]
                problem = pose(span, start, end, change, precision=precision)
        return recover(problem, search, generator=generator)
    with task("decomposing layers"):
        level = rounding_level(pair.next.affine(evidence.end), evidence.precision)
        change = pair.next.affine(evidence.vector)
        leading = parts.parts(count)
        smooth = pose_smooth(leading, pair.activation, start, change, level=level)
    return recover_smooth(smooth, search, generator)


def count_between(
    evidence: Evidence, pair: Pair, *, coarse: float = 1e-3, coarse_gap: float = 15.0
) -> tuple[Evidence, Decomposition, Spectrum, float]:
    """The number of records, by a gap in the spectrum of the first layer's change.

    Returns the evidence that the count belongs to (less weight decay, where that shows a gap), its
    decomposition and spectrum, and the factor by which decay shrank the weights. Rounding above
    `coarse`, as bfloat16's, can leave a gap of 5 to 7 one record off; there it has to be wider than
    `coarse_gap`.
    """
    weights, change = pair.first.affine(evidence.end), pair.first.affine(evidence.vector)
    parts = decompose(change)
    spectrum = count_records(parts.values, weights, evidence.precision)
    if evidence.precision > coarse:
        clear = spectrum.clear and spectrum.gap > coarse_gap
        return evidence, parts, replace(spectrum, clear=clear), 1.0
    if spectrum.clear:
        return evidence, parts, spectrum, 1.0
    undecayed, decay = without_decay(evidence, pair.first.weight, pair.first.bias)
    parts_then = decompose(pair.first.affine(undecayed.vector))
    spectrum_then = count_records(parts_then.values, weights, evidence.precision)
    # Inputs that never fire change by decay alone: without it they leave a gap that is not one.
    live = int(change.any(0).sum())
    if spectrum_then.clear and 0 < decay < 1 and spectrum_then.count < min(live, len(change)) - 1:
        return undecayed, parts_then, spectrum_then, decay
    return evidence, parts, spectrum, 1.0


def applicable(target: Target) -> Pair | str:
    """The layers to work on, or the assumption that is not met."""
    pair = first_pair(target.model, after_convolutions=True)
    if isinstance(pair, str):
        return pair
    if pair.last and not isinstance(pair.activation, nn.ReLU):
        return "a single hidden layer is solved for ReLU alone; others need a second one"
    if not isinstance(pair.activation, ACTIVATIONS):
        known = ", ".join(kind.__name__ for kind in ACTIVATIONS)
        return (
            f"the first activation must be one of {known}; it is {type(pair.activation).__name__}"
        )
    if pair.first.bias is None:
        return "the first layer has no bias, so the scale of a record is not determined"
    return pair


def no_gap(spectrum: Spectrum) -> str:
    return (
        "no gap among the singular values of the first layer's change (largest fall "
        f"{spectrum.gap:.1f}x, at {spectrum.count}), so the number of records cannot be read off: "
        "as after Adam, weight decay, coarse rounding, or more records than inputs or neurons; "
        "after Adam the optimizer saved beside the weights would tell them (gradient), or a short "
        "recipe (informed)"
    )


def words_for(
    target: Target, recovery: Recovery, stated: list[float | None], certified: int, count: int
) -> str:
    """The reason that a finding gives: how many are certified, how exactly, what is missing."""
    words = f"{certified} of {count} records found and certified without the truth"
    if certified:
        words += f", {worst_of(stated)}"
    if certified and not recovery.exact:
        words += f": {why_inexact(recovery)}"
    elif len(recovery.inputs) and not recovery.exact:
        words += f"; {len(recovery.inputs)} rough estimates, which exact ones would need all of"
    if len(recovery.inputs) < count:
        barren = barren_in(recovery.found)
        words += f"; given up after {barren} rounds of the search that found nothing more"
    if recovery.blends:
        words += f"; {recovery.blends} more {BLENDS}"
    if target.knowledge.records not in (None, count):
        words += (
            f"; the spectrum counts {count} records where {target.knowledge.records} were given"
        )
    return words


def why_inexact(recovery: Recovery) -> str:
    if recovery.rerun is not None:
        how = recovery.rerun.recipe
        return (
            f"{how.steps} steps of {how.lr:.3g} with momentum {how.momentum:.3g} from the initial "
            f"weights, on these records, end at the final ones to {recovery.rerun.gap:.0e}"
        )
    if recovery.certificate is None:
        return "nothing is exactly zero in this network"
    return "exact ones need all others"


def said_by(model: nn.Module, inputs: Tensor) -> Tensor | None:
    """What the final model says of its own records; estimates are too rough to read their duals."""
    with torch.no_grad():
        outputs = copy.deepcopy(model).double().eval()(inputs.double())
    return None if outputs.shape[-1] < 2 else outputs.argmax(-1)


def conclude(
    target: Target,
    evidence: Evidence,
    spectrum: Spectrum,
    decay: float,
    recovery: Recovery,
    count: int,
    generator: torch.Generator,
) -> Candidates:
    """Candidates in the data's own scale, certified ones first, and how far to trust them."""
    inputs, passed, error, more = undo_convolutions(
        target,
        recovery.inputs,
        recovery.passed,
        recovery.error,
        precision=10 * evidence.precision,  # a difference of weights has lost digits
        generator=generator,
    )
    model_inputs = inputs.reshape(-1, *target.input_shape)
    data = target.scaling.to_data(model_inputs)
    passed = passed & in_box(data, target.bounds)
    certified = int(passed.sum())
    order = torch.where(passed, recovery.confidence, 0.5 * recovery.confidence)
    order = order.argsort(descending=True, stable=True)
    labels = recovery.labels
    if labels is None and len(data) and recovery.certificate is None:
        labels = said_by(target.model, model_inputs)
    elif labels is None and len(data) and recovery.duals is not None:
        labels = read_labels(target.model, evidence, model_inputs, recovery.duals)
    basics = seen(spectrum, count)
    stated = stated_errors(target, data[order], error[order], passed[order])
    figures: dict[str, Any] = {
        "found": len(data),
        "rounds": recovery.rounds,
        "exact": recovery.exact,
        "decay": decay,
    }
    if recovery.rerun is not None:
        figures["rerun"] = describe(recovery.rerun.recipe) | {"gap": recovery.rerun.gap}
    if recovery.certificate is not None and recovery.certificate.residual is not None:
        figures["residual"] = recovery.certificate.residual
    if recovery.certificate is not None and recovery.certificate.foreign is not None:
        figures["residual_second"] = recovery.certificate.foreign[order].tolist()
    return Candidates(
        inputs=data[order].float(),
        confidence=recovery.confidence[order].float(),
        labels=None if labels is None else labels[order],
        status=status_of(certified, count),
        reason=words_for(target, recovery, stated, certified, count) + more,
        stated=Stated(
            counted=count, certified=certified, passed=passed[order].tolist(), error=stated
        ),
        figures=basics["figures"] | figures,
        trace=basics["trace"] | {"found": recovery.found},
    )
