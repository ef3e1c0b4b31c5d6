"""Matching protocols: against slow obvious forms, rectangular, with NaN, with nothing."""

import itertools
import math

import pytest
import torch

from remnant.errors import InputError
from remnant.scoring import (
    PROTOCOLS,
    greedy,
    match,
    nearest,
    nearest_averaged,
    optimal,
    standardised_l2,
    stretch,
)


def matrix(seed, n, m):
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(n, m, generator=generator, dtype=torch.float64)


def slow_greedy(distance):
    left, found = distance.clone(), [-1] * len(distance)
    for _ in range(min(distance.shape)):
        i, j = divmod(int(left.argmin()), distance.shape[1])
        found[i] = j
        left[i], left[:, j] = math.inf, math.inf
    return found


@pytest.mark.parametrize(("n", "m"), [(1, 1), (7, 7), (5, 20), (20, 5), (40, 80)])
@pytest.mark.parametrize("seed", range(3))
def test_greedy_takes_the_closest_pair_first(seed, n, m):
    distance = matrix(seed, n, m)
    matches = greedy(distance)
    assert matches.candidate.tolist() == slow_greedy(distance)
    assert int((matches.candidate < 0).sum()) == max(0, n - m)
    assert bool(matches.distance[matches.candidate < 0].isinf().all())


def test_greedy_with_ties_matches_everyone():
    for distance in (torch.ones(6, 6), (matrix(0, 9, 9) * 3).floor()):
        assert sorted(greedy(distance).candidate.tolist()) == list(range(len(distance)))


@pytest.mark.parametrize(("n", "m"), [(4, 4), (3, 5), (5, 3)])
def test_optimal_has_the_smallest_sum_of_all(n, m):
    distance = matrix(1, n, m)
    matches = optimal(distance)
    rows = [(i, int(j)) for i, j in enumerate(matches.candidate) if j >= 0]
    assert len({j for _, j in rows}) == min(n, m) == len(rows)
    if n <= m:
        sums = [
            sum(distance[i, p[i]] for i in range(n)) for p in itertools.permutations(range(m), n)
        ]
    else:
        sums = [
            sum(distance[p[j], j] for j in range(m)) for p in itertools.permutations(range(n), m)
        ]
    assert float(sum(distance[i, j] for i, j in rows)) == pytest.approx(float(min(sums)))


def test_optimal_may_give_away_an_exact_recovery_and_greedy_never_does():
    # Candidate 0 is record 0. Candidate 1 is a poor copy of it, on the far side of record 1.
    records, candidates = torch.tensor([[0.0], [4.0]]), torch.tensor([[0.0], [-1.0]])
    assert match(records, candidates, protocol="optimal")[0].candidate.tolist() == [1, 0]
    assert match(records, candidates, protocol="greedy")[0].candidate.tolist() == [0, 1]


def test_nearest_may_use_a_candidate_twice():
    distance = torch.tensor([[0.1, 0.5], [0.2, 0.9], [math.nan, math.inf]])
    matches = nearest(distance)
    assert matches.candidate.tolist() == [0, 0, -1]
    assert matches.distance.tolist() == pytest.approx([0.1, 0.2, math.inf])


@pytest.mark.parametrize("protocol", PROTOCOLS)
def test_nan_and_infinite_candidates_are_never_matched(protocol):
    records = matrix(0, 6, 10).reshape(6, 1, 2, 5)
    candidates = torch.cat([records, records]).clone()
    candidates[0, 0, 0, 0] = math.nan
    candidates[7, 0, 1, 1] = math.inf
    matches, standing = match(records, candidates, protocol=protocol)
    assert not set(matches.candidate.tolist()) & {0, 7}
    torch.testing.assert_close(standing, records, rtol=1e-12, atol=1e-12)
    assert float(matches.distance.max()) < 1e-9


@pytest.mark.parametrize("protocol", PROTOCOLS)
@pytest.mark.parametrize("bad", [math.nan, None])
def test_nothing_to_match_leaves_everyone_unmatched(protocol, bad):
    records = matrix(0, 3, 4)
    candidates = records[:0] if bad is None else torch.full((2, 4), bad)
    matches, standing = match(records, candidates, protocol=protocol)
    assert matches.candidate.tolist() == [-1, -1, -1]
    assert bool(matches.distance.isinf().all())
    assert standing.shape == (3, 4)
    assert bool(standing.isnan().all())


def test_optimal_avoids_single_pairs_that_cannot_be():
    distance = torch.tensor([[math.nan, 5.0], [1.0, 2.0]])
    assert optimal(distance).candidate.tolist() == [1, 0]
    hopeless = torch.tensor([[math.inf, 5.0], [math.inf, 2.0]])
    assert optimal(hopeless).candidate.tolist() == [-1, 1]


def test_nearest_averaged_is_the_mean_of_those_within_the_factor():
    generator = torch.Generator().manual_seed(3)
    records = torch.rand(4, 1, 6, 6, generator=generator)
    noise = torch.randn(12, 1, 6, 6, generator=generator)
    candidates = records.repeat(3, 1, 1, 1) + 0.1 * noise
    matches, averages = nearest_averaged(records, candidates, factor=1.3)
    distance = standardised_l2(records, candidates)
    used = 0
    for i in range(4):
        within = [j for j in range(12) if distance[i, j] <= 1.3 * distance[i].min()]
        used += len(within)
        expected = candidates[within].double().mean(0)
        torch.testing.assert_close(averages[i], expected)
        assert int(matches.candidate[i]) == int(distance[i].argmin())
    assert used > 4  # somewhere more than one candidate was averaged
    assert matches.measure == "standardised_l2"
    assert matches.protocol == "nearest_averaged"


def test_nearest_averaged_measures_without_the_mean_image():
    records, mean = matrix(5, 3, 20), matrix(6, 1, 20)[0] * 5
    candidates = matrix(7, 8, 20)
    matches, averages = nearest_averaged(records, candidates, factor=1.0, mean=mean)
    distance = standardised_l2(records - mean, candidates - mean)
    assert matches.candidate.tolist() == distance.argmin(1).tolist()
    torch.testing.assert_close(averages, candidates[matches.candidate])


def test_stretch_fills_the_box():
    stretched = stretch(torch.tensor([[[-2.0, 0.0], [1.0, 2.0]], [[5.0, 5.0], [5.0, 5.0]]]))
    assert stretched[0].tolist() == [[0.0, 0.5], [0.75, 1.0]]
    assert stretched[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]


def test_an_unknown_protocol_is_named():
    with pytest.raises(
        InputError, match="one of optimal, greedy, nearest, nearest_averaged, got best"
    ):
        match(torch.zeros(1, 2), torch.zeros(1, 2), protocol="best")
