"""What to do next, by what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remnant.attacks import ATTACKS
from remnant.auditing.case import Case
from remnant.bundle import Attacked, Verdict


def advice(case: Case, attacks: Sequence[Attacked], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Defences for what is exposed, then what would make the audit stronger."""
    said = []
    exposed = [row for row in attacks if row.verdict == Verdict.EXPOSED]
    if exposed:
        said.append("Drop or protect the exposed records listed below, retrain, and audit again.")
        said += [ATTACKS[row.attack].about.defence for row in exposed if row.attack in ATTACKS]
    for row in attacks:
        if row.verdict == Verdict.INCONCLUSIVE:
            said.append(f"{row.title}: nothing is known, since {row.reason}.")
    said += [f"For a stronger audit {row['stronger']}." for row in rows if row["stronger"]]
    return said
