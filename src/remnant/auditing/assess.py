"""Candidates scored against the truth, beside sets that cannot leak."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch

from remnant.auditing.case import Case
from remnant.auditing.fitting import is_language_model
from remnant.scoring import score_with_nulls
from remnant.scoring.score import THRESHOLD
from remnant.scoring.texts import score_texts_with_nulls, token_set
from remnant.types import Candidates, Examples, Finding, Scaling, token_rows


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
    truth, holdout, public = (
        replace(part, inputs=unit.to_model(part.inputs)) for part in (truth, holdout, public)
    )
    scored = score_with_nulls(
        truth,
        replace(candidates, inputs=unit.to_model(candidates.inputs)),
        holdout=holdout,
        public=public,
        generator=generator,
        threshold=threshold,
        in_order=targets is not None,
    )
    scored["summary"]["numbers"] = math.prod(truth.shape)  # of one record
    return finding_of(candidates, attack, **scored)


def assess_texts(
    case: Case,
    candidates: Candidates,
    *,
    attack: str,
    truth: Examples,
    holdout: Examples,
    public: Examples,
    generator: torch.Generator,
) -> Finding:
    """As `assess`, for texts, which are compared token by token."""
    rows, others = token_rows(truth.inputs), token_rows(public.inputs)
    scored = score_texts_with_nulls(
        truth.ids,
        rows,
        token_rows(candidates.inputs),
        confidence=candidates.confidence.tolist(),
        labels=[None] * len(rows) if is_language_model(case) else truth.labels.tolist(),
        holdout=token_rows(holdout.inputs),
        public=others,
        generator=generator,
    )
    figures = dict(candidates.parts()[1]["figures"])
    named = figures.pop("tokens", None)  # tokens of records: they stay with the candidates
    if isinstance(named, list):
        scored["summary"]["token_set"] = token_set(named, rows, others)
    return finding_of(candidates, attack, figures=figures, **scored)


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
    """The scale in which records are compared: images as they are, each feature of a table in
    units of its spread over all records."""
    if truth.bounds is not None:
        return Scaling()
    every = torch.cat([truth.inputs, public.inputs.reshape(-1, *truth.shape).to(truth.inputs)])
    std = every.std(0)
    return Scaling(mean=every.mean(0), std=torch.where(std > 0, std, torch.ones_like(std)))


def without_truth(candidates: Candidates, *, attack: str) -> Finding:
    """What an adversary can say of their own result: counts, status and confidence."""
    told = [{"candidate": i, "confidence": float(c)} for i, c in enumerate(candidates.confidence)]
    unknown = dict.fromkeys(("records", "recovered", "threshold"))
    summary = {"candidates": len(candidates)}
    return finding_of(candidates, attack, **unknown, per_record=told, nulls={}, summary=summary)
