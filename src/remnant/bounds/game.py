"""The attack that the bound speaks about: which of K candidates was trained on?

The strongest adversary of the accounting sees the noisy gradient of every step and knows all but
one record, which is one of K. Played in the gradients' own space, without a model.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite import hermgauss
from scipy.special import log_ndtr

from remnant.bounds import checks
from remnant.bounds.accounting import Floats, Ledger
from remnant.bounds.verdict import clopper_pearson
from remnant.errors import InputError, expected


@dataclass(frozen=True, kw_only=True)
class Game:
    """How often the right candidate was named; each limit holds with that confidence."""

    successes: int
    trials: int
    low: float
    high: float
    confidence: float


def play(
    ledger: Ledger,
    directions: Floats,
    *,
    trials: int,
    generator: np.random.Generator,
    prior: Sequence[float] | None = None,
    confidence: float = 0.975,
) -> Game:
    """The likeliest candidate, from `trials` runs in which one of them, by the prior, took part.

    `directions` (K x d) are the candidates' clipped gradients over the clip: norms of 1 or less.
    The same at each step, which is the defender's worst case but for how they lie: as corners of
    a simplex they are hardest to confuse. A prior of None takes all alike.
    """
    weights = _check(directions, prior)
    checks.count("trials", trials)
    q, s = ledger.sampling_rate, ledger.noise_multiplier
    miss = math.log1p(-q) if q < 1 else -math.inf
    # Only inner products count: the candidates in a basis of their own span.
    basis, _ = np.linalg.qr(directions.T)
    own = directions @ basis
    halves = (own**2).sum(1) / 2
    truth = generator.choice(len(own), size=trials, p=weights)
    with np.errstate(divide="ignore"):
        scores = np.tile(np.log(weights), (trials, 1))
    for _ in range(ledger.steps):
        seen = s * generator.standard_normal((trials, own.shape[1]))
        seen += own[truth] * (generator.random(trials) < q)[:, None]
        scores += np.logaddexp(miss, math.log(q) + (seen @ own.T - halves) / s**2)
    successes = int((scores.argmax(1) == truth).sum())
    low, high = clopper_pearson(successes, trials, confidence)
    return Game(successes=successes, trials=trials, low=low, high=high, confidence=confidence)


def orthogonal(candidates: int) -> Floats:
    """K candidates at right angles (K x K): gradients that have nothing to do with each other."""
    return np.eye(checks.count("candidates", candidates, least=2))


def simplex(candidates: int) -> Floats:
    """K candidates as the corners of a regular simplex around 0: hardest to confuse."""
    centred = orthogonal(candidates) - 1 / candidates
    corners: Floats = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return corners


def orthogonal_success(mu: float, candidates: int) -> float:
    """The game's exact value for full batches and candidates at right angles, all alike.

    One score is N(mu, 1), the K - 1 others N(0, 1): the expectation of Phi(x)^(K-1).
    """
    checks.some("mu", mu)
    checks.count("candidates", candidates, least=2)
    nodes, weights = hermgauss(200)
    x = mu + math.sqrt(2) * nodes
    return float(weights @ np.exp((candidates - 1) * log_ndtr(x)) / math.sqrt(math.pi))


def _check(directions: Floats, prior: Sequence[float] | None) -> Floats:
    if directions.ndim != 2 or len(directions) < 2:
        raise InputError(expected("directions", "two or more, K x d", directions.shape))
    norms = np.linalg.norm(directions, axis=1)
    if not (norms <= 1 + 1e-9).all():
        do = "divide gradients by the clip"
        raise InputError(expected("directions", "norms of 1 or less", f"{norms.max():g}", do))
    k = len(directions)
    weights = np.full(k, 1 / k) if prior is None else np.asarray(prior, dtype=np.float64)
    return checks.weights("prior", weights, k)
