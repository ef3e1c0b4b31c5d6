import math
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from remnant import bounds
from remnant.bounds import Ledger
from remnant.bounds.accounting import loss_distribution, renyi_by_quadrature
from remnant.errors import InputError

FULL = Ledger(noise_multiplier=4.0, steps=20)
POISSON = Ledger(noise_multiplier=1.0, steps=20, sampling_rate=0.125)
POISSON_REPLACE = Ledger(
    noise_multiplier=1.0, steps=20, sampling_rate=0.125, adjacency="replace-one"
)


def test_known_answers():
    assert bounds.epsilon(FULL, 1e-5) == pytest.approx(4.983, abs=1e-3)
    assert bounds.epsilon_by_renyi(FULL, 1e-5) == pytest.approx(5.378, abs=1e-3)
    assert bounds.epsilon(POISSON, 1e-5) == pytest.approx(4.364, abs=1e-3)


def test_renyi_epsilon_is_just_below_that_of_the_library():
    # Between integer orders the library's series is an upper bound; ours is the integral itself.
    dp = pytest.importorskip("dp_accounting")
    rdp = pytest.importorskip("dp_accounting.rdp")
    orders = [k / 10 for k in range(20, 110)]
    step = dp.PoissonSampledDpEvent(0.125, dp.GaussianDpEvent(1.0))
    theirs = rdp.RdpAccountant(orders).compose(step, 20).get_epsilon(1e-5)
    assert theirs == pytest.approx(5.071, abs=1e-3)
    ours = bounds.epsilon_by_renyi(POISSON, 1e-5)
    assert theirs - 3e-3 < ours < theirs


def test_exact_gaussian_is_what_the_loss_distribution_says():
    by_losses = loss_distribution(FULL).get_epsilon_for_delta(1e-5)
    assert bounds.epsilon(FULL, 1e-5) == pytest.approx(by_losses, abs=1e-4)


def test_exact_gaussian_is_the_analytic_formula():
    # Balle and Wang 2018, solved for delta at the epsilon that came.
    normal = lambda x: math.erfc(-x / math.sqrt(2)) / 2  # noqa: E731
    mu, eps = FULL.mu, bounds.epsilon(FULL, 1e-5)
    delta = normal(mu / 2 - eps / mu) - math.exp(eps) * normal(-mu / 2 - eps / mu)
    assert delta == pytest.approx(1e-5, rel=1e-6)


@pytest.mark.parametrize("order", [2, 3, 7, 30, 64])
@pytest.mark.parametrize(("rate", "noise"), [(0.125, 1.0), (0.01, 0.6), (0.5, 5.0)])
def test_quadrature_is_the_library_at_integers(order, rate, noise):
    ledger = Ledger(noise_multiplier=noise, steps=1, sampling_rate=rate)
    theirs = bounds.renyi_curve(ledger)[list(bounds.ORDERS).index(order)]
    ours = renyi_by_quadrature(ledger, order)
    assert min(ours, order * bounds.rho(ledger)) == pytest.approx(theirs, rel=1e-7, abs=1e-12)


@pytest.mark.parametrize("adjacency", ["zero-out", "replace-one"])
def test_quadrature_is_the_formula_for_full_batches(adjacency):
    ledger = Ledger(noise_multiplier=2.0, steps=1, adjacency=adjacency)
    for order in (1.5, 4.0, 33.0):
        wanted = order * bounds.rho(ledger)
        assert renyi_by_quadrature(ledger, order) == pytest.approx(wanted, rel=1e-9)


@pytest.mark.parametrize("ledger", [FULL, POISSON, POISSON_REPLACE])
def test_renyi_curves_rise_and_stay_below_zcdp(ledger):
    curve = bounds.renyi_curve(ledger)
    assert (np.diff(curve) >= -1e-12).all()
    assert (curve > 0).all()
    assert (curve <= bounds.ORDERS * bounds.rho(ledger) * (1 + 1e-12)).all()
    assert bounds.epsilon(ledger, 1e-5) <= bounds.epsilon_by_renyi(ledger, 1e-5)


def test_adjacency():
    twice = Ledger(noise_multiplier=4.0, steps=20, adjacency="replace-one")
    half = Ledger(noise_multiplier=2.0, steps=20)
    assert bounds.epsilon(twice, 1e-5) == pytest.approx(bounds.epsilon(half, 1e-5))
    assert bounds.rho(twice) == pytest.approx(4 * bounds.rho(FULL))
    apart = Ledger(noise_multiplier=4.0, steps=20, adjacency="add-remove")
    assert bounds.epsilon(apart, 1e-5) == bounds.epsilon(FULL, 1e-5)
    assert bounds.epsilon(POISSON, 1e-5) < bounds.epsilon(POISSON_REPLACE, 1e-5)
    assert (bounds.renyi_curve(POISSON) <= bounds.renyi_curve(POISSON_REPLACE)).all()


def test_small_deltas_do_not_end_in_infinity():
    small = bounds.epsilon(POISSON, 1e-20)
    assert bounds.epsilon(POISSON, 1e-5) < small < math.inf


