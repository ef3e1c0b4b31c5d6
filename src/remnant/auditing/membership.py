"""Can records that were trained on be told from others? That is the least that any model may give
away.

Telling members is no reconstruction, so it never decides a verdict. Where no record comes back it
says all the same how much the model remembers of its records. Each test gives every record a score
that is lower for those trained on and compares them with strangers: the loss under the released
model; how far it fell since the initial weights; and, where shadow models can be trained
(`shadow_models`), the likelihood of having been trained on.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from scipy.stats import mannwhitneyu

from remnant.auditing.case import Case
from remnant.auditing.fitting import losses_of
from remnant.auditing.preparation import initial_model
from remnant.auditing.rules import RULES
from remnant.auditing.shadow_models import likelihood
from remnant.auditing.strangers import Strangers
from remnant.models.linear_model import LinearModel
from remnant.scoring.score import rate_interval, wilson

Scores = Sequence[float]
Score = tuple[str, str, Scores, Scores]  # its name, what the adversary holds, records, strangers


def tell(score: str, holds: str, members: Scores, strangers: Scores) -> dict[str, Any]:
    """How well a score, lower for members, tells members from strangers: JSON values.

    auc: the area under the curve. fpr: the share of strangers taken for members at a threshold,
    chosen so that it is at most `Rules.false_alarms`; fpr_high: what that share may be in truth.
    tpr: the share of members found at that threshold. auc and tpr have 95% intervals (_low, _high).
    p: the probability that chance separates them so well.
    """
    mine, theirs = np.asarray(members, float), np.sort(np.asarray(strangers, float))
    n, s = len(mine), len(theirs)
    test = mannwhitneyu(mine, theirs, alternative="less")
    auc = 1 - float(test.statistic) / (n * s)
    allowed = int(RULES.false_alarms * s)
    found = int((mine < theirs[allowed]).sum())
    # The variance of an area is never larger than that of a share of as many trials as the smaller
    # side has, whatever the distributions are.
    (auc_low, auc_high), (tpr_low, tpr_high) = wilson(auc, min(n, s)), rate_interval(found, n)
    return {
        "score": score, "holds": holds, "members": n, "strangers": s,
        "auc": auc, "auc_low": auc_low, "auc_high": auc_high, "p": float(test.pvalue),
        "fpr": float((theirs < theirs[allowed]).mean()), "fpr_high": rate_interval(allowed, s)[1],
        "tpr": found / n, "tpr_low": tpr_low, "tpr_high": tpr_high,
    }  # fmt: skip


def exposures(members: Scores, strangers: Scores) -> list[float]:
    """How far each member stands out, in bits: log2 of (s + 1) over its rank among s strangers."""
    theirs = np.sort(np.asarray(strangers, float))
    ranks = 1 + np.searchsorted(theirs, np.asarray(members, float), side="right")
    return [float(bits) for bits in np.log2((len(theirs) + 1) / ranks)]


def membership(
    case: Case, strangers: Strangers, seed: int = 0, left: float | None = None
) -> dict[str, Any]:
    """The membership audit as JSON values: verdict, sentence, tests, per_record, canaries.

    left: CPU seconds for shadow models, None for any.
    """
    records = case.own
    planted = canaries(case)
    result: dict[str, Any] = {"tests": [], "per_record": [], "canaries": planted}
    scores = _scores(case, strangers)
    why = _unknown(strangers, scores)
    if why:
        said = f"membership is not known: {why}{_of_canaries(planted)}"
        return result | {"verdict": "not known", "reason": why, "sentence": said}
    shadows = likelihood(case, strangers, seed, left)
    if isinstance(shadows, str):
        result["likelihood"] = shadows
    else:
        scores.append(("likelihood", "the training recipe and data of the same kind", *shadows))
    tests = [tell(*score) for score in scores]
    best = min(range(len(tests)), key=lambda k: (tests[k]["p"], k))
    _, _, mine, theirs = scores[best]
    rows: list[dict[str, Any]] = [
        {"id": name, "score": value, "exposure": bits}
        for name, value, bits in zip(records.ids, mine, exposures(mine, theirs), strict=True)
    ]
    shown = tests[best]["p"] * len(tests) < RULES.chance_of_error
    return result | {
        "verdict": "shown" if shown else "not shown",
        "reason": "",
        "by": tests[best]["score"],
        "tests": tests,
        "per_record": sorted(rows, key=lambda row: -row["exposure"]),
        "sentence": _of_records(tests[best], shown) + _of_canaries(planted),
    }


def _scores(case: Case, strangers: Strangers) -> list[Score]:
    """Scores of records and strangers, by what an adversary holds."""
    sides = (case.own, strangers.examples)
    now = [losses_of(case, side) for side in sides]
    if None in now or not all(map(len, sides)):
        return []
    mine, theirs = (np.array(side, float) for side in now)
    found = [("loss", "the released model", mine, theirs)]
    if case.target.knowledge.initial is not None and not isinstance(case.target.model, LinearModel):
        before = initial_model(case)
        own, other = (np.array(losses_of(case, side, before), float) for side in sides)
        found.append(("fall of loss", "the initial weights too", mine - own, theirs - other))
    return [  # a text of one token has no loss
        (name, holds, a.tolist(), b[~np.isnan(b)].tolist())
        for name, holds, a, b in found
        if np.isfinite(a).all()
    ]


def _unknown(strangers: Strangers, scores: Sequence[Score]) -> str:
    """Why nothing can be said of membership, empty where something can."""
    if not scores:
        return "the model has no loss that a record can be given"
    if len(scores[0][3]) < RULES.fewest_strangers:
        return f"only {len(scores[0][3])} records that were not trained on: hold out more"
    if strangers.differ:
        return "held-out records differ in kind from the training records: hold out others"
    return ""


def canaries(case: Case) -> dict[str, Any] | None:
    """How many planted canaries the model fits better than nearly all canaries that were not
    planted; None without canaries."""
    if case.canaries is None:
        return None
    planted, unplanted = case.canaries.planted, case.canaries.unplanted
    mine, theirs = (losses_of(case, side) for side in (planted, unplanted))
    if mine is None or theirs is None:
        return {"reason": "the model has no loss that a canary can be given"}
    told = tell("loss", "the released model", mine, theirs)
    return told | {
        "stand_out": round(told["tpr"] * told["members"]),
        "by_chance": told["fpr_high"] * told["members"],
        "per_record": [
            {"id": name, "loss": loss, "exposure": bits}
            for name, loss, bits in zip(planted.ids, mine, exposures(mine, theirs), strict=True)
        ],
    }


def _of_records(best: dict[str, Any], shown: bool) -> str:
    area = "by their {score}: AUC {auc:.2f} ({auc_low:.2f} to {auc_high:.2f})".format(**best)
    if not shown:
        return f"training records are not told from others {area}"
    found = "{fpr:.1%} of others taken for them, {tpr:.0%} of them are found ({tpr_low:.0%} to "
    found = (found + "{tpr_high:.0%})").format(**best)
    return f"training records are told from others {area}; with {found}"


def _of_canaries(told: dict[str, Any] | None) -> str:
    if told is None or "reason" in told:
        return ""
    return (
        "; {stand_out} of {members} canaries stand out from {strangers} that were not planted (by "
        "chance at most {by_chance:.1f}; exposed at a rate of {tpr_low:.0%} to {tpr_high:.0%}, "
        "p = {p:.1g})"
    ).format(**told)
