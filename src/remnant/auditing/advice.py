"""What to do next, by what was found."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from remnant.auditing.case import Case
from remnant.bundle import Attacked, Verdict

DEFENCES = {
    "ntk": "Do not let the weights from before training out beside the final ones, or train with "
    "differential privacy. Weight decay, mini-batches and storing weights as fp16 do not stop it.",
    "gradient": "Clip and add noise to each gradient (differential privacy), or aggregate over so "
    "many clients that the batch exceeds half the first layer's width.",
    "kkt": "Train with less weight decay, stop before a stationary point, or train with "
    "differential privacy.",
    "informed": "Train with differential privacy: nothing else bounds an adversary who knows all "
    "other records. Replay fails where the initial weights or the order of batches are unknown.",
    "glm": "A linear model that converged gives any one record to whoever knows the others: fit it "
    "with differential privacy, or keep the coefficients from them.",
}


def advice(case: Case, attacks: Sequence[Attacked], rows: Sequence[Mapping[str, Any]]) -> list[str]:
    """Defences for what is exposed, then what would make the audit stronger."""
    said = []
    exposed = [row for row in attacks if row.verdict == Verdict.EXPOSED]
    if exposed:
        said.append("Drop or protect the exposed records listed below, retrain, and audit again.")
        said += [DEFENCES[row.attack] for row in exposed if row.attack in DEFENCES]
    for row in attacks:
        if row.verdict == Verdict.INCONCLUSIVE:
            said.append(f"{row.title}: nothing is known, since {row.reason}.")
    said += [f"For a stronger audit {row['stronger']}." for row in rows if row["stronger"]]
    return said
