"""Duals from rough points: made exact, counted once, refused where they do not vanish."""

import dataclasses
import math

import pytest
import torch

from exact_case import seeded, small_problem, true_duals
from remnant.solvers.difference import exact, pool, zeros
from remnant.solvers.difference.ground import Found
from remnant.solvers.difference.pool import MOSTLY, NEARLY_ZERO, silent_share
from remnant.solvers.difference.zeros import (
    CLEAR,
    SPARED,
    fixed_by,
    least_second,
    nearly_second,
    zeros_of,
)


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
        near, sure, _ = pool.take_duals(problem, nobody(problem), y, rough)
    else:
        near, sure = exact.take_duals(problem, y, rough)
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
    _, sure, known = pool.take_duals(problem, nobody(problem), y, z)
    assert not bool(known.any())
    twice = torch.arange(len(z)).repeat(2)
    _, once, again = pool.take_duals(problem, nobody(problem), y[twice], z[twice])
    assert torch.equal(once, torch.cat([sure, torch.zeros_like(sure)]))
    assert not bool(again[: len(z)].any())
    assert bool(again[len(z) :][sure].all())
    _, others, before = pool.take_duals(problem, Found(z=z[:3], y=y[:3]), y, z)
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


def mixtures(problem, z):
    """Of two duals each, with one zero more than both have."""
    a, mixed = z @ problem.span.left.T, []
    for i, j in zip(range(len(z) - 1), range(1, len(z)), strict=True):
        where = int((a[i] * a[j]).abs().argmax())
        mixed.append(z[i] - a[i, where] / a[j, where] * z[j])
    return torch.nn.functional.normalize(torch.stack(mixed), dim=1)


def test_a_rough_look_tells_which_duals_their_zeros_determine(monkeypatch, request):
    problem, records = small_problem()
    z = true_duals(problem, records)
    blends = torch.nn.functional.normalize(z + z.roll(1, 0), dim=1)
    all_of_them = torch.cat([z, blends, mixtures(problem, z)])
    plain = zeros_of(problem, all_of_them)
    request.getfixturevalue("roomy")
    looked, second_of = [], zeros.second_of
    monkeypatch.setattr(zeros, "second_of", lambda rows: looked.append(1) or second_of(rows))
    quick = zeros_of(problem, all_of_them)
    assert torch.equal(quick.count, plain.count)
    clear = quick.second >= CLEAR * least_second(problem)
    assert int(clear.sum()) > len(z) / 2
    assert len(looked) == int((~clear & (plain.count > problem.count + SPARED)).sum())
    assert torch.equal(quick.second[~clear], plain.second[~clear])
    over = quick.second[clear] / plain.second[clear]
    assert 0.5 < float(over.min()) <= float(over.max()) < CLEAR / 10
    assert torch.equal(fixed_by(problem, quick), fixed_by(problem, plain))


def test_a_mixture_with_zeros_of_its_own_is_not_clear_from_any_place():
    """Duals of 300 records, ten classes, 2000 neurons; 1 to 4 zeros that only the mixture has."""
    generator = seeded(7)
    a = torch.randn(2000, 300, generator=generator) * (
        torch.rand(2000, 300, generator=generator) < 0.6
    )
    for extra in (1, 2, 3, 4):
        planted = a.clone()
        both = ((a[:, 0] != 0) & (a[:, 1] != 0)).nonzero()[:extra, 0]
        planted[both, 1] = -planted[both, 0] / 0.7
        left, triangle = torch.linalg.qr(planted)
        left = left * 2000**0.5
        one = torch.nn.functional.normalize(triangle[:, :1] + 0.7 * triangle[:, 1:2], dim=0).T
        right = torch.nn.functional.normalize(triangle[:, 5:6], dim=0).T
        zero = ((torch.cat([one, right, one]) @ left.T).abs() < 1e-4).float()
        found = nearly_second(left, zero, torch.cat([one, right, one]))
        assert float(found[1]) > 0.05
        assert float(found[0]) < 0.01
        assert torch.allclose(found[0], found[2])


def test_a_dual_that_has_arrived_and_one_that_does_not_take_no_more_steps(monkeypatch, roomy):
    problem, records = small_problem()
    z, y = true_duals(problem, records)[:2], (records @ problem.span.right.T)[:2]
    rows = []

    def counted(left, near, weights, **how):
        rows.append(len(near))
        return near

    def share(problem, margins, near, small):
        known = torch.where((near @ z.T).abs().argmax(1) == 0, 0.9, 0.4)
        return known if small == NEARLY_ZERO else torch.ones(len(near))

    monkeypatch.setattr(pool, "null_vectors", counted)
    monkeypatch.setattr(pool, "silent_share", share)
    _, sure, again = pool.take_duals(problem, nobody(problem), y, z)
    assert rows == [2, 2] + [1] * (pool.TRIED - 1) + [1]  # rough, first, hopeless, last
    assert sure.tolist() == [True, False]
    assert not bool(again.any())


def test_a_dual_with_few_zeros_is_not_sure(monkeypatch, roomy):
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    where = problem.not_firing(y)
    near, sure = zeros.settle(problem, z, where)
    assert int(sure.sum()) > len(z) / 2
    few = zeros.zeros_below(problem, near, problem.zero).sum(1)
    middle = float(few[sure].double().median())
    monkeypatch.setattr(zeros, "AMPLE", middle / problem.count)
    monkeypatch.setattr(zeros, "SHARE", 1.0)
    assert torch.equal(zeros.settle(problem, z, where)[1], sure & (few > middle))
    monkeypatch.setattr(zeros, "SHARE", 0.0)
    assert torch.equal(zeros.settle(problem, z, where)[1], sure)


def test_a_dual_is_refitted_until_its_zeros_rest(monkeypatch, roomy):
    problem, records = small_problem()
    z = true_duals(problem, records)
    fitted, refit = [], zeros.refit_on_zeros

    def counted(problem, z, below, **how):
        fitted.append(len(z))
        return refit(problem, z, below, **how)

    monkeypatch.setattr(zeros, "refit_on_zeros", counted)
    monkeypatch.setattr(zeros, "STEADY", 1.0)
    zeros.refit_until_steady(problem, z)
    once, fitted[:] = len(fitted), []
    monkeypatch.setattr(zeros, "STEADY", -1.0)  # they never do
    zeros.refit_until_steady(problem, z)
    assert fitted == [len(z)] * (1 + (once - 1) * zeros.LONGEST)  # and at last, finely
