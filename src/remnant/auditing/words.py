"""What was audited, and what to do next, in words."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from torch import nn

from remnant.attacks import ATTACKS
from remnant.auditing.case import Case
from remnant.bundle import Attacked, Verdict
from remnant.models.linear_model import LinearModel

SCALER = "the scaler's mean"  # what a record came back through, in the reason of `glm`


def about(case: Case) -> dict[str, Any]:
    """The released model and its records, as JSON values for the page."""
    model = case.target.model
    own = model.features if isinstance(model, LinearModel) else ()
    features = case.truth.features or own
    return {
        "model": type(model).__name__,
        "parameters": sum(p.numel() for p in model.parameters()),
        "layers": layers_of(model),
        "records": len(case.truth),
        "data": case.truth.name,
        "shape": list(case.truth.shape),
        **({"text": True} if case.truth.are_texts else {}),
        **({"features": list(features)} if features else {}),
    }


def layers_of(model: nn.Module, most: int = 24) -> list[str]:
    """The kinds of all layers in turn; past `most` how many of each there are."""
    kinds = [type(m).__name__ for m in model.modules() if not list(m.children())]
    if len(kinds) <= most:
        return kinds
    return [f"{count} {kind}" for kind, count in Counter(kinds).items()]


def advice(case: Case, attacks: Sequence[Attacked], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Defences for what is exposed, then what would make the audit stronger."""
    said = []
    exposed = [row for row in attacks if row.verdict == Verdict.EXPOSED]
    if exposed:
        said.append("Drop or protect the exposed records listed below, retrain, and audit again.")
        said += [_defence(row) for row in exposed if row.attack in ATTACKS]
    for row in attacks:
        if row.verdict == Verdict.INCONCLUSIVE:
            said.append(f"{row.title}: nothing is known, since {row.reason}.")
    said += [f"For a stronger audit {row['stronger']}." for row in rows if row["stronger"]]
    if not exposed and case.canaries is None:
        said.append(
            "Before the next training add records by remnant canaries: of any model --canaries can "
            "then tell whether it knows them by heart."
        )
    return said


def _defence(row: Attacked) -> str:
    reasons = row.finding.figures.get("reasons", []) if row.finding is not None else []
    if any(SCALER in reason for reason in reasons):
        return "Fit the scaler on other records, or release its mean and deviations with noise."
    return ATTACKS[row.attack].about.defence
