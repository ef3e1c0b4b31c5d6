"""What the next layer's change says of features, with and without its eigenvectors."""

import pytest
import torch

from exact_case import small_problem
from remnant.evidence import weight_difference
from remnant.solvers.difference.ground import MANY, Search
from remnant.solvers.difference.problem import FAINT
from remnant.solvers.layers import first_pair
from targets import faces_target


@pytest.fixture(scope="module")
def both():
    """A problem, and the singular values and right directions of the next layer's change."""
    target, *_ = faces_target()
    change = weight_difference(target).vector[first_pair(target.model).next.weight]
    _, sizes, right = torch.linalg.svd(change)
    return small_problem()[0], (sizes / sizes[0]).clamp(min=FAINT), right


def test_the_soft_projector_weighs_each_direction_by_its_size(both):
    problem, sizes, right = both
    half = sizes[min(3 * problem.count, len(sizes) // 2)]
    slow = (right.T * (sizes**2 / (sizes**2 + half**2))) @ right
    assert float((problem.soft - slow).norm() / slow.norm()) < 1e-4


def test_what_is_foreign_is_found_by_directions_too(both):
    problem, sizes, right = both
    fired = torch.randn(5, len(sizes), generator=torch.Generator().manual_seed(0)).double().relu()
    parts = (fired @ right.T).square() / fired.square().sum(1, keepdim=True)
    slow = (parts * (sizes[-1] ** 2 / (sizes**2 + FAINT**2))).sum(1)
    # Directions below FAINT, which are raised to it here, are at most twice as foreign there.
    quotient = problem.foreign(fired) / slow
    assert float(quotient.min()) > 0.99
    assert float(quotient.max()) < 2.01
    strongest = problem.foreign(right[:1] * 7)
    assert float(strongest) == pytest.approx(float(sizes[-1] ** 2), rel=1e-3)


def test_directions_are_those_of_the_change(both):
    problem, sizes, right = both
    torch.testing.assert_close(problem.sizes, sizes, rtol=1e-2, atol=2e-8)
    strong = sizes > 1e-3
    cosines = (problem.directions.double() * right).sum(1).abs()
    assert float(cosines[strong].min()) > 0.999


def test_more_is_searched_for_at_a_time_where_more_is_left():
    search = Search(starts=32)
    assert search.starts_in(80 * MANY) == 80
    assert search.starts_in(20 * MANY) == 32
    assert search.starts_in(10) == 20
    assert search.starts_in(1) == 8
