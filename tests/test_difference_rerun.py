"""The training between two checkpoints run again: its recipe, its path, and better records."""

import functools
from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant.attacks import NTK
from remnant.data import load
from remnant.evidence import weight_difference
from remnant.models import build
from remnant.solvers.dense.polish import (
    Layers,
    Sensitivity,
    fit_points,
    path_of,
    polish,
    tail_after,
    training_of,
)
from remnant.solvers.dense.rerun import (
    Budget,
    distance,
    fit_recipe,
    fit_steps,
    run_again,
    with_steps,
)
from remnant.solvers.dense.smooth import tangent
from remnant.solvers.layers import first_pair
from remnant.solvers.spans import decompose, span_of
from remnant.training import SGD, GradientDescent, train
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded

RECIPE = GradientDescent(lr=0.2, momentum=0.8, steps=14)


@functools.cache
def smooth_target(recipe=RECIPE, records=6, width=64, dtype=torch.float64):
    """(target, truth): a tanh network trained on a few digits."""
    examples = load("digits")
    truth, scaling = examples.take(range(records)), Scaling(mean=examples.inputs[500:].mean(0))
    model = build(f"mlp:64-{width}-{width}-10:tanh", generator=seeded(1), dtype=dtype)
    trained = train(model, truth, recipe, scaling=scaling, generator=seeded(0))
    knowledge = Knowledge(initial=trained.initial)
    shape = examples.shape
    target = Target(model=trained.model, input_shape=shape, scaling=scaling, knowledge=knowledge)
    return target, truth


@functools.cache
def ends(**which):
    """(training, next layer's change, direction of the bias' 1, true points) of that target."""
    target, truth = smooth_target(**which)
    evidence, pair = weight_difference(target), first_pair(target.model)
    span = span_of(decompose(pair.first.affine(evidence.vector)), len(truth))
    tail = tail_after(target.model, pair)
    training = training_of(tail, evidence, pair, span, truth.labels)
    inputs = target.scaling.to_model(truth.inputs.double()).flatten(1)
    y = nn.functional.pad(inputs, (0, 1), value=1.0) @ span.right.T
    return training, pair.next.affine(evidence.vector), span.right[:, -1], y


def near(y, size=1e-2):
    """y off by `size`, the bias' 1 kept."""
    _, _, last, _ = ends()
    moves = tangent(last)
    noise = torch.randn(y.shape[0], moves.shape[1], generator=seeded(3), dtype=torch.float64)
    return y + size * noise @ moves.T


def squared(y, other):
    return float((y - other).square().sum(1).max())


def test_the_run_is_the_training():
    training, _, _, y = ends()
    end = run_again(training, y, RECIPE, Budget())
    assert float(distance(end, training.end).sqrt() / training.moved) < 1e-5
    budget = Budget(steps=20)
    run_again(training, y, RECIPE, budget)
    assert budget.steps == 20 - RECIPE.steps


def test_the_recipe_is_read_off_the_weights():
    training, _, _, y = ends()
    guess = replace(RECIPE, lr=0.5, momentum=0.3)
    fit = fit_recipe(training, y, guess, Budget(), rounds=12)
    assert fit.recipe.lr == pytest.approx(0.2, rel=1e-3)
    assert fit.recipe.momentum == pytest.approx(0.8, abs=1e-3)
    wrong = fit_recipe(training, y, with_steps(fit.recipe, 20), Budget())
    found = fit_steps(training, y, wrong, Budget(), (4, 1))
    assert found.recipe.steps == RECIPE.steps
    assert found.gap < 0.1 * wrong.gap


def test_another_number_of_steps_takes_nearly_the_same_path():
    training, _, _, y = ends()
    end = run_again(training, y, with_steps(RECIPE, 28), Budget())
    assert float(distance(end, training.end).sqrt() / training.moved) < 0.1


def test_the_path_goes_from_end_to_end():
    training, _, _, y = ends()
    path = path_of(training, near(y, 0.1), RECIPE, Budget())
    assert torch.equal(path[0], training.start[0].double())
    assert float((path[-1] - training.end[0]).abs().max()) < 1e-6


def test_a_sensitivity_and_its_transpose_agree():
    def draw(*shape):
        return torch.randn(*shape, generator=generator, dtype=torch.float64)

    generator = seeded(0)
    right = torch.linalg.qr(draw(9, 3))[0].T
    operator = Sensitivity(
        right=right,
        signals=draw(7, 2 * 4),
        slopes=[draw(4, 8) for _ in range(2)],
        frames=[draw(8, 5) for _ in range(2)],
    )
    e, rest = draw(4, 5), draw(7, 9)
    assert float((operator.forth(e) * rest).sum()) == pytest.approx(
        float((e * operator.back(rest)).sum()), rel=1e-10
    )
    assert float((operator.forth(e) @ right.T).abs().max()) < 1e-10


def test_points_follow_from_the_true_path():
    training, change, last, y = ends()
    path = path_of(training, y, RECIPE, Budget())
    rough = near(y, 1e-2)
    layers = Layers(
        activation=nn.Tanh(),
        training=training,
        change=change,
        moves=tangent(last),
        free=True,
        budget=Budget(),
    )
    better = fit_points(layers, path, rough, 1e-4)
    assert squared(better, y) < 1e-2 * squared(rough, y)


def test_polished_points_are_as_near_as_said():
    training, change, last, y = ends()
    rough = near(y, 1e-2)
    found = polish(nn.Tanh(), training, change, last, rough, loss="ce")
    assert found is not None
    assert found.fit.gap < 1e-3
    assert squared(found.y, y) < 1e-2 * squared(rough, y)
    assert squared(found.y, y) < found.error
    told = polish(nn.Tanh(), training, change, last, rough, loss="ce", told=RECIPE)
    assert told is not None
    assert told.fit.recipe.steps == RECIPE.steps
    assert squared(told.y, y) < told.error


def test_a_run_that_explains_nothing_is_none():
    training, change, last, y = ends()
    labels = (training.labels + 1) % 10
    other = replace(training, labels=labels)
    assert polish(nn.Tanh(), other, change, last, y, loss="ce") is None


def test_the_attack_tells_records_and_recipe():
    target, truth = smooth_target(records=8, width=128, dtype=torch.float32)
    found = NTK(preset="exact")(target, generator=seeded(0))
    assert found.status is Status.COMPLETE, found.reason
    assert "14 steps of 0.2 with momentum 0.8" in found.reason
    away = torch.cdist(truth.inputs.flatten(1), found.inputs.flatten(1)).square()
    error = truth.inputs[0].numel() * torch.tensor(found.stated.error).square()
    assert bool((away.min(0).values <= error).all())
    assert float(error.max()) < 1e-3
    assert found.figures["rerun"]["gap"] < 1e-3


def test_mini_batches_leave_the_records_as_they_were():
    batches = SGD(lr=0.1, momentum=0.8, epochs=6, batch_size=3)
    target, truth = smooth_target(recipe=batches, records=8, width=128)
    found = NTK(preset="exact")(target, generator=seeded(0))
    away = torch.cdist(truth.inputs.flatten(1), found.inputs.flatten(1)).square()
    passed = torch.tensor(found.stated.passed)
    stated = torch.tensor([error or 0.0 for error in found.stated.error])
    error = truth.inputs[0].numel() * stated.square()
    assert bool((away.min(0).values <= error)[passed].all())
