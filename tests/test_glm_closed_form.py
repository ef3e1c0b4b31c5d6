"""The equations on their own: against gradients by autograd, and against each other."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remnant.solvers.glm.closed_form import (
    FAMILIES,
    Fit,
    curvature,
    from_mean,
    objective_gradient,
    quadratic,
    recover,
    rounding,
)

LOSSES = {
    "linear": lambda out, y: 0.5 * (out - y).square().sum(1),
    "logistic": lambda out, y: torch.nn.functional.binary_cross_entropy_with_logits(
        out, y, reduction="none"
    ).sum(1),
    "poisson": lambda out, y: (out.exp() - y * out).sum(1),
    "gamma": lambda out, y: (-y * out - out.log()).sum(1),  # targets are negative
    "multinomial": lambda out, y: -(y * out.log_softmax(1)).sum(1),
}


def fit_of(family, seed=0, outputs=1, features=4, bias=True, **more):
    g = torch.Generator().manual_seed(seed)
    outputs = max(outputs, 3) if family == "multinomial" else outputs
    weight = torch.randn(outputs, features, generator=g, dtype=torch.float64) / 2
    held = torch.randn(outputs, generator=g, dtype=torch.float64) / 2 if bias else None
    return Fit(family=family, weight=weight, bias=held, **more), g


def target_for(fit, g):
    outputs = len(fit.weight)
    if fit.family == "linear":
        return torch.randn(outputs, generator=g, dtype=torch.float64)
    if fit.family == "gamma":
        return -0.1 - torch.rand(outputs, generator=g, dtype=torch.float64)
    if fit.family == "poisson":
        return torch.randint(0, 5, (outputs,), generator=g).double()
    at = int(torch.randint(0, max(2, outputs), (), generator=g))
    return torch.eye(outputs).double()[at] if outputs > 1 else torch.tensor([float(at)]).double()


@pytest.mark.parametrize("family", FAMILIES)
def test_the_gradient_is_that_of_the_objective(family):
    fit, g = fit_of(family, penalty=0.7, bias_penalty=0.2)
    inputs = torch.randn(9, 4, generator=g, dtype=torch.float64)
    if family == "gamma":  # its outputs are positive
        inputs = inputs + 4 * fit.weight.sign() + 2 * fit.weight / fit.weight.square().sum()
    targets = torch.stack([target_for(fit, g) for _ in range(9)])
    weights = torch.rand(9, generator=g, dtype=torch.float64)
    w, b = fit.weight.clone().requires_grad_(), fit.bias.clone().requires_grad_()
    loss = (weights * LOSSES[family](inputs @ w.T + b, targets)).sum()
    (loss + 0.35 * w.square().sum() + 0.1 * b.square().sum()).backward()
    found = objective_gradient(fit, inputs, targets, weights)
    torch.testing.assert_close(found[:, :-1], w.grad)
    torch.testing.assert_close(found[:, -1], b.grad)


@settings(max_examples=60, deadline=None)
@given(
    family=st.sampled_from(FAMILIES),
    outputs=st.integers(1, 4),
    weight=st.floats(0.1, 10),
    seed=st.integers(0, 10_000),
)
def test_one_record_comes_back_from_its_own_gradient(family, outputs, weight, seed):
    fit, g = fit_of(family, seed, outputs)
    truth = torch.randn(4, generator=g, dtype=torch.float64)
    target = target_for(fit, g)
    weights = torch.tensor([weight], dtype=torch.float64)
    gradient = -objective_gradient(fit, truth[None], target[None], weights)
    (free,) = recover(fit, gradient, weight=weight)
    assert float((free.input - truth).norm() / truth.norm()) < 1e-9
    torch.testing.assert_close(free.target, target, atol=1e-9, rtol=1e-9)
    (told,) = recover(fit, gradient, weight=weight, target=target)
    assert told.misfit < 1e-8
    (wrong,) = recover(fit, gradient, weight=weight, target=target + 1)
    assert wrong.misfit > 0.5 / float(told.residual.norm())


@settings(max_examples=40, deadline=None)
@given(family=st.sampled_from(FAMILIES), seed=st.integers(0, 10_000))
def test_without_a_bias_the_record_is_among_the_roots(family, seed):
    fit, g = fit_of(family, seed, bias=False)
    truth, target = torch.randn(4, generator=g, dtype=torch.float64), target_for(fit, g)
    gradient = -objective_gradient(fit, truth[None], target[None], torch.ones(1).double())
    assert recover(fit, gradient) == []  # the target has to be given
    found = recover(fit, gradient, target=target)
    assert len(found) <= 2 or family != "linear"  # Theorem 8
    best = min(found, key=lambda r: float((r.input - truth).norm()))
    scale = float(truth.norm())
    # Where two roots meet, rounding parts them by its square root.
    assert float((best.input - truth).norm()) / scale < max(1e-8, 1e-13 * best.amplification)


def test_theorem_8_as_printed_gives_the_same_two_records():
    fit, g = fit_of("linear", bias=False)
    inputs = torch.randn(30, 4, generator=g, dtype=torch.float64)
    y = torch.randn(30, generator=g, dtype=torch.float64)
    theta = torch.linalg.lstsq(inputs, y[:, None]).solution
    fit = Fit(family="linear", weight=theta.T, bias=None)
    known, e = inputs[:-1], inputs[:-1] @ theta[:, 0] - y[:-1]
    inner = e @ known @ theta[:, 0]
    roots = [y[-1] + sign * (y[-1] ** 2 - 4 * inner).sqrt() for sign in (1, -1)]
    printed = torch.stack([known.T @ e * root / (2 * inner) for root in roots])
    gradient = objective_gradient(fit, known, y[:-1, None], torch.ones(29).double())
    found = torch.stack([r.input for r in recover(fit, gradient, target=y[-1:])])
    distance = torch.cdist(printed, found)
    assert float(distance.min(1).values.max()) < 1e-9
    assert float(distance.min(0).values.max()) < 1e-9
    assert float((found - inputs[-1]).norm(dim=1).min()) < 1e-9


@pytest.mark.parametrize("family", ["linear", "logistic", "poisson"])
def test_amplification_is_what_noise_in_the_gradient_does(family):
    fit, g = fit_of(family, 3)
    truth, target = torch.randn(4, generator=g, dtype=torch.float64), target_for(fit, g)
    gradient = -objective_gradient(fit, truth[None], target[None], torch.ones(1).double())
    (exact,) = recover(fit, gradient, target=target)
    errors, shown = [], []
    for _ in range(400):
        noise = 1e-6 * torch.randn(gradient.shape, generator=g, dtype=torch.float64)
        (moved,) = recover(fit, gradient + noise, target=target)
        errors.append(float((moved.input - truth).norm() / truth.norm()))
        shown.append(moved.leftover)
    rms = math.sqrt(sum(e * e for e in errors) / len(errors))
    assert rms == pytest.approx(1e-6 * exact.amplification, rel=0.15)
    # One equation too many: on average it tells how large the noise was.
    assert math.sqrt(sum(s * s for s in shown) / len(shown)) == pytest.approx(1e-6, rel=0.15)


def test_curvature_is_the_derivative_of_the_gradient():
    fit, g = fit_of("logistic", penalty=0.3)
    inputs = torch.randn(9, 4, generator=g, dtype=torch.float64)
    targets, weights = torch.zeros(9, 1).double(), torch.ones(9).double()

    def gradient(theta):
        moved = Fit(family="logistic", weight=theta[None, :-1], bias=theta[-1:], penalty=0.3)
        return objective_gradient(moved, inputs, targets, weights)[0]

    theta = torch.cat([fit.weight[0], fit.bias])
    slow = torch.autograd.functional.jacobian(gradient, theta)
    torch.testing.assert_close(curvature(fit, inputs, weights), slow)


def test_coarser_numbers_round_the_gradient_more():
    fit, g = fit_of("logistic")
    inputs = torch.randn(9, 4, generator=g, dtype=torch.float64)
    held = (inputs, torch.zeros(9, 1).double(), torch.ones(9).double())
    fine = rounding(fit, *held, data_precision=2.0**-53, coefficient_precision=2.0**-53)
    coarse = rounding(fit, *held, data_precision=2.0**-24, coefficient_precision=2.0**-24)
    assert coarse == pytest.approx(2.0**29 * fine)


@pytest.mark.parametrize(
    ("a", "b", "c", "roots"),
    [(1, -3, 2, [1, 2]), (0, 2, -4, [2]), (1, 0, 1, []), (1, 0, -4, [-2, 2])],
)
def test_quadratic(a, b, c, roots):
    assert sorted(quadratic(a, b, c)) == pytest.approx(roots)


def test_a_scaler_of_all_records_gives_the_missing_one_away_and_one_of_the_known_does_not():
    rows = torch.randn(40, 3, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    rows[:, 2] = 5.0  # a constant feature has no spread to check
    std = torch.where(rows.std(0, correction=0) > 0, rows.std(0, correction=0), 1.0)
    found, misfit = from_mean(rows[:-1], rows.mean(0), std)
    torch.testing.assert_close(found, rows[-1])
    assert misfit < 1e-12
    known = rows[:-1]
    assert from_mean(known, known.mean(0), known.std(0, correction=0).clamp(min=1)) is None
    assert from_mean(known, known.mean(0), torch.ones(3).double()) is None
    assert from_mean(torch.ones(5, 2).double(), torch.ones(2).double(), torch.ones(2)) is None
