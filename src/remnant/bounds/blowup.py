"""The tight bound: the largest probability that the run's law gives to an event that has
probability kappa under the run without the record (Hayes, Mahloujifar, Balle 2023).

For any attack, {it comes within the radius of z} has probability kappa on average over z when the
record is not there; with it there, no more than the blow-up, which is concave. So gamma is a
point on the trade-off curve, where Theorem 2 of 001 is a bound on that point.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray
from scipy.special import gammaln, log_ndtr, ndtri_exp

from remnant.bounds import checks
from remnant.bounds.accounting import (
    Floats,
    Ledger,
    least_noise,
    loss_distribution,
)
from remnant.bounds.rero import from_renyi, require_above
from remnant.errors import InputError, expected


def blow_up(ledger: Ledger, log_kappa: float) -> float:
    """log gamma: exact for full batches, else from the PLD, or by Theorem 2 where that is less.

    The PLD leaves out some 1e-15 of probability, which a small kappa notices.
    """
    checks.log_probability("log kappa", log_kappa)
    if ledger.sampling_rate == 1:
        return gaussian_blow_up(ledger.mu, log_kappa)
    return min(_from_losses(ledger, log_kappa), from_renyi(ledger, log_kappa))


def gaussian_blow_up(mu: float, log_kappa: float) -> float:
    """log Phi(Phi^-1(kappa) + mu): full batches, where the whole run is one Gaussian mechanism."""
    checks.log_probability("log kappa", log_kappa)
    return float(log_ndtr(ndtri_exp(log_kappa) + checks.not_negative("mu", mu)))


def _from_losses(ledger: Ledger, log_kappa: float) -> float:
    """kappa e^eps + delta(eps) at the best eps of the PLD's grid: the trade-off curve's tangents.

    Any eps gives a bound. The best is the loss at which the likelihood-ratio test of level kappa
    turns, which is where the probability of greater losses without the record reaches kappa.
    """
    # The direction that matters: the law with the record against the law without ("remove").
    pmf = loss_distribution(ledger)._pmf_remove.to_dense_pmf()
    probabilities = np.maximum(pmf._probs, 0.0)  # the Fourier transform rounds some below 0
    losses = pmf._discretization * (pmf._lower_loss + np.arange(len(probabilities)))
    without = np.cumsum((probabilities * np.exp(np.minimum(-losses, 700.0)))[::-1])
    turn = (
        len(losses) - 1 - min(int(np.searchsorted(without, math.exp(log_kappa))), len(losses) - 1)
    )
    greater = losses[turn + 1 :] - losses[turn]
    delta = pmf._infinity_mass + float(probabilities[turn + 1 :] @ -np.expm1(-greater))
    logs = np.logaddexp(log_kappa + losses[turn], math.log(delta))
    return float(min(0.0, max(log_kappa, logs)))


def chance_in_one_run(
    ledger: Ledger, log_kappa: float, successes: int, trials: int, *, together: bool = True
) -> float:
    """log of the largest probability that so many of a run's records come back.

    Records of one run are not independent trials. But the law without any s of them, drawn apart
    from each other, gives all s back with probability kappa^s, and is s times as far away as the
    law without one. So many successes hold binomial(successes, s) such sets, of
    binomial(trials, s); the best s counts, and s = 1 is Markov's inequality. Sampling is taken for
    full batches, which leak no less. Not `together`: each guess was made by someone who knew the
    other records, and then only s = 1 holds.
    """
    if not 0 < successes <= trials:
        raise InputError(expected("successes", f"1 to {trials}", successes))
    s = np.arange(1, (successes if together else 1) + 1)
    sets = _log_binomial(trials, s) - _log_binomial(successes, s)
    blown = log_ndtr(ndtri_exp(s * log_kappa) + s * ledger.mu)
    return float(min(0.0, (sets + blown).min()))


def _log_binomial(n: int, k: NDArray[np.int64]) -> Floats:
    found: Floats = gammaln(n + 1) - gammaln(k + 1) - gammaln(n - k + 1)
    return found


def noise_for_gamma(template: Ledger, log_kappa: float, log_gamma: float) -> Ledger:
    """The template with the least noise whose blow-up of kappa is no more than gamma."""
    require_above(log_kappa, log_gamma)
    return least_noise(template, lambda ledger: blow_up(ledger, log_kappa) - log_gamma)
