"""Replay: the gradient through a run, what it recovers, and that it says when it did not."""

from dataclasses import replace

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.models import build
from remnant.solvers.replay import solve as solve_module
from remnant.solvers.replay.chart import Chart, chart_of
from remnant.solvers.replay.columns import (
    Past,
    end_of_layer,
    grid_of,
    parts_of,
    solve_columns,
)
from remnant.solvers.replay.depend import idle_records, sensitivity
from remnant.solvers.replay.kinks import has_kinks, with_kinks
from remnant.solvers.replay.lbfgs import minimise
from remnant.solvers.replay.newton import gauss_newton, least_squares
from remnant.solvers.replay.observe import Observation
from remnant.solvers.replay.outside import frames
from remnant.solvers.replay.solve import class_starts, replay, replay_update
from remnant.solvers.replay.unroll import end_of_run, misfit, pull_back, push_forward, states
from remnant.solvers.replay.ways import ReplaySettings, known_box
from remnant.training import SGD, Adam, GradientDescent
from remnant.training.fleet import share
from remnant.types import Scaling

RECIPE = GradientDescent(lr=0.2, momentum=0.9, steps=12)
QUICK = ReplaySettings(evaluations=50, label_evaluations=8)


def seeded(seed):
    return torch.Generator().manual_seed(seed)


def a_run(recipe=RECIPE, records=30, extra=1, spec="mlp:64-8-10:elu", init=1, order=3, targets=3):
    """(the run, released weights of K models, truth K x m x shape, labels K x m)."""
    examples = load("digits")
    fixed = examples.take(range(records))
    model = build(spec, generator=seeded(init), dtype=torch.float64)
    run = share(model, fixed, recipe, scaling=Scaling(), extra=extra, order=seeded(order))
    rows = torch.arange(100, 100 + targets * extra).view(targets, extra)
    truth, labels = examples.inputs.double()[rows], examples.labels[rows]
    return run, run.named(end_of_run(run, truth, labels)), truth, labels


def starts_of(run):
    return class_starts(run.inputs, run.labels, 10)


def worst(found, truth):
    return float((found.records - truth).square().flatten(1).mean(1).max())


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


def test_records_and_labels_come_back_and_nothing_is_told():
    run, released, truth, labels = a_run()
    found = replay(run, released, starts=starts_of(run), settings=QUICK)
    assert torch.equal(found.labels, labels)
    assert worst(found, truth) < 1e-7
    assert found.matched.all()
    assert found.determined.all()
    assert found.trace[-1] < 1e-6 < found.trace[0]


def test_a_wrong_label_that_came_near_gets_a_second_chance(monkeypatch):
    run, released, truth, labels = a_run()
    first = solve_module.likely_labels

    def misled(problem, weights, starts):
        """Labels one off, as long as not all of them are followed up."""
        points, said, before = first(problem, weights, starts)
        return (
            (points, said, before)
            if problem.settings.doubt > 2
            else (points, (said + 1) % 10, before)
        )

    monkeypatch.setattr(solve_module, "likely_labels", misled)
    monkeypatch.setattr(solve_module, "HOPEFUL", 1e6)
    found = replay(run, released, starts=starts_of(run), settings=QUICK)
    assert torch.equal(found.labels, labels)
    assert worst(found, truth) < 1e-7
    assert found.matched.all()
    monkeypatch.setattr(solve_module, "HOPEFUL", 0.0)
    alone = replay(run, released, starts=starts_of(run), settings=QUICK)
    assert not alone.matched.any()
    assert alone.evaluations < found.evaluations


@pytest.mark.parametrize("what", ["initial weights", "order", "noise"])
def test_a_wrong_run_is_told_by_its_residual(what):
    recipe = SGD(lr=0.1, epochs=4, batch_size=10) if what == "order" else RECIPE
    run, released, truth, labels = a_run(recipe)
    assumed = {"initial weights": {"init": 2}, "order": {"order": 4}, "noise": {}}[what]
    other = a_run(recipe, **assumed)[0]
    if what == "noise":
        noise = {n: torch.randn(w.shape, generator=seeded(0)) for n, w in released.items()}
        released = {n: w + 0.01 * noise[n] for n, w in released.items()}
    starts = starts_of(run)[labels]
    found = replay(other, released, starts=starts, labels=labels, settings=QUICK)
    assert not found.matched.any()
    assert worst(found, truth) > 1e-3


