"""Candidates against records and strangers alike: the test is fair, and it sees."""

from itertools import combinations, product

import pytest
import torch

from remnant.scoring.ranks import compare
from seeding import seeded


def rows(k, seed, d=20):
    return torch.randn(k, d, generator=seeded(seed), dtype=torch.float64)


def test_likenesses_of_records_are_seen():
    records, strangers = rows(15, 1), rows(60, 2)
    ranks = compare(records + rows(15, 3), records, strangers, generator=seeded(0))
    assert ranks.p < 1e-3
    assert ranks.above.any()


def test_candidates_that_know_nothing_are_seldom_taken_for_likenesses():
    ps = []
    for s in range(200):
        candidates, records, strangers = rows(20, 4 * s), rows(10, 4 * s + 1), rows(40, 4 * s + 2)
        ps.append(compare(candidates, records, strangers, generator=seeded(s), shuffles=999).p)
    below = sum(p < 0.05 for p in ps)
    assert 2 <= below <= 20  # ten are expected
    assert min(ps) > 1e-3


def test_scale_and_a_common_part_do_not_matter():
    records, strangers, noise = rows(15, 1), rows(60, 2), rows(15, 3)
    one = compare(records + noise, records, strangers, generator=seeded(0))
    moved = [7 * part + 100 for part in (records + noise, records, strangers)]
    two = compare(*moved, generator=seeded(0))
    assert two.p == one.p
    assert torch.equal(one.above, two.above)


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


def every_way(scores, n, classes):
    """The shares of all ways to name n rows that put them as high, and as low, as the first n."""
    groups = [[i for i, c in enumerate(classes) if c == one] for one in sorted(set(classes))]
    parts, seen = [], 0.0
    for group in groups:
        own = [scores[i] for i in group]
        rank = {i: sum(o < scores[i] for o in own) + (own.count(scores[i]) + 1) / 2 for i in group}
        mine = [i for i in group if i < n]
        seen += sum(rank[i] for i in mine) / len(group)
        picks = combinations(group, len(mine))
        parts.append([sum(rank[i] for i in pick) / len(group) for pick in picks])
    sums = [sum(picked) for picked in product(*parts)]
    high = sum(total >= seen - 1e-9 for total in sums) / len(sums)
    return high, sum(total <= seen + 1e-9 for total in sums) / len(sums)


def test_chance_is_that_of_all_ways_to_share_out_the_names():
    """Classes of unequal size, ranks in each of its own."""
    records, strangers = rows(5, 11), rows(9, 12)
    classes = [0, 0, 1, 1, 2, 0, 0, 0, 1, 1, 2, 2, 2, 2]
    labels = torch.tensor(classes[:5]), torch.tensor(classes[5:])
    candidates = torch.cat([records[[0, 3]], rows(4, 13)]) + 0.8 * rows(6, 14)
    ranks = compare(candidates, records, strangers, labels=labels, generator=seeded(0))
    centre = torch.cat([records, strangers]).mean(0)
    unit = torch.nn.functional.normalize
    both = unit(torch.cat([records, strangers]) - centre, dim=1)
    scores = (both @ unit(candidates - centre, dim=1).T).max(1).values
    assert ranks.above.tolist() == (scores[:5] > scores[5:].max()).tolist()
    high, low = every_way(scores.tolist(), 5, classes)
    assert 0.01 < high < 0.5
    assert ranks.p == pytest.approx(high, abs=0.02)
    assert ranks.low == pytest.approx(low, abs=0.02)


def test_equals_are_as_high_and_as_low_as_each_other():
    one = rows(1, 1)
    same = compare(one, one.repeat(4, 1), one.repeat(7, 1), generator=seeded(0))
    assert (same.p, same.low) == (1.0, 1.0)


def test_chance_is_never_said_to_be_nothing():
    records, strangers = rows(15, 1), rows(60, 2)
    high = compare(records, records, strangers, generator=seeded(0))
    assert high.p == 1 / (1 + 9999)
    assert high.low == 1.0
    low = compare(strangers, records, strangers, generator=seeded(0))
    assert low.low == 1 / (1 + 9999)


def test_without_strangers_nothing_is_above_them():
    nothing = compare(rows(3, 1), rows(2, 2), rows(0, 3), generator=seeded(0))
    assert (nothing.p, nothing.low) == (None, None)
    assert nothing.above.tolist() == [False, False]
