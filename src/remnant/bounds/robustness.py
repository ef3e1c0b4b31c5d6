"""Reconstruction robustness (001, section VII): how often can any attack be right?

All map log kappa (see `priors`) to log gamma: no attack on the mechanism's output comes within the
radius of the record with a probability above gamma, whatever else it knows. `blow_up` is the
tight bound (Hayes, Mahloujifar, Balle 2023): for any attack, {it comes within the radius of z} has
probability kappa on average over z when the record is not there; with it there, no more than the
blow-up, which is concave. So gamma is a point on the trade-off curve, where Theorem 2 of 001 is a
bound on that point.
"""

from __future__ import annotations

import math

import numpy as np
from scipy.special import gammaln, log_ndtr, ndtri_exp

from remnant.bounds import checks
from remnant.bounds.accounting import ORDERS, Ledger, least_noise, loss_distribution, renyi_curve
from remnant.errors import InputError, expected


def from_renyi(ledger: Ledger, log_kappa: float) -> float:
    """Theorem 2, (kappa e^eps)^((a-1)/a), at the best of ORDERS."""
    checks.log_probability("log kappa", log_kappa)
    logs = (ORDERS - 1) / ORDERS * (log_kappa + renyi_curve(ledger))
    return min(0.0, float(np.min(logs)))


def from_renyi_at(order: float, epsilon: float, log_kappa: float) -> float:
    """Theorem 2 for any mechanism with (order, epsilon)-Renyi DP, whatever it adds its noise to."""
    checks.log_probability("log kappa", log_kappa)
    if not 1 < order < math.inf:
        raise InputError(expected("Renyi order", "a number above 1", order))
    return min(0.0, (order - 1) / order * (log_kappa + checks.not_negative("epsilon", epsilon)))


def from_finite_set(epsilon: float, log_kappa: float, size: int) -> float:
    """VII-F, n kappa e^eps / (n + e^eps - 1): epsilon-DP against exact reconstruction of one of
    `size` possible records. Never above Corollary 3, which it becomes as n grows."""
    checks.log_probability("log kappa", log_kappa)
    n, pure = checks.count("set", size, 2), checks.not_negative("epsilon", epsilon)
    whole = pure + math.log1p((n - 1) * math.exp(-pure))  # log(n + e^eps - 1) without overflow
    return min(0.0, math.log(n) + log_kappa + pure - whole)


def delta_from_robustness(epsilon: float, gamma: float) -> float:
    """Theorem 5, max(0, (e^eps + 1) gamma - e^eps): the delta of (eps, delta)-DP that follows when
    no attack tells any two records apart with a probability above gamma, of which the likelier has
    e^eps / (1 + e^eps)."""
    if not 0 <= gamma <= 1:
        raise InputError(expected("gamma", "a probability", gamma))
    try:
        ratio = math.exp(checks.not_negative("epsilon", epsilon))
    except OverflowError:
        ratio = math.inf
    return gamma if math.isinf(ratio) and gamma == 1 else max(0.0, gamma - ratio * (1 - gamma))


def from_zcdp(rho: float, log_kappa: float) -> float:
    """Corollary 4: exp(-(sqrt(log 1/kappa) - sqrt rho)^2), and 1 where rho >= log 1/kappa."""
    checks.log_probability("log kappa", log_kappa)
    gap = math.sqrt(-log_kappa) - math.sqrt(checks.not_negative("rho", rho))
    return -(gap**2) if gap > 0 else 0.0


def from_dp(epsilon: float, log_kappa: float, delta: float = 0.0) -> float:
    """Corollary 3, kappa e^eps; with a delta, kappa e^eps + delta, straight from the definition."""
    checks.log_probability("log kappa", log_kappa)
    pure = log_kappa + checks.not_negative("epsilon", epsilon)
    if delta == 0:
        return min(0.0, pure)
    return min(0.0, float(np.logaddexp(pure, math.log(checks.inside("delta", delta)))))


def epsilon_for_gamma(log_kappa: float, log_gamma: float) -> float:
    """The largest epsilon whose pure DP keeps to gamma: Corollary 3 read backwards."""
    checks.log_probability("log kappa", log_kappa)
    return require_above(log_kappa, log_gamma) - log_kappa


def require_above(log_kappa: float, log_gamma: float) -> float:
    """log gamma, if it is one that some privacy can keep to: above kappa and below 1."""
    if not log_kappa < log_gamma < 0:
        wanted = f"above kappa = exp({log_kappa:.6g}) and below 1"
        raise InputError(expected("gamma", wanted, f"exp({log_gamma:.6g})"))
    return log_gamma


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
    # log binomial(trials, s) - log binomial(successes, s)
    sets = gammaln(trials + 1) - gammaln(trials - s + 1)
    sets -= gammaln(successes + 1) - gammaln(successes - s + 1)
    blown = log_ndtr(ndtri_exp(s * log_kappa) + s * ledger.mu)
    return float(min(0.0, (sets + blown).min()))


def noise_for_gamma(template: Ledger, log_kappa: float, log_gamma: float) -> Ledger:
    """The template with the least noise whose blow-up of kappa is no more than gamma."""
    require_above(log_kappa, log_gamma)
    return least_noise(template, lambda ledger: blow_up(ledger, log_kappa) - log_gamma)
