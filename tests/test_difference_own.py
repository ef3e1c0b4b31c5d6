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
    fit_duals_closely,
    oriented_points,
    sharpened,
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
    own = duals_at(problem, dual_normals(problem, y[:0]), y)
    cosine = (own * z).sum(1).abs()
    assert float(cosine.median()) > 0.9
    torch.testing.assert_close(own.norm(dim=1), torch.ones(len(y), dtype=torch.float64))


def test_records_found_tell_the_others_duals_better(case):
    problem, z, y = case
    rough = oriented_points(
        problem, y + 0.2 * y.std() * torch.randn(y.shape, generator=seeded()).double()
    )
    alone, helped = (
        (duals_at(problem, dual_normals(problem, y[:count]), rough[8:]) * z[8:]).sum(1).abs()
        for count in (0, 8)
    )
    assert float(helped.mean()) > float(alone.mean())


def test_other_records_duals_have_nothing_of_what_was_found(case):
    problem, z, y = case
    across = dual_normals(problem, y[:8])
    assert float((across @ z[8:].T).abs().max()) < 1e-9
    taken = soft_projector_on(across)
    assert float((z[8:] @ taken).norm(dim=1).max()) < 1e-9
    assert float((z[:8] * (z[:8] @ taken)).sum(1).min()) > 0.05
    assert not bool(soft_projector_on(dual_normals(problem, y[:0])).any())


def test_a_dual_of_another_record_is_no_start_but_the_points_own_is(case):
    problem, z, y = case
    other = z.roll(1, 0)
    _, sure = fit_duals(problem, y, other)
    own, found_them = fit_duals(problem, y, duals_at(problem, dual_normals(problem, y[:0]), y))
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


def test_the_points_of_all_but_one_are_exact_enough_to_tell_the_last_dual(case):
    problem, z, y = case
    generator = seeded()
    noise = 0.3 * y.std() * torch.randn(y.shape, generator=generator).double()
    rough = known(z, oriented_points(problem, y + noise), len(z) - 1)
    sharp = sharpened(problem, rough)
    before, after = ((points - y[:-1]).norm(dim=1) for points in (rough.y, sharp))
    assert float(after.max()) < 0.2 * float(before.min())
    last = dual_normals(problem, sharp) @ z[-1]
    assert float(last.norm()) < 0.2 * float((dual_normals(problem, rough.y) @ z[-1]).norm())


def test_duals_that_points_told_keep_to_what_the_others_leave(case):
    problem, z, y = case
    half = len(z) // 2
    normals = dual_normals(problem, y[:half])
    start = torch.randn(len(z) - half, problem.count, generator=seeded()).double()
    start = torch.nn.functional.normalize(z[half:] + 0.5 * start / start.norm(dim=1, keepdim=True))
    fitted, sure = fit_duals_closely(problem, normals, y[half:], start)
    assert bool(sure.any())
    assert float((fitted * z[half:]).sum(1).abs()[sure].min()) > 1 - 1e-7
    assert float((normals @ fitted[sure].T).abs().max()) < 1e-6
