"""What is certified between two checkpoints: each witness counts on its own, at its own threshold.

The problems are made, not trained: weights that do not drift, so that every figure of the
certificate is known and one of them at a time can be spoilt.
"""

import pytest
import torch
from torch.nn.functional import normalize, pad

from exact_case import seeded
from remnant.solvers.dense.certificate import certify, distance_to_points, mixtures, spread_of
from remnant.solvers.dense.duals import silent_neurons, zeros_of
from remnant.solvers.dense.problem import pose, pose_output
from remnant.solvers.spans import decompose, span_of

RECORDS, INPUTS, WIDTH = 10, 30, 400


def draw(*shape, seed=0):
    return torch.randn(shape, generator=seeded(seed), dtype=torch.float64)


def made(*, idle=None, learned=None, hidden=(), output=False):
    """A problem, its records x~ (n x (d+1)), their duals z and points y (n x n).

    idle: {record: share of its silent neurons}, so many that it fires learn nothing of it. learned:
    {record: share}, so many of its silent neurons do. hidden: records that the next layer lacks.
    """
    records = pad(draw(RECORDS, INPUTS), (0, 1), value=1.0)
    first = draw(WIDTH, INPUTS + 1, seed=1) / INPUTS**0.5
    t = records @ first.T
    spread = t.std(1, keepdim=True)
    duals = draw(RECORDS, WIDTH, seed=2) * (t > 0)
    duals = duals + 0.2 * duals.sign()  # none is small by chance
    for i, share in (idle or {}).items():
        clearly = (t[i] > 0.1 * spread[i]).nonzero()[:, 0]
        silent = int((t[i] <= 0).sum())
        duals[i, clearly[: round(share * silent / (1 - share))]] = 0
    for i, share in (learned or {}).items():
        clearly = (t[i] < -0.11 * spread[i]).nonzero()[:, 0]
        duals[i, clearly[: round(share * len(clearly))]] = 0.1  # small, but no zero
    span = span_of(decompose(duals.T @ records), RECORDS)
    if output:
        posed = pose_output(span, first, first, draw(3, WIDTH), draw(3, WIDTH), precision=2**-52)
    else:
        signals = draw(RECORDS, 50, seed=3)
        signals[list(hidden)] = 0
        features = t.clamp(min=0)
        posed = pose(span, first, first, signals.T @ features, precision=2**-52)
    y = records @ span.right.T
    z = normalize(torch.linalg.inv(y).T * span.scale, dim=1)
    return posed, records, z, y


def rows(mask):
    return mask.nonzero()[:, 0].tolist()


def test_right_records_are_certified_whole_or_in_part():
    problem, records, z, y = made()
    proof = certify(problem, records, z, y)
    assert bool(proof.passed.all())
    assert not bool(proof.doubtful.any())
    assert proof.exact
    assert proof.residual < 1e-9
    assert float(proof.zero_but_firing.max()) == 0
    assert float(proof.silent_but_active.max()) == 0
    estimates = certify(problem, records[:4], z[:4], y[:4], error=torch.full((4,), 1e-6).double())
    assert bool(estimates.passed.all())
    assert not estimates.exact


@pytest.mark.parametrize(
    ("share", "doubted", "estimated"), [(0.045, [], []), (0.07, [], [3]), (0.13, [3], [3])]
)
def test_neurons_that_a_record_fires_and_that_learned_nothing_are_doubt(share, doubted, estimated):
    problem, records, z, y = made(idle={3: share})
    proof = certify(problem, records, z, y)
    assert rows(proof.doubtful) == doubted
    assert rows(~proof.passed) == doubted
    assert float(proof.zero_but_firing[3]) == pytest.approx(share, abs=0.01)
    # Of estimates, half as many are borne.
    estimates = certify(problem, records, z, y, error=torch.full((RECORDS,), 1e-6).double())
    assert rows(~estimates.passed) == estimated
    assert rows(estimates.doubtful) == doubted


@pytest.mark.parametrize(("share", "doubted"), [(0.2, []), (0.32, [6])])
def test_silent_neurons_that_learned_are_doubt(share, doubted):
    problem, records, z, y = made(learned={6: share})
    proof = certify(problem, records, z, y)
    assert rows(proof.doubtful) == doubted
    assert rows(~proof.passed) == doubted
    assert float(proof.silent_but_active[6]) == pytest.approx(share, abs=0.02)


def test_a_dual_whose_zeros_do_not_determine_it_is_doubt_and_spoils_all():
    problem, records, z, y = made()
    mixed = z.clone()
    mixed[2] = normalize(z[2] + 0.05 * z[5], dim=0)
    proof = certify(problem, records, mixed, y)
    assert rows(proof.doubtful) == [2]
    assert not bool(proof.passed.any())
    assert not proof.exact


