"""Reconstruction robustness (001, section VII): how often can any attack be right?

All map log kappa (see `priors`) to log gamma: no attack on the mechanism's output comes within the
radius of the record with a probability above gamma, whatever else it knows.
"""

from __future__ import annotations

import math

import numpy as np

from remnant.bounds import checks
from remnant.bounds.accounting import ORDERS, Ledger, renyi_curve
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
