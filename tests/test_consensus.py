"""What independent starts agree on."""

import torch

from remnant.solvers.consensus import cluster, judged_by, unit_rows


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


def test_clusters_can_be_judged_by_other_starts():
    _, starts = noisy_starts(0.2)
    alike = starts[:1].expand(3, -1, -1)  # not independent: they agree on everything
    groups = cluster(alike)
    assert (groups.starts == 3).all()
    judged = judged_by(groups, starts[1:])
    assert judged.starts.tolist()[:5] == [3] * 5
    assert judged.starts[5:].max() == 0
    rows = alike.flatten(0, 1)[judged.seed].double()
    torch.testing.assert_close(judged.centres, rows)
    assert torch.equal(judged.member.flatten()[judged.seed], torch.arange(10))
