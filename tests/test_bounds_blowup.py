import math

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

import reconstruction_game
from remnant import bounds
from remnant.bounds import Ledger
from remnant.bounds.accounting import loss_distribution
from remnant.errors import InputError

FULL = Ledger(noise_multiplier=4.0, steps=20)
POISSON = Ledger(noise_multiplier=1.0, steps=20, sampling_rate=0.125)
POISSON_REPLACE = Ledger(
    noise_multiplier=1.0, steps=20, sampling_rate=0.125, adjacency="replace-one"
)
KAPPAS = (0.99, 0.7, 0.1, 0.01, 1e-4, 1e-9, 1e-15, 1e-40, 1e-200)


def gamma(ledger, kappa):
    return math.exp(bounds.blow_up(ledger, math.log(kappa)))


def test_closed_form():
    mu = math.sqrt(20) / 4
    for kappa in (0.9, 0.3, 0.01):
        assert gamma(FULL, kappa) == pytest.approx(stats.norm.cdf(stats.norm.ppf(kappa) + mu))
    assert gamma(FULL, 0.01) == pytest.approx(0.1135, abs=1e-4)
    twice = Ledger(noise_multiplier=4.0, steps=20, adjacency="replace-one")
    wanted = stats.norm.cdf(stats.norm.ppf(0.01) + 2 * mu)
    assert gamma(twice, 0.01) == pytest.approx(wanted)


def test_closed_form_goes_on_where_floats_end():
    # Phi^-1(kappa) is about -sqrt(2 log 1/kappa), so gamma is about Corollary 4.
    tiny = bounds.gaussian_blow_up(2.0, -5000.0)
    corollary = bounds.from_zcdp(2.0, -5000.0)
    assert tiny < corollary < tiny + 0.1
    assert bounds.gaussian_blow_up(0.0, -5000.0) == pytest.approx(-5000.0)


def test_known_answer_of_the_sampled_run():
    assert gamma(POISSON, 0.01) == pytest.approx(0.0608, abs=1e-4)


@pytest.mark.parametrize("ledger", [POISSON, POISSON_REPLACE])
def test_trade_off_curve_is_that_of_riskcal(ledger):
    analysis = pytest.importorskip("riskcal.analysis", reason="riskcal is not installed")
    for kappa in (0.1, 0.01, 1e-4):
        theirs = 1 - analysis.get_beta_from_pld(loss_distribution(ledger), alpha=kappa)
        assert gamma(ledger, kappa) == pytest.approx(float(theirs), rel=1e-3)
    # Theirs is the curve for either direction, which for a large kappa is the other one's.
    either = 1 - analysis.get_beta_from_pld(loss_distribution(ledger), alpha=0.5)
    assert gamma(ledger, 0.5) <= either + 1e-3


def test_direction_is_with_the_record_against_without():
    # The other direction is a smaller number that no attack is held by.
    add = loss_distribution(POISSON)._pmf_add
    epsilons = np.linspace(-3, 6, 50)
    other = float((0.01 * np.exp(epsilons) + add.get_delta_for_epsilon(epsilons)).min())
    assert other == pytest.approx(0.034, abs=1e-3)
    assert gamma(POISSON, 0.01) > 1.5 * other


def test_sampling_at_nearly_1_is_nearly_the_full_batch():
    nearly = Ledger(noise_multiplier=4.0, steps=20, sampling_rate=1 - 1e-9)
    for kappa in (0.5, 0.01, 1e-6):
        assert gamma(nearly, kappa) == pytest.approx(gamma(FULL, kappa), rel=1e-3)


@pytest.mark.parametrize("noise", [0.7, 5.0])
@pytest.mark.parametrize("rate", [0.01, 0.3, 1.0])
@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_never_above_renyi_and_always_a_probability(noise, rate, adjacency):
    ledger = Ledger(noise_multiplier=noise, steps=10, sampling_rate=rate, adjacency=adjacency)
    found = [bounds.blow_up(ledger, math.log(kappa)) for kappa in KAPPAS]
    for value, kappa in zip(found, KAPPAS, strict=True):
        assert math.log(kappa) <= value <= 0
        assert value <= bounds.from_renyi(ledger, math.log(kappa)) + 1e-12
        assert value <= bounds.from_zcdp(bounds.rho(ledger), math.log(kappa)) + 1e-2
    assert found == sorted(found, reverse=True)


def test_monotone_in_what_was_run():
    chain = [(2, 10, 0.1), (1, 10, 0.1), (1, 30, 0.1), (1, 30, 0.3), (1, 30, 1.0)]
    for kappa in (0.3, 0.01, 1e-8):
        found = [
            gamma(Ledger(noise_multiplier=s, steps=t, sampling_rate=q), kappa) for s, t, q in chain
        ]
        assert found == sorted(found)
    assert gamma(POISSON, 0.01) < gamma(POISSON_REPLACE, 0.01)


@settings(max_examples=60, deadline=None)
@given(mu=st.floats(0, 30), more=st.floats(0.01, 5), log_kappa=st.floats(-3000, -1e-3))
def test_closed_form_is_monotone(mu, more, log_kappa):
    value = bounds.gaussian_blow_up(mu, log_kappa)
    assert log_kappa * (1 + 1e-9) <= value <= 0
    assert bounds.gaussian_blow_up(mu + more, log_kappa) >= value
    assert bounds.gaussian_blow_up(mu, log_kappa / (1 + more)) >= value
    assert value <= bounds.from_zcdp(mu**2 / 2, log_kappa) + 1e-9


@pytest.mark.parametrize("ledger", [FULL, POISSON, POISSON_REPLACE])
@pytest.mark.parametrize("kappa", [0.5, 0.01])
def test_simulation_agrees(ledger, kappa):
    found = reconstruction_game.simulated_blow_up(
        ledger, kappa, trials=40_000, generator=np.random.default_rng(5)
    )
    assert found.low < gamma(ledger, kappa) < found.high
    assert found.low < found.gamma < found.high
    assert found.high - found.low < 0.06


@pytest.mark.parametrize("template", [FULL, POISSON])
def test_noise_for_gamma_meets_its_target(template):
    wanted = math.log(0.05)
    found = bounds.noise_for_gamma(template, math.log(0.01), wanted)
    assert wanted - 2e-3 < bounds.blow_up(found, math.log(0.01)) <= wanted
    with pytest.raises(InputError, match="gamma: expected above kappa"):
        bounds.noise_for_gamma(template, math.log(0.01), math.log(0.001))
