"""Points that keep away from what was found, and what tells that they are right nevertheless."""

import dataclasses
import math

import pytest
import torch

from exact_case import planted, seeded
from remnant.solvers.dense.reflections import iterate, starting_at, turned_away
from remnant.solvers.dense.search import next_turn
from remnant.solvers.dense.tolerances import TOLERANCES


def unit_rows(rows):
    return torch.nn.functional.normalize(rows, dim=1)


def test_rows_are_turned_away_from_what_was_found_and_from_each_other():
    found = torch.nn.functional.normalize(torch.randn(3, 40, generator=seeded(1)), dim=1)
    part = 0.9 * found[:1]  # of one that is no longer whole in the space
    free, *noise = torch.randn(4, 40, generator=seeded(2)).split(1)
    rows = torch.cat([free, 5 * found[1:2] + 0.2 * noise[0], free + 0.3 * noise[1],
                      part + 0.05 * noise[2]])  # fmt: skip
    turned = turned_away(rows, torch.cat([part, found[1:]]), 0.6)
    unit = unit_rows(turned)
    assert torch.equal(turned[0], rows[0])
    assert float((unit @ torch.cat([part, found[1:]]).T).max()) < 0.6 + 1e-5
    assert float((unit @ unit.T).tril(-1).max()) < 0.6 + 1e-5
    lost = torch.cat([torch.zeros(1, 40), rows])  # turns no other
    assert torch.allclose(turned_away(lost, torch.cat([part, found[1:]]), 0.6)[1:], turned)
    same = turned_away(torch.ones(2, 1), torch.zeros(0, 1), 0.6)  # where there is no other way
    assert torch.equal(same, torch.ones(2, 1))
    angles = torch.linspace(0, 2 * math.pi, 20_001)  # in the plane of the row and what it is near
    other = torch.nn.functional.normalize(rows[1] - (rows[1] @ found[1]) * found[1], dim=0)
    plane = angles.cos()[:, None] * found[1] + angles.sin()[:, None] * other
    lengths = (plane @ rows[1]).where(angles.cos() <= 0.6, torch.tensor(0.0))
    best = float((rows[1] - (lengths[:, None] * plane)[lengths.argmax()]).norm())
    assert float((rows[1] - turned[1]).norm()) == pytest.approx(best, rel=1e-3)


def test_a_row_is_turned_away_from_what_it_is_most_too_near_to():
    found = unit_rows(torch.tensor([[1.0, 0.0, 0.0]]))
    rows = unit_rows(torch.tensor([[1.0, 0.0, 1.0], [1.0, 0.1, 0.2]]))  # the second near to both
    assert float(rows[1] @ found[0]) > float(rows[1] @ rows[0])
    turned = unit_rows(turned_away(rows, found, 0.8))
    assert torch.allclose(turned[0], rows[0])
    assert float(turned[1] @ turned[0]) < 0.8 + 1e-5
    assert float(turned[1] @ found[0]) < 0.8 + 1e-5


def test_points_that_were_found_are_not_found_again():
    spaces, t, _ = planted(width=300, count=10)
    unit = torch.nn.functional.normalize
    true = unit(torch.cat([t, math.sqrt(TOLERANCES.end_weight) * t]).T @ spaces.ends, dim=1)
    away = dataclasses.replace(spaces, found=true[:7], cosine=0.9)
    for seen, there in ((spaces, True), (away, False)):
        begun = starting_at(seen.starts(8, seeded(3)))
        points = iterate(seen, begun, iterations=1000, stalls=True)
        at = (unit(seen.coordinates(points.best), dim=1) @ true.T > 0.99).any(0)
        assert bool(at[:7].any()) == there
        assert bool(at[7:].any())


def test_a_round_that_brings_enough_is_followed_by_its_like():
    assert next_turn(1, 16, 32) == 1
    assert next_turn(1, 15, 32) == 2
    assert next_turn(1, 0, 32) == 2
    assert TOLERANCES.cosines[next_turn(len(TOLERANCES.cosines) - 1, 0, 1)] == 1