@settings(max_examples=30, deadline=None)
@given(
    noise=st.floats(0.3, 30),
    steps=st.integers(1, 500),
    delta=st.floats(1e-9, 1e-2),
)
def test_full_batches_are_monotone(noise, steps, delta):
    base = bounds.epsilon(Ledger(noise_multiplier=noise, steps=steps), delta)
    assert bounds.epsilon(Ledger(noise_multiplier=noise * 1.1, steps=steps), delta) <= base
    assert bounds.epsilon(Ledger(noise_multiplier=noise, steps=steps + 1), delta) >= base
    assert bounds.epsilon(Ledger(noise_multiplier=noise, steps=steps), delta * 2) <= base
    assert base <= bounds.epsilon_by_renyi(Ledger(noise_multiplier=noise, steps=steps), delta)


def test_sampled_runs_are_monotone():
    values = [
        bounds.epsilon(Ledger(noise_multiplier=s, steps=t, sampling_rate=q), 1e-5)
        for s, t, q in ((2, 10, 0.1), (1, 10, 0.1), (1, 30, 0.1), (1, 30, 0.3), (1, 30, 1.0))
    ]
    assert values == sorted(values)
    assert values[0] < values[-1] / 3


@pytest.mark.parametrize("template", [FULL, POISSON])
def test_calibration_meets_its_target_and_no_more(template):
    found = bounds.noise_for_epsilon(template, 3.0, 1e-5)
    assert 2.999 < bounds.epsilon(found, 1e-5) <= 3.0
    assert found.steps == template.steps


def test_calibration_finds_the_known_noise_from_afar():
    far = Ledger(noise_multiplier=0.01, steps=20)
    found = bounds.noise_for_epsilon(far, bounds.epsilon(FULL, 1e-5), 1e-5)
    assert found.noise_multiplier == pytest.approx(4.0, rel=2e-4)


@pytest.mark.parametrize(
    ("field", "value", "text"),
    [
        ("noise_multiplier", -1.0, "noise multiplier: expected a number above 0, got -1.0"),
        ("noise_multiplier", 0.0, "noise multiplier: expected a number above 0"),
        ("noise_multiplier", math.nan, "noise multiplier: expected a number above 0, got nan"),
        ("sampling_rate", 2.0, "sampling rate: expected above 0 and at most 1, got 2.0"),
        ("sampling_rate", 0.0, "sampling rate"),
        ("sampling_rate", math.nan, "sampling rate"),
        ("steps", 0, "steps: expected a whole number, 1 or more, got 0"),
        ("steps", 2.5, "steps"),
        ("steps", 10**400, "noise multiplier and steps: expected 0.001 to 1e6 and at most 1e7"),
        ("noise_multiplier", 1e-300, "noise multiplier and steps: expected 0.001 to 1e6"),
        ("clip", 0.0, "clip"),
        ("adjacency", "swap", "adjacency: expected one of zero-out, add-remove, replace-one"),
    ],
)
def test_bad_ledgers_are_one_line(field, value, text):
    values = {"noise_multiplier": 1.0, "steps": 3} | {field: value}
    with pytest.raises(InputError, match=text):
        Ledger(**values)


@pytest.mark.parametrize("delta", [0.0, 1.0, -1e-5, math.nan])
def test_bad_deltas_are_one_line(delta):
    for function in (bounds.epsilon, bounds.epsilon_by_renyi):
        with pytest.raises(InputError, match="delta: expected a number between 0 and 1"):
            function(FULL, delta)


def test_little_noise_is_accounted_for_in_full_batches_only():
    # mu^2 / 2 + mu Phi^-1(1 - delta), nearly: the loss is Gaussian and delta its upper tail.
    little = bounds.noise_for_epsilon(Ledger(noise_multiplier=1.0, steps=30), 1e6, 1e-5)
    assert little.noise_multiplier < 0.01
    assert little.mu**2 / 2 + 4.265 * little.mu == pytest.approx(1e6, rel=1e-4)
    with pytest.raises(InputError, match=r"expected 0\.01 to 1e6 .* got 0\.005 and 3"):
        Ledger(noise_multiplier=0.005, steps=3, sampling_rate=0.5)


def test_noise_that_cannot_be_found_is_one_line():
    with pytest.raises(InputError, match="noise: expected enough of it"):
        bounds.noise_for_epsilon(FULL, 1e-15, 1e-30)
    with pytest.raises(InputError, match=r"noise: expected a need of it, got none down to 0\.001"):
        bounds.noise_for_epsilon(FULL, 1e12, 1e-5)
    with pytest.raises(InputError, match="epsilon: expected a number above 0"):
        bounds.noise_for_epsilon(FULL, 0.0, 1e-5)


def test_the_room_needs_no_torch_and_waits_for_the_library():
    # `import remnant` itself may bring torch; the room's own modules must not.
    script = (
        "import sys, types, pathlib, importlib.util as u\n"
        "root = pathlib.Path(u.find_spec('remnant').origin).parent\n"
        "package = types.ModuleType('remnant'); package.__path__ = [str(root)]\n"
        "sys.modules['remnant'] = package\n"
        "import remnant.bounds\n"
        "print(sorted({'torch', 'dp_accounting'} & set(sys.modules)))"
    )
    out = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert out.stdout.strip() == "[]"
