"""The exact solver's parts against slow obvious ways, and the whole on a small target."""

import dataclasses
import math

import pytest
import torch

from exact_case import planted, seeded, small_problem, true_duals
from remnant.evidence import stored_precision, weight_difference
from remnant.solvers.dense import duals
from remnant.solvers.dense.certificate import certify
from remnant.solvers.dense.duals import (
    determined,
    fit_to_zeros,
    inverse_power_step,
    null_vectors,
    smallest_on,
)
from remnant.solvers.dense.exact import finish, recover, solve_records
from remnant.solvers.dense.reflections import Graph, iterate, starting_at
from remnant.solvers.dense.rounds import Found, Search, nothing_found
from remnant.solvers.dense.search import refine_points
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.layers import first_pair
from remnant.solvers.numerics import apart, complement, damped_cholesky, distinct
from remnant.solvers.spans import count_records, noise_edge, rounding_level
from remnant.types import Knowledge, Target
from targets import faces_target


class Unscaled(Graph):
    """Without fixed lengths, which a nearest point has only up to."""

    def rescaled(self, parts):
        return list(parts)


def test_the_graph_projection_is_the_nearest_point():
    parts = torch.randn(4, 1, 200, generator=seeded(), dtype=torch.float64)
    space, none = torch.eye(200), torch.zeros(0, 200)
    graph = Unscaled(ends=torch.cat([space, space]), features=space, duals=space, found=none)
    t, s, u, a = graph.nearest([parts[0], parts[2], parts[1], parts[3]])
    near = torch.stack([t, u, s, a])
    assert torch.equal(s, t.clamp(min=0))
    assert not bool(((t < 0) & (u < 0) & (a != 0)).any())
    strong, light = TOLERANCES.feature_weight, TOLERANCES.end_weight
    weights = torch.tensor([1.0, light, strong**2, light]).double()[:, None]
    grid = torch.linspace(-6, 6, 24_001, dtype=torch.float64)[:, None]
    first = (grid - parts[0]) ** 2 + (strong * (grid.clamp(min=0) - parts[2])) ** 2
    fires, silent = (first + torch.where(c, 0.0, math.inf) for c in (grid > -1e-9, grid < 1e-9))
    later, never = parts[1].clamp(max=0) ** 2, parts[1].clamp(min=0) ** 2 + parts[3] ** 2
    best = torch.minimum(
        fires.min(0).values, silent.min(0).values + light * torch.min(later, never)
    )
    ours = (weights * (near - parts)[:, 0] ** 2).sum(0)
    assert float((ours - best[0]).abs().max()) < 1e-6


def test_points_of_a_planted_problem_are_found_with_their_duals():
    spaces, t, duals = planted()
    begun = starting_at(spaces.starts(16, seeded(3)))
    points = iterate(spaces, begun, iterations=2000, stalls=True)
    unit = torch.nn.functional.normalize
    good = points.gap < 1e-2
    assert int(good.sum()) > 4
    start, _, end, found = (part[good] for part in points.best)
    assert torch.allclose(start, end, atol=1e-3)
    cosine, which = (unit(start, dim=1) @ unit(t, dim=0)).max(1)
    assert float(cosine.min()) > 0.999
    same = (unit(found, dim=1) @ unit(duals, dim=0)).abs()
    assert float(same.gather(1, which[:, None]).min()) > 0.99


def test_refinement_lowers_the_quotient_and_keeps_a_solution():
    problem, records = small_problem()
    y = torch.nn.functional.normalize(records @ problem.span.right.T, dim=1)
    noisy = torch.nn.functional.normalize(
        y + 0.02 * torch.randn(y.shape, generator=seeded()), dim=1
    )
    refined = refine_points(problem.start, problem.penalty(), noisy, iterations=5)
    before = (noisy * y).sum(1)
    after = (refined * y).sum(1)
    assert float(after.min()) > float(before.min())
    assert float(after.median()) > 0.999