def test_a_record_far_from_the_point_that_was_searched_for_is_doubt():
    problem, records, z, y = made()
    for apart, doubted in ((0.05, []), (0.15, [4])):
        points = y.clone()
        way = draw(RECORDS)
        last = problem.span.right[:, -1]
        way = normalize(way - (way @ last) / last.square().sum() * last, dim=0)
        points[4] += (apart * spread_of(y)) ** 0.5 * way
        far = distance_to_points(problem, y, 3 * points)  # the scale of a point says nothing
        assert float(far[4]) == pytest.approx(apart)
        proof = certify(problem, records, z, 3 * points)
        assert rows(proof.doubtful) == doubted
        assert rows(~proof.passed) == doubted


def test_features_that_the_next_layer_lacks_are_not_certified():
    problem, records, z, y = made(hidden=(7,))
    proof = certify(problem, records, z, y)
    assert rows(~proof.passed) == [7]
    assert not bool(proof.doubtful.any())  # no reason to search for it again
    # So much of another record it may be, and no less is stated.
    assert float(proof.error[7]) == pytest.approx(float(proof.foreign[7]) * spread_of(y))


def test_nothing_is_certified_unless_most_records_are():
    two, three = {1: 0.2, 5: 0.2}, {1: 0.2, 5: 0.2, 8: 0.2}
    problem, records, z, y = made(idle=two)
    assert rows(~certify(problem, records, z, y).passed) == [1, 5]
    problem, records, z, y = made(idle=three)
    proof = certify(problem, records, z, y)
    assert not bool(proof.passed.any())
    assert rows(proof.doubtful) == [1, 5, 8]
    # Estimates do not hang on each other.
    estimates = certify(problem, records, z, y, error=torch.full((RECORDS,), 1e-6).double())
    assert rows(~estimates.passed) == [1, 5, 8]


def test_an_error_that_is_too_large_is_not_certified():
    problem, records, z, y = made()
    spread = spread_of(y)
    assert spread == pytest.approx(INPUTS, rel=0.5)
    error = torch.full((RECORDS,), 0.009 * spread).double()
    error[5] = 0.011 * spread
    assert rows(~certify(problem, records, z, y, error=error).passed) == [5]


def test_points_of_a_single_hidden_layer_are_no_witness():
    problem, records, z, y = made(output=True)
    proof = certify(problem, records, z, y.roll(1, 0))
    assert bool(proof.passed.all())
    assert proof.foreign is None


def test_the_residual_is_what_the_records_leave_of_the_change():
    problem, records, z, y = made()
    wrong = records.clone()
    wrong[0] = 0.5 * (records[0] + records[1])
    proof = certify(problem, wrong, z, y)
    # Slow and plain: refit duals in the data's own space and see what silent neurons would learn.
    change = problem.span.left * problem.span.scale @ problem.span.right
    duals = change @ torch.linalg.pinv(wrong)
    t = torch.maximum(wrong @ problem.span.right.T @ problem.start.T, torch.tensor(-torch.inf))
    silent = (t / t.std(1, keepdim=True) < -0.1).T
    expected = float(((duals * silent) @ wrong).norm() / change.norm())
    assert proof.residual == pytest.approx(expected, rel=1e-6)
    assert proof.residual > 0.1


def test_the_spread_of_records_is_about_their_middle():
    y = draw(9, 5) + 100
    middle = y.median(0).values
    assert spread_of(y) == pytest.approx(float((y - middle).square().sum(1).median()))
    assert spread_of(y[:1]) == pytest.approx(float(y[0].square().sum()))
    assert spread_of(y[:1].repeat(3, 1)) > 0


def test_enough_silent_neurons_are_taken_to_fix_a_dual():
    """All with a negative margin, or half as many again as records: fewer leave duals open."""
    count = 8
    few = torch.arange(100).double()[None] - 3  # three are negative
    assert int(silent_neurons(few, count).sum()) == 16
    many = torch.arange(100).double()[None] - 40.5
    assert int(silent_neurons(many, count).sum()) == 41
    assert bool((silent_neurons(many, count)[0, :41] == 1).all())
    assert int(silent_neurons(few[:, :10], count).sum()) == 10  # no more than there are


def test_shares_of_other_records_are_those_that_noise_on_a_duals_zeros_mixes_in():
    """Against draws: noise on the zeros of dual 3, and the nearest vector that vanishes there."""
    problem, _, z, _ = made()
    own = torch.linalg.pinv(z.T)
    told = mixtures(problem, own, z, zeros_of(problem, z))[:, 3]
    rows = problem.span.left[(z[3] @ problem.span.left.T).abs() < problem.zero]
    across = torch.linalg.qr(z[3][:, None], mode="complete")[0][:, 1:]  # its length is no unknown
    moved = -torch.linalg.pinv(rows @ across) @ draw(len(rows), 5000, seed=5)
    drawn = (own @ across @ moved).square().mean(1)
    torch.testing.assert_close(told / told.sum(), drawn / drawn.sum(), rtol=0.1, atol=1e-3)
