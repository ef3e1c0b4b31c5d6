import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from scipy.optimize import minimize_scalar

from remnant import bounds
from remnant.bounds import Ledger
from remnant.errors import InputError

LOG_KAPPAS = [math.log(k) for k in (0.9, 0.5, 0.1, 1e-2, 1e-6, 1e-100)] + [-2000.0]


@pytest.mark.parametrize("log_kappa", LOG_KAPPAS)
@pytest.mark.parametrize("rho", [1e-3, 0.3, 5.0, 300.0])
def test_corollary_4_is_theorem_2_at_its_best_order(log_kappa, rho):
    # In log(a - 1), so that orders near 1 and far away are looked at alike.
    def theorem(t):
        a = 1 + math.exp(t)
        return (a - 1) / a * (log_kappa + a * rho)

    best = minimize_scalar(theorem, bounds=(-15, 15), method="bounded", options={"xatol": 1e-9})
    ours = bounds.from_zcdp(rho, log_kappa)
    assert ours == pytest.approx(min(0.0, best.fun), rel=1e-4, abs=1e-4)


@pytest.mark.parametrize("log_kappa", LOG_KAPPAS[:-1])
def test_renyi_on_its_grid_is_close_to_zcdp_for_full_batches(log_kappa):
    for noise in (0.5, 2.0, 10.0):
        ledger = Ledger(noise_multiplier=noise, steps=10)
        ours = bounds.from_renyi(ledger, log_kappa)
        closed = bounds.from_zcdp(bounds.rho(ledger), log_kappa)
        assert closed - 1e-9 <= ours <= max(closed * 0.98, closed + 1e-2)


def test_pure_dp_is_the_limit_of_large_orders():
    # Randomised response with epsilon 1: Renyi divergences rise to 1, and never pass it.
    p = math.e / (1 + math.e)
    log_kappa = math.log(0.01)
    gammas = []
    for a in (2.0, 20.0, 200.0):
        divergence = math.log(p**a * (1 - p) ** (1 - a) + (1 - p) ** a * p ** (1 - a)) / (a - 1)
        assert divergence <= 1
        gammas.append((a - 1) / a * (log_kappa + divergence))
    pure = bounds.from_dp(1.0, log_kappa)
    assert math.exp(pure) == pytest.approx(0.01 * math.e)
    assert gammas[-1] == pytest.approx(pure, abs=0.03)


def test_approximate_dp_adds_delta():
    assert math.exp(bounds.from_dp(1.0, math.log(0.01), 1e-3)) == pytest.approx(
        0.01 * math.e + 1e-3
    )
    assert bounds.from_dp(50.0, math.log(0.01), 1e-3) == 0.0


def test_epsilon_alone_never_beats_the_mechanism():
    for noise, steps in ((4.0, 20), (1.0, 3)):
        ledger = Ledger(noise_multiplier=noise, steps=steps)
        for log_kappa in LOG_KAPPAS[1:5]:
            for delta in (1e-8, 1e-5, 1e-2):
                loose = bounds.from_dp(bounds.epsilon(ledger, delta), log_kappa, delta)
                assert bounds.blow_up(ledger, log_kappa) <= loose + 1e-9


@settings(max_examples=60, deadline=None)
@given(
    log_kappa=st.floats(-3000, -1e-3),
    epsilon=st.floats(0, 500),
    more=st.floats(0, 10),
)
def test_bounds_are_probabilities_and_monotone(log_kappa, epsilon, more):
    for bound in (bounds.from_dp, bounds.from_zcdp):
        gamma = bound(epsilon, log_kappa)
        assert log_kappa - 1e-9 * abs(log_kappa) <= gamma <= 0
        assert bound(epsilon + more, log_kappa) >= gamma
        assert bound(epsilon, log_kappa / (1 + more)) >= gamma


def test_epsilon_for_gamma_is_the_way_back():
    log_kappa, log_gamma = math.log(1e-6), math.log(0.01)
    enough = bounds.epsilon_for_gamma(log_kappa, log_gamma)
    assert bounds.from_dp(enough, log_kappa) == pytest.approx(log_gamma)
    with pytest.raises(InputError, match="gamma: expected above kappa"):
        bounds.epsilon_for_gamma(log_gamma, log_kappa)


@pytest.mark.parametrize("log_gamma", [-6.0, -5.0, 0.0, 0.5])
def test_a_gamma_that_no_privacy_keeps_to_is_refused(log_gamma):
    with pytest.raises(InputError, match="gamma: expected above kappa"):
        bounds.epsilon_for_gamma(-5.0, log_gamma)


def test_ball():
    assert math.exp(bounds.ball(3, 0.5)) == pytest.approx(0.125)
    assert bounds.ball(784, 1.0, size=2.0) == pytest.approx(-784 * math.log(2))
    generator = np.random.default_rng(0)
    points = generator.standard_normal((40_000, 3))
    points *= (generator.random(40_000) ** (1 / 3) / np.linalg.norm(points, axis=1))[:, None]
    share = (np.linalg.norm(points, axis=1) <= 0.5).mean()
    assert share == pytest.approx(0.125, abs=0.006)
    with pytest.raises(InputError, match="radius: expected above 0 and below the ball's 1"):
        bounds.ball(3, 1.0)


@pytest.mark.parametrize(
    ("dimension", "radius", "deviation"),
    [(1, 0.3, 1.0), (2, 5.0, 2.0), (10, 2.0, 1.0), (784, 10.0, 0.4), (784, 28.0, 1.0)],
)
def test_gaussian_is_the_chi_square(dimension, radius, deviation):
    wanted = stats.chi2.logcdf((radius / deviation) ** 2, dimension)
    assert bounds.gaussian(dimension, radius, deviation) == pytest.approx(wanted, rel=1e-9)


