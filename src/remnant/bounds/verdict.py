"""Measured against promised: a rate above its bound is a fault in the accounting."""

from __future__ import annotations

from dataclasses import dataclass

from scipy.special import betaincinv

from remnant.bounds import checks
from remnant.errors import InputError, expected


def clopper_pearson(successes: int, trials: int, confidence: float) -> tuple[float, float]:
    """Lower and upper limit of a probability; each by itself holds with that confidence."""
    checks.count("trials", trials)
    checks.inside("confidence", confidence)
    if not 0 <= successes <= trials:
        raise InputError(expected("successes", f"0 to {trials}", successes))
    k, n, doubt = successes, trials, 1 - confidence
    low = float(betaincinv(k, n - k + 1, doubt)) if k else 0.0
    high = float(betaincinv(k + 1, n - k, confidence)) if k < n else 1.0
    return low, high


@dataclass(frozen=True, kw_only=True)
class Verdict:
    """A measured rate beside its bound. `low` and `high` are limits of the true rate."""

    rate: float
    low: float
    high: float
    gamma: float
    violated: bool
    text: str


def compare(successes: int, trials: int, gamma: float, *, confidence: float = 0.999) -> Verdict:
    """Whether so many successes can be had under a bound of gamma on their probability.

    Only a lower limit above gamma is an error, so that a sound bound is accused with probability
    1 - confidence at most. Trials are independent runs; records of one run may leak together, and
    `chance_in_one_run` is for them.
    """
    if not 0 <= gamma <= 1:
        raise InputError(expected("gamma", "0 to 1", gamma))
    low, high = clopper_pearson(successes, trials, confidence)
    measured = f"{successes} of {trials} (at least {low:.3g} with confidence {confidence:g})"
    text = f"measured {measured}, within the bound {gamma:.3g}"
    if low > gamma:
        text = (
            f"ACCOUNTING ERROR: measured {measured}, above the bound {gamma:.3g}: the run did not "
            "have the privacy in its ledger, or the attack had more than the prior"
        )
    return Verdict(
        rate=successes / trials, low=low, high=high, gamma=gamma, violated=low > gamma, text=text
    )
