"""Parts of the two-checkpoint solver against slow, obvious ways."""

import itertools

import pytest
import torch
from torch import nn

from remnant.solvers.dense.certificate import at_least_usual
from remnant.solvers.dense.exact import duals_of
from remnant.solvers.dense.reflections import Signals, iterate, starting_at
from remnant.solvers.dense.rounds import Found, Search
from remnant.solvers.dense.smooth import (
    cost,
    descend,
    new_points,
    outside_share,
    pose_smooth,
    search_smooth,
    squared_errors,
    without_odd,
)
from remnant.solvers.spans import decompose, fit_decay, without_decay
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
    cleaned, c = without_decay(evidence, "weight", "bias")
    assert c == pytest.approx(0.9, abs=1e-4)
    for name, change in moved.items():
        assert float((cleaned.vector[name] - change).abs().max()) < 1e-3


def test_the_nearest_signals_are_nearest():
    t, a, p = normal(3, 1, 100)
    frame = torch.eye(100)
    near = torch.stack(Signals(t=frame, a=frame, p=frame).nearest([t, a, p]))
    # Lengths are held afterwards: that of t, and that of a and p.
    near[0] *= (near[0] * t).sum() / near[0].square().sum()
    near[1:] *= (torch.tensor([4.0, 1.0])[:, None, None] * near[1:] * torch.stack([a, p])).sum() / (
        torch.tensor([4.0, 1.0])[:, None, None] * near[1:].square()
    ).sum()
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
    dual = torch.linalg.qr(duals.T)[0].float()
    intersection = Signals(t=t.float(), a=dual, p=signals.float())
    begun = starting_at(intersection.starts(24, torch.Generator().manual_seed(0)))
    points = iterate(intersection, begun, iterations=600)
    agree = ((points.best[0][:, None] > 0) == (planted > 0)).double().mean(2).max(1).values
    assert float(agree[points.gap < 1e-2].min()) > 0.95
    assert int((points.gap < 1e-2).sum()) > 0


def test_a_small_error_is_not_stated_below_what_is_usual():
    errors = torch.tensor([1e-6, 1.0, 2.0, 99.0, 0.5], dtype=torch.float64)
    assert at_least_usual(errors).tolist() == [64.0, 64.0, 64.0, 99.0, 64.0]
    assert len(at_least_usual(errors[:0])) == 0


def planted_smooth(width=160, count=5):
    """One gradient of a two-layer GELU network: features lie in the space exactly."""
    records = torch.cat([normal(count, 30), torch.ones(count, 1).double()], dim=1)
    first = normal(width, 31, seed=1) / 5
    hidden = nn.functional.gelu(records @ first.T)
    features = torch.cat([hidden, torch.ones(count, 1).double()], dim=1)
    change = normal(width, count, seed=2) @ records
    following = normal(width, count, seed=3) @ features
    span = decompose(change).parts(count)
    return pose_smooth(span, nn.GELU(), first, following, level=1e-9), records


def test_planted_smooth_records_are_found_and_judged():
    problem, records = planted_smooth()
    search = Search(starts=16, patience=3)
    found, series = search_smooth(problem, search, 0.05, torch.Generator().manual_seed(0))
    assert series[-1] == len(found) == len(records)
    error = torch.cdist(found.y @ problem.right, records).square().min(1).values
    assert float(error.max()) < 1e-8
    assert bool((error < squared_errors(problem, found.y)).all())
    assert float(found.residual.max()) < 1e-3
    wrong = outside_share(problem, (records @ problem.right.T).mean(0, keepdim=True), 2.0)
    assert float(wrong) > 0.05


def test_descent_goes_down_and_keeps_the_bias_one():
    problem, records = planted_smooth()
    y = records @ problem.right.T + 0.3 * normal(5, 4, seed=7) @ problem.moves.T
    lower, shares = descend(problem, y, steps=5), problem.shares(2.0)
    assert bool((cost(problem, lower, shares) < cost(problem, y, shares)).all())
    assert lower @ problem.last == pytest.approx(torch.ones(5), abs=1e-9)


def test_the_cost_is_that_of_every_direction_by_its_size():
    problem, records = planted_smooth()
    y = normal(3, len(records))
    images = problem.images(y @ problem.start.T)
    beside = torch.linalg.qr(problem.features.T, mode="complete")[0][:, len(problem.features) :].T
    slow = (images @ problem.features.T / problem.sizes).square().sum(1)
    slow = slow * problem.floor**2 + (images @ beside.T).square().sum(1)
    assert cost(problem, y, problem.shares(1.0)).numpy() == pytest.approx(slow.numpy(), rel=1e-9)


def found_with(outside, y):
    return Found(y=y, z=y, residual=outside)


def test_a_point_that_leaves_far_more_outside_than_others_is_dropped():
    outside = torch.tensor([2e-3, 1e-3, 4e-2, 3e-3], dtype=torch.float64)
    points = found_with(outside, normal(4, 5))
    assert without_odd(points, False).residual.tolist() == [2e-3, 1e-3, 3e-3]
    assert len(without_odd(points, True)) == 4
    assert len(without_odd(points.take(torch.zeros(4, dtype=torch.bool)), False)) == 0


def test_a_point_counts_once():
    problem, records = planted_smooth()
    y = records @ problem.right.T
    assert new_points(problem, torch.cat([y, y + 1e-3]), y[:2]) == [2, 3, 4]


def test_duals_follow_from_all_points():
    generator = torch.Generator().manual_seed(0)
    duals = torch.randn(4, 9, generator=generator, dtype=torch.float64)
    records = torch.randn(4, 7, generator=generator, dtype=torch.float64)
    left, scale, right = torch.linalg.svd(duals.T @ records, full_matrices=False)
    found = duals_of(left[:, :4], scale[:4], records @ right[:4].T)
    assert torch.allclose(found, duals)