def test_null_vectors_forgive_neurons_wrongly_taken_for_silent():
    left = torch.randn(60, 7, generator=seeded(), dtype=torch.float64)
    hidden = torch.nn.functional.normalize(torch.randn(7, generator=seeded(1)).double(), dim=0)
    rows = torch.arange(60) < 25
    left[rows] -= (left[rows] @ hidden)[:, None] * hidden  # `hidden` is null on the first rows
    near = torch.nn.functional.normalize(hidden + 0.1 * left[-1], dim=0)[None]
    z = null_vectors(left, near, rows.double()[None], widths=(0.03, 0.03))[0]
    assert abs(float(z @ hidden)) == pytest.approx(1, abs=1e-6)
    wrong = rows.clone()
    wrong[25:28] = True  # three neurons taken for silent that are not
    forgiving = null_vectors(left, near, wrong.double()[None], widths=(0.3, 0.03, 0.03))
    plain = torch.linalg.svd(left[wrong])[2][-1]
    assert abs(float(forgiving[0] @ hidden)) > 1 - 1e-4 > abs(float(plain @ hidden))


def test_many_records_need_no_gram_matrix_of_each_dual(monkeypatch):
    left = torch.linalg.qr(torch.randn(400, 40, generator=seeded(), dtype=torch.float64))[0] * 20
    hidden = torch.nn.functional.normalize(torch.randn(3, 40, generator=seeded(1)).double(), dim=1)
    zeros = torch.stack([torch.arange(400) % 3 == k for k in range(3)])
    near = torch.nn.functional.normalize(hidden + 0.02 * left[:3] / 20, dim=1)
    weight = zeros / ((hidden @ left.T).square() + 0.1)
    planted = left + 0.01 * torch.randn(left.shape, generator=seeded(2), dtype=torch.float64)
    for own, null in zip(zeros, hidden, strict=True):
        planted[own] -= (left[own] @ null)[:, None] * null
    dense = inverse_power_step(left, weight, near, ridge=0.0), smallest_on(planted, zeros, near)
    monkeypatch.setattr(duals, "TOLERANCES", dataclasses.replace(TOLERANCES, dense=0))
    free = inverse_power_step(left, weight, near, ridge=0.0), smallest_on(planted, zeros, near)
    for one, other in zip(dense, free, strict=True):
        assert float((one * other).sum(1).abs().min()) == pytest.approx(1, abs=1e-9)
    found = recover(small_problem()[0], Search(), generator=seeded())
    assert found.exact
    assert bool(found.passed.all())


def test_duals_of_more_records_than_fit_in_gram_matrices_are_exact():
    """At the solver's own threshold, which the test above lowers to reach what lies past it."""
    count, width = TOLERANCES.dense + 4, 3 * TOLERANCES.dense
    left = torch.linalg.qr(torch.randn(width, count, generator=seeded(), dtype=torch.float64))[0]
    hidden = torch.randn(2, count, generator=seeded(1), dtype=torch.float64)
    hidden = torch.nn.functional.normalize(hidden, dim=1)
    zeros = torch.stack([torch.arange(width) < 1.6 * count, torch.arange(width) > 1.3 * count])
    for own, null in zip(zeros, hidden, strict=True):
        left[own] -= (left[own] @ null)[:, None] * null
    left *= width**0.5
    near = torch.nn.functional.normalize(hidden + 0.02 * left[:2] / width**0.5, dim=1)
    found = smallest_on(left, zeros, near)
    exact = torch.stack([torch.linalg.svd(left[own])[2][-1] for own in zeros])
    assert float((found * exact).sum(1).abs().min()) == pytest.approx(1, abs=1e-9)


