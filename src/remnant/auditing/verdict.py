"""From what was proved to a verdict that can be defended.

*Exposed* has two grounds. A certified candidate lies within twice its stated error of a declared
record: the record itself came back. Or candidates without a certificate lie nearer to the records
than to strangers, further than chance allows, while the declared records explain what the adversary
holds. Likeness alone is neither. *Not exposed* needs evidence of its own: the attack's assumption
holds for this model, it ended by itself and left nothing unexplained, and on a twin as hard as this
model it passes the very test that *exposed* needs. All else is inconclusive, with what would settle
it.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from remnant.auditing.explained import Explained
from remnant.auditing.proof import Proof
from remnant.auditing.rules import RULES
from remnant.bundle import Attacked, Control, Verdict
from remnant.types import Finding, Status


def certain(finding: Finding, attacks: int = 1) -> bool:
    """Whether records themselves came back, more often than strangers coincide with candidates."""
    proof = Proof.read(finding)
    return bool(proof.claimed) and proof.chance < RULES.chance_of_error / attacks


def likely(finding: Finding, attacks: int = 1) -> bool:
    """Whether likenesses of records that were trained on came back, beyond chance."""
    proof = Proof.read(finding)
    fair = not proof.differ and not proof.foreign and proof.strangers >= RULES.fewest_strangers
    return bool(
        proof.above
        and proof.rank_p is not None
        and proof.rank_p < RULES.chance_of_error / attacks
        and proof.trained_on
        and fair
    )


def exposed_records(finding: Finding) -> list[Mapping[str, Any]]:
    """The rows of `per_record` that came back, worst first: claimed ones, or else likely ones."""
    claimed = [row for row in finding.per_record if row.get("claimed")]
    return claimed or [row for row in finding.per_record if row.get("above")]


def judge(
    finding: Finding, control: Control | None, *, attacks: int = 1, assumed: Sequence[str] = ()
) -> tuple[Verdict, str]:
    """What this attack says about the model, and why.

    `attacks`: how many share the audit's chance of error. `assumed`: what was guessed for want of
    being told, in sentences; no guess clears a model.
    """
    proof, n = Proof.read(finding), finding.records or 0
    tried = "tried " if tried_some(finding) else ""
    if certain(finding, attacks):
        return Verdict.EXPOSED, f"{proof.claimed} of {n} records {tried}recovered{_how(proof)}"
    if likely(finding, attacks):
        alone = finding.recovered not in (None, proof.above)
        other = f" ({finding.recovered} of {n} by correlation alone)" if alone else ""
        return Verdict.EXPOSED, (
            f"{proof.above} of {n} records came back nearer than any of {proof.strangers} "
            f"strangers (p = {proof.rank_p:.1g} that chance did it); likenesses, not certified"
            f"{other}"
        )
    if finding.status == Status.NOT_APPLICABLE:
        return Verdict.NOT_APPLICABLE, finding.reason
    doubt = _doubt(finding, proof, control, assumed)
    if doubt:
        return Verdict.INCONCLUSIVE, doubt
    assert control is not None
    twin = f"the same attack gets {control.recovered} of {control.records} out of a twin as hard"
    return Verdict.NOT_EXPOSED, (
        f"no record came back (p = {proof.rank_p:.2g} by {proof.strangers} strangers); {twin}"
    )


def _how(proof: Proof) -> str:
    if proof.text:
        words = ", word for word" + (", and certified" if proof.certified else "")
        more = f"; {proof.foreign} more were certified that are not among those given"
        return words + (more if proof.foreign else "")
    words = ": certified, and within twice the stated error of the record itself"
    if proof.certified < proof.claimed and not proof.certified:
        words = ", to within a thousandth of what records differ by"
    if proof.disguise:
        words += f", {proof.disguise}: training saw them so"
    if proof.foreign:
        words += f"; {proof.foreign} more were certified that are not among those given"
    return words


def _doubt(
    finding: Finding,
    proof: Proof,
    control: Control | None,
    assumed: Sequence[str],
) -> str:
    """Why nothing is known, and what would settle it; empty where the attack clears the model."""
    if proof.claimed:
        return (
            f"{proof.claimed} certified records are among those given, but strangers coincide "
            f"with candidates too (p = {proof.chance:.2g}): hold out more records to tell"
        )
    if proof.foreign:
        return _foreign(finding, proof)
    blind = finding.stated.certified is not None and not proof.certified
    if blind or not finding.summary.get("candidates"):
        failed = control is not None and not control.passed
        return finding.reason + ("; the attack failed on its control too" if failed else "")
    if tried_some(finding):
        return f"only {finding.records} records were tried: {finding.reason}"
    if proof.differ:
        return "held-out records differ in kind from the training records: hold out others"
    if proof.rank_p is None:
        return f"nothing could be compared with strangers: {finding.reason}"
    if proof.rank_p < RULES.hint or (proof.above and finding.recovered):
        return _hint(finding, proof)
    explained = proof.explained
    if explained is None or not explained.stationary:
        return _unmet(explained, finding)
    if assumed:
        return "; ".join(assumed)
    if control is None:
        return f"no control was run: {finding.reason}"
    if not control.passed:
        return (
            f"the attack proves nothing on its control either ({control.recovered} of "
            f"{control.records} records: {control.reason}); here: {finding.reason}"
        )
    return ""


def _foreign(finding: Finding, proof: Proof) -> str:
    words = f"{proof.foreign} records were certified that are not among those given"
    near = sum(bool(row.get("recovered")) for row in finding.per_record)
    if near:
        words += f" ({near} of those given resemble one, which is no proof)"
    if proof.reordered:
        return f"{words}, but {proof.reordered} have the very numbers of a record in another order"
    asked = "is this the data that was trained on, prepared as in training (--mean, --std)?"
    return f"{words}: {asked}"


def _hint(finding: Finding, proof: Proof) -> str:
    words = f"candidates lean towards your records (p = {proof.rank_p:.2g}"
    words += f", {proof.above} nearer than any stranger)"
    if not proof.trained_on:
        return f"{words}, but {_unmet(proof.explained, finding)}"
    return f"{words}, which neither proves nor clears: hold out more records, or give more steps"


def _unmet(explained: Explained | None, finding: Finding) -> str:
    if explained is None:
        return (
            f"whether this attack's assumption holds for the model is not known: {finding.reason}"
        )
    if explained.holds:
        return (
            "the model was trained on your records, but is at no stationary point, as this attack "
            f"assumes: {finding.reason}"
        )
    return (
        f"your records leave {explained.left:.0%} of the first dense layer unexplained (the "
        f"strangers most like them {explained.by_strangers:.0%}): the model is not what this "
        "attack assumes, or other data, scaling or architecture was given; give --initial, or what "
        "was really trained on, to settle it"
    )


def tried_some(finding: Finding) -> bool:
    """Whether the adversary was after some records only, one at a time."""
    return finding.stated.targets is not None


NOTHING = (
    "No attack that was asked for applies to this model: nothing is known of reconstruction. "
    "Membership, and what would tell more, are said beside."
)


def overall(attacks: Sequence[Attacked], records: int) -> tuple[Verdict, str]:
    """Exposed if any adversary gets records; not exposed only if every one that applies fails."""
    ran = [row for row in attacks if row.verdict != Verdict.NOT_APPLICABLE]
    exposed = [row for row in ran if row.verdict == Verdict.EXPOSED]
    if exposed:
        ids = {row["id"] for a in exposed if a.finding for row in exposed_records(a.finding)}
        names = [a.title.lower() for a in exposed]
        who = " and ".join([", ".join(names[:-1])] * (len(names) > 1) + names[-1:])
        words = f"{len(ids)} of {records} training records come back, from {who}"
        sought = {row["id"] for a in ran if a.finding for row in a.finding.per_record}
        count = f"{len(sought)} {'was' if len(sought) == 1 else 'were'}"
        only = f"; only {count} tried" if len(sought) < records else ""
        return Verdict.EXPOSED, f"{words}{only}."
    if not ran:
        return Verdict.INCONCLUSIVE, NOTHING
    unsure = [row for row in ran if row.verdict == Verdict.INCONCLUSIVE]
    if unsure:
        which = ", ".join(
            row.title.lower() + (" (not finished)" if row.finding is None else "") for row in unsure
        )
        return Verdict.INCONCLUSIVE, f"Nothing is proved, either way, for: {which}."
    tried = ", ".join(row.title.lower() for row in ran)
    words = "No record comes back, by attacks that do recover records from a twin of this model"
    return Verdict.NOT_EXPOSED, f"{words}: {tried}."


def exposure_list(attacks: Sequence[Attacked]) -> list[dict[str, Any]]:
    """Each exposed record once, under the attack that comes nearest to it; worst first."""
    best: dict[str, dict[str, Any]] = {}
    for attacked in attacks:
        if attacked.finding is None or attacked.verdict != Verdict.EXPOSED:
            continue
        for row in exposed_records(attacked.finding):
            held = best.get(row["id"])
            if held is None or _order(row) < _order(held):
                keep = ("id", "label", "correlation", "squared_l2", "confidence")
                best[row["id"]] = {"attack": attacked.attack} | {key: row[key] for key in keep}
    return sorted(
        best.values(), key=lambda row: (-round(row["correlation"] or 0.0, 6), _order(row))
    )


def _order(row: Mapping[str, Any]) -> float:
    """Nearest first; a distance that is not known comes last."""
    return math.inf if row["squared_l2"] is None else float(row["squared_l2"])
