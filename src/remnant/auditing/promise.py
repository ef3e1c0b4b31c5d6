"""Bound beside measurement: what differential privacy promised, and what an attack got.

Success here is a centred correlation above NEAR: a ball of radius sqrt(2 (1 - NEAR)) among records
that are centred and scaled to length 1. It is smaller than what the verdict counts, because a bound
has to hold for any guess at all, also one between records, and such a guess may be near many of
them. How much of the prior a ball can hold is measured on public records; the bound says how far
training can have raised that chance for any one record.
"""

from __future__ import annotations

import math
from typing import Any

from torch.nn.functional import normalize

from remnant.bounds import Ledger, blow_up, compare, empirical, epsilon, from_renyi
from remnant.types import Examples, Finding

NEAR = 0.999
POINTS = 2000  # of the prior; more narrow the interval and cost their square


def promise(finding: Finding, public: Examples, ledger: Ledger, delta: float) -> dict[str, Any]:
    """epsilon, delta, kappa, gamma by each bound, and whether the measured rate contradicts it."""
    rows = public.inputs[:POINTS].flatten(1).double()
    points = normalize(rows - rows.mean(1, keepdim=True), dim=1)
    prior = empirical(points[points.square().sum(1) > 0.5].numpy(), math.sqrt(2 * (1 - NEAR)))
    log_kappa = math.log(min(prior.high_anywhere, 1 - 1e-12))
    tight = min(1.0, math.exp(blow_up(ledger, log_kappa)))
    near = sum((row["correlation"] or 0.0) > NEAR for row in finding.per_record)
    told = compare(near, finding.records or 1, tight)
    return {
        "epsilon": epsilon(ledger, delta),
        "delta": delta,
        "correlation": NEAR,
        "kappa": prior.high_anywhere,
        "gamma": {"tight": tight, "renyi": math.exp(from_renyi(ledger, log_kappa))},
        "measured": {"count": near, "low": told.low, "high": told.high},
        "violated": told.violated,
        "text": told.text,
    }
