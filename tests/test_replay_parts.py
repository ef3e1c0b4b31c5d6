"""What replay is made of: derivatives through a run, kinks, frames, columns, solvers of rows."""

from dataclasses import replace

import pytest
import torch

from remnant.solvers.numerics import minimise
from remnant.solvers.replay.certify import idle_records
from remnant.solvers.replay.chart import Chart, chart_of
from remnant.solvers.replay.columns import (
    Anderson,
    end_of_layer,
    grid_of,
    known_box,
    parts_of,
    solve_columns,
)
from remnant.solvers.replay.kinks import has_kinks, with_kinks
from remnant.solvers.replay.newton import newton
from remnant.solvers.replay.problem import ReplayProblem, ReplaySettings
from remnant.solvers.replay.run import (
    Observation,
    end_of_run,
    misfit,
    pull_back,
    push_forward,
    states,
)
from remnant.training import SGD, Adam
from replay_case import RECIPE, a_run, seeded, starts_of


def problem_of(run, released, **settings):
    observation = Observation()
    return ReplayProblem(
        run=run, observation=observation, settings=ReplaySettings(**settings),
        seen=observation.seen(run, released), chart=Chart(),
    )  # fmt: skip


@pytest.mark.parametrize(
    "recipe",
    [
        replace(RECIPE, steps=4, weight_decay=1e-2),
        SGD(lr=0.1, epochs=2, batch_size=16),
        Adam(lr=1e-2, steps=4, eps=1e-3),
    ],
    ids=["momentum", "batches", "adam"],
)
@pytest.mark.parametrize("memory", [1 << 30, 1], ids=["all states", "every s-th"])
def test_the_gradient_is_that_of_finite_differences(recipe, memory):
    run, _, truth, labels = a_run(recipe, targets=2)
    observe = Observation().of(run)
    seen = observe(list(run.stack(2)))
    direction = torch.randn(truth.shape, generator=seeded(0), dtype=torch.float64)

    def value(records):
        return misfit(run, records, labels, observe, seen, memory=memory)[0]

    _, gradient = misfit(run, truth, labels, observe, seen, memory=memory)
    h = 1e-5
    slope = (value(truth + h * direction) - value(truth - h * direction)) / (2 * h)
    assert torch.allclose((gradient * direction).flatten(1).sum(1), slope, rtol=1e-5)


@pytest.mark.parametrize(
    ("activation", "at", "low"), [("relu", 0.0, 0.0), ("leaky0.1", 0.0, 0.1), ("floor", -0.5, 0.0)]
)
def test_kinks_keep_their_run_and_gain_a_second_derivative(activation, at, low):
    run, released, truth, labels = a_run(spec=f"mlp:64-8-10:{activation}", targets=1)
    bent = with_kinks(run, 10.0)
    assert has_kinks(run)
    for name, end in bent.named(end_of_run(bent, truth, labels)).items():
        assert torch.allclose(end, released[name], atol=1e-12)
    x = torch.tensor([at - 0.3, at + 0.2], requires_grad=True)
    (slope,) = torch.autograd.grad(bent.model[2](x).sum(), x, create_graph=True)
    (bump,) = torch.autograd.grad(slope.sum(), x)
    s = torch.sigmoid(10 * (x.detach() - at))
    assert torch.allclose(slope, torch.tensor([low, 1.0]))
    assert torch.allclose(bump, (1 - low) * 10 * s * (1 - s))


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_the_first_layer_tells_the_line_outside_the_known_span(activation):
    recipe = replace(RECIPE, weight_decay=1e-2)
    run, released, truth, _labels = a_run(recipe, spec=f"mlp:64-8-10:{activation}")
    frame = chart_of(run, released).frame
    assert frame.shape[2] == 1 + int(torch.linalg.matrix_rank(run.inputs.flatten(1)))
    flat = truth.flatten(1)
    kept = (frame @ (frame.transpose(1, 2) @ flat[:, :, None]))[:, :, 0]
    assert torch.allclose(kept, flat, atol=1e-8)
    noisy = {n: w + 1e-4 * torch.rand(w.shape, generator=seeded(0)) for n, w in released.items()}
    assert chart_of(run, noisy).frame is None
    assert chart_of(a_run(Adam(steps=3))[0], released).frame is None