def test_a_dual_that_arrives_early_is_left_alone(monkeypatch):
    """Beside one of hardly more zeros than records, which takes long."""
    left = torch.linalg.qr(torch.randn(600, 60, generator=seeded(), dtype=torch.float64))[0]
    hidden = torch.nn.functional.normalize(torch.randn(2, 60, generator=seeded(1)).double(), dim=1)
    zeros = torch.stack([torch.arange(600) < 400, torch.arange(600) >= 530])
    for own, null in zip(zeros, hidden, strict=True):
        left[own] -= (left[own] @ null)[:, None] * null
    near = torch.nn.functional.normalize(hidden + 0.02 * left[:2], dim=1)
    monkeypatch.setattr(duals, "TOLERANCES", dataclasses.replace(TOLERANCES, dense=0))
    found = smallest_on(left, zeros, near)
    assert bool(found.isfinite().all())
    assert float((found[0] * hidden[0]).sum().abs()) == pytest.approx(1, abs=1e-9)


def test_a_singular_gram_matrix_still_factors():
    singular = torch.ones(1, 3, 3, dtype=torch.float64)
    factor = damped_cholesky(singular, 0.0 + 1e-18)
    assert bool(torch.isfinite(factor).all())
    zero = damped_cholesky(torch.zeros(1, 3, 3, dtype=torch.float64), 1e-13)
    assert bool(torch.isfinite(zero).all())


def test_complement_and_distinct():
    rows = torch.randn(2, 5, generator=seeded(), dtype=torch.float64)
    rest = complement(rows, 5)
    assert rest.shape == (5, 3)
    assert float((rows @ rest).abs().max()) < 1e-12
    assert complement(rows[:0], 5).equal(torch.eye(5, dtype=torch.float64))
    shared = 100 * torch.ones(5, dtype=torch.float64)  # a part that all rows have in common
    four = shared + torch.stack([rows[0], rows[1], rows[0] + 1e-3, -rows[0]])
    assert apart(four, 0.1) == [0, 1, 3]
    assert apart(four[:0], 0.1) == []
    assert distinct(torch.stack([rows[0], -2 * rows[0], rows[1]]), 0.99) == [0, 2]


def test_the_spectrum_counts_records_and_knows_rounding():
    problem, records = small_problem()
    target, _, _ = faces_target()
    evidence = weight_difference(target)
    pair = first_pair(target.model)
    values = torch.linalg.svdvals(pair.first.affine(evidence.vector))
    spectrum = count_records(values, pair.first.affine(evidence.end), evidence.precision)
    assert (spectrum.count, spectrum.clear) == (len(records), True)
    assert spectrum.gap > 1000
    span = problem.span
    rebuilt = span.left @ torch.diag(span.scale) @ span.right
    assert float((rebuilt - pair.first.affine(evidence.vector)).abs().max()) < 1e-6


def test_rounding_level_is_that_of_rounding():
    weights = torch.randn(300, 200, generator=seeded(), dtype=torch.float64)
    lost = weights.float().double() - weights
    measured = float(torch.linalg.svdvals(lost)[0])
    assert 0.2 < measured / rounding_level(weights, torch.finfo(torch.float32).eps) < 1.5


def spectrum_of(change, precision=1e-7):
    return count_records(torch.linalg.svdvals(change), torch.ones_like(change), precision)


def low_rank(rows, columns, rank, noise):
    left = torch.randn(rows, rank, generator=seeded(1), dtype=torch.float64)
    right = torch.randn(rank, columns, generator=seeded(2), dtype=torch.float64)
    return left @ right + noise * torch.randn(rows, columns, generator=seeded(3)).double()


@pytest.mark.parametrize("shape", [(300, 150), (60, 300), (200, 100)])
def test_the_edge_of_noise_is_told_by_its_lowest_values(shape):
    noise = torch.randn(shape, generator=seeded(), dtype=torch.float64)
    values = torch.linalg.svdvals(noise)
    assert noise_edge(values, shape) == pytest.approx(float(values[0]), rel=0.06)
    # Records in six of ten directions leave the lowest quarter to noise.
    count = int(0.6 * min(shape))
    left, right = (
        torch.randn(shape[0], count, generator=seeded(1), dtype=torch.float64),
        torch.randn(count, shape[1], generator=seeded(2), dtype=torch.float64),
    )
    beside = torch.linalg.svdvals(noise + 100 * left @ right)
    assert float(values[0]) < noise_edge(beside, shape) < 1.5 * float(values[0])


