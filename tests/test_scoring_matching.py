"""Matching: against slow obvious forms, rectangular, with NaN, with nothing."""

import math

import pytest
import torch

from remnant.scoring.distances import standardised_l2
from remnant.scoring.matching import average_of_nearest, greedy, stretch
from remnant.scoring.score import score
from remnant.types import Examples
from seeding import seeded


def matrix(seed, n, m):
    generator = seeded(seed)
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


def test_greedy_keeps_an_exact_recovery():
    # Candidate 0 is record 0. Candidate 1 is a poor copy of it, on the far side of record 1: the
    # smallest sum of squares would give candidate 0 away.
    records, candidates = torch.tensor([[0.0], [4.0]]), torch.tensor([[0.0], [-1.0]])
    assert greedy((records - candidates.T).square()).candidate.tolist() == [0, 1]


def both_protocols(records, candidates):
    """The image that stands for each record, by each protocol."""
    ids = tuple(map(str, range(len(records))))
    truth = Examples(inputs=records, labels=torch.zeros(len(records)).long(), ids=ids)
    index = score(truth, candidates).candidate
    standing = torch.full(records.shape, math.nan, dtype=torch.float64)
    standing[index >= 0] = candidates.double()[index[index >= 0]]
    return index, (standing, average_of_nearest(records, candidates))


def test_nan_and_infinite_candidates_are_never_matched():
    records = matrix(0, 6, 10).reshape(6, 1, 2, 5)
    candidates = torch.cat([records, records]).clone()
    candidates[0, 0, 0, 0] = math.nan
    candidates[7, 0, 1, 1] = math.inf
    index, images = both_protocols(records, candidates)
    assert not set(index.tolist()) & {0, 7}
    for standing in images:
        torch.testing.assert_close(standing, records, rtol=1e-12, atol=1e-12)


@pytest.mark.parametrize("bad", [math.nan, None])
def test_nothing_to_match_leaves_everyone_unmatched(bad):
    records = matrix(0, 3, 4)
    candidates = records[:0] if bad is None else torch.full((2, 4), bad)
    index, images = both_protocols(records, candidates)
    assert index.tolist() == [-1, -1, -1]
    assert bool(greedy(torch.full((3, 2), math.nan)).distance.isinf().all())
    for standing in images:
        assert standing.shape == (3, 4)
        assert bool(standing.isnan().all())


def test_the_average_is_the_mean_of_those_within_the_factor():
    generator = seeded(3)
    records = torch.rand(4, 1, 6, 6, generator=generator)
    noise = torch.randn(12, 1, 6, 6, generator=generator)
    candidates = records.repeat(3, 1, 1, 1) + 0.1 * noise
    averages = average_of_nearest(records, candidates, factor=1.3)
    distance = standardised_l2(records, candidates)
    used = 0
    for i in range(4):
        within = [j for j in range(12) if distance[i, j] <= 1.3 * distance[i].min()]
        used += len(within)
        expected = candidates[within].double().mean(0)
        torch.testing.assert_close(averages[i], expected)
    assert used > 4  # somewhere more than one candidate was averaged


def test_the_average_is_measured_without_the_mean_image():
    records, mean = matrix(5, 3, 20), matrix(6, 1, 20)[0] * 5
    candidates = matrix(7, 8, 20)
    averages = average_of_nearest(records, candidates, factor=1.0, mean=mean)
    distance = standardised_l2(records - mean, candidates - mean)
    torch.testing.assert_close(averages, candidates[distance.argmin(1)])


def test_stretch_fills_the_box():
    stretched = stretch(torch.tensor([[[-2.0, 0.0], [1.0, 2.0]], [[5.0, 5.0], [5.0, 5.0]]]))
    assert stretched[0].tolist() == [[0.0, 0.5], [0.75, 1.0]]
    assert stretched[1].tolist() == [[0.0, 0.0], [0.0, 0.0]]
