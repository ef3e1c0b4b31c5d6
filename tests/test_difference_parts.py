"""Parts of the two-checkpoint solver against slow, obvious ways."""

import itertools

import pytest
import torch
from torch import nn

from remnant.solvers.difference.decay import fit_decay, without_decay
from remnant.solvers.difference.exact import stated
from remnant.solvers.difference.signals import find_signals, nearest_signals
from remnant.solvers.difference.smooth import (
    Points,
    SmoothProblem,
    cost,
    descend,
    find_smooth,
    judge,
    new_points,
    pose_smooth,
    random_starts,
    repulsion,
    without_odd,
)
from remnant.solvers.layers import Dense
from remnant.solvers.spans import decompose, span_of
from remnant.types import Evidence


def normal(*shape, seed=0):
    generator = torch.Generator().manual_seed(seed)
    return torch.randn(*shape, generator=generator, dtype=torch.float64)


def test_decay_is_fitted_to_rounding():
    start = normal(60, 80)
    end = 0.93 * start + 3 * normal(60, 5, seed=1) @ normal(5, 80, seed=2)
    assert fit_decay(start, end, steps=6) == pytest.approx(0.93, abs=1e-9)
    assert fit_decay(start, end - 0.93 * start + start) == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("bias_factor", [0.9, 1.0])
def test_what_decay_did_is_taken_out_of_weights_and_biases(bias_factor):
    left, right = normal(60, 4, seed=1), normal(4, 80, seed=2)
    start = {"weight": normal(60, 80), "bias": normal(60, seed=3)}
    moved = {"weight": left @ right, "bias": left.sum(1)}
    end = {
        "weight": 0.9 * start["weight"] + moved["weight"],
        "bias": bias_factor * start["bias"] + moved["bias"],
    }
    vector = {name: end[name] - start[name] for name in start}
    evidence = Evidence(vector=vector, start=start, end=end, precision=1e-16)
    cleaned, c = without_decay(evidence, Dense(weight="weight", bias="bias"))
    assert c == pytest.approx(0.9, abs=1e-4)
    for name, change in moved.items():
        assert float((cleaned.vector[name] - change).abs().max()) < 1e-3


def test_the_nearest_signals_are_nearest():
    t, a, p = normal(3, 1, 100)
    near = torch.stack(nearest_signals(t, a, p))
    weights = torch.tensor([1.0, 4.0, 1.0])[:, None, None]

    def distance(point):
        return (weights * (point - torch.stack([t, a, p])).square()).sum(0)

    grid = torch.linspace(-3.5, 3.5, 141, dtype=torch.float64)
    for u, v in itertools.product(grid[::4].tolist(), grid.tolist()):
        point = torch.tensor([u, v if u > 0 else 0.0, v]).double()[:, None, None].expand_as(near)
        assert bool((distance(near) <= distance(point) + 1e-9).all())


def test_signals_of_planted_records_are_found():
    width, count, outputs = 300, 4, 3
    t = torch.linalg.qr(normal(width, count))[0]
    signals = torch.linalg.qr(normal(width, outputs, seed=1))[0]
    planted = normal(count, count, seed=2) @ t.T
    duals = (planted > 0) * (normal(count, outputs, seed=3) @ signals.T)
    spaces = (t.float(), torch.linalg.qr(duals.T)[0].float(), signals.float())
    points = find_signals(spaces, 24, generator=torch.Generator().manual_seed(0), iterations=600)
    t = points.coordinates @ spaces[0].T
    agree = ((t[:, None] > 0) == (planted > 0)).double().mean(2).max(1).values
    assert float(agree[points.gap < 1e-2].min()) > 0.95
    assert int((points.gap < 1e-2).sum()) > 0


def test_a_small_error_is_not_stated_below_what_is_usual():
    errors = torch.tensor([1e-6, 1.0, 2.0, 99.0, 0.5], dtype=torch.float64)
    assert stated(errors).tolist() == [64.0, 64.0, 64.0, 99.0, 64.0]
    assert len(stated(errors[:0])) == 0


def planted_smooth(width=160, count=5):
    """One gradient of a two-layer GELU network: features lie in the space exactly."""
    records = torch.cat([normal(count, 30), torch.ones(count, 1).double()], dim=1)
    first = normal(width, 31, seed=1) / 5
    hidden = nn.functional.gelu(records @ first.T)
    features = torch.cat([hidden, torch.ones(count, 1).double()], dim=1)
    change = normal(width, count, seed=2) @ records
    following = normal(width, count, seed=3) @ features
    problem = pose_smooth(
        span_of(decompose(change), count),
        nn.GELU(),
        first,
        change,
        following,
        torch.ones_like(following),
        precision=1e-9,
    )
    return problem, records


def test_planted_smooth_records_are_found_and_judged():
    problem, records = planted_smooth()
    found, series = find_smooth(
        problem, starts=16, patience=3, generator=torch.Generator().manual_seed(0)
    )
    assert series[-1] == len(found) == len(records)
    error = torch.cdist(found.y @ problem.span.right, records).square().min(0).values
    assert float(error.max()) < 1e-8
    assert float(found.outside.max()) < 1e-3
    wrong = judge(problem, (records @ problem.span.right.T).mean(0, keepdim=True), 2.0)
    assert float(wrong.outside) > 0.05


def test_descent_goes_down_and_keeps_the_bias_one():
    problem, _ = planted_smooth()
    y = random_starts(problem, 6, problem.last[None][:0], torch.Generator().manual_seed(1))
    assert y @ problem.last == pytest.approx(torch.ones(6), abs=1e-9)
    lower = descend(problem, y, 1.0, 5, away=y[:0])
    penalty = problem.right / problem.sizes[:, None]
    assert bool((cost(problem, lower, penalty) < cost(problem, y, penalty)).all())
    assert lower @ problem.last == pytest.approx(torch.ones(6), abs=1e-9)


def test_repulsion_has_the_gradient_that_it_says():
    problem, records = planted_smooth()
    known = records @ problem.span.right.T
    y = (known[:2] + 0.3 * normal(2, len(records))).requires_grad_()
    value, gradient = repulsion(problem, y, known)
    (expected,) = torch.autograd.grad(value.sum(), y)
    assert gradient.detach().numpy() == pytest.approx(expected.numpy(), rel=1e-6)


def test_a_point_that_leaves_far_more_outside_than_others_is_dropped():
    outside = torch.tensor([2e-3, 1e-3, 4e-2, 3e-3], dtype=torch.float64)
    points = Points(y=normal(4, 5), outside=outside, error=outside)
    assert without_odd(points).outside.tolist() == [2e-3, 1e-3, 3e-3]
    assert len(without_odd(points.take(torch.zeros(4, dtype=torch.bool)))) == 0


def test_a_point_counts_once():
    problem, records = planted_smooth()
    y = records @ problem.span.right.T
    twice = Points(
        y=torch.cat([y, y + 1e-3]), outside=torch.arange(10).double(), error=torch.zeros(10)
    )
    assert sorted(new_points(problem, twice, y[:2]).tolist()) == [2, 3, 4]
    assert isinstance(problem, SmoothProblem)
