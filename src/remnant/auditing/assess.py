"""The only place that holds a target's candidates and the truth together."""

from __future__ import annotations

from dataclasses import replace

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

    Features of a table have unlike scales: they are scored in units of their spread in `public`.
    """
    unit = Scaling()
    if truth.bounds is None:
        std = public.inputs.std(0)
        std = torch.where(std > 0, std, torch.ones_like(std))
        unit = Scaling(mean=public.inputs.mean(0), std=std)
    scored = score_with_nulls(
        _in_units(truth, unit),
        replace(candidates, inputs=unit.to_model(candidates.inputs)),
        holdout=_in_units(holdout, unit),
        public=_in_units(public, unit),
        generator=generator,
        threshold=threshold,
    )
    return Finding(
        attack=attack,
        status=candidates.status,
        reason=candidates.reason,
        counted=candidates.figures.get("counted"),
        figures=candidates.figures,
        trace=candidates.trace,
        **scored,
    )


def _in_units(examples: Examples, unit: Scaling) -> Examples:
    return replace(examples, inputs=unit.to_model(examples.inputs))


def without_truth(candidates: Candidates, *, attack: str) -> Finding:
    """What an adversary can say of their own result: counts, status and confidence."""
    per_candidate = [
        {"candidate": i, "confidence": float(c)} for i, c in enumerate(candidates.confidence)
    ]
    return Finding(
        attack=attack,
        status=candidates.status,
        reason=candidates.reason,
        counted=candidates.figures.get("counted"),
        records=None,
        recovered=None,
        threshold=None,
        per_record=per_candidate,
        nulls={},
        summary={"candidates": len(candidates)},
        figures=candidates.figures,
        trace=candidates.trace,
    )