def test_gaussian_goes_on_where_floats_end():
    tiny = bounds.gaussian(3072, 1.0, 1.0)
    lead = 1536 * math.log(0.5) - 0.5 - math.lgamma(1537)  # the series' first term
    assert tiny == pytest.approx(lead, abs=1e-3)
    assert tiny < -9000


def test_one_of_so_many():
    assert math.exp(bounds.candidates(4)) == pytest.approx(0.25)


def test_an_unknown_distance_is_one_line():
    with pytest.raises(InputError, match="distance: expected one of l2, l1, linf"):
        bounds.empirical(np.zeros((3, 2)), 0.1, "cosine")


@pytest.mark.parametrize(("distance", "share"), [("l2", 2 / 3), ("l1", 1 / 3), ("linf", 1.0)])
def test_each_distance_counts_its_own_neighbours(distance, share):
    # From the first point the others lie at (l2, l1, linf): .5 each; .99, 1.4, .7; 1.27, 1.8, .9.
    points = np.array([[0.0, 0.0], [-0.5, 0.0], [0.7, 0.7], [-0.9, -0.9]])
    assert bounds.empirical(points, 1.0, distance).estimate == pytest.approx(share)


def test_empirical_prior_covers_the_truth():
    # Uniform on [0, 1]: a guess within 0.05 is right with probability 0.1, and no more.
    misses = 0
    for seed in range(40):
        points = np.random.default_rng(seed).random((300, 1))
        kappa = bounds.empirical(points, 0.05, confidence=0.9)
        assert kappa.low <= kappa.estimate <= kappa.high <= kappa.high_anywhere
        misses += not kappa.low <= 0.1 <= kappa.high_anywhere
    assert misses <= 4
    assert kappa.points == 300


def test_empirical_prior_leaves_the_guess_itself_out():
    far = np.arange(50.0)[:, None]
    kappa = bounds.empirical(far, 0.5)
    assert kappa.estimate == 0.0
    assert kappa.low == 0.0
    assert kappa.high == pytest.approx(1 - (0.05 / 50) ** (1 / 49))
    same = bounds.empirical(np.zeros((50, 2)), 0.5)
    assert (same.estimate, same.high) == (1.0, 1.0)


def test_bad_points_are_one_line():
    said = "points of the prior: expected finite numbers, n x d, got "
    for points, got in (
        (np.array([[0.0], [math.nan]]), "NaN or infinity"),
        (np.zeros(3), r"shape \(3,\)"),
        (np.zeros((0, 2)), r"shape \(0, 2\)"),
    ):
        with pytest.raises(InputError, match=said + got):
            bounds.empirical(points, 0.5)
    with pytest.raises(InputError, match="two or more"):
        bounds.empirical(np.zeros((1, 2)), 0.5)
    with pytest.raises(InputError, match="radius"):
        bounds.empirical(np.zeros((3, 2)), math.nan)


@pytest.mark.parametrize("log_kappa", [0.0, -math.inf, math.nan, 0.5])
def test_kappa_0_and_1_are_refused(log_kappa):
    ledger = Ledger(noise_multiplier=1.0, steps=1)
    for bound in (
        lambda k: bounds.from_dp(1.0, k),
        lambda k: bounds.from_zcdp(1.0, k),
        lambda k: bounds.from_renyi(ledger, k),
        lambda k: bounds.blow_up(ledger, k),
        lambda k: bounds.gaussian_blow_up(1.0, k),
    ):
        with pytest.raises(InputError, match="log kappa: expected the logarithm"):
            bound(log_kappa)


@pytest.mark.parametrize("epsilon", [0.0, 0.5, 3.0, 50.0])
@pytest.mark.parametrize("size", [2, 10, 1000])
def test_the_bound_of_a_finite_set_is_reached_by_randomised_response(epsilon, size):
    """It tells the truth with e^eps / (n - 1 + e^eps): what no attack on n equals can beat."""
    truthful = math.exp(epsilon) / (size - 1 + math.exp(epsilon))
    log_kappa = -math.log(size)
    assert bounds.from_finite_set(epsilon, log_kappa, size) == pytest.approx(math.log(truthful))
    assert bounds.from_finite_set(epsilon, log_kappa, size) <= bounds.from_dp(epsilon, log_kappa)


def test_theorem_2_at_an_order_is_that_of_the_gaussian_mechanism_there():
    ledger, log_kappa = Ledger(noise_multiplier=2.0, steps=5), math.log(1e-4)
    at = [
        bounds.from_renyi_at(float(order), float(epsilon), log_kappa)
        for order, epsilon in zip(bounds.ORDERS, bounds.renyi_curve(ledger), strict=True)
    ]
    assert min(at) == pytest.approx(bounds.from_renyi(ledger, log_kappa))
    with pytest.raises(InputError, match="Renyi order: expected a number above 1"):
        bounds.from_renyi_at(1.0, 1.0, log_kappa)


@pytest.mark.parametrize("epsilon", [0.0, 0.3, 2.0])
def test_theorem_5_undoes_the_chance_of_two_point_reconstruction(epsilon):
    """Of two records, the likelier with e^eps / (1 + e^eps): no pure eps-DP beats a blind guess."""
    blind = math.exp(epsilon) / (1 + math.exp(epsilon))
    assert bounds.delta_from_robustness(epsilon, blind) == pytest.approx(0.0, abs=1e-12)
    assert bounds.delta_from_robustness(epsilon, 1.0) == 1.0
    delta = 0.1  # a mechanism that gives the record away with that chance, and says nothing else
    gamma = delta + (1 - delta) * blind
    assert bounds.delta_from_robustness(epsilon, gamma) == pytest.approx(delta)
    assert bounds.delta_from_robustness(1e4, 1.0) == 1.0
