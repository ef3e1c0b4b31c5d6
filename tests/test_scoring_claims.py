"""Claims within stated errors, and how likely chance makes them."""

import math

import pytest
import torch

from remnant.scoring.claims import chance_of_meeting, claim, repeats, rms_distance, ways_of


def rows(k, d=30, seed=0):
    return torch.randn(k, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


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
    ages = torch.randint(20, 60, (160, 1), generator=torch.Generator().manual_seed(0)).double()
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
    flags = torch.randint(0, 2, (100, 6), generator=torch.Generator().manual_seed(0)).double()
    assert ways_of(torch.cat([flags, rows(100, 1)], 1)) == 1
    assert ways_of(flags) == 0
    assert ways_of(rows(100, 30)) == 4


def test_many_records_that_coincide_with_few_strangers_at_hand_prove_nothing():
    drawn = torch.randint(0, 2, (1021, 4), generator=torch.Generator().manual_seed(1)).double()
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
