"""The exact solver's problem on faces, small enough for tests, and its true duals."""

import math

import torch

from remnant.evidence import weight_difference
from remnant.solvers.dense.problem import pose
from remnant.solvers.dense.reflections import Graph
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.layers import first_pair
from remnant.solvers.spans import decompose, span_of
from seeding import seeded
from targets import faces_target


def small_problem():
    target, truth, _ = faces_target()
    evidence = weight_difference(target)
    pair = first_pair(target.model)
    change = pair.first.affine(evidence.vector)
    problem = pose(
        span_of(decompose(change), len(truth)),
        pair.first.affine(evidence.start),
        pair.first.affine(evidence.end),
        evidence.vector[pair.next.weight],
        precision=evidence.precision,
    )
    inputs = target.scaling.to_model(truth).flatten(1).double()
    return problem, torch.cat([inputs, torch.ones(len(inputs), 1)], dim=1)


def true_duals(problem, records):
    """Rows z with left z_i = a_i, from M = A X~ solved for A."""
    coordinates = records @ problem.span.right.T
    z = torch.linalg.inv(coordinates).T * problem.span.scale
    return torch.nn.functional.normalize(z, dim=1)


def planted(width=120, count=4):
    """The spaces of random records whose weights do not drift, and their t and duals."""
    first = torch.linalg.qr(torch.randn(width, count, generator=seeded(1)))[0]
    t = first @ torch.randn(count, count, generator=seeded(2))
    features = torch.linalg.qr(t.clamp(min=0))[0]
    duals = torch.randn(width, count, generator=seeded(4)) * (t > 0)
    light = TOLERANCES.end_weight
    ends = torch.cat([first, math.sqrt(light) * first]) / math.sqrt(1 + light)
    space = torch.linalg.qr(duals)[0]
    none = torch.zeros(0, count)
    return Graph(ends=ends, features=features @ features.T, duals=space, found=none), t, duals