def test_several_unknown_records_and_known_batches():
    for recipe, extra in [(RECIPE, 3), (SGD(lr=0.1, epochs=4, batch_size=10), 1)]:
        run, released, truth, labels = a_run(recipe, extra=extra, targets=1)
        starts = starts_of(run)[labels]
        found = replay(
            run, released, starts=starts, labels=labels, settings=replace(QUICK, evaluations=80)
        )
        assert found.matched.all()
        assert worst(found, truth) < 1e-5


def test_chosen_layers_and_logits():
    run, released, truth, labels = a_run(targets=1)
    starts = starts_of(run)[labels]
    probes = Observation(probes=load("digits").inputs[200:300])
    settings = replace(QUICK, evaluations=150)
    found = replay(
        run, released, starts=starts, labels=labels, observation=probes, settings=settings
    )
    assert found.determined
    assert float(found.residual) < 1e-6
    assert worst(found, truth) < 1e-3
    last = Observation(layers=("3.",))  # 90 numbers, which hold few directions of 64
    found = replay(run, released, starts=starts, labels=labels, observation=last, settings=QUICK)
    assert found.matched.all()
    assert worst(found, truth) > 1e-3
    assert not found.determined.any()
    few = Observation(layers=("3.bias",))
    assert few.chosen(run.names) == ("3.bias",)
    found = replay(run, released, starts=starts, labels=labels, observation=few, settings=QUICK)
    assert not found.determined  # ten numbers cannot tell sixty-four
    with pytest.raises(InputError, match=r"the beginning of some of 1\.weight"):
        Observation(layers=("7",)).chosen(run.names)


def test_a_federated_update_with_nothing_known():
    examples = load("digits")
    recipe = GradientDescent(lr=0.1, steps=5)
    model = build("mlp:64-40-10:elu", generator=seeded(1), dtype=torch.float64)
    run = share(model, examples.take([]), recipe, scaling=Scaling(), extra=2)
    truth, labels = examples.inputs[5:7].double(), examples.labels[5:7]
    released = {n: w[0] for n, w in run.named(end_of_run(run, truth[None], labels[None])).items()}
    found = replay_update(
        run, released, labels, shape=examples.shape, generator=seeded(0), restarts=2,
        settings=replace(QUICK, evaluations=150),
    )  # fmt: skip
    assert found.matched[0]
    assert found.residual[0] <= found.residual[1]
    assert float((found.records[0] - truth).square().mean()) < 1e-6


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


def test_selu_keeps_its_values_and_its_two_slopes():
    run, released, truth, labels = a_run(spec="mlp:64-8-10:selu", targets=1)
    bent = with_kinks(run, 10.0)
    for name, end in bent.named(end_of_run(bent, truth, labels)).items():
        assert torch.allclose(end, released[name], atol=1e-12)
    x = torch.tensor([-0.3, 0.2], dtype=torch.float64, requires_grad=True)
    slopes = [
        torch.autograd.grad(model[2](x).sum(), x, create_graph=True)[0]
        for model in (run.model, bent.model)
    ]
    assert torch.allclose(*slopes)
    (plain, smooth) = (torch.autograd.grad(slope.sum(), x)[0] for slope in slopes)
    s = torch.sigmoid(10 * x.detach())
    assert torch.allclose(
        smooth - plain, -1.0507009873554805 * 0.6732632423543772 * 10 * s * (1 - s)
    )


@pytest.mark.parametrize(
    "activation", ["sigmoid", "softplus", "silu", "tanh", "celu", "selu", "gelu", "identity"]
)
def test_the_activations_of_the_papers_table(activation):
    run, released, truth, labels = a_run(spec=f"mlp:64-8-10:{activation}", targets=2)
    found = replay(run, released, starts=starts_of(run)[labels], labels=labels, settings=QUICK)
    assert worst(found, truth) < 1e-12
    assert (found.matched & found.determined).all()


