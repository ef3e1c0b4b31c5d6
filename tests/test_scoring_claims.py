"""Claims within stated errors, and how likely chance makes them."""

import math

import pytest
import torch
from scipy.stats import hypergeom, poisson

from remnant.scoring.claims import chance_of_meeting, claim, repeats, rms_distance, ways_of
from seeding import seeded


def rows(k, d=30, seed=0):
    return torch.randn(k, d, generator=seeded(seed), dtype=torch.float64)


def made(records, candidates, *, error=1e-6, passed=None, strangers=None, **more):
    m = len(candidates)
    return claim(
        records,
        candidates,
        passed=torch.ones(m, dtype=torch.bool) if passed is None else torch.tensor(passed),
        error=torch.full((m,), error, dtype=torch.float64),
        strangers=rows(100, records.shape[1], seed=9) if strangers is None else strangers,
        **more,
    )


def test_a_record_is_claimed_within_the_stated_error_and_no_further():
    records = rows(4)
    near = records[:2] + torch.tensor([[1e-6], [1e-4]])
    claims = made(records, near)
    assert claims.candidate.tolist() == [0, -1, -1, -1]
    assert claims.foreign.tolist() == [False, True]
    assert claims.chance < 1e-12
    assert made(records, near, error=1e-3).count == 2


def test_a_candidate_that_is_not_certified_claims_nothing():
    records = rows(2)
    claims = made(records, records, passed=[False, True])
    assert claims.candidate.tolist() == [-1, 1]
    assert not claims.foreign.any()


def test_identical_records_are_all_claimed_by_one_candidate():
    one = rows(1)
    assert made(one.repeat(3, 1), one).candidate.tolist() == [0, 0, 0]


def test_whoever_sought_one_record_claims_no_other():
    records = rows(3)
    claims = made(records, records[[1, 0]], own=True)
    assert claims.count == 0
    assert claims.foreign.all()
    assert made(records, records[:2], own=True).candidate.tolist() == [0, 1, -1]


def test_without_a_stated_error_a_thousandth_of_the_spread_is_allowed():
    records = rows(2)
    assert made(records, records + 5e-4, error=math.nan).count == 2
    assert made(records, records + 5e-3, error=math.nan).count == 0


def test_no_candidates_claim_nothing():
    claims = made(rows(3), rows(0))
    assert claims.count == 0
    assert claims.chance == 1.0


@pytest.mark.parametrize("d", [1, 2, 30])
def test_chance_is_not_understated(d):
    """Strangers drawn anew are met at most as often as is said."""
    reach = 0.05
    points, known, fresh = rows(400, d, seed=1), rows(50, d, seed=2), rows(4000, d, seed=3)
    said = chance_of_meeting(points, torch.full((400,), reach, dtype=torch.float64), known)
    seen = (rms_distance(points, fresh) <= reach).double().mean()
    assert float(said.mean()) >= float(seen)


def test_coincidences_of_whole_numbers_are_counted():
    """Ages repeat: one that comes back proves nothing, sixty do."""
    ages = torch.randint(20, 60, (160, 1), generator=seeded()).double()
    records, strangers = ages[:60], ages[60:]
    assert repeats(strangers)
    one = made(records[:1], records[:1] + 1e-7, strangers=strangers, own=True)
    assert one.count == 1
    assert one.chance > 0.005
    many = made(records, records + 1e-7, strangers=strangers, own=True)
    assert many.count == 60
    assert many.chance < 1e-12


def test_categories_beside_one_number_vary_in_one_way():
    """Six binary columns and one number: strangers are met more often than seven numbers tell."""
    flags = torch.randint(0, 2, (100, 6), generator=seeded()).double()
    assert ways_of(torch.cat([flags, rows(100, 1)], 1)) == 1
    assert ways_of(flags) == 0
    assert ways_of(rows(100, 30)) == 4


def test_many_records_that_coincide_with_few_strangers_at_hand_prove_nothing():
    drawn = torch.randint(0, 2, (1021, 4), generator=seeded(1)).double()
    claims = made(drawn[:1000], drawn[1000:1001], strangers=drawn[1001:])
    assert claims.count > 20
    assert claims.chance > 0.005


def test_a_candidate_of_no_numbers_spoils_nothing():
    records = rows(3)
    both = torch.cat([records[:1], torch.full((1, 30), math.nan)])
    assert made(records, both, passed=[True, False]).chance < 1e-12


def test_one_repeated_stranger_does_not_hide_a_record():
    records, strangers = rows(5), rows(60, seed=9)
    strangers[1] = strangers[0]
    assert made(records, records, strangers=strangers).chance < 1e-12


def test_chance_is_counted_within_reach_and_falls_below_the_nearest_stranger():
    """Four numbers: the share of the nearest stranger falls with the distance's fourth power."""
    strangers = 10 * rows(20, 4)
    candidate = strangers[:1] + 0.2
    other = rms_distance(candidate, strangers)[0].sort().values[1]

    def chance(reach):
        return float(chance_of_meeting(candidate, torch.tensor([reach]).double(), strangers))

    assert chance(0.1) == pytest.approx(0.5**4 / 21)
    assert chance(0.21) == pytest.approx(2 / 21)
    assert chance(1.01 * float(other)) == pytest.approx(3 / 21)
    few = chance_of_meeting(candidate[:, :2], torch.tensor([0.1]).double(), strangers[:, :2])
    assert float(few) == pytest.approx(0.5**2 / 21)
    none = chance_of_meeting(candidate, torch.ones(1).double(), strangers[:0])
    assert none.tolist() == [1.0]


