"""What can be proved of an attack's candidates, by one who holds the truth: the verdict's ground.

Certified candidates are claimed for the records within twice their stated errors. Candidates
without a certificate are compared with records and strangers alike, which counts only if the
declared records are those that the model was trained on. The figures stand in
`Finding.summary["proof"]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor

from remnant.auditing.assess import unit_of
from remnant.auditing.case import Case
from remnant.auditing.disguises import disguises, reordered
from remnant.auditing.explained import explained
from remnant.auditing.grounds import Proof
from remnant.auditing.strangers import Strangers
from remnant.scoring.claims import Claims, claim, unstated_error
from remnant.scoring.ranks import Ranks, compare
from remnant.scoring.score import figures_of_pair, score
from remnant.seeds import generator_for
from remnant.types import Candidates, Examples, Finding


def marks(found: Candidates) -> tuple[Tensor, Tensor]:
    """m each: whether a candidate is certified, and its stated error (NaN = none)."""
    m, stated = len(found), found.stated
    certified = torch.tensor(list(stated.passed) or [False] * m, dtype=torch.bool)
    known = [math.nan if e is None else e for e in stated.error] or [math.nan] * m
    error = torch.tensor(known, dtype=torch.float64)
    finite = torch.isfinite(found.inputs.flatten(1)).all(1)
    return certified & finite, error


def undisguised(case: Case, found: Candidates, strangers: Strangers) -> tuple[Examples, str]:
    """The records as certified candidates show them: as declared, or mirrored and the like."""
    passed, _ = marks(found)
    if not passed.any() or found.stated.targets is not None:
        return case.truth, ""
    best, words = claims_of(found, case.truth, strangers), ""
    truth = case.truth
    if best.foreign.any():
        for name, inputs in disguises(case.truth):
            other = replace(case.truth, inputs=inputs)
            claims = claims_of(found, other, strangers)
            if claims.count > best.count:
                best, truth, words = claims, other, name
    return truth, words


def in_disguise(strangers: Strangers, disguise: str) -> Strangers:
    """The strangers in the same disguise as the records, so that chance is measured alike."""
    if not disguise:
        return strangers
    inputs = dict(disguises(strangers.examples))[disguise]
    return replace(
        strangers,
        examples=replace(strangers.examples, inputs=inputs),
        inputs=strangers.rows_of(inputs),
    )


def claims_of(found: Candidates, truth: Examples, strangers: Strangers) -> Claims:
    """The records that certified candidates may be claimed for."""
    certified, error = marks(found)
    passed, targets = certified, found.stated.targets
    if targets is not None:
        # Sought for one record and found within rounding of it: a wrong guess lies elsewhere.
        truth = truth.take([truth.ids.index(name) for name in targets])
        passed = torch.isfinite(found.inputs.flatten(1)).all(1)
    claims = claim(
        strangers.rows_of(truth),
        strangers.rows_of(found.inputs.reshape(-1, *truth.shape)),
        passed=passed,
        error=error,
        strangers=strangers.inputs,
        own=targets is not None,
    )
    return replace(claims, foreign=claims.foreign & certified)


def prove(
    case: Case, found: Candidates, finding: Finding, strangers: Strangers, disguise: str = ""
) -> Finding:
    """`finding` with its proof: marks of each record and figures of all."""
    strangers = in_disguise(strangers, disguise)
    claims = claims_of(found, case.truth, strangers)
    tries = 1 + len(list(disguises(case.truth))) if disguise else 1
    passed, error = marks(found)
    ranks = _ranks(case, found, finding, strangers) if not passed.any() else None
    member = explained(case, finding.attack, strangers) if ranks is not None else None
    ids = finding.stated.targets or case.truth.ids
    place = {name: i for i, name in enumerate(ids)}
    rows = []
    for row in finding.per_record:
        i = place[row["id"]]
        scored = _by_its_claim(case, found, row, int(claims.candidate[i]), finding.threshold)
        rows.append({**scored, **_row(i, claims, ranks, error)})
    rows.sort(key=lambda row: not (row["claimed"] or row["above"]))  # stable: worst first
    proof = Proof(
        claimed=claims.count,
        certified=int(passed.sum()),
        foreign=int(claims.foreign.sum()),
        chance=min(1.0, tries * claims.chance),
        by_chance=claims.by_chance,
        strangers=len(strangers.inputs),
        differ=strangers.differ,
        disguise=disguise,
        reordered=_reordered(case, found, claims, strangers),
        rank_p=None if ranks is None else ranks.p,
        above=0 if ranks is None else int(ranks.above.sum()),
        explained=member,
    )
    order = {row["id"]: k for k, row in enumerate(finding.per_record)}
    moved = [order[row["id"]] for row in rows]
    nulls = {
        name: {k: [v[j] for j in moved] if isinstance(v, list) else v for k, v in null.items()}
        for name, null in finding.nulls.items()
    }
    return proof.added_to(replace(finding, nulls=nulls), rows)


def _ranks(case: Case, found: Candidates, finding: Finding, strangers: Strangers) -> Ranks | None:
    """Compare candidates with records and strangers. None for an adversary who knows the other
    records: they are in every candidate, so that no stranger is comparable."""
    if found.stated.targets is not None or not len(found):
        return None
    finite = torch.isfinite(found.inputs.flatten(1)).all(1)
    return compare(
        strangers.rows_of(found.inputs[finite].reshape(-1, *case.truth.shape)),
        strangers.rows_of(case.truth),
        strangers.inputs,
        labels=(case.truth.labels, strangers.examples.labels),
        generator=generator_for(0, f"ranks {finding.attack}"),
    )


def _row(i: int, claims: Claims, ranks: Ranks | None, error: Tensor) -> dict[str, Any]:
    j = int(claims.candidate[i])
    distance = float(claims.distance[i])
    return {
        "claimed": j >= 0,
        "above": ranks is not None and bool(ranks.above[i]),
        "distance": distance if math.isfinite(distance) else None,
        "stated_error": float(error[j]) if j >= 0 and not bool(error[j].isnan()) else None,
    }


def _by_its_claim(
    case: Case, found: Candidates, row: Mapping[str, Any], j: int, threshold: float | None
) -> Mapping[str, Any]:
    """The record's scores taken with the candidate that claims it, which identical records share,
    in place of the one that it was matched with."""
    if j < 0 or j == row["candidate"]:
        return row
    unit = unit_of(case.truth, case.public)
    one = case.truth.take([case.truth.ids.index(row["id"])])
    one = replace(one, inputs=unit.to_model(one.inputs))
    scores = score(one, unit.to_model(found.inputs[j : j + 1].reshape(one.inputs.shape)))
    return {
        **row,
        **figures_of_pair(scores, 0, threshold or 0.0),
        "candidate": j,
        "confidence": float(found.confidence[j]),
    }


def _reordered(case: Case, found: Candidates, claims: Claims, strangers: Strangers) -> int:
    """How many records came back with their numbers in another order; looked for only where nothing
    was claimed."""
    if not claims.foreign.any() or claims.count:
        return 0
    rows = strangers.rows_of(found.inputs[claims.foreign].reshape(-1, *case.truth.shape))
    return reordered(strangers.rows_of(case.truth), rows, unstated_error(strangers.inputs))
