"""Searches that go on from round to round until each has its record."""

import dataclasses

import pytest
import torch

from exact_case import planted, seeded, small_problem, true_duals
from remnant.solvers.difference import exact, pool
from remnant.solvers.difference import ground as ground_module
from remnant.solvers.difference.exact import recover
from remnant.solvers.difference.graph import carried_on, random_parts
from remnant.solvers.difference.ground import (
    Found,
    Search,
    across_duals,
    duals_at,
    freed,
    ground_of,
    taken_by,
    upright,
)
from remnant.solvers.difference.pool import (
    EARLY,
    LAST_ONES,
    LATE,
    Pool,
    empty_pool,
    find_in_pool,
    topped_up,
)
from remnant.solvers.difference.problem import Problem


def under_way(stage):
    parts = torch.arange(4.0 * len(stage) * 2).reshape(4, len(stage), 2)
    return Pool(parts=parts, stage=torch.tensor(stage))


def test_a_search_goes_on_until_its_dual_is_found_or_it_is_too_old():
    now = under_way([len(LATE) - 1, 1, 0, 0, 0, 2])
    sure, again = torch.zeros(2, 6, dtype=torch.bool)
    sure[2:4], again[1] = True, True
    then = now.after(now.parts, sure, again)
    assert then.stage.tolist() == [1, 3]  # nearer to what was found
    assert torch.equal(then.parts, now.parts[:, 4:])
    lost = now.parts.clone()
    lost[1, 4, 0] = torch.nan
    assert now.after(lost, sure, again).stage.tolist() == [3]


def test_old_searches_come_before_new_ones_and_take_their_places():
    spaces, t, _ = planted()
    old = Pool(parts=torch.ones(4, 3, len(t)), stage=torch.tensor([2, 1, 1]))
    more = topped_up(old, spaces, 8, 1, seeded())
    assert more.stage.tolist() == [2, 1, 1, 0, 0, 0, 0, 0]
    assert torch.equal(more.parts[:, :3], old.parts)
    assert torch.equal(more.parts[:, 3:], random_parts(spaces, 5, seeded()))
    late = topped_up(old, spaces, 8, 2, seeded())
    assert late.stage.tolist() == [2, 1, 1, 0, 1, 0, 1, 0]
    fewer = topped_up(old, spaces, 2, 1, seeded())
    assert fewer.stage.tolist() == [2, 1]


@pytest.mark.parametrize(
    ("known", "barren", "stages", "hold"),
    [(4, 0, EARLY, 0.0), (4, 1, LATE, 1.0), (8, 0, LAST_ONES, 1.0)],
)
def test_searches_come_nearer_where_little_is_left(monkeypatch, roomy, known, barren, stages, hold):
    problem, found, *_ = known_case(known)
    told = []

    def watched(spaces, parts, iterations):
        told.append(spaces)
        return carried_on(spaces, parts, 3)

    monkeypatch.setattr(pool, "carried_on", watched)
    monkeypatch.setattr(pool, "LITTLE", 0.5)
    ground = ground_of(problem, torch.eye(problem.count).double(), found, 1.0)
    gone = Pool(parts=random_parts(ground.spaces, 4, seeded()), stage=torch.arange(4))
    search = Search(starts=4)
    find_in_pool(problem, found, gone, search, seeded(), barren=barren)
    for mine, both in zip((told[0].cosine, told[0].apart), zip(*stages, strict=True), strict=True):
        assert mine.flatten().tolist() == pytest.approx(both)
    assert told[0].hold == hold


@pytest.mark.parametrize(("many", "searches"), [(8, 4), (2, 6)])
def test_more_is_searched_for_at_a_time_where_more_is_left(monkeypatch, roomy, many, searches):
    problem, found, *_ = known_case(0)
    monkeypatch.setattr(pool, "MANY", many)
    search = Search(starts=4, iterations=3)
    y, *_ = find_in_pool(problem, found, empty_pool(problem), search, seeded(), barren=0)
    assert len(y) == searches


def test_each_search_keeps_its_own_distance():
    spaces, t, _ = planted(width=300, count=10)
    both = torch.nn.functional.normalize(spaces.project(torch.stack([t, t, t, t]).mT)[1], dim=1)
    apart = torch.tensor([[1.0], [0.5]])
    near = dataclasses.replace(spaces, found=both[:1], apart=apart)
    rows = torch.stack([t, t, t.clamp(min=0), t])[:, :, :1].mT.expand(4, 2, 300)
    coordinates = torch.nn.functional.normalize(near.project(rows)[1], dim=1)
    assert float(coordinates[0] @ both[0]) > 0.999
    assert float(coordinates[1] @ both[0]) < 0.5 + 1e-4
    apart_only = dataclasses.replace(near, apart=1.0, cosine=0.5)  # from each other, not from it
    rows = rows[:, [0, 0]]
    free = torch.nn.functional.normalize(apart_only.project(rows)[1], dim=1)
    assert float(free[0] @ both[0]) > 0.999
    assert float(free[1] @ free[0]) < 0.5 + 1e-4


