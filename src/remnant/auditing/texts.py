"""Texts in an audit: what came back is the record itself, token by token, or proves nothing."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from remnant.auditing.assess import finding_of
from remnant.auditing.case import Case
from remnant.auditing.grounds import Proof
from remnant.auditing.strangers import Strangers
from remnant.models.tokens import is_causal, outputs_for
from remnant.scoring.claims import Claims, claim
from remnant.scoring.texts import score_texts_with_nulls, token_set
from remnant.training.losses import ce, next_token
from remnant.types import Candidates, Examples, Finding, token_rows


def assess_texts(
    case: Case,
    found: Candidates,
    strangers: Strangers,
    *,
    attack: str,
    generator: torch.Generator,
) -> Finding:
    """Score sequences beside nulls, and say which records are proved to have come back."""
    truth, rows = token_rows(case.truth.inputs), token_rows(found.inputs)
    public = token_rows(strangers.public.inputs)
    spoken = speaks(case)
    labels: list[Any] = [None] * len(truth) if spoken else case.truth.labels.tolist()
    scored = score_texts_with_nulls(
        case.truth.ids,
        truth,
        rows,
        confidence=found.confidence.tolist(),
        labels=labels,
        holdout=token_rows(strangers.holdout.inputs),
        public=public,
        generator=generator,
    )
    figures = dict(found.parts()[1]["figures"])
    named = figures.pop("tokens", None)  # tokens of records: they stay with the candidates
    if isinstance(named, list):
        scored["summary"]["token_set"] = token_set(named, truth, public)
    claims, certified = _claims(case.truth.inputs, found, strangers.examples.inputs)
    proof = Proof(
        text=True,
        claimed=claims.count,
        certified=int(certified.sum()),
        foreign=int((claims.foreign & certified).sum()),
        chance=claims.chance,
        by_chance=claims.by_chance,
        strangers=len(strangers.examples),
    )
    place = {name: i for i, name in enumerate(case.truth.ids)}
    marked = [
        {**row, **_marks(int(claims.candidate[place[row["id"]]]), row)}
        for row in scored["per_record"]
    ]
    return proof.added_to(finding_of(found, attack, figures=figures, **scored), marked)


def speaks(case: Case) -> bool:
    """Whether the model is one of language, with outputs at each place, and labels mean nothing."""
    with torch.no_grad():
        outputs = outputs_for(case.target.model.eval(), case.truth.inputs[:1])
    return isinstance(outputs, Tensor) and outputs.ndim == 3


def losses_of_texts(model: nn.Module, examples: Examples) -> list[float] | None:
    """The mean loss of the next token over each text, or of its label by a classifier; None where
    the model is neither, and NaN where a text has no next token."""
    with torch.no_grad():
        first = outputs_for(model, examples.inputs[:1])
        spoken = isinstance(first, Tensor) and first.ndim == 3
        if not isinstance(first, Tensor) or (spoken and not is_causal(model, examples.inputs)):
            return None
        told = []
        for row, label in zip(examples.inputs, examples.labels, strict=True):
            text = row[row >= 0][None]
            outputs = outputs_for(model, text)
            assert isinstance(outputs, Tensor)
            if not spoken:
                told.append(float(ce(outputs.double(), label[None])))
            else:
                known = text.shape[1] > 1
                told.append(float(next_token(outputs.double(), text)) if known else math.nan)
    return told


def same_length(*sets: Examples) -> list[Examples]:
    """The sets with rows of one length, the longest's, so that they can be compared."""
    width = max(part.shape[0] for part in sets)
    return [replace(part, inputs=_wide(part.inputs, width)) for part in sets]


def _wide(rows: Tensor, width: int) -> Tensor:
    return torch.nn.functional.pad(rows, (0, width - rows.shape[1]), value=-1)


def _claims(truth: Tensor, found: Candidates, strangers: Tensor) -> tuple[Claims, Tensor]:
    """Records that a candidate equals, certified or not: a whole text is hit by nobody's guess, and
    strangers that are hit count as chance. And which candidates are certified."""
    m = len(found)
    rows = found.inputs.round().long().clamp_min(-1)
    certified = torch.tensor(list(found.stated.passed) or [False] * m, dtype=torch.bool)
    width = max(truth.shape[1], rows.shape[1])
    claims = claim(
        _wide(truth, width).double(),
        _wide(rows, width).double(),
        passed=torch.ones(m, dtype=torch.bool),
        error=torch.zeros(m, dtype=torch.float64),
        strangers=_wide(strangers, width).double(),
    )
    return claims, certified


def _marks(j: int, row: dict[str, Any]) -> dict[str, Any]:
    """A claimed record goes by the candidate that it is claimed by: equal records share theirs."""
    same = {"candidate": j} if j >= 0 and row["recovered"] else {}
    return {
        "claimed": j >= 0,
        "above": False,
        "distance": 0.0 if j >= 0 else None,
        "stated_error": 0.0 if j >= 0 else None,
        **same,
    }
