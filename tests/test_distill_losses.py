"""KIP and RKIP against autograd, Theorem 2, and sums of real parameter gradients."""

import pytest
import torch

from remnant.distill import kip, rkip
from remnant.gradients import gram, weighted_sum
from remnant.kernels import Dense, ntk, regress
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
    return ntk(Dense(), t), ntk(Dense(), r, t), ntk(Dense(), r)


def both_terms(k_tt, k_rt, k_rr, y_t, y_r):
    """RKIP as Theorem 2 writes it: the label residual, and the variance of R given T."""
    alpha = regress(k_rr, y_r)
    missing = y_t - k_rt.T @ alpha
    given = k_rr - k_rt @ regress(k_tt, k_rt.T)
    return float((missing * regress(k_tt, missing)).sum()), float((alpha * (given @ alpha)).sum())


def test_theorem_2_with_the_infinite_width_kernel(sets):
    t, r, y_t, y_r = sets
    k_tt, k_rt, k_rr = closed_form(t, r)
    alpha = regress(k_tt, y_t)
    whole, _ = rkip(k_rt, k_rr, alpha, y_r, float((y_t * alpha).sum()))
    terms = both_terms(k_tt, k_rt, k_rr, y_t, y_r)
    assert sum(terms) == pytest.approx(float(whole), rel=1e-8)
    assert min(terms) > 0


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
    terms = both_terms(gram(model, t), gram(model, r, t), k_rr, residual, y_r)
    assert sum(terms) == pytest.approx(left, rel=1e-8)


def test_images_that_are_the_records_lose_nothing(sets):
    t, _, y_t, _ = sets
    k = ntk(Dense(), t)
    assert both_terms(k, k, k, y_t, y_t) == pytest.approx((0.0, 0.0), abs=1e-10)
    assert float(kip(k, k, y_t, y_t)[0]) < 1e-20


def test_learned_labels_are_the_best_and_their_slope_is_that_of_the_least_loss(sets):
    t, r, y_t, y_r = sets
    k_tt, k_rt, k_rr = (k.detach() for k in closed_form(t, r))
    alpha, square = regress(k_tt, y_t), float((y_t * regress(k_tt, y_t)).sum())
    ways = {
        "kip": lambda k_rt, y: kip(k_rt, k_rr, y_t, y),
        "rkip": lambda k_rt, y: rkip(k_rt, k_rr, alpha, y, square),
    }
    for way in ways.values():
        free = k_rt.clone().requires_grad_()
        best, labels = way(free, None)
        assert way(k_rt, labels)[0].item() == pytest.approx(best.item(), rel=1e-6)
        for other in (y_r, 1.01 * labels, labels + 0.01 * y_r):
            assert way(k_rt, other)[0].item() > best.item()
        nudge = 1e-5 * draw(4, 12, 5)
        rise = float(way(k_rt + nudge, None)[0] - way(k_rt - nudge, None)[0]) / 2
        slope = torch.autograd.grad(best, free)[0]
        assert rise == pytest.approx(float((slope * nudge).sum()), rel=1e-4)
    assert torch.allclose(ways["rkip"](k_rt, None)[1], k_rt @ alpha)