def test_a_planted_rank_is_counted_and_needs_a_wide_gap():
    assert (spectrum_of(low_rank(80, 60, 7, 1e-8)).count, True) == (7, True)
    assert spectrum_of(low_rank(80, 60, 7, 1e-8)).clear
    assert not spectrum_of(low_rank(80, 60, 60, 0.0)).clear  # full: no gap at all
    assert not spectrum_of(low_rank(80, 60, 7, 1e-2)).clear  # a gap, but not onto rounding
    assert not spectrum_of(low_rank(80, 60, 7, 20.0), 1.0).clear  # rounding, but no gap


def test_a_spectrum_that_is_full_up_to_dead_inputs_is_not_a_count():
    change = low_rank(80, 60, 60, 0.0)
    change[:, 40:] = 0  # pixels that are always black
    assert not spectrum_of(change).clear
    change = low_rank(80, 60, 12, 1e-8)
    change[:, 40:] = 0
    assert (spectrum_of(change).count, spectrum_of(change).clear) == (12, True)


@pytest.mark.parametrize(
    ("dtype", "eps"), [(torch.bfloat16, 2**-7), (torch.float16, 2**-10), (torch.float32, 2**-23)]
)
def test_stored_precision_sees_through_widening(dtype, eps):
    weights = torch.randn(50, generator=seeded(), dtype=torch.float64).to(dtype).double()
    assert stored_precision({"w": weights}) == eps
    assert stored_precision({"w": torch.tensor([math.pi], dtype=torch.float64)}) < 1e-15


@pytest.mark.parametrize("coarse", ["initial", "final"])
def test_a_difference_is_as_precise_as_the_coarser_of_its_ends(coarse):
    model = torch.nn.Linear(7, 5).double()  # its weights fill a float64
    with torch.no_grad():
        for number, parameter in enumerate(model.parameters()):
            drawn = torch.randn(parameter.shape, generator=seeded(number), dtype=torch.float64)
            parameter.copy_(drawn.float() if coarse == "final" else drawn)
    initial = {name: p.detach() + math.pi / 100 for name, p in model.named_parameters()}
    if coarse == "initial":
        initial = {name: w.float() for name, w in initial.items()}
    knowledge = Knowledge(initial=initial)
    evidence = weight_difference(Target(model=model, input_shape=(7,), knowledge=knowledge))
    assert evidence.precision == torch.finfo(torch.float32).eps
    change = dict(model.named_parameters())["weight"].detach() - initial["weight"].double()
    assert torch.equal(evidence.vector["weight"], change)
    assert evidence.vector["weight"].dtype == torch.float64


def test_recovery_is_exact_and_certified():
    problem, records = small_problem()
    recovery = recover(problem, Search(), generator=seeded())
    assert recovery.certificate.exact
    error = torch.cdist(records[:, :-1], recovery.inputs).min(1).values.square()
    assert float(error.max()) < 1e-6
    assert bool(recovery.certificate.passed.all())
    assert recovery.found[-1] == len(records)


def test_true_duals_give_the_records_and_mixed_ones_are_caught():
    problem, records = small_problem()
    z = true_duals(problem, records)
    y = records @ problem.span.right.T
    assert float((solve_records(problem.span, z) - records).abs().max()) < 1e-4
    assert bool(determined(problem, z).all())
    assert bool(certify(problem, records, z, y).passed.all())
    for share in (1.0, -1.0, 0.3, 0.05):
        mixed = z.clone()
        mixed[3] = torch.nn.functional.normalize(z[3] + share * z[5], dim=0)
        sure = determined(problem, mixed)
        assert not bool(sure[3])
        assert int(sure.sum()) == len(records) - 1
    # A wrong dual spoils the *other* record that is in it, which the searched point betrays.
    mixed[3] = torch.nn.functional.normalize(z[3] + z[5], dim=0)
    spoilt = solve_records(problem.span, mixed)
    assert float((spoilt[3] - records[3]).abs().max()) < 1e-4
    assert float((spoilt[5] - records[5]).abs().max()) > 0.1
    passed = certify(problem, spoilt, mixed, y).passed
    assert (bool(passed[3]), bool(passed[5])) == (False, False)


