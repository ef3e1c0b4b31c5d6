"""From candidates to what they prove, by one who holds the truth: the verdict's ground.

Certified candidates are claimed for the records within twice their stated errors; a text is claimed
by whatever equals it. Candidates without a certificate are compared with records and strangers
alike, which counts only if the declared records are those that the model was trained on. The
figures stand in `Finding.summary["proof"]`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, fields, replace
from typing import Any

import torch
from torch import Tensor

from remnant.auditing.assess import assess, assess_texts, unit_of
from remnant.auditing.case import Case, widened
from remnant.auditing.explained import Explained, explained
from remnant.auditing.strangers import Strangers
from remnant.scoring.claims import Claims, claim, rms_distance, unstated_error
from remnant.scoring.ranks import Ranks, compare
from remnant.scoring.score import THRESHOLD, figures_of_pair, score
from remnant.seeds import generator_for
from remnant.types import Candidates, Examples, Finding


@dataclass(frozen=True, kw_only=True)
class Proof:
    """What can be proved of an attack's candidates; by default, nothing."""

    claimed: int = 0  # records that a candidate was claimed for
    certified: int = 0  # candidates
    foreign: int = 0  # certified candidates that are no declared record
    chance: float = 1.0  # that strangers would be claimed as often
    by_chance: float = 0.0  # how many strangers are expected to be
    strangers: int = 0  # records never trained on that were compared
    differ: bool = False  # they are of another kind than the records
    disguise: str = ""  # how training saw the records, in words
    reordered: int = 0  # records whose numbers came back in another order
    rank_p: float | None = None  # that chance put candidates so near; None = not compared
    above: int = 0  # records nearer to a candidate than any stranger
    explained: Explained | None = None  # None = not known
    text: bool = False  # the records are texts, which come back word for word or not at all

    @classmethod
    def read(cls, finding: Finding) -> Proof:
        """The proof in a finding, which may come from a file."""
        held: Mapping[str, Any] = finding.summary.get("proof") or {}
        known = {field.name: held[field.name] for field in fields(cls) if field.name in held}
        if known.get("explained") is not None:
            known["explained"] = Explained(**known["explained"])
        return cls(**known)

    def added_to(self, finding: Finding, rows: Sequence[Mapping[str, Any]]) -> Finding:
        """The finding with this proof, and with each record's marks in `rows`."""
        summary = {**finding.summary, "proof": asdict(self)}
        return replace(finding, per_record=rows, summary=summary)

    @property
    def trained_on(self) -> bool:
        """Whether the declared records are known to be those that were trained on."""
        return self.explained is not None and self.explained.holds


def proved(
    case: Case,
    attack: str,
    found: Candidates,
    strangers: Strangers,
    *,
    seed: int = 0,
    threshold: float = THRESHOLD,
    tries: int = 1,
) -> Finding:
    """Candidates scored beside nulls, with what they prove of each record, proved ones first.

    tries: preparations that were tried until the records came back as in `case`.
    """
    texts, chance = case.truth.are_texts, generator_for(seed, f"nulls {attack}")
    sides = {"truth": case.truth, "holdout": strangers.holdout, "public": strangers.public}
    if texts:
        finding = assess_texts(case, found, **sides, attack=attack, generator=chance)
    else:
        shaped = replace(found, inputs=found.inputs.reshape(-1, *case.truth.shape))
        finding = assess(shaped, **sides, attack=attack, generator=chance, threshold=threshold)
    claims = claims_of(found, case.truth, strangers)
    passed, error = marks(found)
    ranks = None if texts or passed.any() else _ranks(case, attack, found, strangers)
    proof = Proof(
        text=texts,
        claimed=claims.count,
        certified=int(passed.sum()),
        foreign=int(claims.foreign.sum()),
        chance=min(1.0, tries * claims.chance),
        by_chance=claims.by_chance,
        strangers=len(strangers.inputs),
        differ=strangers.differ,
        disguise=case.prepared,
        reordered=0 if texts else reordered(case, found, claims, strangers),
        rank_p=None if ranks is None else ranks.p,
        above=0 if ranks is None else int(ranks.above.sum()),
        explained=None if ranks is None else explained(case, attack, strangers),
    )
    place = {name: i for i, name in enumerate(found.stated.targets or case.truth.ids)}
    rows = []
    for k, row in enumerate(finding.per_record):
        i = place[row["id"]]
        own = _by_its_claim(case, found, row, int(claims.candidate[i]), threshold)
        above = ranks is not None and bool(ranks.above[i])
        rows.append((k, own | _marks(claims, i, error, texts) | {"above": above}))
    rows.sort(key=lambda pair: not (pair[1]["claimed"] or pair[1]["above"]))  # stable: worst first
    nulls = {
        name: {k: [v[j] for j, _ in rows] if isinstance(v, list) else v for k, v in null.items()}
        for name, null in finding.nulls.items()
    }
    return proof.added_to(replace(finding, nulls=nulls), [row for _, row in rows])


