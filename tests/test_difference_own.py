"""Duals that begin from what points alone say, and answers that later ones must not spoil."""

from dataclasses import replace

import pytest
import torch

from exact_case import seeded, small_problem, true_duals
from remnant.solvers.dense import exact
from remnant.solvers.dense.rounds import Found, Search
from remnant.solvers.dense.search import (
    dual_normals,
    duals_at,
    fit_duals,
    oriented_points,
    soft_projector_on,
)


@pytest.fixture(scope="module")
def case():
    problem, records = small_problem()
    return (
        problem,
        true_duals(problem, records),
        oriented_points(problem, records @ problem.span.right.T),
    )


def known(z, y, count):
    return Found(z=z[:count], y=y[:count], residual=z[:count, 0])


def test_points_alone_tell_their_duals_nearly(case):
    problem, z, y = case
    own = duals_at(problem, known(z, y, 0), y)
    cosine = (own * z).sum(1).abs()
    assert float(cosine.median()) > 0.9
    torch.testing.assert_close(own.norm(dim=1), torch.ones(len(y), dtype=torch.float64))


def test_records_found_tell_the_others_duals_better(case):
    problem, z, y = case
    rough = oriented_points(
        problem, y + 0.2 * y.std() * torch.randn(y.shape, generator=seeded()).double()
    )
    alone, helped = (
        (duals_at(problem, known(z, y, count), rough[8:]) * z[8:]).sum(1).abs() for count in (0, 8)
    )
    assert float(helped.mean()) > float(alone.mean())


def test_other_records_duals_have_nothing_of_what_was_found(case):
    problem, z, y = case
    across = dual_normals(problem, known(z, y, 8))
    assert float((across @ z[8:].T).abs().max()) < 1e-9
    taken = soft_projector_on(across)
    assert float((z[8:] @ taken).norm(dim=1).max()) < 1e-9
    assert float((z[:8] * (z[:8] @ taken)).sum(1).min()) > 0.05
    assert not bool(soft_projector_on(dual_normals(problem, known(z, y, 0))).any())


def test_a_dual_of_another_record_is_no_start_but_the_points_own_is(case):
    problem, z, y = case
    other, found = z.roll(1, 0), known(z, y, 0)
    _, sure = fit_duals(problem, y, other)
    own, found_them = fit_duals(problem, y, duals_at(problem, found, y))
    assert int(found_them.sum()) > int(sure.sum())
    assert float((own * z).sum(1).abs()[found_them].min()) > 1 - 1e-7


@pytest.mark.parametrize("later", [0, 5])
def test_a_search_anew_that_ends_worse_is_forgotten(monkeypatch, case, later):
    problem, z, y = case
    counts = iter([len(z), later])
    whole = exact.certify

    def some_found(problem, found, search, generator):
        count = next(counts)
        return known(z, y, count), [0.0, float(count)]

    def one_doubtful(*given):
        proof = whole(*given)
        if not len(proof.passed):
            return proof
        doubtful = torch.zeros_like(proof.doubtful)
        doubtful[0] = True
        return replace(proof, doubtful=doubtful, passed=proof.passed & ~doubtful)

    monkeypatch.setattr(exact, "search_on", some_found)
    monkeypatch.setattr(exact, "certify", one_doubtful)
    recovery = exact.recover(problem, Search(repairs=1), generator=seeded())
    assert recovery.exact
    assert int(recovery.passed.sum()) == len(z) - 1
