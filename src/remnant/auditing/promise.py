"""Bound beside measurement: what differential privacy promised, and what an attack got.

Where records were claimed within certified errors, success is just that, and what a guess would
reach without the model is how often strangers meet a candidate so nearly (`scoring.claims`).

Elsewhere success is a centred correlation above `Rules.near`: a ball of radius sqrt(2 (1 - near))
among records that are centred and scaled to length 1. It is smaller than what the verdict counts,
because a bound has to hold for any guess at all, also one between records, and such a guess may be
near many of them. How much of the prior a ball can hold is measured on public records, once for
every candidate that the attack returned; the bound says how far training can have raised that
chance.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.nn.functional import normalize

from remnant.auditing.assess import unit_of
from remnant.auditing.proof import Proof
from remnant.auditing.rules import RULES
from remnant.bounds import (
    Ledger,
    blow_up,
    chance_in_one_run,
    clopper_pearson,
    empirical,
    epsilon,
    from_renyi,
)
from remnant.seeds import generator_for
from remnant.types import Examples, Finding


def beside_measured(
    finding: Finding,
    truth: Examples,
    public: Examples,
    ledger: Ledger,
    delta: float,
    *,
    left_out: bool = False,
) -> dict[str, Any]:
    """epsilon, delta, kappa, gamma by each bound, and whether the measured count contradicts them.

    left_out: each record was guessed once, by an adversary who knew the others.
    """
    tried = len(finding.per_record) or 1
    proof = Proof.read(finding)
    near = proof.claimed
    if near or proof.text:
        what = "word for word" if proof.text else "within certified errors"
        kappa = max(proof.by_chance / tried, RULES.least_chance)
    else:
        what = f"above a correlation of {RULES.near:g}"
        guesses = 1 if left_out else max(1, int(finding.summary.get("candidates") or 1))
        kappa = guesses * chance_of_a_guess(truth, public)
        near = sum((row["correlation"] or 0.0) > RULES.near for row in finding.per_record)
    kappa = min(kappa, 1 - 1e-12)
    chance = 1.0
    if near:
        chance = math.exp(
            chance_in_one_run(ledger, math.log(kappa), near, tried, together=not left_out)
        )
    low, high = clopper_pearson(near, tried, 1 - RULES.accounting_error)
    return {
        "epsilon": epsilon(ledger, delta),
        "delta": delta,
        "correlation": RULES.near,
        "kappa": kappa,
        "gamma": {
            "tight": math.exp(blow_up(ledger, math.log(kappa))),
            "renyi": math.exp(from_renyi(ledger, math.log(kappa))),
        },
        "measured": {"count": near, "low": low, "high": high},
        "chance": chance,
        "violated": chance < RULES.accounting_error / 2,
        "text": _told(f"{near} of {tried} {what}", chance, kappa),
    }


def promised_of_any(ledger: Ledger, delta: float) -> dict[str, Any]:
    """What the ledger promises of every attack, whatever was measured: epsilon, and how often a
    record may be found for a chance or a false alarm of one in a hundred."""
    found, bound = epsilon(ledger, delta), math.exp(blow_up(ledger, math.log(0.01)))
    words = (
        f"epsilon {found:.3g} at delta {delta:g}: where chance or false alarms would find 1 record "
        f"in 100, no attack finds more than {bound:.1%} of them"
    )
    return {"epsilon": found, "delta": delta, "kappa": 0.01, "gamma": bound, "text": words}


def chance_of_a_guess(truth: Examples, public: Examples) -> float:
    """An upper bound, by public records, on how often a guess made without the model correlates
    above `Rules.near` with a record."""
    unit, drawn = unit_of(truth, public), generator_for(0, "prior")
    some = torch.randperm(len(public), generator=drawn)[: RULES.prior_points]
    rows = unit.to_model(public.inputs[some]).flatten(1).double()
    points = normalize(rows - rows.mean(1, keepdim=True), dim=1)
    prior = empirical(
        points[points.square().sum(1) > 0.5].numpy(),
        math.sqrt(2 * (1 - RULES.near)),
        confidence=1 - RULES.accounting_error / 2,  # the other half is the run's
    )
    return prior.high_anywhere


def _told(measured: str, chance: float, kappa: float) -> str:
    if chance < RULES.accounting_error / 2:
        return (
            f"ACCOUNTING ERROR: measured {measured}, which the ledger allows with a probability of "
            f"{chance:.1g} at most: the run did not have that privacy, or the attack had more than "
            "the prior"
        )
    if kappa > RULES.coarse:
        return (
            f"measured {measured}; the ledger cannot be tested by it: as far as the public records "
            f"tell, guesses may come so near with a probability of {kappa:.2g} without the model"
        )
    return f"measured {measured}, which the ledger allows"
