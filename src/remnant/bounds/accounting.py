"""What a run of noisy, clipped steps spends: Renyi curve, zCDP and epsilon at a delta.

Adjacency says which two runs are compared. *zero-out*: a record against nothing in its place (the
number of records is public); *add-remove*: the same two laws, for a public divisor; *replace-one*:
a record against any other, which doubles what one record can move. Reconstruction needs zero-out
only: its reference law is the run without the record.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cache, lru_cache
from importlib import import_module
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import brentq
from scipy.special import logsumexp

from remnant.bounds import checks
from remnant.errors import InputError, expected

Floats = NDArray[np.float64]

ADJACENCIES = ("zero-out", "add-remove", "replace-one")
FRACTIONS = np.array([1.01, 1.02, 1.05, *(k / 10 for k in range(11, 110) if k % 10)])
INTEGERS = np.array([*range(2, 65), *(2.0 ** (np.arange(13, 25) / 2)).round()])
ORDERS: Floats = np.sort(np.concatenate([FRACTIONS, INTEGERS]))


@dataclass(frozen=True, kw_only=True)
class Ledger:
    """Steps of sum(clipped gradients of the sampled records) + N(0, (noise_multiplier clip)^2).

    Each step samples each record by itself with probability `sampling_rate` (Poisson); 1 is the
    full batch. `clip` is for the books: it scales gradient and noise alike.
    """

    noise_multiplier: float
    steps: int
    sampling_rate: float = 1.0
    clip: float = 1.0
    adjacency: str = "zero-out"
    most: ClassVar[float] = 1e6  # noise at which the accounting can be trusted

    def __post_init__(self) -> None:
        checks.positive("noise multiplier", self.noise_multiplier)
        checks.count("steps", self.steps)
        if not 0 < self.sampling_rate <= 1:
            got = self.sampling_rate
            raise InputError(expected("sampling rate", "above 0 and at most 1", got))
        if not self.least <= self.noise_multiplier <= self.most or self.steps > 10**7:
            came = f"{self.noise_multiplier:g} and {str(self.steps)[:12]}"
            wanted = f"{self.least:g} to 1e6 and at most 1e7, where the accounting can be trusted"
            raise InputError(expected("noise multiplier and steps", wanted, came))
        checks.positive("clip", self.clip)
        if self.adjacency not in ADJACENCIES:
            wanted = f"one of {', '.join(ADJACENCIES)}"
            raise InputError(expected("adjacency", wanted, self.adjacency))

    @property
    def least(self) -> float:
        """The smallest noise multiplier that is accounted for: the closed form of full batches is
        exact far below what a loss distribution resolves."""
        return 0.001 if self.sampling_rate == 1 else 0.01

    @property
    def replaces(self) -> bool:
        return self.adjacency == "replace-one"

    @property
    def mu(self) -> float:
        """Distance of the two laws of the whole run, in noise deviations, as if never sampled."""
        return (2 if self.replaces else 1) * math.sqrt(self.steps) / self.noise_multiplier


def rho(ledger: Ledger) -> float:
    """zCDP: mu^2 / 2. Sampling can only help, so it holds, without credit, for any rate."""
    return ledger.mu**2 / 2


@lru_cache(maxsize=64)
def renyi_curve(ledger: Ledger) -> Floats:
    """The Renyi divergence of the run at each of ORDERS: law with the record from law without."""
    curve: Floats = ORDERS * rho(ledger)
    if ledger.sampling_rate < 1:
        sampled = np.full_like(ORDERS, np.inf)
        if ledger.replaces:
            quadrature = ORDERS <= 64
        else:  # dp-accounting's series is loose or does not converge between whole orders
            quadrature = ORDERS % 1 != 0
            dp, rdp = import_module("dp_accounting"), import_module("dp_accounting.rdp")
            noise = dp.GaussianDpEvent(ledger.noise_multiplier)
            step = dp.PoissonSampledDpEvent(ledger.sampling_rate, noise)
            library = rdp.RdpAccountant(ORDERS[~quadrature]).compose(step, ledger.steps)
            sampled[~quadrature] = library.rdp
        for k in np.flatnonzero(quadrature):
            sampled[k] = ledger.steps * renyi_by_quadrature(ledger, float(ORDERS[k]))
        curve = np.minimum(sampled, curve)
    curve.flags.writeable = False  # it is kept and shared
    return curve


def renyi_by_quadrature(ledger: Ledger, order: float) -> float:
    """One step's divergence at one order: log of the integral of P^a Q^(1-a), over a - 1.

    P = (1-q) N(0, s^2) + q N(1, s^2) and Q = N(0, s^2), or for replace-one P's mirror image.
    """
    s = ledger.noise_multiplier
    # The trapezoid rule is exact to rounding for peaks this wide; they lie up to 2a - 1.
    h = min(s / 20, s**2 / (4 * math.sqrt(order)))
    reach = (2 * order if ledger.replaces else order) + 12 * s
    if reach / h > 10**6:
        return math.inf  # never a grid too coarse to be a bound
    x = np.linspace(-reach, reach, 2 * math.ceil(reach / h))
    up, down = log_ratios(ledger, x)
    null = -((x / s) ** 2) / 2 - math.log(s * math.sqrt(2 * math.pi))
    logs = null + order * up + (1 - order) * down
    return max(0.0, float(logsumexp(logs) + math.log(x[1] - x[0])) / (order - 1))


def log_ratios(ledger: Ledger, x: Floats) -> tuple[Floats, Floats]:
    """log P(x) / N(x; 0, s^2) and the same of Q, for one step whose record pushes by 1 (or -1)."""
    q, s = ledger.sampling_rate, ledger.noise_multiplier
    miss = math.log1p(-q) if q < 1 else -math.inf

    def pushed(x: Floats) -> Floats:
        hit: Floats = np.logaddexp(miss, math.log(q) + (2 * x - 1) / (2 * s**2))
        return hit

    return pushed(x), pushed(-x) if ledger.replaces else np.zeros_like(x)


def epsilon_by_renyi(ledger: Ledger, delta: float) -> float:
    """epsilon at delta from the Renyi curve; never below `epsilon`, and cheaper."""
    rdp = import_module("dp_accounting.rdp")
    checks.inside("delta", delta)
    return float(rdp.compute_epsilon(ORDERS, renyi_curve(ledger), delta)[0])


def epsilon(ledger: Ledger, delta: float) -> float:
    """epsilon at delta: exact for full batches, else from the privacy loss distribution (PLD).

    The PLD leaves out some 1e-15 of probability; a delta that notices is Renyi's.
    """
    checks.inside("delta", delta)
    if ledger.sampling_rate == 1:
        dp = import_module("dp_accounting")
        with np.errstate(divide="ignore"):  # it takes log 0 on its way, rightly
            return float(dp.get_epsilon_gaussian(1 / ledger.mu, delta))
    by_losses = float(loss_distribution(ledger).get_epsilon_for_delta(delta))
    return min(by_losses, epsilon_by_renyi(ledger, delta))


@lru_cache(maxsize=8)
def loss_distribution(ledger: Ledger, *, points: int = 40_000) -> Any:
    """dp-accounting's pessimistic PLD of the whole run, on a grid in proportion to its losses.

    points: of the grid up to the largest loss; with so many it is 1e-4 off, in 0.2 s.
    """
    pld = import_module("dp_accounting.pld.privacy_loss_distribution")
    relation = import_module("dp_accounting").NeighboringRelation
    reach = epsilon_by_renyi(ledger, 1e-12)
    one = pld.from_gaussian_mechanism(
        ledger.noise_multiplier,
        sampling_prob=ledger.sampling_rate,
        value_discretization_interval=max(reach / points, 1e-7),
        neighboring_relation=(
            relation.REPLACE_ONE if ledger.replaces else relation.ADD_OR_REMOVE_ONE
        ),
    )
    return one.self_compose(ledger.steps)


def noise_for_epsilon(template: Ledger, wanted: float, delta: float) -> Ledger:
    """The template with the least noise multiplier that spends no more than `wanted` at delta."""
    checks.positive("epsilon", wanted)
    return least_noise(template, lambda ledger: epsilon(ledger, delta) - wanted)


def least_noise(template: Ledger, excess: Callable[[Ledger], float]) -> Ledger:
    """The template with the least noise, to a part in 10^4, whose excess is not above 0.

    The excess falls as the noise grows. The search begins at the template's own noise.
    """

    def at(log_noise: float) -> Ledger:
        return replace(template, noise_multiplier=math.exp(log_noise))

    @cache
    def above(log_noise: float) -> float:
        return excess(at(log_noise))

    low = high = math.log(template.noise_multiplier)
    least, most = math.log(template.least) + 1e-9, math.log(template.most) - 1e-9
    while above(high) > 0:
        if high == most:
            raise InputError(f"noise: expected enough of it, got too little at {template.most:g}")
        low, high = high, min(high + 0.5, most)
    while above(low) <= 0:
        if low == least:
            raise InputError(f"noise: expected a need of it, got none down to {template.least:g}")
        low, high = max(low - 0.5, least), low
    root: float = brentq(above, low, high, xtol=5e-5)
    while above(root) > 0:  # err to the side of more noise
        root += 5e-5
    return at(root)
