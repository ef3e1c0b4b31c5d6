"""Duals that begin from what points alone say, and answers that later ones must not spoil."""

import dataclasses

import pytest
import torch
from torch.nn.functional import normalize

from exact_case import seeded, small_problem, true_duals
from remnant.solvers.difference import exact
from remnant.solvers.difference.exact import recover, take_duals
from remnant.solvers.difference.ground import (
    Found,
    Search,
    across_duals,
    duals_at,
    taken_by,
    upright,
)
from remnant.solvers.difference.zeros import FINE, refit_on_zeros, settle, zeros_below


@pytest.fixture(scope="module")
def case():
    problem, records = small_problem()
    return problem, true_duals(problem, records), upright(problem, records @ problem.span.right.T)


def known(z, y, count):
    return Found(z=z[:count], y=y[:count])


def test_points_alone_tell_their_duals_nearly(case):
    problem, z, y = case
    own = duals_at(problem, known(z, y, 0), y)
    cosine = (own * z).sum(1).abs()
    assert float(cosine.median()) > 0.9
    torch.testing.assert_close(own.norm(dim=1), torch.ones(len(y), dtype=torch.float64))


def test_records_found_tell_the_others_duals_better(case):
    problem, z, y = case
    rough = upright(problem, y + 0.2 * y.std() * torch.randn(y.shape, generator=seeded()).double())
    alone, helped = (
        (duals_at(problem, known(z, y, count), rough[8:]) * z[8:]).sum(1).abs() for count in (0, 8)
    )
    assert float(helped.mean()) > float(alone.mean())


def test_other_records_duals_have_nothing_of_what_was_found(case):
    problem, z, y = case
    across = across_duals(problem, known(z, y, 8))
    assert float((across @ z[8:].T).abs().max()) < 1e-9
    taken = taken_by(across)
    assert float((z[8:] @ taken).norm(dim=1).max()) < 1e-9
    assert float((z[:8] * (z[:8] @ taken)).sum(1).min()) > 0.05
    assert not bool(taken_by(across_duals(problem, known(z, y, 0))).any())


def test_a_dual_of_another_record_is_no_start_but_the_points_own_is(case):
    problem, z, y = case
    other, found = z.roll(1, 0), known(z, y, 0)
    _, sure = take_duals(problem, y, other)
    own, found_them = take_duals(problem, y, duals_at(problem, found, y), closely=True)
    assert int(found_them.sum()) > int(sure.sum())
    assert float((own * z).sum(1).abs()[found_them].min()) > 1 - 1e-7


def test_refits_of_duals_that_are_near_leave_out_what_is_small_but_no_zero(case):
    problem, z, _ = case
    # Neurons that a dual hardly moves, as those have that fire in a few steps of many alone.
    left = problem.span.left.clone()
    true = left @ z[0]
    hardly = (true.abs() > 0.1).nonzero()[:40, 0]
    left[hardly] += (3e-3 - true[hardly])[:, None] * z[0] / z[0].square().sum()
    bent = dataclasses.replace(problem, span=dataclasses.replace(problem.span, left=left))
    near = normalize(z[:1] + 1e-5 * torch.randn(z[:1].shape, generator=seeded()).double(), dim=1)
    assert int(zeros_below(bent, near, 5e-3).sum()) >= int(zeros_below(bent, near, 5e-4).sum()) + 40
    coarse = refit_on_zeros(bent, near, 5e-3)
    fine, sure = settle(bent, near, None, FINE)
    off, off_fine = (1 - float((one * z[:1]).sum().abs()) for one in (coarse, fine))
    assert off_fine < 1e-10 < off
    assert bool(sure[0])


@pytest.mark.parametrize("later", [0, 5])
def test_a_search_anew_that_ends_worse_is_forgotten(monkeypatch, case, later):
    problem, z, y = case
    counts = iter([len(z), later])
    whole = exact.certify

    def some_found(problem, found, series, search, generator):
        count = next(counts)
        series.append(float(count))
        return known(z, y, count)

    def one_doubtful(*given):
        proof = whole(*given)
        if not len(proof.passed):
            return proof
        doubtful = torch.zeros_like(proof.doubtful)
        doubtful[0] = True
        return dataclasses.replace(proof, doubtful=doubtful, passed=proof.passed & ~doubtful)

    monkeypatch.setattr(exact, "search_on", some_found)
    monkeypatch.setattr(exact, "certify", one_doubtful)
    recovery = recover(problem, Search(repairs=1), generator=seeded())
    assert recovery.exact
    assert int(recovery.passed.sum()) == len(z) - 1
