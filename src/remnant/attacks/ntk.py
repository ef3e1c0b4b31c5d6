"""`ntk`: the adversary holds final and initial weights (000: fine-tuning, federated rounds)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from remnant.attacks.outcome import in_box, nothing, status_of
from remnant.evidence import weight_difference
from remnant.progress import task
from remnant.solvers.difference.exact import Recovery, Search, recover
from remnant.solvers.difference.problem import pose
from remnant.solvers.labels import read_labels
from remnant.solvers.layers import Pair, first_pair
from remnant.solvers.spans import Span, Spectrum, count_records, decompose, span_of
from remnant.types import Candidates, Evidence, Status, Target


@dataclass(frozen=True, kw_only=True)
class NTK:
    """Exact recovery through the first two dense layers of a ReLU network with biases.

    The number of records comes from the singular values of the first layer's change, their pixels
    from the search in `remnant.solvers.difference`; no public data is used. Where an assumption is
    not met the status says which, and nothing is returned.
    """

    starts: int = 32
    iterations: int = 300
    patience: int = 12

    def __call__(self, target: Target, *, generator: torch.Generator) -> Candidates:
        pair = applicable(target)
        if isinstance(pair, str):
            return nothing(target, Status.NOT_APPLICABLE, pair)
        evidence = weight_difference(target)
        change = pair.first.affine(evidence.vector)
        if not bool(change.any()):
            reason = "initial and final weights are the same: no training lies between them"
            return nothing(target, Status.INCONCLUSIVE, reason)
        with task("counting records"):
            parts = decompose(change)
            weights = pair.first.affine(evidence.end)
            spectrum = count_records(parts.values, weights, evidence.precision)
        count = spectrum.count if spectrum.clear else target.knowledge.records
        if count is None:
            return nothing(target, Status.INCONCLUSIVE, no_gap(spectrum), **seen(spectrum, None))
        width = len(change)
        if 2 * count > width:
            reason = f"{count} records at width {width}: past width / 2 they are not determined"
            return nothing(target, Status.INCONCLUSIVE, reason, **seen(spectrum, count))
        recovery = self.solve(evidence, pair, span_of(parts, count), generator)
        return conclude(target, evidence, spectrum, recovery, count)

    def solve(
        self, evidence: Evidence, pair: Pair, span: Span, generator: torch.Generator
    ) -> Recovery:
        with task("decomposing layers"):
            problem = pose(
                span,
                pair.first.affine(evidence.start),
                pair.first.affine(evidence.end),
                evidence.vector[pair.next.weight],
                precision=evidence.precision,
            )
        search = Search(starts=self.starts, iterations=self.iterations, patience=self.patience)
        return recover(problem, search, generator=generator)


def applicable(target: Target) -> Pair | str:
    """The layers to work on, or the assumption that is not met."""
    if target.knowledge.initial is None:
        return "the initial weights are unknown; give --initial"
    pair = first_pair(target.model)
    if isinstance(pair, str):
        return pair
    if pair.last:
        return "the exact solver needs at least two hidden layers"
    if not isinstance(pair.activation, nn.ReLU):
        return f"the first activation must be ReLU, it is {type(pair.activation).__name__}"
    if pair.first.bias is None:
        return "the first layer has no bias, so the scale of a record is not determined"
    return pair


def no_gap(spectrum: Spectrum) -> str:
    return (
        "no gap among the singular values of the first layer's change (largest fall "
        f"{spectrum.gap:.1f}x, at {spectrum.count}), so the number of records cannot be read off: "
        "as after Adam, weight decay, coarse rounding, or more records than inputs or neurons"
    )


def words_for(target: Target, certified: int, count: int, exact: bool) -> str:
    words = f"{certified} of {count} records found and certified without the truth"
    if certified and not exact:
        words += ", approximately: others are missing, which exact ones would need"
    if target.knowledge.records not in (None, count):
        words += (
            f"; the spectrum counts {count} records where {target.knowledge.records} were given"
        )
    return words


def seen(spectrum: Spectrum, count: int | None) -> dict[str, Any]:
    """What the spectrum says, for the finding and for its figure."""
    return {
        "figures": {"counted": count, "gap": spectrum.gap, "gap_clear": spectrum.clear},
        "trace": {"singular_values": spectrum.values.tolist()},
    }


def conclude(
    target: Target, evidence: Evidence, spectrum: Spectrum, recovery: Recovery, count: int
) -> Candidates:
    """Candidates in the data's own scale, certified ones first, and how far to trust them."""
    proof = recovery.certificate
    model_inputs = recovery.inputs.reshape(-1, *target.input_shape)
    data = target.scaling.to_data(model_inputs)
    passed = proof.passed & in_box(data, target.bounds)
    certified = int(passed.sum())
    confidence = (1 - proof.zero_but_firing) * (1 - proof.silent_but_active) * (0.5 + 0.5 * passed)
    order = confidence.argsort(descending=True, stable=True)
    labels = None
    if len(data):
        labels = read_labels(target.model, evidence, model_inputs, recovery.duals)
    basics = seen(spectrum, count)
    return Candidates(
        inputs=data[order].float(),
        confidence=confidence[order].float(),
        labels=None if labels is None else labels[order],
        status=status_of(certified, count),
        reason=words_for(target, certified, count, proof.exact),
        figures=basics["figures"]
        | {
            "found": len(data),
            "certified": certified,
            "rounds": recovery.rounds,
            "passed": passed[order].tolist(),
            "exact": proof.exact,
        },
        trace=basics["trace"] | {"found": recovery.found},
    )
