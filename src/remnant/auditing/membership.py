"""Can records that were trained on be told from others? A floor for every model.

Membership is no reconstruction: it never makes an audit red or green. Where nothing comes back it
says all the same how far the model has taken its records to heart. Each test gives every record a
score that is lower for those trained on, and compares them with strangers: the loss under the
released model; how far it fell since the initial weights; and, where shadow models can be trained
(`shadow_models`), the likelihood of having been trained on.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
from scipy.stats import beta, mannwhitneyu, norm

from remnant.auditing.case import Case
from remnant.auditing.fitting import losses_of
from remnant.auditing.rules import RULES
from remnant.auditing.strangers import Strangers
from remnant.models import load_weights
from remnant.models.linear_model import LinearModel
from remnant.types import Examples

SHOWN, HIDDEN, UNKNOWN = "shown", "not shown", "not known"
Scores = Sequence[float]
Score = tuple[str, str, Scores, Scores]  # its name, what the adversary holds, records, strangers


@dataclass(frozen=True, kw_only=True)
class Told:
    """One test: how well its score tells members from strangers, with 95% intervals.

    p: that chance did it. fpr: the share of strangers taken for members at the threshold, at most
    `Rules.false_alarms`, and fpr_high what it may be; tpr: the share of members found there.
    """

    score: str
    holds: str
    members: int
    strangers: int
    auc: float
    auc_low: float
    auc_high: float
    p: float
    fpr: float
    fpr_high: float
    tpr: float
    tpr_low: float
    tpr_high: float


def tell(score: str, holds: str, members: Scores, strangers: Scores) -> Told:
    """How well scores, lower for members, tell them from strangers."""
    mine, theirs = np.asarray(members, float), np.sort(np.asarray(strangers, float))
    n, s = len(mine), len(theirs)
    test = mannwhitneyu(mine, theirs, alternative="less")
    auc = 1 - float(test.statistic) / (n * s)
    allowed = int(RULES.false_alarms * s)
    found = int((mine < theirs[allowed]).sum())
    alarms = int((theirs < theirs[allowed]).sum())
    low, high = wilson(auc, min(n, s))
    tpr_low, tpr_high = clopper_pearson(found, n)
    return Told(
        score=score, holds=holds, members=n, strangers=s,
        auc=auc, auc_low=low, auc_high=high, p=float(test.pvalue),
        fpr=alarms / s, fpr_high=clopper_pearson(allowed, s)[1],
        tpr=found / n, tpr_low=tpr_low, tpr_high=tpr_high,
    )  # fmt: skip


def wilson(share: float, count: int) -> tuple[float, float]:
    """The 95% interval of an area under the curve, as of a share of so many trials: its variance is
    never larger, whatever the distributions are, if `count` is the smaller side's."""
    z2 = float(norm.ppf(0.975)) ** 2
    middle = (share + z2 / (2 * count)) / (1 + z2 / count)
    half = math.sqrt(z2 * (share * (1 - share) / count + z2 / (4 * count**2))) / (1 + z2 / count)
    return max(0.0, middle - half), min(1.0, middle + half)


def clopper_pearson(found: int, count: int) -> tuple[float, float]:
    """The exact 95% interval of a share."""
    low = float(beta.ppf(0.025, found, count - found + 1)) if found else 0.0
    return low, float(beta.ppf(0.975, found + 1, count - found)) if found < count else 1.0


def exposures(members: Scores, strangers: Scores) -> list[float]:
    """How far each member stands out, in bits: log2 of (s + 1) over its rank among s strangers."""
    theirs = np.sort(np.asarray(strangers, float))
    ranks = 1 + np.searchsorted(theirs, np.asarray(members, float), side="right")
    return [float(bits) for bits in np.log2((len(theirs) + 1) / ranks)]