def test_chance_is_that_of_as_many_claims_by_strangers():
    strangers, records = 10 * rows(20, 4), 10 * rows(5, 4, seed=1)
    candidates = torch.cat([records[:2], strangers[:1] + 0.2])
    each = chance_of_meeting(candidates, torch.full((3,), 0.1).double(), strangers)
    claims = made(records, candidates, error=0.05, strangers=strangers)
    assert claims.by_chance == pytest.approx(5 * float(each.sum()))
    assert claims.chance == pytest.approx(float(poisson.sf(1, claims.by_chance)))
    assert claims.distance[:2].tolist() == [0, 0]
    assert float(claims.distance[2]) == float(rms_distance(records[2:3], candidates).min())
    mine = made(records, candidates, error=0.05, strangers=strangers, own=True)
    assert mine.by_chance == pytest.approx(float(each.sum()))
    # Only certified candidates count, and no more records than there are.
    claims = made(records, candidates, error=0.05, strangers=strangers, passed=[True, False, False])
    assert claims.by_chance == pytest.approx(5 * float(each[0]))
    assert made(records, candidates, error=1e3, strangers=strangers).by_chance == 5


def test_claims_of_values_that_repeat_are_weighed_against_strangers_that_coincide():
    """Nine of ten records and two of forty strangers stand where the candidate does."""
    records = torch.tensor([[1.0]] * 9 + [[2.0]], dtype=torch.float64)
    strangers = torch.tensor([[1.0]] * 2 + [[3.0]] * 38, dtype=torch.float64)
    claims = made(records, torch.tensor([[1.0], [3.0]]), strangers=strangers, passed=[True, False])
    assert claims.count == 9
    assert claims.chance == pytest.approx(float(hypergeom.sf(8, 50, 11, 10)))


@pytest.mark.parametrize(("off", "claimed"), [(1.9e-3, 1), (2.1e-3, 0)])
def test_twice_the_stated_error_is_borne(off, claimed):
    records = rows(3)
    assert made(records, records[:1] + off, error=1e-3).count == claimed


def test_the_nearest_candidate_claims_of_those_that_may():
    """Not the nearest of all, which states a smaller error than it has."""
    record = rows(1)
    candidates = torch.cat([record + 2e-3, record + 1e-3, record + 3e-3])
    claims = claim(
        record,
        candidates,
        passed=torch.ones(3, dtype=torch.bool),
        error=torch.tensor([2e-3, 1e-4, 2e-3], dtype=torch.float64),
        strangers=rows(50, seed=9),
    )
    assert claims.candidate.tolist() == [0]
    assert float(claims.distance) == pytest.approx(1e-3)
    assert claims.foreign.tolist() == [False, True, False]


def test_an_unstated_error_is_of_the_strangers_spread_or_nothing():
    records, strangers = rows(2), 3 + 10 * rows(2000, seed=9)
    assert made(records, records + 9e-3, error=math.nan, strangers=strangers).count == 2
    assert made(records, records + 1.1e-2, error=math.nan, strangers=strangers).count == 0
    assert made(records, records + 1e-9, error=math.nan, strangers=strangers[:1]).count == 0
    assert made(records, records, error=math.nan, strangers=strangers[:1]).count == 2
    two = torch.cat([rows(1), rows(1) + 2e3])  # a thousandth of their spread is one
    assert made(records, records + 0.9, error=math.nan, strangers=two).count == 2
    assert made(records, records + 1.1, error=math.nan, strangers=two).count == 0


def test_without_records_all_that_is_certified_is_foreign():
    assert made(rows(0), rows(2), passed=[True, False]).foreign.tolist() == [True, False]


def test_records_repeat_from_one_in_fifty():
    drawn = rows(200)
    drawn[:4] = drawn[4]
    assert not repeats(drawn)
    drawn[:5] = drawn[5]
    assert repeats(drawn)


def test_whole_numbers_of_forty_bits_together_do_not_coincide():
    """Each of 8 values: 14 columns have 42 bits, 13 have 39."""
    drawn = torch.randint(0, 8, (300, 14), generator=seeded()).double()
    assert ways_of(drawn) == 4
    assert ways_of(drawn[:, :13]) == 0
    numbers = rows(100, 3)
    assert ways_of(numbers) == 3
    numbers[:50, 0] = 0.5  # half of them alike
    assert ways_of(numbers) == 3
    numbers[:51, 0] = 0.5
    assert ways_of(numbers) == 2


def test_distances_are_root_mean_squares():
    zero = torch.zeros(1, 4)
    assert rms_distance(zero, torch.tensor([[2.0, 2.0, 0.0, 0.0]])).item() == 2**0.5
    assert rms_distance(zero[:, :1], torch.tensor([[3.0]])).item() == 3.0