@pytest.mark.parametrize("activation", ["relu", "elu"])
def test_the_first_layer_tells_the_line_outside_the_known_span(activation):
    recipe = replace(RECIPE, weight_decay=1e-2)
    run, released, truth, _labels = a_run(recipe, spec=f"mlp:64-8-10:{activation}")
    frame = frames(run, released)
    assert frame.shape[2] == 1 + int(torch.linalg.matrix_rank(run.inputs.flatten(1)))
    flat = truth.flatten(1)
    kept = (frame @ (frame.transpose(1, 2) @ flat[:, :, None]))[:, :, 0]
    assert torch.allclose(kept, flat, atol=1e-8)
    noisy = {n: w + 1e-4 * torch.rand(w.shape, generator=seeded(0)) for n, w in released.items()}
    assert frames(run, noisy) is None
    assert frames(a_run(Adam(steps=3))[0], released) is None


def test_relu_records_come_back_though_the_run_jumps():
    run, released, truth, labels = a_run(spec="mlp:64-10-10", records=40, targets=4)
    starts = starts_of(run)[labels]
    steps = replace(QUICK, bends=(3.0, 10.0, 30.0, 0.0, 0.0), evaluations=5, algebra=False)
    found = replay(run, released, starts=starts, labels=labels, settings=steps)
    errors = (found.records - truth).square().flatten(1).mean(1)
    assert int(found.matched.sum()) >= 2
    assert float(errors[found.matched].max()) < 1e-8
    line_search = replace(steps, bends=(), evaluations=40)
    stuck = replay(run, released, starts=starts, labels=labels, settings=line_search)
    assert int(stuck.matched.sum()) < int(found.matched.sum())


def test_relu_records_come_back_column_by_column():
    run, released, truth, labels = a_run(spec="mlp:64-10-10", records=99, targets=4)
    starts, settings = starts_of(run)[labels], replace(QUICK, bends=(), evaluations=30)
    found = replay(run, released, starts=starts, labels=labels, settings=settings)
    assert int(found.matched.sum()) >= 3
    assert worst(replace(found, records=found.records[found.matched]), truth[found.matched]) < 1e-8


def test_relu_with_one_layer_seen():
    run, released, truth, labels = a_run(spec="mlp:64-10-10", records=40, targets=2)
    starts = starts_of(run)[labels]
    settings = replace(QUICK, bends=(3.0, 10.0), evaluations=2)
    seen = Observation(layers=("1.",))
    found = replay(run, released, starts=starts, labels=labels, observation=seen, settings=settings)
    before = (starts - truth).square().flatten(1).mean(1)
    assert ((found.records - truth).square().flatten(1).mean(1) < 0.1 * before).all()


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
    observe = Observation().of(run)
    found = gauss_newton(
        run, near, labels, Observation().seen(run, released),
        observe=observe, chart=Chart(), bends=(0.0, 0.0), inner=40,
    )  # fmt: skip
    assert (found.points - truth.flatten(1)).abs().max() < 1e-8
    assert found.evaluations == 3


def test_least_squares_row_by_row():
    generator = seeded(0)
    maps = torch.randn(2, 9, 5, generator=generator, dtype=torch.float64)
    wanted = torch.randn(2, 9, generator=generator, dtype=torch.float64)
    found = least_squares(
        lambda x: (maps @ x[:, :, None])[:, :, 0],
        lambda y: (maps.transpose(1, 2) @ y[:, :, None])[:, :, 0],
        wanted,
        5,
    )
    assert torch.allclose(found, torch.linalg.lstsq(maps, wanted[:, :, None]).solution[:, :, 0])


def test_adam_is_replayed_column_by_column():
    run, released, truth, labels = a_run(Adam(lr=2e-3, steps=10), records=99, targets=3)
    chart = chart_of(run, released)
    never = run.inputs.flatten(1).abs().amax(0) == 0
    assert int(never.sum()) > 5
    hidden = truth.flatten(1) == 0
    assert torch.equal(chart.scale == 0, never.expand_as(hidden) & hidden)
    found = replay(run, released, starts=starts_of(run), settings=QUICK)
    assert torch.equal(found.labels, labels)
    assert worst(found, truth) < 1e-12
    assert (found.matched & found.determined).all()
    start, settings = starts_of(run)[labels], replace(QUICK, evaluations=20, algebra=False)
    plain = replay(run, released, starts=start, labels=labels, settings=settings)
    assert not plain.matched.any()
    assert worst(plain, truth) > 0.01


