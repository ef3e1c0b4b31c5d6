"""Duals from rough points: made exact, counted once, refused where they do not vanish."""

import dataclasses
import math

import pytest
import torch

from exact_case import seeded, small_problem, true_duals
from remnant.solvers.difference import exact, pool
from remnant.solvers.difference.ground import Found
from remnant.solvers.difference.pool import MOSTLY, NEARLY_ZERO, silent_share
from remnant.solvers.difference.zeros import CLEAR, fixed_by, least_second, zeros_of


def nobody(problem):
    return Found(z=torch.zeros(0, problem.count).double(), y=torch.zeros(0, problem.count).double())


@pytest.mark.parametrize("many", [False, True])
def test_a_rough_dual_gets_exact_where_its_point_is_silent(many, request):
    if many:
        request.getfixturevalue("roomy")
    problem, records = small_problem()
    assert problem.roomy == many
    z, y = true_duals(problem, records), records @ problem.span.right.T
    noise = torch.randn(z.shape, generator=seeded(), dtype=torch.float64)
    rough = torch.nn.functional.normalize(z + 0.05 * noise, dim=1)
    if many:
        near, sure, _ = pool.take_duals(problem, nobody(problem), y, rough, 0.0)
    else:
        near, sure = exact.take_duals(problem, y, rough, 0.0)
    assert int(sure.sum()) > 0.8 * len(z)
    assert float((near * z).sum(1).abs()[sure].min()) > 1 - 1e-9


def test_coarse_weights_do_not_hide_the_zeros_of_a_dual(roomy):
    problem, records = small_problem()
    coarse = dataclasses.replace(problem, zero=0.03)
    z, y = true_duals(problem, records), records @ problem.span.right.T
    noise = 0.01 * torch.randn(z.shape, generator=seeded(), dtype=torch.float64)
    rough = torch.nn.functional.normalize(z + noise / math.sqrt(len(z)), dim=1)
    assert float(silent_share(coarse, coarse.margin(y), rough, NEARLY_ZERO).min()) > MOSTLY
    assert float(silent_share(problem, problem.margin(y), rough, NEARLY_ZERO).min()) < MOSTLY


def test_many_starts_at_one_record_count_once_and_known_ones_not_at_all(roomy):
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    _, sure, known = pool.take_duals(problem, nobody(problem), y, z, 0.0)
    assert not bool(known.any())
    twice = torch.arange(len(z)).repeat(2)
    _, once, again = pool.take_duals(problem, nobody(problem), y[twice], z[twice], 0.0)
    assert torch.equal(once, torch.cat([sure, torch.zeros_like(sure)]))
    assert not bool(again[: len(z)].any())
    assert bool(again[len(z) :][sure].all())
    _, others, before = pool.take_duals(problem, Found(z=z[:3], y=y[:3]), y, z, 0.0)
    assert before.nonzero()[:, 0].tolist() == [0, 1, 2]
    assert torch.equal(others[3:], sure[3:])
    assert not bool(others[:3].any())


def test_a_dual_vanishes_where_its_own_point_is_silent_and_a_mixture_does_not():
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    mixed = torch.nn.functional.normalize(z + z.roll(1, 0), dim=1)
    own, wrong = (
        silent_share(problem, problem.margin(y), each, NEARLY_ZERO) for each in (z, mixed)
    )
    assert float(own.min()) > MOSTLY > float(wrong.median())


def test_a_rough_look_tells_which_duals_their_zeros_determine(request):
    problem, records = small_problem()
    z = true_duals(problem, records)
    both = torch.cat([z, torch.nn.functional.normalize(z + z.roll(1, 0), dim=1)])
    plain = zeros_of(problem, both)
    request.getfixturevalue("roomy")
    quick = zeros_of(problem, both)
    assert torch.equal(quick.count, plain.count)
    clear = quick.second >= CLEAR * least_second(problem)
    assert 0 < int(clear.sum()) < len(both)
    assert torch.equal(quick.second[~clear], plain.second[~clear])
    over = quick.second[clear] / plain.second[clear]
    assert 0.5 < float(over.min()) <= float(over.max()) < CLEAR / 10
    assert torch.equal(fixed_by(problem, quick), fixed_by(problem, plain))
    assert 0 < int(fixed_by(problem, plain).sum()) < len(both)
