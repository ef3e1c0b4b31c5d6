"""A known run on digits of which some records are unknown, small enough for tests."""

import torch

from remnant.data import load
from remnant.models import build
from remnant.solvers.replay.problem import ReplaySettings
from remnant.solvers.replay.run import end_of_run
from remnant.solvers.replay.solve import class_starts
from remnant.training import GradientDescent
from remnant.training.fleet import share
from remnant.types import Scaling
from seeding import seeded

RECIPE = GradientDescent(lr=0.2, momentum=0.9, steps=12)
QUICK = ReplaySettings(evaluations=50, label_evaluations=8)


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
