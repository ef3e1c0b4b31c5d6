"""What the next layer's change says of features, with and without its eigenvectors."""

import pytest
import torch

from exact_case import small_problem
from remnant.attacks import NTK
from remnant.evidence import weight_difference
from remnant.solvers.dense.problem import soft_projector
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.layers import first_pair
from targets import faces_target


@pytest.fixture(scope="module")
def both():
    """A problem, and the singular values and right directions of the next layer's change."""
    target, *_ = faces_target()
    change = weight_difference(target).vector[first_pair(target.model).next.weight]
    _, sizes, right = torch.linalg.svd(change)
    return small_problem()[0], (sizes / sizes[0]).clamp(min=TOLERANCES.faint), right


def test_the_soft_projector_weighs_each_direction_by_its_size(both):
    problem, sizes, right = both
    half = sizes[min(3 * problem.count, len(sizes) // 2)]
    slow = (right.T * (sizes**2 / (sizes**2 + half**2))) @ right
    assert float((problem.soft - slow).norm() / slow.norm()) < 1e-4


def test_what_is_foreign_is_found_by_directions_too(both):
    problem, sizes, right = both
    fired = torch.randn(5, len(sizes), generator=torch.Generator().manual_seed(0)).double().relu()
    parts = (fired @ right.T).square() / fired.square().sum(1, keepdim=True)
    slow = (parts * (sizes[-1] ** 2 / (sizes**2 + TOLERANCES.faint**2))).sum(1)
    # Directions that are raised to `faint` here are at most twice as foreign there.
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


@pytest.mark.parametrize("rank", [20, 37, 96])
def test_a_next_layer_of_few_neurons_leaves_room_for_features(both, rank):
    problem, _, right = both
    sizes = torch.full((len(right),), TOLERANCES.faint, dtype=torch.float64)
    sizes[:rank] = torch.logspace(0, -4, rank).double()
    weak = torch.where(torch.arange(len(right)) < rank, sizes, 0.0)
    soft = soft_projector((right.T * weak**2) @ right, sizes, problem.count).double()
    half = sizes[min(3 * problem.count, len(sizes) // 2)]
    slow = (right.T * (sizes**2 / (sizes**2 + half**2))) @ right
    assert float(torch.linalg.matrix_norm(soft - slow, 2)) < 2e-2


def test_records_come_back_through_a_narrow_second_layer():
    target, truth, _ = faces_target(width=256, last=34)
    found = NTK(preset="exact")(target, generator=torch.Generator().manual_seed(0))
    assert found.status == "complete"
    assert found.figures["rounds"] < 10
    near = torch.cdist(truth.flatten(1), found.inputs.flatten(1)).min(1).values
    assert float(near.max()) < 0.01
