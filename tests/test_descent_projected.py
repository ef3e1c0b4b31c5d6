"""Variable projection in the first layer's span, and what independent starts agree on."""

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import build
from remnant.scoring import centred_correlation
from remnant.solvers.descent.paper import objective
from remnant.solvers.descent.projected import Projected, first_span, project, search
from remnant.training import solve_linearised
from remnant.types import Evidence, Examples, Scaling
from seeding import seeded


def linearised(records=6, size=32, width=128):
    """(model, evidence, records, as many others)."""
    inputs = torch.randn(2 * records, size, generator=seeded(), dtype=torch.float64)
    examples = Examples(
        inputs=inputs[:records], labels=torch.arange(records) % 2,
        ids=tuple(map(str, range(records))), bounds=None,
    )  # fmt: skip
    model = build(
        f"mlp:{size}-{width}-{width}-1", generator=seeded(), init="normal", dtype=torch.float64
    )
    trained = solve_linearised(model, examples, scaling=Scaling())
    vector = {n: trained.final[n] - trained.initial[n] for n in trained.initial}
    evidence = Evidence(vector=vector, start=trained.initial, end=trained.final, precision=2e-16)
    return model, evidence, *inputs.split(records)


def test_projected_duals_are_the_best_ones():
    model, evidence, truth, _ = linearised()
    goal = objective(
        model, evidence.vector, [evidence.start], temperature=20.0, dtype=torch.float64
    )
    duals = project(goal, truth, 1e-12).requires_grad_()
    slope = torch.autograd.grad(goal.loss(truth, duals), duals)[0]
    assert slope.norm() < 1e-8 * evidence.vector["1.weight"].norm()


def test_damping_shrinks_the_duals():
    model, evidence, truth, _ = linearised()
    goal = objective(model, evidence.vector, [evidence.start], temperature=20.0)
    loose, tight = (project(goal, truth.float(), ridge) for ridge in (1e-6, 10.0))
    assert tight.norm() < 0.5 * loose.norm()


def test_the_first_layers_span_holds_the_records_and_only_them():
    model, evidence, truth, others = linearised()
    basis = first_span(model, evidence, 6).double()
    assert (truth - truth @ basis.T @ basis).norm() < 1e-5 * truth.norm()
    assert (others - others @ basis.T @ basis).norm() > 0.5 * others.norm()


def test_there_is_no_span_behind_a_convolution():
    model = nn.Sequential(nn.Conv2d(1, 2, 3), nn.ReLU(), nn.Flatten(), nn.Linear(32, 1))
    start = {n: p.detach().double() for n, p in model.named_parameters()}
    evidence = Evidence(vector=start, start=start, end=start, precision=1e-7)
    assert first_span(model, evidence, 2) is None
    plan = Projected(starts=2, steps=5)
    found = search(model, evidence, plan, shape=(1, 6, 6), records=2, generator=seeded())
    assert found.starts[0].shape == (4, 1, 6, 6)
    assert len(found.inputs) == len(found.confidence)


def test_what_starts_agree_on_is_the_records():
    model, evidence, truth, others = linearised(records=4, width=96)
    plan = Projected(features="initial", starts=3, steps=150, image_std=0.5, per_record=1.5)
    found = search(model, evidence, plan, shape=(32,), records=4, generator=seeded(2))
    assert found.confidence.tolist() == sorted(found.confidence.tolist(), reverse=True)
    sure = found.inputs[found.confidence > 0.9]
    assert len(sure) >= 3
    # By direction: the scale of a record and of its dual hang together.
    right, chance = (centred_correlation(x, sure).amax(1).sort().values for x in (truth, others))
    assert right[1] > 0.9 > 0.6 > chance.max()


def test_same_seed_same_bytes():
    model, evidence, _, _ = linearised()
    plan = Projected(starts=2, steps=3)
    one, two = (
        search(model, evidence, plan, shape=(32,), records=6, generator=seeded(1)) for _ in "ab"
    )
    assert torch.equal(one.inputs, two.inputs)
    assert one.losses == two.losses


def test_settings_are_checked():
    with pytest.raises(InputError, match="projected: starts: expected 1 or more, got 0"):
        Projected(starts=0)
    with pytest.raises(InputError, match="projected: ridge: expected more than 0"):
        Projected(ridge=0.0)
