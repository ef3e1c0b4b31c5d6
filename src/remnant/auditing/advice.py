"""What to do next, by what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remnant.attacks import ATTACKS
from remnant.auditing.case import Case
from remnant.bundle import Attacked, Verdict

SCALER = "the scaler's mean"  # what a record came back through, in the reason of `glm`


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
