"""The only place that holds a target's candidates and the truth together."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remnant.scoring import score_with_nulls
from remnant.scoring.score import (
    THRESHOLD,
    Scores,
    excess,
    exposure_order,
    score,
    summarise,
)
from remnant.types import Candidates, Examples, Finding, Scaling

SCORED = ("correlation", "squared_l2", "mse", "psnr", "ssim")


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
    scaled = replace(candidates, inputs=unit.to_model(candidates.inputs))
    scored = score_with_nulls(
        _in_units(truth, unit),
        scaled,
        holdout=_in_units(holdout, unit),
        public=_in_units(public, unit),
        generator=generator,
        threshold=threshold,
    )
    if targets is not None:
        scored = in_order(scored, _in_units(truth, unit), scaled)
    scored["summary"]["numbers"] = math.prod(truth.shape)  # of one record
    return Finding(
        attack=attack,
        status=candidates.status,
        reason=candidates.reason,
        counted=candidates.stated.counted,
        figures=candidates.parts()[1]["figures"],
        trace=candidates.trace,
        **scored,
    )


def unit_of(truth: Examples, public: Examples) -> Scaling:
    """In which records are compared: as they are, or a table's features by the spread of all."""
    if truth.bounds is not None:
        return Scaling()
    every = torch.cat([truth.inputs, public.inputs.reshape(-1, *truth.shape).to(truth.inputs)])
    std = every.std(0)
    return Scaling(mean=every.mean(0), std=torch.where(std > 0, std, torch.ones_like(std)))


def in_order(scored: dict[str, Any], truth: Examples, candidates: Candidates) -> dict[str, Any]:
    """`scored` with candidate i standing for record i and for no other.

    The nulls stay matched to whichever record they are nearest to, which is in their favour.
    """
    threshold, n = scored["threshold"], len(truth)
    scores = _together(
        [score(truth.take([i]), candidates.inputs[i : i + 1]) for i in range(n)], len(candidates)
    )
    place = {row["id"]: k for k, row in enumerate(scored["per_record"])}
    rows, moved = [], []
    for i in exposure_order(scores):
        known = i < len(candidates)
        place_before = place[truth.ids[i]]
        moved.append(place_before)
        rows.append(
            scored["per_record"][place_before]
            | {name: plain(getattr(scores, name), i) for name in SCORED}
            | {
                "recovered": bool(scores.correlation[i] > threshold),
                "candidate": i if known else None,
                "confidence": float(candidates.confidence[i]) if known else None,
            }
        )
    nulls: dict[str, dict[str, Any]] = {
        name: {k: [v[j] for j in moved] if isinstance(v, list) else v for k, v in null.items()}
        for name, null in scored["nulls"].items()
    }
    summary = summarise(scores, threshold)
    found = summary["recovered"]
    summary["excess"] = {name: excess(found, null["recovered"], n) for name, null in nulls.items()}
    return scored | {"recovered": found, "per_record": rows, "nulls": nulls, "summary": summary}


def plain(values: Tensor | None, i: int) -> float | None:
    value = math.nan if values is None else float(values[i])
    return value if math.isfinite(value) else None


def _together(parts: Sequence[Scores], candidates: int) -> Scores:
    """Scores of one record each as scores of them all."""
    values: dict[str, Any] = {}
    for name in (*SCORED, "candidate"):
        held = [getattr(part, name) for part in parts]
        values[name] = None if held[0] is None else torch.cat(held)
    return Scores(protocol="in order", candidates=candidates, **values)


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
        counted=candidates.stated.counted,
        records=None,
        recovered=None,
        threshold=None,
        per_record=per_candidate,
        nulls={},
        summary={"candidates": len(candidates)},
        figures=candidates.parts()[1]["figures"],
        trace=candidates.trace,
    )
