"""What independent starts agree on."""

from dataclasses import replace

import pytest
import torch

from remnant.errors import InputError
from remnant.solvers.consensus import (
    came_back,
    cluster,
    enough,
    most_starts_first,
    pool,
    pooled,
    unit_rows,
)
from remnant.types import Candidates, Scaling, Status


def noisy_starts(noise, k=4, records=5, m=10, d=60):
    """k starts: the records in another order each time, beside candidates that are noise."""
    generator = torch.Generator().manual_seed(0)
    truth = torch.randn(records, d, generator=generator)
    starts = []
    for _ in range(k):
        found = truth + noise * torch.randn(records, d, generator=generator)
        rows = torch.cat([found, torch.randn(m - records, d, generator=generator)])
        starts.append(rows[torch.randperm(m, generator=generator)])
    return truth, torch.stack(starts)


def test_what_all_starts_return_comes_first_and_is_averaged():
    truth, starts = noisy_starts(0.2)
    groups = cluster(starts)
    assert groups.starts[:5].tolist() == [4] * 5
    assert groups.starts[5:].max() < 3
    alone = (unit_rows(truth) @ unit_rows(starts[0]).T).max(1).values
    together = (unit_rows(truth) @ unit_rows(groups.centres[:5].float()).T).max(1).values
    assert (together > 0.98).all()
    assert together.mean() > alone.mean()


def test_agreement_falls_and_leaves_out_the_own_start():
    _, starts = noisy_starts(0.2)
    groups = cluster(starts)
    assert (groups.agreement.diff() <= 1e-12).all()
    assert groups.agreement[4] > 0.9 > 0.6 > groups.agreement[5]
    lone = cluster(starts[:1])
    assert len(lone) == 10
    assert not lone.agreement.any()


def test_every_candidate_is_in_one_cluster():
    _, starts = noisy_starts(0.5)
    groups = cluster(starts)
    assert groups.member.min() == 0
    assert groups.member.max() == len(groups) - 1
    assert torch.equal(groups.member.flatten()[groups.seed], torch.arange(len(groups)))


def test_constant_and_broken_candidates_agree_with_nothing():
    starts = torch.zeros(3, 2, 8)
    starts[0, 0] = torch.nan
    starts[1, 1] = 1.0
    groups = cluster(starts)
    assert not groups.agreement.any()
    assert torch.isfinite(groups.centres).all()


def test_runs_of_one_length_are_pooled_as_starts_are_clustered():
    _, starts = noisy_starts(0.4)
    one, other = pooled(list(starts)), most_starts_first(cluster(starts), len(starts))
    torch.testing.assert_close(one.centres, other.centres)
    torch.testing.assert_close(one.agreement, other.agreement)
    assert torch.equal(one.starts, other.starts)
    assert torch.equal(one.member, other.member.flatten())


def test_runs_of_any_length_are_pooled():
    truth, starts = noisy_starts(0.2)
    runs = [starts[0], starts[1][:7], starts[2][3:], truth[:2]]
    groups = pooled(runs)
    assert len(groups.member) == 10 + 7 + 7 + 2
    assert groups.starts.max() == 4
    by_run = [set(part.tolist()) for part in groups.member.split([len(run) for run in runs])]
    for row, count in enumerate(groups.starts.tolist()):
        assert sum(row in members for members in by_run) == count
    rank = (unit_rows(truth[:2]) @ unit_rows(groups.centres.float()).T).argmax(1)
    assert set(rank.tolist()) == {0, 1}  # the only two that all four runs can have


def run_of(rows, status=Status.PARTIAL, reason="agreed"):
    labels = torch.arange(len(rows))
    return Candidates(
        inputs=rows, confidence=torch.ones(len(rows)), labels=labels, status=status, reason=reason
    )


def test_pooled_candidates_are_clustered_without_the_mean_picture():
    truth, starts = noisy_starts(0.2)
    mean = 5 * torch.randn(60, generator=torch.Generator().manual_seed(9))
    runs = [run_of(start[:size] + mean) for start, size in zip(starts, (10, 8, 9, 10), strict=True)]
    found = pool(runs, Scaling(mean=mean))
    assert found.status is Status.PARTIAL
    assert len(found) == 10
    best = (unit_rows(truth) @ unit_rows(found.inputs - mean).T).max(1)
    assert (best.values > 0.9).sum() >= 4
    assert found.confidence[best.indices].min() > found.confidence[6:].max()
    assert found.figures["found_by"][0] == 4
    assert found.labels[0] < 10
    assert len(pool(runs).inputs) < 10  # all alike in the data's own scale


def test_a_doubtful_run_makes_the_pool_doubtful():
    _, starts = noisy_starts(0.2)
    runs = [run_of(start) for start in starts]
    doubt = replace(runs[0], status=Status.INCONCLUSIVE, reason="out of balance", labels=None)
    found = pool([doubt, *runs[1:]])
    assert found.status is Status.INCONCLUSIVE
    assert found.labels is None
    assert found.reason.endswith("of 4 runs, but some are inconclusive: out of balance")
    assert pool(runs[:1]).status is Status.INCONCLUSIVE  # nothing to agree with
    empty = run_of(torch.zeros(0, 60))
    assert pool([empty, *runs]).figures["runs"] == 4
    with pytest.raises(InputError, match="a run with candidates"):
        pool([empty])


