"""Duals from rough points: made exact, and refused where their zeros do not determine them."""

import dataclasses

import torch

from exact_case import seeded, small_problem, true_duals
from remnant.solvers.dense.duals import determined, fit_to_zeros, refit_on_zeros
from remnant.solvers.dense.search import fit_duals


def test_a_rough_dual_gets_exact_where_its_point_is_silent():
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    noise = torch.randn(z.shape, generator=seeded(), dtype=torch.float64)
    rough = torch.nn.functional.normalize(z + 0.05 * noise, dim=1)
    near, sure = fit_duals(problem, y, rough)
    assert int(sure.sum()) > 0.8 * len(z)
    assert float((near * z).sum(1).abs()[sure].min()) > 1 - 1e-9


def mixtures(problem, z):
    """Of two duals each, with one zero more than both have."""
    a, mixed = z @ problem.span.left.T, []
    for i, j in zip(range(len(z) - 1), range(1, len(z)), strict=True):
        where = int((a[i] * a[j]).abs().argmax())
        mixed.append(z[i] - a[i, where] / a[j, where] * z[j])
    return torch.nn.functional.normalize(torch.stack(mixed), dim=1)


def test_zeros_determine_a_records_dual_and_no_mixture_of_two():
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    blends = torch.nn.functional.normalize(z + z.roll(1, 0), dim=1)
    assert bool(determined(problem, z).all())
    assert not bool(determined(problem, blends).any())
    # Two records of one class may teach neurons that both fire in proportion; those do not count.
    assert not bool(determined(problem, mixtures(problem, z), problem.not_firing(y[:-1])).any())


def test_a_fit_to_coarse_weights_leaves_out_what_is_small_but_no_zero():
    problem, records = small_problem()
    z, left = true_duals(problem, records)[:1], problem.span.left.clone()
    true = left @ z[0]
    small = (true.abs() > 0.1).nonzero()[:40, 0]  # as of neurons that fired in a few steps alone
    left[small] += (0.015 - true[small])[:, None] * z[0]
    span = dataclasses.replace(problem.span, left=left)
    coarse = dataclasses.replace(problem, span=span, zero=0.03)
    bent = refit_on_zeros(coarse, z, coarse.zero)
    off_bent, off = (1 - float((one * z).sum().abs()) for one in (bent, fit_to_zeros(coarse, z)))
    assert off < 1e-6 < 1e-5 < off_bent