def test_a_search_in_two_parts_is_the_search():
    spaces, *_ = planted()
    start = random_parts(spaces, 4, seeded())
    half, _ = carried_on(spaces, start, 20)
    once, twice = carried_on(spaces, start, 40), carried_on(spaces, half, 20)
    assert torch.equal(once[0], twice[0])
    assert torch.equal(once[1].gap, twice[1].gap)


@pytest.mark.parametrize("precision", [torch.bfloat16, torch.float32])
def test_many_records_are_found_by_searches_that_go_on(monkeypatch, roomy, precision):
    monkeypatch.setattr(Problem, "coarse", precision)
    problem, records = small_problem()
    pools, plain = [], exact.find_in_pool

    def watched(*given, **more):
        result = plain(*given, **more)
        pools.append(result[-1])
        return result

    monkeypatch.setattr(exact, "find_in_pool", watched)
    recovery = recover(problem, Search(starts=16), generator=seeded())
    assert recovery.exact
    assert bool(recovery.passed.all())
    found = torch.cdist(records[:, :-1], recovery.inputs).min(1).values
    assert float(found.square().max()) < 1e-3
    assert len(pools) >= recovery.rounds
    assert max(int(each.stage.max()) for each in pools if len(each.stage)) >= 2
    assert "directions" not in vars(problem)  # which take most of the time to decompose a layer


def test_points_of_what_was_found_are_near_their_records(roomy):
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    found = Found(z=z[:10], y=torch.nn.functional.normalize(y[:10], dim=1))
    gone, search = empty_pool(problem), Search()
    new = []
    for seed in range(3):
        points, duals, sure, gone = find_in_pool(
            problem, found, gone, search, seeded(seed), barren=0
        )
        which = (duals[sure] @ z.T).abs().max(1).indices
        true = torch.nn.functional.normalize(y[which], dim=1)
        assert bool(((points[sure] * true).sum(1) > 0.9).all())
        new += which.tolist()
    assert new
    assert min(new) >= 10  # none that was found already


def known_case(known=4):
    """A problem of which so many records are found, and all duals and points."""
    problem, records = small_problem()
    z, y = true_duals(problem, records), upright(problem, records @ problem.span.right.T)
    return problem, Found(z=z[:known], y=y[:known]), z, y


def test_points_come_back_to_their_records_once_they_are_free():
    problem, found, z, y = known_case(0)
    ground = ground_of(problem, torch.eye(problem.count).double(), found, 0.4)
    away = upright(problem, y + 0.4 * y.roll(1, 0))
    back = freed(problem, ground, away, z, pool.FREED)
    before, after = ((points * y).sum(1) for points in (away, back))
    assert float(before.median()) < 0.97 < float(after.median())
    assert float((after > before).double().mean()) > 0.9


@pytest.mark.parametrize("iterations", [1, 3])
def test_rounds_that_find_nothing_are_followed_by_others(monkeypatch, roomy, iterations):
    problem, _ = small_problem()

    def nothing(problem, found, points, duals, last):
        none = torch.zeros(len(points), dtype=torch.bool)
        return duals, none, none

    monkeypatch.setattr(pool, "take_duals", nothing)
    search = Search(starts=8, iterations=iterations, patience=6, repairs=0)
    recovery = recover(problem, search, generator=seeded())
    assert recovery.found == [0] * 7
    assert not len(recovery.inputs)


def test_what_brings_nothing_begins_from_points_alone_and_for_long_is_refined(monkeypatch, roomy):
    problem, found, _, y = known_case()
    tried = []

    def take(problem, found, points, duals, last):
        tried.append((points.clone(), duals.clone()))
        none = torch.zeros(len(points), dtype=torch.bool)
        return duals, none if len(tried) < 4 else ~none, none

    monkeypatch.setattr(pool, "take_duals", take)
    monkeypatch.setattr(pool, "refined", lambda problem, basis, points: y[: len(points)])
    monkeypatch.setattr(pool, "freed", lambda problem, ground, points, duals, iterations: -points)
    search, gone = Search(starts=8), empty_pool(problem)
    for barren in (len(LATE) - 1, len(LATE)):
        points, *_, gone = find_in_pool(problem, found, gone, search, seeded(), barren=barren)
    assert len(tried) == 4
    assert torch.equal(tried[0][0], tried[1][0])
    for points_then, duals in tried[1::2]:
        assert torch.equal(duals, duals_at(problem, found, points_then))
    assert torch.equal(tried[3][0], y[:8])
    assert torch.equal(points, -y[:8])  # where they are sure, as they are when free