def test_derivatives_forward_and_backward_agree_with_differences():
    run, _, truth, labels = a_run(targets=2)
    path = states(run, truth, labels)
    change = torch.randn(truth.shape, generator=seeded(0), dtype=torch.float64)
    moved = push_forward(run, path, truth, labels, change)
    h = 1e-5
    ahead, behind = (end_of_run(run, truth + s * h * change, labels) for s in (1, -1))
    for way, a, b in zip(moved, ahead, behind, strict=True):
        assert torch.allclose(way, (a - b) / (2 * h), atol=1e-7)
    pull = [torch.randn(s.shape, generator=seeded(1), dtype=s.dtype) for s in path[-1]]
    pull[len(moved) :] = [torch.zeros_like(p) for p in pull[len(moved) :]]
    back = pull_back(run, path, truth, labels, pull)
    one = sum((p * m).flatten(1).sum(1) for p, m in zip(pull, moved, strict=False))
    assert torch.allclose((back * change).flatten(1).sum(1), one)


def test_one_full_step_without_a_kink_is_gauss_newton():
    run, released, truth, labels = a_run(targets=2)
    near = truth + 1e-4 * torch.randn(truth.shape, generator=seeded(0), dtype=torch.float64)
    problem = problem_of(run, released, bends=(0.0, 0.0), inner=40)
    found = newton(problem, near, labels, 1)
    assert (found.points - truth.flatten(1)).abs().max() < 1e-8
    assert found.evaluations == 3


def test_columns_with_the_true_signals_are_the_record():
    run, released, truth, labels = a_run(Adam(lr=2e-3, steps=10), records=99, targets=2)
    parts = parts_of(run, 0, truth, labels)
    entries, wanted = truth.flatten(1), released[run.names[0]]
    end = end_of_layer(run, run.start[0], parts, entries)
    assert torch.allclose(end, wanted, atol=1e-12)
    assert torch.allclose(parts.end[0], wanted, atol=1e-12)
    start = starts_of(run)[labels].flatten(1)
    found = solve_columns(run, run.start[0], parts, wanted, start, grid_of(known_box(run)))
    assert torch.allclose(found, entries, atol=1e-6)


def test_extrapolation_solves_a_linear_repetition():
    matrix, goal = 0.9 * torch.eye(4).double(), torch.arange(4.0).double()[None]
    matrix[0, 1] = 0.5
    past, x = Anderson(), torch.zeros(1, 4).double()
    for _ in range(7):
        x = past.extrapolated(x, (goal - x) @ (torch.eye(4).double() - matrix).T)
    assert torch.allclose(x, goal, atol=1e-4)
    assert float((goal @ torch.matrix_power(matrix, 7).T).abs().max()) > 1  # without it


def test_a_record_is_idle_where_its_derivative_is_too_short():
    """By two draws of a mean: where a move leaves a hundred times less or more than is matched."""
    run, released, truth, labels = a_run(targets=1)
    observe, units = Observation().of(run), torch.eye(64, dtype=torch.float64)
    path = states(run, truth, labels)
    length = sum(
        float(observe(push_forward(run, path, truth, labels, unit.view_as(truth))).square().sum())
        for unit in units
    )
    left = (0.05 * float(run.inputs.std()) * run.records) ** 2 * length
    for share, idle in [(0.0, False), (1e-3, False), (10.0, True)]:
        matched = torch.tensor([share * left])
        said = idle_records(problem_of(run, released), truth, labels, matched)
        assert said.tolist() == [[idle]]


def bowl(x):
    scale = torch.logspace(0, 3, 6, dtype=torch.float64)
    return (scale * x.square()).sum(1), 2 * scale * x


def bowl_starts():
    sizes = torch.tensor([[1.0], [10.0], [0.1]], dtype=torch.float64)
    return torch.randn(3, 6, generator=seeded(0), dtype=torch.float64) * sizes


def test_rows_of_lbfgs_are_independent():
    together = minimise(bowl, bowl_starts(), evaluations=60)
    alone = minimise(bowl, bowl_starts()[1:2], evaluations=60)
    assert together.values.max() < 1e-15
    assert torch.allclose(together.points[1:2], alone.points, atol=1e-12)


def test_a_step_that_climbs_is_never_taken():
    """A valley that bends, in units so small that an absolute slack would let any step pass."""

    def valley(x):
        a, b = x[:, 0], x[:, 1]
        across = b - a.square()
        value = 1e-3 * ((1 - a).square() + 100 * across.square())
        slope = torch.stack([-2 * (1 - a) - 400 * a * across, 200 * across], dim=1)
        return value, 1e-3 * slope

    starts = torch.tensor([[-1.2, 1.0], [0.0, 2.0], [2.0, -1.0]], dtype=torch.float64)
    found = minimise(valley, starts, evaluations=120)
    trace = torch.stack(found.trace)
    assert bool((trace.diff(dim=0) <= 0).all())
    assert float(found.values.max()) < 1e-15
    assert bool((found.values[None] == trace[-1]).all())