def test_a_dual_is_sharpened_to_rounding_or_not_taken():
    problem, records = small_problem()
    z = true_duals(problem, records)
    rough = torch.nn.functional.normalize(
        z + 1e-3 * torch.randn(z.shape, generator=seeded(), dtype=torch.float64), dim=1
    )
    assert not bool(determined(problem, rough).any())  # near, but its zeros are not exact
    error = 1 - (fit_to_zeros(problem, rough) * z).sum(1).abs()
    assert float(error.max()) < 1e-9
    assert bool(determined(problem, fit_to_zeros(problem, rough)).all())


def test_every_witness_of_the_certificate_counts():
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    moved = y.roll(1, 0)  # the search found other points than the duals give
    assert not bool(certify(problem, records, z, moved).passed.any())
    swapped = records.roll(1, 0)  # records that fire what their duals say is silent
    proof = certify(problem, swapped, z, swapped @ problem.span.right.T)
    assert not bool(proof.passed.any())
    assert float(proof.zero_but_firing.median()) > 0.1
    dense = torch.randn(z.shape, generator=seeded(), dtype=torch.float64)
    dense = torch.nn.functional.normalize(dense, dim=1)
    assert not bool(determined(problem, dense).any())  # no more zeros than chance
    few = dataclasses.replace(problem, zero=1e-12)
    assert not bool(determined(few, z).any())  # nothing counts as zero


def test_a_partial_result_is_certified_to_the_error_that_it_predicts():
    problem, records = small_problem()
    z = true_duals(problem, records)
    y = torch.nn.functional.normalize(records @ problem.span.right.T, dim=1)
    noise = torch.randn(y.shape, generator=seeded(), dtype=torch.float64)
    rough = torch.nn.functional.normalize(y + 0.02 * noise, dim=1)
    found = Found(z=z[:-1], y=rough[:-1], residual=z[:-1, 0])
    estimates, error = finish(problem, found)
    true_error = (estimates - records[:-1]).square().sum(1)
    assert float((true_error / error).max()) < 20
    assert float(true_error.median() / error.median()) < 4
    proof = certify(problem, estimates, found.z, found.y, error)
    assert int(proof.passed.sum()) >= len(found) - 1
    assert (proof.exact, proof.residual) == (False, None)
    # The dual of a record that is not the estimated one, or an estimate that is a blend.
    swapped = certify(problem, estimates, found.z.roll(1, 0), found.y, error)
    assert not bool(swapped.passed.any())
    blends = (estimates + estimates.roll(1, 0)) / 2
    assert not bool(certify(problem, blends, found.z, found.y, error).passed.any())
    vague = certify(problem, estimates, found.z, found.y, error + 1e9)
    assert not bool(vague.passed.any())


def test_nothing_found_is_certified_as_nothing():
    problem, records = small_problem()
    none = torch.zeros(0, len(records), dtype=torch.float64)
    estimates, error = finish(problem, nothing_found(len(records)))
    assert len(certify(problem, estimates, none, none, error).passed) == 0


def test_a_wrong_record_leaves_some_of_the_change_unexplained():
    problem, records = small_problem()
    z, y = true_duals(problem, records), records @ problem.span.right.T
    right = certify(problem, records, z, y).residual
    wrong = records.clone()
    wrong[2] = 0.5 * (records[2] + records[7])
    assert right < 2e-3
    assert certify(problem, wrong, z, y).residual > 5 * right