def membership(case: Case, strangers: Strangers, likelihood: Any = None) -> dict[str, Any]:
    """The membership audit as JSON values: verdict, sentence, tests, per_record, canaries.

    likelihood: scores of records and of strangers by shadow models, as `shadow_models` gives them,
    or a sentence that says why there are none.
    """
    records = case.own
    result: dict[str, Any] = {"tests": [], "per_record": [], "canaries": canaries(case)}
    scores = _scores(case, records, strangers)
    why = _unknown(case, strangers, scores)
    if why:
        return _said(result | {"verdict": UNKNOWN, "reason": why})
    if isinstance(likelihood, str):
        result["likelihood"] = likelihood
    elif likelihood is not None:
        scores.append(("likelihood", "the training recipe and data of the same kind", *likelihood))
    tests = [tell(*score) for score in scores]
    best = min(range(len(tests)), key=lambda k: (tests[k].p, k))
    bits = exposures(*scores[best][2:])
    rows = [
        {"id": name, "score": value, "exposure": bit}
        for name, value, bit in zip(records.ids, scores[best][2], bits, strict=True)
    ]
    shown = tests[best].p * len(tests) < RULES.chance_of_error
    result |= {
        "verdict": SHOWN if shown else HIDDEN,
        "reason": "",
        "by": tests[best].score,
        "tests": [asdict(test) for test in tests],
        "per_record": sorted(rows, key=lambda row: -float(str(row["exposure"]))),
    }
    return _said(result)


def _scores(case: Case, records: Examples, strangers: Strangers) -> list[Score]:
    """Scores of records and strangers, by what an adversary holds."""
    sides = (records, strangers.examples)
    now = [losses_of(case, side) for side in sides]
    if None in now or not all(map(len, sides)):
        return []
    mine, theirs = (np.array(side, float) for side in now)
    found = [("loss", "the released model", mine, theirs)]
    initial = case.target.knowledge.initial
    if initial is not None and not isinstance(case.target.model, LinearModel):
        before = copy.deepcopy(case.target.model)
        load_weights(before, {**dict(before.named_buffers()), **initial})
        own, other = (np.array(losses_of(case, side, before), float) for side in sides)
        found.append(("fall of loss", "the initial weights too", mine - own, theirs - other))
    return [  # a text of one token has no loss
        (name, holds, a.tolist(), b[~np.isnan(b)].tolist())
        for name, holds, a, b in found
        if np.isfinite(a).all()
    ]


def _unknown(case: Case, strangers: Strangers, scores: Sequence[Any]) -> str:
    if not scores:
        return "the model has no loss that a record can be given"
    if len(scores[0][3]) < RULES.fewest_strangers:
        return f"only {len(scores[0][3])} records that were not trained on: hold out more"
    if strangers.differ:
        return "held-out records differ in kind from the training records: hold out others"
    return ""


def canaries(case: Case) -> dict[str, Any] | None:
    """How many planted canaries the model fits better than all but a few that were not planted."""
    if case.canaries is None:
        return None
    planted, unplanted = case.canaries.planted, case.canaries.unplanted
    mine, theirs = (losses_of(case, side) for side in (planted, unplanted))
    if mine is None or theirs is None:
        return {"reason": "the model has no loss that a canary can be given"}
    told = tell("loss", "the released model", mine, theirs)
    bits = exposures(mine, theirs)
    return asdict(told) | {
        "stand_out": round(told.tpr * told.members),
        "by_chance": told.fpr_high * told.members,
        "per_record": [
            {"id": name, "loss": loss, "exposure": bit}
            for name, loss, bit in zip(planted.ids, mine, bits, strict=True)
        ],
    }


def _said(result: dict[str, Any]) -> dict[str, Any]:
    """The result with its sentence."""
    words = [_of_records(result)]
    planted = result["canaries"]
    if planted is not None and "reason" not in planted:
        words.append(
            f"{planted['stand_out']} of {planted['members']} canaries stand out from "
            f"{planted['strangers']} that were not planted (by chance at most "
            f"{planted['by_chance']:.1f}; exposed at a rate of {planted['tpr_low']:.0%} to "
            f"{planted['tpr_high']:.0%}, p = {planted['p']:.1g})"
        )
    return result | {"sentence": "; ".join(words)}


def _of_records(result: dict[str, Any]) -> str:
    if result["verdict"] == UNKNOWN:
        return f"membership is not known: {result['reason']}"
    best = next(test for test in result["tests"] if test["score"] == result["by"])
    area = f"AUC {best['auc']:.2f} ({best['auc_low']:.2f} to {best['auc_high']:.2f})"
    if result["verdict"] == HIDDEN:
        return f"training records are not told from others by their {best['score']}: {area}"
    return (
        f"training records are told from others by their {best['score']}: {area}; with "
        f"{best['fpr']:.1%} of others taken for them, {best['tpr']:.0%} of them are found "
        f"({best['tpr_low']:.0%} to {best['tpr_high']:.0%})"
    )
