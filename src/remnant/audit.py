"""The only place that holds a target's candidates and the truth together."""

from __future__ import annotations

import torch

from remnant.scoring import score_with_nulls
from remnant.scoring.score import THRESHOLD
from remnant.types import Candidates, Examples, Finding


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
    """Score candidates against the records and, alike, against sets that cannot leak."""
    scored = score_with_nulls(
        truth,
        candidates,
        holdout=holdout,
        public=public,
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
