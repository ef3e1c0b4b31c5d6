"""The bounds' second opinion, in the gradients' own space and without a model.

`play`: the strongest adversary of the accounting sees the noisy gradient of every step, knows all
but one record, and says which of K candidates that one is. `simulated_blow_up`: the
likelihood-ratio test whose power the tight bound is, played many times.
"""

import math
from dataclasses import dataclass

import numpy as np
from numpy.polynomial.hermite import hermgauss
from scipy.special import bdtrik, log_ndtr

from remnant.bounds.accounting import Floats, Ledger, log_ratios
from remnant.bounds.verdict import clopper_pearson


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
    prior: list[float] | None = None,
    confidence: float = 0.975,
) -> Game:
    """The likeliest candidate, from `trials` runs in which one of them, by the prior, took part.

    `directions` (K x d) are the candidates' clipped gradients over the clip: norms of 1 or less.
    The same at each step, which is the defender's worst case but for how they lie: as corners of
    a simplex they are hardest to confuse. A prior of None takes all alike.
    """
    k = len(directions)
    weights = np.full(k, 1 / k) if prior is None else np.asarray(prior)
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
    return np.eye(candidates)


def simplex(candidates: int) -> Floats:
    """K candidates as the corners of a regular simplex around 0: hardest to confuse."""
    centred = orthogonal(candidates) - 1 / candidates
    corners: Floats = centred / np.linalg.norm(centred, axis=1, keepdims=True)
    return corners


def orthogonal_success(mu: float, candidates: int) -> float:
    """The game's exact value for full batches and candidates at right angles, all alike.

    One score is N(mu, 1), the K - 1 others N(0, 1): the expectation of Phi(x)^(K-1).
    """
    nodes, weights = hermgauss(200)
    x = mu + math.sqrt(2) * nodes
    return float(weights @ np.exp((candidates - 1) * log_ndtr(x)) / math.sqrt(math.pi))


@dataclass(frozen=True, kw_only=True)
class Simulated:
    """gamma (not its logarithm) by simulation, and limits that hold together with confidence."""

    gamma: float
    low: float
    high: float
    confidence: float


def simulated_blow_up(
    ledger: Ledger,
    kappa: float,
    *,
    trials: int,
    generator: np.random.Generator,
    confidence: float = 0.99,
) -> Simulated:
    """The likelihood-ratio test of level kappa, played `trials` times under either law.

    The limits are those of a binomial twice: for the test's threshold, then for its power.
    """
    doubt = (1 - confidence) / 4
    without = np.sort(_losses(ledger, trials, False, generator))[::-1]
    with_record = _losses(ledger, trials, True, generator)

    def successes(rank: int) -> int:
        """How many runs with the record pass the threshold that `rank` runs without it pass."""
        return int((with_record >= without[min(rank, trials) - 1]).sum())

    # How many runs without the record pass the true threshold is a binomial(trials, kappa).
    few, many = (bdtrik(share, trials, kappa) for share in (doubt, 1 - doubt))
    return Simulated(
        gamma=successes(round(trials * kappa)) / trials,
        low=clopper_pearson(successes(math.floor(few)), trials, 1 - doubt)[0],
        high=clopper_pearson(successes(math.ceil(many) + 1), trials, 1 - doubt)[1],
        confidence=confidence,
    )


def _losses(ledger: Ledger, trials: int, present: bool, generator: np.random.Generator) -> Floats:
    """The log-likelihood ratio of whole runs, drawn with the record or from the reference law."""
    total = np.zeros(trials)
    side = 1.0 if present else -1.0 if ledger.replaces else 0.0
    for _ in range(ledger.steps):
        x = ledger.noise_multiplier * generator.standard_normal(trials)
        x += side * (generator.random(trials) < ledger.sampling_rate)
        up, down = log_ratios(ledger, x)
        total += up - down
    return total
