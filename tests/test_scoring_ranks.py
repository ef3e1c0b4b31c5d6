"""Candidates against records and strangers alike: the test is fair, and it sees."""

import pytest
import torch

from remnant.scoring.ranks import compare


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def rows(k, seed, d=20):
    return torch.randn(k, d, generator=seeded(seed), dtype=torch.float64)


def test_likenesses_of_records_are_seen():
    records, strangers = rows(15, 1), rows(60, 2)
    ranks = compare(records + rows(15, 3), records, strangers, generator=seeded(0))
    assert ranks.p < 1e-3
    assert ranks.above.any()
    assert (ranks.alike[ranks.above] > ranks.stranger).all()


def test_candidates_that_know_nothing_are_seldom_taken_for_likenesses():
    ps = [
        compare(rows(20, 4 * s), rows(10, 4 * s + 1), rows(40, 4 * s + 2), generator=seeded(s)).p
        for s in range(200)
    ]
    below = sum(p < 0.05 for p in ps)
    assert 2 <= below <= 20  # ten are expected
    assert min(ps) > 1e-4


def test_scale_and_a_common_part_do_not_matter():
    records, strangers, noise = rows(15, 1), rows(60, 2), rows(15, 3)
    one = compare(records + noise, records, strangers, generator=seeded(0))
    moved = [7 * part + 100 for part in (records + noise, records, strangers)]
    two = compare(*moved, generator=seeded(0))
    assert two.p == one.p
    assert torch.allclose(one.alike, two.alike)


@pytest.mark.parametrize("told", [True, False])
def test_classes_are_compared_with_themselves(told):
    """Records of one class, strangers mostly of another: candidates of that class prove nothing."""
    one, other = rows(1, 1).repeat(80, 1) * 3, rows(1, 2).repeat(40, 1) * 3
    drawn = rows(120, 3)
    mine, theirs = one + drawn[:80], other + drawn[80:]
    strangers = torch.cat([theirs, mine[40:60]])
    labels = torch.zeros(20).long(), torch.cat([torch.ones(40), torch.zeros(20)]).long()
    ranks = compare(
        mine[60:], mine[:20], strangers, labels=labels if told else None, generator=seeded(0)
    )
    assert (ranks.p > 0.01) is told


def test_nothing_to_compare_proves_nothing():
    assert compare(rows(0, 1), rows(5, 2), rows(5, 3), generator=seeded(0)).p is None
    assert compare(rows(5, 1), rows(5, 2), rows(0, 3), generator=seeded(0)).p is None
    labels = torch.zeros(5).long(), torch.ones(5).long()
    assert compare(rows(5, 1), rows(5, 2), rows(5, 3), labels=labels, generator=seeded(0)).p is None