def test_the_chosen_run_speaks_for_all_that_are_pooled():
    truth, starts = noisy_starts(0.0)
    runs = [run_of(start, status=Status.INCONCLUSIVE) for start in starts]
    runs[3] = run_of(torch.cat([starts[3][:4], truth[:2]]))  # not as many
    found = pool(runs, alike=0.9, chosen=runs[3])
    assert found.status is Status.PARTIAL
    nearest = torch.cdist(found.inputs[:5], truth).min(0).values
    assert float(nearest.max()) < 1e-4
    assert found.figures["agreed"] == 5
    doubted = pool(runs, chosen=run_of(truth, status=Status.INCONCLUSIVE, reason="why"))
    assert doubted.status is Status.INCONCLUSIVE
    assert doubted.reason.endswith("of 4 runs, but the chosen run is inconclusive: why")
    noise = [
        run_of(start) for start in torch.randn(4, 3, 60, generator=torch.Generator().manual_seed(1))
    ]
    assert pool(noise).status is Status.INCONCLUSIVE  # nothing came back twice


@pytest.mark.parametrize(
    ("labels", "said"),
    [
        ((7, 3, 3), 3),  # the seed is of the first run, the odd one out
        ((7, 3, 5), 7),
        ((3, 3, 7), 3),
    ],
)
def test_a_pooled_candidate_has_the_label_of_most_of_its_members(labels, said):
    row = torch.randn(1, 60, generator=torch.Generator().manual_seed(0))
    runs = [replace(run_of(row), labels=torch.tensor([label])) for label in labels]
    found = pool(runs)
    assert found.labels.tolist() == [said]


def test_three_quarters_of_the_starts_are_enough():
    assert [enough(k) for k in (1, 2, 3, 4, 5, 8)] == [1, 2, 3, 3, 4, 6]
    said = "came back alike from at least 3 of 4 independent starts"
    assert [came_back(k, 4) for k in (0, 1, 2)] == [
        f"no candidate {said}",
        f"1 candidate {said}",
        f"2 candidates {said}",
    ]


def turned(cosine, d=6):
    """Two rows of mean zero with this correlation, one of them brighter and of more contrast."""
    one = torch.tensor([1.0, -1.0, 0.0, 0.0, 0.0, 0.0], dtype=torch.float64)
    other = torch.tensor([0.0, 0.0, 1.0, -1.0, 0.0, 0.0], dtype=torch.float64)
    return one, 3 * (cosine * one + (1 - cosine**2) ** 0.5 * other) + 40


@pytest.mark.parametrize(("cosine", "clusters"), [(0.81, 1), (0.79, 2), (-0.9, 2)])
def test_candidates_of_a_correlation_of_eight_tenths_are_one(cosine, clusters):
    one, other = turned(cosine)
    groups = cluster(torch.stack([one, other])[:, None])
    assert len(groups) == clusters
    assert groups.agreement.tolist() == pytest.approx([max(cosine, 0)] * clusters)
    assert groups.starts.tolist() == [3 - clusters] * clusters
    wanted = torch.stack([one, other])
    assert torch.allclose(groups.centres, wanted.mean(0)[None] if clusters == 1 else wanted)


def test_agreement_is_the_mean_over_other_starts_of_the_best_correlation():
    _, starts = noisy_starts(0.5, k=3, m=6)
    groups = cluster(starts)
    flat = starts.double().flatten(0, 1)
    for row, seed in enumerate(groups.seed.tolist()):
        best = [
            max(float(torch.corrcoef(torch.stack([flat[seed], rival]))[0, 1]) for rival in start)
            for k, start in enumerate(starts.double())
            if k != seed // 6
        ]
        assert float(groups.agreement[row]) == pytest.approx(max(0.0, sum(best) / 2))


def test_a_start_gives_a_cluster_the_member_that_is_closest_to_its_seed():
    one, near = turned(0.95)
    _, nearer = turned(0.99)
    groups = cluster(torch.stack([torch.stack([one, one]), torch.stack([near, nearer])]))
    assert groups.starts[0] == 2
    assert torch.allclose(groups.centres[0], (one + nearer) / 2)
    assert set(groups.member.flatten().tolist()) == {0}


def test_one_number_that_is_none_spoils_its_candidate_alone():
    truth, starts = noisy_starts(0.1, k=2)
    broken = starts.clone()
    broken[0, 0, 3] = torch.nan
    groups = cluster(broken)
    assert bool(groups.centres.isfinite().all())
    assert bool((groups.centres[groups.member[0, 0]] == 0).all())
    assert int((groups.starts == 2).sum()) >= len(truth) - 1


def test_what_more_starts_have_comes_before_what_fewer_agree_on_better():
    _, starts = noisy_starts(0.3)
    groups = cluster(starts)
    ordered = most_starts_first(groups, 4)
    wanted = (groups.agreement * groups.starts / 4).sort(descending=True, stable=True)
    assert torch.allclose(ordered.agreement, wanted.values)
    assert torch.equal(ordered.starts, groups.starts[wanted.indices])
    assert torch.equal(ordered.centres, groups.centres[wanted.indices])
    assert torch.equal(wanted.indices[ordered.member], groups.member)
