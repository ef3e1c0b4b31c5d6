"""Duals from rough points: made exact, and refused where their zeros do not determine them."""

import torch

from exact_case import seeded, small_problem, true_duals
from remnant.solvers.difference.search import fit_duals
from remnant.solvers.difference.zeros import determined


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