def test_a_search_does_not_end_for_its_likeness_to_one_that_has_not_arrived(roomy):
    problem, found, z, y = known_case()
    other = torch.nn.functional.normalize(
        torch.randn(1, len(z), generator=seeded(4)).double(), dim=1
    )
    pair = torch.cat([upright(problem, y[5:6] + 1.3 * other), y[5:6]])
    _, sure, again = pool.take_duals(problem, found, pair, z[[5, 5]])
    assert sure.tolist() == [False, True]
    assert again.tolist() == [False, False]


def test_other_records_duals_have_nothing_of_what_was_found():
    problem, found, z, y = known_case(8)
    across = across_duals(problem, found)
    assert float((across @ z[8:].T).abs().max()) < 1e-9
    taken = taken_by(across)
    assert float((z[8:] @ taken).norm(dim=1).max()) < 1e-9
    lost = (z[:8] * (z[:8] @ taken)).sum(1)
    assert float(lost.min()) > 0.05
    cost = torch.eye(problem.count).double() + ground_module.HOLD * across.T @ across
    assert torch.allclose(taken, torch.eye(problem.count) - torch.linalg.inv(cost), atol=1e-9)
    nobody = Found(z=z[:0], y=y[:0])
    assert not bool(taken_by(across_duals(problem, nobody)).any())


def test_searches_are_kept_from_the_duals_of_what_was_found():
    problem, found, z, _ = known_case(8)
    ground = ground_of(problem, torch.eye(problem.count).double(), found, 1.0)
    a = (z @ problem.span.left.T).float()
    parts = torch.stack([a, a, a, a])
    own, held = (
        dataclasses.replace(ground.spaces, hold=hold).project(parts)[0][3] for hold in (0.0, 1.0)
    )
    assert torch.allclose(own, a, atol=1e-3)
    kept = (held * a).sum(1) / a.square().sum(1)
    assert float(kept[8:].min()) > 0.999 > 0.95 > float(kept[:8].max())


def test_what_was_found_is_not_searched_for_again_though_points_may_come_near(roomy):
    problem, found, z, _ = known_case(8)
    ground = ground_of(problem, torch.eye(problem.count).double(), found, 1.0)
    ends = []
    for hold in (0.0, 1.0):
        spaces = dataclasses.replace(ground.spaces, hold=hold)
        _, points = carried_on(spaces, random_parts(spaces, 16, seeded(5)), 150)
        which = (points.dual.double() @ problem.span.left @ z.T).abs().max(1).indices
        ends.append(int((which < 8).sum()))
    assert ends[0] > 2 * ends[1]


def test_the_last_duals_are_looked_for_in_small_steps_if_few_are_sure(monkeypatch, roomy):
    problem, found, z, y = known_case(4)
    monkeypatch.setattr(pool, "QUICKLY", dataclasses.replace(pool.QUICKLY, widths=()))
    last = torch.arange(len(z)) % 2 == 0
    near, sure, _ = pool.take_duals(problem, found, y, z, last)
    assert int(sure.sum()) > 0.6 * int(last[4:].sum())
    assert not bool(sure[~last].any())
    assert float((near[sure] * z[sure]).sum(1).abs().min()) > 1 - 1e-6
    monkeypatch.setattr(pool, "FEW", 0.0)
    assert not bool(pool.take_duals(problem, found, y, z, last)[1].any())


def test_points_are_free_of_what_was_found_too():
    problem, found, *_ = known_case(8)
    ground = ground_of(problem, torch.eye(problem.count).double(), found, 0.4)
    near = freed(problem, ground, found.y, found.z, 5)
    assert float((near * found.y).sum(1).min()) > 0.9


def test_searches_at_a_later_stage_are_told_from_new_ones(monkeypatch, roomy):
    problem, found, *_ = known_case()
    told = []

    def take(problem, found, points, duals, later):
        told.append(later.tolist())
        none = torch.zeros(len(points), dtype=torch.bool)
        return duals, none, none

    monkeypatch.setattr(pool, "take_duals", take)
    search, gone = Search(starts=4, iterations=3), empty_pool(problem)
    for _ in range(2):
        *_, gone = find_in_pool(problem, found, gone, search, seeded(), barren=0)
    assert told == [[False] * 4, [True] * 4]