def marks(found: Candidates) -> tuple[Tensor, Tensor]:
    """m each: whether a candidate is certified, and its stated error (NaN = none)."""
    m, stated = len(found), found.stated
    certified = torch.tensor(list(stated.passed) or [False] * m, dtype=torch.bool)
    known = [math.nan if e is None else e for e in stated.error] or [math.nan] * m
    return certified & _finite(found), torch.tensor(known, dtype=torch.float64)


def _finite(found: Candidates) -> Tensor:
    return torch.isfinite(found.inputs.flatten(1)).all(1)


def claims_of(found: Candidates, truth: Examples, strangers: Strangers) -> Claims:
    """The records that certified candidates may be claimed for; of texts, those that a candidate
    equals, certified or not: a whole text is hit by nobody's guess."""
    certified, error = marks(found)
    passed, targets = certified, found.stated.targets
    if targets is not None:
        # Sought for one record and found within rounding of it: a wrong guess lies elsewhere.
        truth = truth.take([truth.ids.index(name) for name in targets])
        passed = _finite(found)
    if truth.are_texts:
        tokens = found.inputs.flatten(1).round().clamp_min(-1).double()
        records, rows, others = widened(truth.inputs.double(), tokens, strangers.inputs)
        passed, error = torch.ones_like(certified), torch.zeros_like(error)
    else:
        records, others = strangers.rows_of(truth), strangers.inputs
        rows = strangers.rows_of(found.inputs.reshape(-1, *truth.shape))
    own = targets is not None
    claims = claim(records, rows, passed=passed, error=error, strangers=others, own=own)
    return replace(claims, foreign=claims.foreign & certified)


def _ranks(case: Case, attack: str, found: Candidates, strangers: Strangers) -> Ranks | None:
    """Compare candidates with records and strangers. None for an adversary who knows the other
    records: they are in every candidate, so that no stranger is comparable."""
    if found.stated.targets is not None or not len(found):
        return None
    return compare(
        strangers.rows_of(found.inputs[_finite(found)].reshape(-1, *case.truth.shape)),
        strangers.rows_of(case.truth),
        strangers.inputs,
        labels=(case.truth.labels, strangers.examples.labels),
        generator=generator_for(0, f"ranks {attack}"),
    )


def _marks(claims: Claims, i: int, error: Tensor, texts: bool) -> dict[str, Any]:
    """What is proved of record i; a text that is claimed is there without any error."""
    j = int(claims.candidate[i])
    distance = (0.0 if j >= 0 else math.inf) if texts else float(claims.distance[i])
    stated = math.nan if j < 0 else 0.0 if texts else float(error[j])
    return {
        "claimed": j >= 0,
        "distance": distance if math.isfinite(distance) else None,
        "stated_error": None if math.isnan(stated) else stated,
    }


def _by_its_claim(
    case: Case, found: Candidates, row: Mapping[str, Any], j: int, threshold: float
) -> dict[str, Any]:
    """The record's row, scored with the candidate that claims it, which identical records share, in
    place of the one that it was matched with; and what the attack takes its label for."""
    own = dict(row)
    if j >= 0 and j != row["candidate"]:
        own |= {"candidate": j, "confidence": float(found.confidence[j])}
        if not case.truth.are_texts:
            own |= _scores_of_pair(case, row["id"], found.inputs[j], threshold)
    if found.labels is not None:
        at = own["candidate"]
        own["found_label"] = None if at is None else found.labels[at].tolist()
    return own


def _scores_of_pair(case: Case, name: str, found: Tensor, threshold: float) -> dict[str, Any]:
    unit, one = unit_of(case.truth, case.public), case.truth.take([case.truth.ids.index(name)])
    one = replace(one, inputs=unit.to_model(one.inputs))
    return figures_of_pair(score(one, unit.to_model(found.reshape(one.inputs.shape))), 0, threshold)


def reordered(case: Case, found: Candidates, claims: Claims, strangers: Strangers) -> int:
    """How many records came back with exactly their numbers in another order; looked for only where
    nothing was claimed."""
    if not claims.foreign.any() or claims.count:
        return 0
    inputs = found.inputs[claims.foreign].reshape(-1, *case.truth.shape)
    sorted_rows = (strangers.rows_of(x).sort(1).values for x in (case.truth, inputs))
    near = rms_distance(*sorted_rows).min(1).values
    return int((near < unstated_error(strangers.inputs)).sum())
