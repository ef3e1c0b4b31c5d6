"""kappa: how likely a guess made without the model is within the radius of the record.

The best such guess, that is: kappa = sup over guesses of P(distance(record, guess) <= radius)
(001, section VII-B). In 784 dimensions it is below 1e-200, so all here are natural logarithms.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
from scipy.spatial.distance import cdist
from scipy.special import gammaincc, gammaln, log1p, logsumexp

from remnant.bounds import checks
from remnant.bounds.accounting import Floats
from remnant.bounds.verdict import clopper_pearson
from remnant.errors import InputError, expected

DISTANCES = {"l2": "euclidean", "l1": "cityblock", "linf": "chebyshev"}


def ball(dimension: int, radius: float, size: float = 1.0) -> float:
    """log kappa of the uniform law on an L2 ball of that size: (radius / size)^d (001, Prop. 6)."""
    checks.count("dimension", dimension)
    checks.positive("size of the ball", size)
    if not 0 < radius < size:
        do = "a guess within a larger one is always right"
        raise InputError(expected("radius", f"above 0 and below the ball's {size:g}", radius, do))
    return dimension * math.log(radius / size)


def gaussian(dimension: int, radius: float, deviation: float) -> float:
    """log kappa of N(w, deviation^2 I) in L2, exactly: P(chi^2_d <= (radius / deviation)^2)."""
    a = checks.count("dimension", dimension) / 2
    x = (checks.positive("radius", radius) / checks.positive("deviation", deviation)) ** 2 / 2
    if x > a:
        return float(log1p(-gammaincc(a, x)))
    # P(a, x) = x^a e^-x / Gamma(a + 1) sum_k x^k / ((a + 1) ... (a + k)): nothing underflows.
    k = np.arange(1, 200 + int(20 * math.sqrt(a)) + 1)
    terms = np.concatenate([[0.0], np.cumsum(math.log(x) - np.log(a + k))])
    return float(a * math.log(x) - x - gammaln(a + 1) + logsumexp(terms))


def candidates(number: int) -> float:
    """log kappa where the record is one of so many, all alike, and only itself will do."""
    return -math.log(checks.count("candidates", number, least=2))


@dataclass(frozen=True, kw_only=True)
class EmpiricalKappa:
    """kappa of the law from which n points were drawn, with that confidence in each limit.

    `estimate` is the largest share of the other points within the radius of any one of them, and
    `low` a lower limit on kappa. `high` holds for guesses among the points; `high_anywhere` for
    any guess whatever, since a ball that holds a point lies within twice the radius of it.
    """

    points: int
    estimate: float
    low: float
    high: float
    high_anywhere: float
    confidence: float


def empirical(
    points: Floats, radius: float, distance: str = "l2", *, confidence: float = 0.95
) -> EmpiricalKappa:
    """kappa from independent draws (n x d), each left out in turn as the guess.

    Clopper-Pearson limits that hold for all n guesses at once (Bonferroni).
    """
    n = len(points)
    if points.ndim != 2 or not n or not np.isfinite(points).all():
        got = f"shape {points.shape}" if points.ndim != 2 or not n else "NaN or infinity"
        raise InputError(expected("points of the prior", "finite numbers, n x d", got))
    if n < 2:
        raise InputError(expected("points of the prior", "two or more", n))
    if distance not in DISTANCES:
        raise InputError(expected("distance", f"one of {', '.join(DISTANCES)}", distance))
    checks.positive("radius", radius)
    doubt = (1 - checks.inside("confidence", confidence)) / n  # for each of n guesses at once
    near = wide = 0  # the most points that lie within the radius of one, or within twice of it
    for rows in np.array_split(points, math.ceil(n / 256)):
        apart = cdist(rows, points, DISTANCES[distance])
        near = max(near, int((apart <= radius).sum(1).max()))
        wide = max(wide, int((apart <= 2 * radius).sum(1).max()))
    low, high = clopper_pearson(near - 1, n - 1, 1 - doubt)
    # Half the doubt is for the best ball having caught no point; then it holds less than
    # 1 - (doubt n / 2)^(1/n), which is below the limit for a count of 0.
    anywhere = clopper_pearson(wide - 1, n - 1, 1 - doubt / 2)[1]
    return EmpiricalKappa(
        points=n,
        estimate=(near - 1) / (n - 1),
        low=low,
        high=high,
        high_anywhere=anywhere,
        confidence=confidence,
    )
