"""Many private runs at once are private runs one at a time."""

import dataclasses

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.models import build
from remnant.solvers.replay.run import end_of_run, misfit
from remnant.training import GradientDescent, PrivateDescent, train
from remnant.training.fleet import advance, begin, share, train_fleet
from remnant.training.stacked import clipped_sum
from remnant.types import Scaling
from seeding import seeded

DIGITS = load("digits")
KNOWN = DIGITS.take(range(20))
RECIPE = PrivateDescent(lr=0.5, steps=5, noise=0.0, clip=0.4, momentum=0.5, weight_decay=1e-3)


def network(text="mlp:64-8-10:elu"):
    return build(text, generator=seeded(), dtype=torch.float64)


def shared(text="mlp:64-8-10:elu", **changes):
    recipe = dataclasses.replace(RECIPE, **changes)
    return share(network(text), KNOWN, recipe, scaling=Scaling())


def fleet(run, rows, seed=0, **more):
    part = DIGITS.take(rows)
    return train_fleet(
        run.model, KNOWN, part.inputs, part.labels, run.recipe,
        scaling=Scaling(), generator=seeded(seed), **more,
    )  # fmt: skip


@pytest.mark.parametrize("text", ["mlp:64-8-10:elu", "mlp:64-6-6-10:nobias", "mlp:64-6-10:tanh"])
def test_a_run_is_that_of_train(text):
    run = shared(text)
    stacked = fleet(run, [30, 31])
    for k, row in enumerate((30, 31)):
        both = DIGITS.take([*range(20), row])
        alone = train(network(text), both, run.recipe, scaling=Scaling(), generator=seeded())
        for name, value in alone.final.items():
            assert torch.allclose(stacked[name][k], value, atol=1e-12), name


def test_other_losses_and_no_clipping_are_plain_descent():
    run = shared(loss="mse", clipping=False)
    plain = GradientDescent(lr=0.5, steps=5, momentum=0.5, weight_decay=1e-3, loss="mse")
    both = DIGITS.take([*range(20), 30])
    alone = train(network(), both, plain, scaling=Scaling(), generator=seeded())
    for name, value in fleet(run, [30]).items():
        assert torch.allclose(value[0], alone.final[name], atol=1e-10)


def test_clipping_binds_and_a_broken_record_counts_as_nothing():
    run = shared()
    weights = [w[None] for w in run.start]
    each = [
        clipped_sum(run.model, run.recipe, weights, run.inputs[[i]], run.labels[[i]])
        for i in range(20)
    ]
    norms = torch.tensor([torch.cat([g.flatten() for g in one]).norm() for one in each])
    assert (norms <= 0.4 + 1e-9).all()
    assert int((norms > 0.4 - 1e-9).sum()) > 10
    broken = run.inputs[:1].clone()
    broken[0, 0] = torch.inf
    for part in clipped_sum(run.model, run.recipe, weights, broken, run.labels[:1]):
        assert not part.any()


def test_noise_is_that_of_the_recipe_and_each_runs_own():
    run = shared("mlp:64-40-10:elu", steps=1, noise=2.0, momentum=0.0, weight_decay=0.0)
    records, labels, size = run.inputs[:2, None], run.labels[:2, None], len(run.start)
    still, moved = (
        advance(run, 0, begin(run, 2), records, labels, noise)[:size] for noise in (None, seeded())
    )
    gap = torch.cat([(a - b).flatten(1) for a, b in zip(moved, still, strict=True)], 1)
    assert gap.std().item() == pytest.approx(0.5 * 2.0 * 0.4 / 21, rel=0.05)
    assert not torch.allclose(gap[0], gap[1])
    assert torch.equal(fleet(run, [30])["1.weight"], fleet(run, [30])["1.weight"])
    assert not torch.equal(fleet(run, [30])["1.weight"], fleet(run, [30], seed=1)["1.weight"])


def test_chunks_make_no_difference_without_noise():
    whole, small = fleet(shared(), range(30, 35)), fleet(shared(), range(30, 35), memory=1)
    for name, value in whole.items():
        assert torch.allclose(value, small[name])


def test_the_end_of_a_run_is_differentiable_in_the_record():
    run = shared(steps=3)
    labels, point = DIGITS.labels[30:31, None], DIGITS.inputs[30:31, None].double()

    def observe(weights):
        return torch.cat([w.flatten(1) for w in weights], 1)

    direction = torch.randn(point.shape, generator=seeded(), dtype=torch.float64)
    seen = observe(list(run.stack(1)))
    _, gradient = misfit(run, point, labels, observe, seen)
    h = 1e-6
    high, low = (
        (observe(end_of_run(run, point + s * h * direction, labels)) - seen).square().sum()
        for s in (1, -1)
    )
    slope = (high - low) / (2 * h)
    assert (gradient * direction).sum().item() == pytest.approx(slope.item(), rel=1e-6)
    assert abs(slope.item()) > 1e-4


def test_what_it_cannot_do_is_one_line():
    with pytest.raises(InputError, match=r"sampling: expected 1, full batches, got 0\.5"):
        shared(sampling=0.5)
    convolutions = build("cnn:1x8x8-c4k3-10", generator=seeded())
    with pytest.raises(InputError, match="model: expected dense layers and activations"):
        share(convolutions, KNOWN, RECIPE, scaling=Scaling())
