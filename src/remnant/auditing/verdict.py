"""From scores to a verdict that can be defended.

A record counts as recovered if its reconstruction is correlated above the threshold and closer to
it than what every null has for that record: held-out records, the nearest public one, noise in the
span (blends of records hold the truth itself, so they are no null here). A model is exposed if more
records are recovered than held-out records or class means explain (the 95% interval of the excess
lies above 0), or if any reconstruction is so near that no stranger could be: within NEAR of the
nearest null's squared distance, in so many numbers that no null comes as near by chance.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any

from torch import Tensor
from torch.nn.functional import normalize

from remnant.bundle import Attacked, Control, Verdict
from remnant.scoring.score import excess
from remnant.types import Finding, Status

NEAR = 0.01
FEW = 5
MANY = 20  # numbers in a record, from which one near reconstruction is beyond chance
EXPLAIN = {"held_out": "held-out records", "public_mean": "class means"}
ALIKE = 0.9  # correlation of set-centred rows at which two sets differ by a shift and a scale


def exposed_records(finding: Finding) -> list[Mapping[str, Any]]:
    """The rows of `per_record` above the threshold and nearer than every null, worst first."""
    return [row for row, nearest in _with_nearest_null(finding) if _recovered(row, nearest)]


def _with_nearest_null(finding: Finding) -> list[tuple[Mapping[str, Any], float | None]]:
    # Noise in the span of a few records is those records themselves.
    skipped = {"blends"} | ({"span_noise"} if (finding.records or 0) < FEW else set())
    return [(row, _nearest(finding, i, skipped)) for i, row in enumerate(finding.per_record)]


def _nearest(finding: Finding, i: int, skipped: Collection[str]) -> float | None:
    """The least squared distance that a null has to record i."""
    columns = [null["squared_l2"] for name, null in finding.nulls.items() if name not in skipped]
    return min((column[i] for column in columns if column[i] is not None), default=None)


def _recovered(row: Mapping[str, Any], nearest: float | None) -> bool:
    return bool(row["recovered"]) and (nearest is None or row["squared_l2"] < nearest)


def judge(finding: Finding, control: Control | None) -> tuple[Verdict, str]:
    """What this attack says about the model, and why."""
    found = len(exposed_records(finding))
    n = finding.records or 0
    nulls = {name: finding.nulls.get(name, {}).get("recovered", 0) for name in EXPLAIN}
    explains = max(nulls, key=lambda name: nulls[name])
    by_null, who = nulls[explains], EXPLAIN[explains]
    words = f"{found} of {n} records {'tried ' if tried_some(finding) else ''}recovered"
    if _beyond_chance(finding) or excess(found, by_null, n)["low"] > 0:
        return Verdict.EXPOSED, f"{words}; {who} reach {by_null} of {n}"
    if finding.status == Status.NOT_APPLICABLE:
        return Verdict.NOT_APPLICABLE, finding.reason
    if control is None or not control.leaks:
        if control is None:
            return Verdict.INCONCLUSIVE, f"no control was run: {finding.reason}"
        why = f"the attack failed on its control too ({control.reason})"
        return Verdict.INCONCLUSIVE, f"{why}; here: {finding.reason}"
    certified = finding.figures.get("certified") or 0
    others = f"{certified} records were certified, and no more than {found} are among those given"
    asked = "is this the data that was trained on, and are mean and std those of training?"
    if certified > found and finding.status != Status.COMPLETE:
        return Verdict.INCONCLUSIVE, f"{others}: {asked}"
    # An attack with a certificate that certifies nothing has not seen what the model holds.
    blind = "certified" in finding.figures and finding.status == Status.INCONCLUSIVE
    if blind or not finding.summary.get("candidates"):
        return Verdict.INCONCLUSIVE, finding.reason
    words += f", {by_null} by {who}"
    twin = f"the same attack gets {control.recovered} of {control.records} out of a twin that leaks"
    note = f"; {others}: {asked}" if certified > found else ""
    return Verdict.NOT_EXPOSED, f"{words}; {twin}{note}"


def _beyond_chance(finding: Finding) -> bool:
    """Whether reconstructions lie so near to records as no stranger could.

    In few numbers, or where values repeat, strangers do: then more must lie so near than of the
    nulls.
    """
    n = finding.records or 0
    certain = sum(
        nearest is not None and _recovered(row, nearest) and row["squared_l2"] < NEAR * nearest
        for row, nearest in _with_nearest_null(finding)
    )
    by_null = 0
    for name in ("held_out", "nearest_public"):
        count = 0
        for i, distance in enumerate(finding.nulls.get(name, {}).get("squared_l2", ())):
            others = _nearest(finding, i, {name, "blends", "span_noise"})
            if distance is not None and others is not None:
                count += distance < NEAR * others or distance == 0
        by_null = max(by_null, count)
    numbers: int = finding.summary.get("numbers", MANY)
    if by_null == 0 and numbers >= MANY:
        return bool(certain)
    return bool(excess(certain, by_null, n)["low"] > 0)


def tried_some(finding: Finding) -> bool:
    """Whether the adversary was after some records only, one at a time."""
    return "targets" in finding.figures


def shifted(found: Tensor, truth: Tensor, holdout: Tensor) -> bool:
    """Whether what came back is the records up to one shift and scale for all.

    Then they did come back, and `mean` or `std` is not what training used.
    """

    def matched(records: Tensor) -> int:
        if len(found) < FEW or len(records) < FEW:
            return 0
        rows = [
            normalize(t.flatten(1).double() - t.flatten(1).double().mean(0), dim=1)
            for t in (records, found)
        ]
        return int(((rows[0] @ rows[1].T).max(1).values > ALIKE).sum())

    return matched(truth) > max(len(truth) // 3, 2 + matched(holdout[: len(truth)]))


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
        return Verdict.INCONCLUSIVE, "No attack applies to this model, so nothing is known."
    unsure = [row for row in ran if row.verdict == Verdict.INCONCLUSIVE]
    if unsure:
        which = ", ".join(row.title.lower() for row in unsure)
        return (
            Verdict.INCONCLUSIVE,
            f"No record came back beyond chance, but this proves nothing for: {which}.",
        )
    tried = ", ".join(row.title.lower() for row in ran)
    words = "No record comes back, by attacks that do recover records from a twin of this model"
    some = [row.finding for row in ran if row.finding and tried_some(row.finding)]
    only = "".join(
        f" Only {f.records} of {records} records were tried by {f.attack}." for f in some
    )
    return Verdict.NOT_EXPOSED, f"{words}: {tried}.{only}"


def exposure_list(attacks: Sequence[Attacked]) -> list[dict[str, Any]]:
    """Each exposed record once, under the attack that comes nearest to it; worst first."""
    best: dict[str, dict[str, Any]] = {}
    for attacked in attacks:
        if attacked.finding is None or attacked.verdict != Verdict.EXPOSED:
            continue
        for row in exposed_records(attacked.finding):
            held = best.get(row["id"])
            if held is None or row["squared_l2"] < held["squared_l2"]:
                keep = ("id", "label", "correlation", "squared_l2", "confidence")
                best[row["id"]] = {"attack": attacked.attack} | {key: row[key] for key in keep}
    return sorted(best.values(), key=lambda row: (-round(row["correlation"], 6), row["squared_l2"]))
