"""KIP and RKIP against autograd, Theorem 2, and sums of real parameter gradients."""

import pytest
import torch

from remnant.distill import kip, kip_slopes, reconstruction, rkip, rkip_slopes
from remnant.gradients import gram, weighted_sum
from remnant.kernels import Dense, kernels, regress
from remnant.models import build
from remnant.training import solve_linearised
from remnant.types import Examples, Scaling


def draw(n, d, seed):
    return torch.randn(n, d, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


@pytest.fixture
def sets():
    """Records, images, and their targets for two outputs."""
    return draw(12, 6, 0), draw(4, 6, 1), draw(12, 2, 2), draw(4, 2, 3)


def closed_form(t, r):
    return kernels(Dense(), t).ntk, kernels(Dense(), r, t).ntk, kernels(Dense(), r).ntk


def test_theorem_2_with_the_infinite_width_kernel(sets):
    t, r, y_t, y_r = sets
    k_tt, k_rt, k_rr = closed_form(t, r)
    whole = reconstruction(k_tt, k_rt, k_rr, regress(k_tt, y_t), regress(k_rr, y_r))
    terms = rkip(k_tt, k_rt, k_rr, y_t, y_r)
    assert float(terms.loss) == pytest.approx(float(whole), rel=1e-8)
    assert float(terms.matching) > 0
    assert float(terms.variance) > 0


def test_theorem_2_with_a_network_of_finite_width():
    """The reconstruction loss in parameter space itself: |theta_f - theta_0 - sum alpha grad|^2."""
    t, r, y_t, y_r = draw(10, 6, 0), draw(4, 6, 1), draw(10, 1, 2), draw(4, 1, 3)
    model = build("mlp:6-40-40-1", generator=torch.Generator().manual_seed(4), dtype=torch.float64)
    with torch.no_grad():
        residual = y_t - model(t)  # the change of weights fits what the start leaves over
    ids = tuple(map(str, range(10)))
    records = Examples(inputs=t, labels=y_t, ids=ids, bounds=None)
    trained = solve_linearised(model, records, scaling=Scaling())
    k_rr = gram(model, r)
    change = weighted_sum(model, r, regress(k_rr, y_r))
    left = sum(
        float((trained.final[name] - trained.initial[name] - value).square().sum())
        for name, value in change.items()
    )
    terms = rkip(gram(model, t), gram(model, r, t), k_rr, residual, y_r)
    assert float(terms.loss) == pytest.approx(left, rel=1e-8)


def test_images_that_are_the_records_lose_nothing(sets):
    t, _, y_t, _ = sets
    k = kernels(Dense(), t).ntk
    terms = rkip(k, k, k, y_t, y_t)
    assert abs(float(terms.matching)) < 1e-12
    assert abs(float(terms.variance)) < 1e-10
    assert float(kip(k, k, y_t, y_t)) < 1e-20


def test_slopes_agree_with_autograd(sets):
    t, r, y_t, y_r = sets
    k_tt, k_rt, k_rr = closed_form(t, r)
    alpha, square = regress(k_tt, y_t), float((y_t * regress(k_tt, y_t)).sum())
    free = [k_rt.requires_grad_(), k_rr.requires_grad_()]
    for found, plain in (
        (kip_slopes(k_rt, k_rr, y_t, y_r), kip(k_rt, k_rr, y_t, y_r)),
        (rkip_slopes(k_rt, k_rr, alpha, y_r, square), rkip(k_tt, k_rt, k_rr, y_t, y_r).loss),
    ):
        assert found.loss.item() == pytest.approx(plain.item())
        by_rt, by_rr = torch.autograd.grad(plain, free)
        assert torch.allclose(found.by_rt, by_rt)
        # Only the symmetric part of a slope in a symmetric matrix means anything.
        assert torch.allclose(found.by_rr + found.by_rr.T, by_rr + by_rr.T)


def test_learned_labels_are_the_best_and_their_slope_is_that_of_the_least_loss(sets):
    t, r, y_t, y_r = sets
    k_tt, k_rt, k_rr = (k.detach() for k in closed_form(t, r))
    alpha, square = regress(k_tt, y_t), float((y_t * regress(k_tt, y_t)).sum())
    ways = {
        "kip": lambda k_rt, y: kip_slopes(k_rt, k_rr, y_t, y),
        "rkip": lambda k_rt, y: rkip_slopes(k_rt, k_rr, alpha, y, square),
    }
    for way in ways.values():
        best = way(k_rt, None)
        assert float(way(k_rt, best.labels).loss) == pytest.approx(float(best.loss), rel=1e-6)
        for other in (y_r, 1.01 * best.labels, best.labels + 0.01 * y_r):
            assert float(way(k_rt, other).loss) > float(best.loss)
        nudge = 1e-5 * draw(4, 12, 5)
        rise = float(way(k_rt + nudge, None).loss - way(k_rt - nudge, None).loss) / 2
        assert rise == pytest.approx(float((best.by_rt * nudge).sum()), rel=1e-4)
    assert torch.allclose(ways["rkip"](k_rt, None).labels, k_rt @ alpha)
