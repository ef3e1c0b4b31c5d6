"""The only place that holds a target's candidates and the truth together."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from remnant.scoring import score_with_nulls
from remnant.scoring.score import THRESHOLD
from remnant.types import Candidates, Examples, Finding, Scaling


def assess(
    candidates: Candidates,
    *,
    attack: str,
    truth: Examples,
    holdout: Examples,
    public: Examples,
    generator: torch.Generator,
    threshold: float = THRESHOLD,
) -> Finding:
    """Score candidates against the records and, alike, against sets that cannot leak.

    Where `Stated.targets` names the records that the candidates are for, in order, the truth is
    those records, and each candidate is scored against its own: the adversary knew all others.
    Features of a table have unlike scales: they are scored in units of their spread in `public`.
    """
    unit = unit_of(truth, public)
    targets = candidates.stated.targets
    if targets is not None:
        truth = truth.take([truth.ids.index(name) for name in targets])
    scored = score_with_nulls(
        _in_units(truth, unit),
        replace(candidates, inputs=unit.to_model(candidates.inputs)),
        holdout=_in_units(holdout, unit),
        public=_in_units(public, unit),
        generator=generator,
        threshold=threshold,
        in_order=targets is not None,
    )
    scored["summary"]["numbers"] = math.prod(truth.shape)  # of one record
    return finding_of(candidates, attack, **scored)


def finding_of(candidates: Candidates, attack: str, **scored: Any) -> Finding:
    """What the attack says of its own result, with what was scored beside it."""
    told = {"figures": candidates.parts()[1]["figures"], "trace": candidates.trace}
    return Finding(
        attack=attack,
        status=candidates.status,
        reason=candidates.reason,
        counted=candidates.stated.counted,
        **told | scored,
    )


def unit_of(truth: Examples, public: Examples) -> Scaling:
    """In which records are compared: as they are, or a table's features by the spread of all."""
    if truth.bounds is not None:
        return Scaling()
    every = torch.cat([truth.inputs, public.inputs.reshape(-1, *truth.shape).to(truth.inputs)])
    std = every.std(0)
    return Scaling(mean=every.mean(0), std=torch.where(std > 0, std, torch.ones_like(std)))


def _in_units(examples: Examples, unit: Scaling) -> Examples:
    return replace(examples, inputs=unit.to_model(examples.inputs))


def without_truth(candidates: Candidates, *, attack: str) -> Finding:
    """What an adversary can say of their own result: counts, status and confidence."""
    per_candidate = [
        {"candidate": i, "confidence": float(c)} for i, c in enumerate(candidates.confidence)
    ]
    return finding_of(
        candidates,
        attack,
        records=None,
        recovered=None,
        threshold=None,
        per_record=per_candidate,
        nulls={},
        summary={"candidates": len(candidates)},
    )
