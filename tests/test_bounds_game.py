import math

import numpy as np
import pytest
from scipy import stats

from reconstruction_game import orthogonal, orthogonal_success, play, simplex
from remnant import bounds
from remnant.bounds import Ledger
from remnant.errors import InputError

FULL = Ledger(noise_multiplier=4.0, steps=20)
POISSON = Ledger(noise_multiplier=1.0, steps=20, sampling_rate=0.125)


def played(ledger, directions, trials=3000, seed=0, **more):
    return play(ledger, directions, trials=trials, generator=np.random.default_rng(seed), **more)


@pytest.mark.parametrize("k", [2, 10, 50])
def test_game_is_the_exact_value_for_right_angles(k):
    game = played(FULL, orthogonal(k), confidence=0.999)
    exact = orthogonal_success(FULL.mu, k)
    assert game.low < exact < game.high
    assert exact < math.exp(bounds.blow_up(FULL, bounds.candidates(k)))


def test_exact_value_at_its_ends():
    for k in (2, 7):
        assert orthogonal_success(0.0, k) == pytest.approx(1 / k)
        assert orthogonal_success(20.0, k) == pytest.approx(1.0)
    assert orthogonal_success(1.0, 2) == pytest.approx(stats.norm.cdf(1 / math.sqrt(2)))


def test_bound_is_met_by_two_opposite_candidates():
    game = played(FULL, simplex(2), trials=20_000, confidence=0.999)
    bound = math.exp(bounds.blow_up(FULL, bounds.candidates(2)))
    assert game.low < bound < game.high
    assert game.high - game.low < 0.02


@pytest.mark.parametrize("ledger", [FULL, POISSON])
@pytest.mark.parametrize("shape", [orthogonal, simplex])
def test_no_game_beats_its_bound(ledger, shape):
    for k in (2, 5, 100):
        game = played(ledger, shape(k))
        bound = math.exp(bounds.blow_up(ledger, bounds.candidates(k)))
        assert not bounds.compare(game.successes, game.trials, bound).violated
        assert game.low > 1 / k  # but far better than a guess


def test_simplex_has_unit_corners_alike():
    corners = simplex(5)
    gram = corners @ corners.T
    assert np.allclose(np.diag(gram), 1)
    assert np.allclose(gram[~np.eye(5, dtype=bool)], -0.25)


def test_prior_is_used():
    weak = Ledger(noise_multiplier=1000.0, steps=1)
    game = played(weak, orthogonal(2), prior=[0.9, 0.1], confidence=0.999)
    assert game.low < 0.9 < game.high
    sure = played(weak, orthogonal(2), prior=[1.0, 0.0])
    assert sure.successes == sure.trials


def test_short_gradients_say_less():
    short = played(FULL, 0.2 * orthogonal(10))
    assert short.high < played(FULL, orthogonal(10)).low


def test_game_is_repeatable():
    assert played(POISSON, simplex(4)) == played(POISSON, simplex(4))


@pytest.mark.parametrize(("k", "n"), [(0, 10), (3, 10), (10, 10), (60, 1000)])
def test_clopper_pearson_is_that_of_scipy(k, n):
    theirs = stats.binomtest(k, n).proportion_ci(confidence_level=0.95, method="exact")
    low, high = bounds.clopper_pearson(k, n, 0.975)
    assert (low, high) == pytest.approx((theirs.low, theirs.high))


def test_verdicts():
    fine = bounds.compare(9, 100, 0.1)
    assert not fine.violated
    assert fine.text.startswith("measured 9 of 100")
    unlucky = bounds.compare(13, 100, 0.1)  # above the bound, but no proof
    assert not unlucky.violated
    assert unlucky.rate > unlucky.gamma
    broken = bounds.compare(40, 100, 0.1)
    assert broken.violated
    assert broken.low > 0.1
    assert broken.text.startswith("ACCOUNTING ERROR: measured 40 of 100")
    for k, n, gamma in ((5, 4, 0.1), (-1, 4, 0.1), (1, 4, 1.5), (1, 4, math.nan), (0, 0, 0.1)):
        with pytest.raises(InputError, match="expected"):
            bounds.compare(k, n, gamma)


def test_a_sound_bound_is_seldom_accused():
    counts = np.random.default_rng(0).binomial(200, 0.1, size=2000)
    accused = sum(bounds.compare(int(k), 200, 0.1, confidence=0.99).violated for k in counts)
    assert accused <= 2000 * 0.01 * 1.6


def test_records_of_one_run_may_leak_together():
    ledger = bounds.Ledger(noise_multiplier=4.0, steps=1)
    kappa = math.log(0.05)
    one = bounds.chance_in_one_run(ledger, kappa, 1, 1)
    assert one == pytest.approx(bounds.blow_up(ledger, kappa))  # of one record it is the bound
    alone = bounds.chance_in_one_run(ledger, kappa, 10, 10, together=False)
    assert alone == pytest.approx(one)  # they may all hang on one event: Markov
    assert bounds.chance_in_one_run(ledger, kappa, 10, 10) < math.log(1e-6)  # product prior
    assert bounds.chance_in_one_run(ledger, math.log(0.9), 1, 10) == 0.0
    fewer = [bounds.chance_in_one_run(ledger, kappa, k, 10) for k in range(1, 11)]
    assert fewer == sorted(fewer, reverse=True)
    for k in (0, 11):
        with pytest.raises(InputError, match="successes: expected 1 to 10"):
            bounds.chance_in_one_run(ledger, kappa, k, 10)


def test_the_chance_in_one_run_bounds_the_best_guesses():
    """n records of +1 or -1, each seen once through the noise: counts of right guesses."""
    ledger, n = bounds.Ledger(noise_multiplier=2.0, steps=1), 8
    # Zero-out: a record moves its own coordinate by one, as likely up as down; kappa is a half.
    runs = np.random.default_rng(1).standard_normal((20_000, n)) * 2.0 + 1.0
    right = (runs > 0).sum(1)
    for k in range(4, n + 1):
        allowed = math.exp(bounds.chance_in_one_run(ledger, math.log(0.5), k, n))
        assert (right >= k).mean() <= allowed + 0.01