def test_adam_in_batches_and_single_precision():
    recipe = Adam(lr=2e-3, steps=12, batch_size=20, weight_decay=1e-3)
    run, released, truth, labels = a_run(recipe, records=99, spec="mlp:64-8-10:tanh", targets=2)
    single = {name: weight.float() for name, weight in released.items()}
    found = replay(run, single, starts=starts_of(run)[labels], labels=labels, settings=QUICK)
    assert found.matched.all()
    assert worst(found, truth) < 1e-6


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
    past, x = Past(), torch.zeros(1, 4).double()
    for _ in range(7):
        x = past.extrapolated(x, (goal - x) @ (torch.eye(4).double() - matrix).T)
    assert torch.allclose(x, goal, atol=1e-4)
    assert float((goal @ torch.matrix_power(matrix, 7).T).abs().max()) > 1  # without it


def silencing(run, deep):
    """1 x shape: a record for which the first layer's units all are at -deep before training."""
    weight, bias = run.start[0], run.start[1]
    return (torch.linalg.pinv(weight) @ (-deep - bias)).view(1, *run.inputs.shape[1:])


def test_a_record_that_silences_every_unit_matches_and_is_not_determined():
    run, _, truth, labels = a_run(spec="mlp:64-8-10", extra=2, targets=1)
    dead = torch.stack([truth[0, 0], silencing(run, 5.0)[0]])[None]
    released = run.named(end_of_run(run, dead, labels))
    moved = dead + 0.1 * torch.tensor([0.0, 1.0]).view(1, 2, 1, 1, 1)
    for end, same in zip(end_of_run(run, moved, labels), released.values(), strict=True):
        assert torch.equal(end, same)  # the run does not see where the second record is
    settings = replace(QUICK, bends=())
    found = replay(run, released, starts=moved, labels=labels, settings=settings)
    assert found.matched.all()
    assert found.idle.tolist() == [[False, True]]
    assert not found.determined.any()
    assert worst(found, dead) > 1e-3


def test_sensitivity_is_the_length_of_the_derivative():
    run, _, truth, labels = a_run(targets=1)
    observe = Observation().of(run)
    found = sensitivity(run, truth, labels, observe=observe, memory=1 << 30)
    path, units = states(run, truth, labels), torch.eye(64, dtype=torch.float64)
    lengths = [
        float(observe(push_forward(run, path, truth, labels, unit.view_as(truth))).square().sum())
        for unit in units
    ]
    assert float(found.sum()) == pytest.approx(sum(lengths), rel=0.5)  # two draws of a mean
    assert found.min() > 0
    strict = torch.tensor([1e9])
    for matched, idle in [(torch.zeros(1), False), (strict, True)]:
        said = idle_records(run, truth, labels, matched, observe=observe, memory=1 << 30)
        assert said.tolist() == [[idle]]


def test_rows_of_lbfgs_are_independent():
    scale = torch.logspace(0, 3, 6, dtype=torch.float64)

    def bowl(x):
        return (scale * x.square()).sum(1), 2 * scale * x

    start = torch.randn(3, 6, generator=seeded(0), dtype=torch.float64) * torch.tensor(
        [[1.0], [10.0], [0.1]], dtype=torch.float64
    )
    together = minimise(bowl, start, evaluations=60)
    alone = minimise(bowl, start[1:2], evaluations=60)
    assert together.values.max() < 1e-15
    assert torch.allclose(together.points[1:2], alone.points, atol=1e-12)


def test_labels_that_do_not_fit_the_run_are_refused():
    run, released, _, labels = a_run(extra=2, targets=1)
    with pytest.raises(InputError, match="one unknown record, or the labels of all"):
        replay(run, released, starts=starts_of(run))
    with pytest.raises(InputError, match="K x 2"):
        replay(run, released, starts=starts_of(run)[labels][:, :1], labels=labels)
