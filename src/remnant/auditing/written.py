"""Records that stand in the weights as they are: no attack is needed to read them.

Rows and columns of every layer, whole biases and buffers, and how far each moved from the initial
weights are compared with the records and, alike, with strangers; scale and shift do not matter.
"""

from __future__ import annotations

import math
from collections.abc import Iterator

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.auditing.assess import assess
from remnant.auditing.case import Case
from remnant.auditing.proof import Proof
from remnant.auditing.rules import RULES
from remnant.auditing.strangers import Strangers
from remnant.scoring.claims import Claims, claim
from remnant.scoring.score import THRESHOLD
from remnant.seeds import generator_for
from remnant.types import Candidates, Finding, Stated, Status

NAME = "written"
TITLE = "Records written into the weights"
HOLDS = "nothing but the released weights, which are read as they are"


def written(
    case: Case, strangers: Strangers, seed: int = 0, threshold: float = THRESHOLD
) -> tuple[Candidates, Finding] | None:
    """One candidate for each record that stands in the weights, and what that proves; None where
    there is none.

    They are drawn as bright as a usual record: the weights do not tell their scale.
    """
    if case.truth.are_texts:  # tokens are names: their numbers resemble nothing
        return None
    d = math.prod(case.target.input_shape)
    rows = torch.cat([torch.zeros(0, d, dtype=torch.float64), *_rows(case, d)])
    if d < RULES.shortest_row or not len(rows) or not len(strangers.inputs):
        return None
    for centred in (True, False):
        claims, likeness = _claims(case, strangers, rows, centred)
        if claims.count:
            break
    else:
        return None
    at = (claims.candidate >= 0).nonzero().flatten()
    own = rows[claims.candidate[at]]
    flat = strangers.examples.inputs.double()
    if centred:
        own = own - own.mean(1, keepdim=True)
        own = own / own.std(1, keepdim=True) * flat.std() + flat.mean()
    else:
        lengths = own.norm(dim=1, keepdim=True)
        own = own / lengths * strangers.inputs.norm(dim=1).median()
    shaped = own.reshape(-1, *case.truth.shape)
    found = Candidates(
        inputs=(shaped if centred else case.target.scaling.to_data(shaped)).float(),
        confidence=likeness[at].clamp(0, 1).float(),
        status=Status.PARTIAL,
        reason=f"{len(at)} rows, columns or biases of the weights are records, up to their scale "
        f"(correlation above {RULES.written:g})",
        stated=Stated(targets=[case.truth.ids[int(i)] for i in at]),
    )
    finding = assess(
        found,
        attack=NAME,
        truth=case.truth,
        holdout=strangers.holdout,
        public=strangers.public,
        generator=generator_for(seed, f"nulls {NAME}"),
        threshold=threshold,
    )
    proof = Proof(
        claimed=len(found),
        certified=len(found),
        chance=claims.chance,
        by_chance=claims.by_chance,
        strangers=len(strangers.inputs),
    )
    marked = [{**row, "claimed": True, "above": False} for row in finding.per_record]
    return found, proof.added_to(finding, marked)


def _claims(case: Case, strangers: Strangers, rows: Tensor, centred: bool) -> tuple[Claims, Tensor]:
    """The claims of rows of the weights for records, and how alike they are. centred: both sides as
    they are, less their means; otherwise records are in the model's scale."""
    sides = []
    for part in (case.truth, strangers.examples):
        flat = part.inputs.double().flatten(1) if centred else strangers.rows_of(part)
        sides.append(_unit(flat, centred))
    units = _unit(rows, centred)
    likeness = units @ sides[0].T
    reach = math.sqrt(2 * (1 - RULES.written) / rows.shape[1])  # between rows of length one
    claims = claim(
        sides[0],
        units,
        passed=torch.ones(len(units), dtype=torch.bool),  # every row that was read
        error=torch.full((len(units),), reach / 2, dtype=torch.float64),
        strangers=sides[1],
    )
    return claims, likeness.max(0).values


def _unit(rows: Tensor, centred: bool) -> Tensor:
    return normalize(rows - rows.mean(1, keepdim=True) if centred else rows, dim=1)


def _rows(case: Case, d: int) -> Iterator[Tensor]:
    """Everything in the weights, or in their change, that has d numbers in a row: k x d each."""
    model, initial = case.target.model, case.target.knowledge.initial or {}
    held = dict(model.named_parameters()) | dict(model.named_buffers())
    for name, value in held.items():
        if not value.is_floating_point():
            continue
        now = value.detach().double()
        tensors = [now] if name not in initial else [now, now - initial[name].double()]
        for tensor in tensors:
            if tensor.numel() == d:
                yield tensor.reshape(1, d)
            if tensor.ndim > 1 and len(tensor) > 1:
                if tensor[0].numel() == d:
                    yield tensor.flatten(1)
                if tensor.ndim == 2 and len(tensor) == d:
                    yield tensor.T
