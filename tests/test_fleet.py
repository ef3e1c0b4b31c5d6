"""Models trained at once are the models trained one at a time."""

from dataclasses import replace

import pytest
import torch

from remnant.data import load
from remnant.errors import InputError
from remnant.models import build
from remnant.training import SGD, Adam, DecayTime, GradientDescent, train
from remnant.training.fleet import chunk_size, share, train_fleet
from remnant.types import Examples, Scaling
from seeding import seeded


def digits(n=40, extra=3):
    examples = load("digits")
    return examples.take(range(n)), examples.take(range(n, n + extra))


def joined(fixed, one):
    return Examples(
        inputs=torch.cat([fixed.inputs, one.inputs]),
        labels=torch.cat([fixed.labels, one.labels]),
        ids=(*fixed.ids, *one.ids),
    )


def assert_same_as_one_at_a_time(model, recipe, dtype=torch.float64, tolerance=1e-10):
    fixed, others = digits()
    scaling = Scaling(mean=fixed.inputs.mean(0))
    stacked = train_fleet(
        model, fixed, others.inputs, others.labels, recipe,
        scaling=scaling, generator=seeded(5), dtype=dtype,
    )  # fmt: skip
    for k in range(len(others)):
        alone = train(
            model, joined(fixed, others.take([k])), recipe,
            scaling=scaling, generator=seeded(5), dtype=dtype,
        )  # fmt: skip
        for name, value in alone.final.items():
            assert torch.allclose(stacked[name][k], value, atol=tolerance, rtol=0), name
            assert not torch.equal(value, alone.initial[name])


@pytest.mark.parametrize("activation", ["elu", "relu", "floor", "cubic", "gelu", "leaky0.1"])
def test_dense_networks_by_stacked_products(activation):
    model = build(f"mlp:64-6-5-10:{activation}", generator=seeded(1))
    recipe = GradientDescent(lr=0.1, momentum=0.9, steps=8, weight_decay=1e-3)
    assert_same_as_one_at_a_time(model, recipe)


def test_what_is_frozen_stays_and_the_rest_is_trained_alike():
    fixed, others = digits()
    model = build("mlp:64-6-5-10:elu", generator=seeded(1))
    model[1].requires_grad_(False)
    recipe, how = GradientDescent(lr=0.1, steps=8), {"scaling": Scaling(), "dtype": torch.float64}
    stacked = train_fleet(
        model, fixed, others.inputs, others.labels, recipe, generator=seeded(5), **how
    )
    assert "1.weight" not in stacked
    for k in range(len(others)):
        alone = train(model, joined(fixed, others.take([k])), recipe, generator=seeded(5), **how)
        for name, values in stacked.items():
            torch.testing.assert_close(values[k], alone.final[name], atol=1e-10, rtol=0)
            assert not torch.equal(alone.final[name], alone.initial[name])
    with pytest.raises(InputError, match="all frozen"):
        share(model.requires_grad_(False), fixed.take(range(0)), recipe, scaling=Scaling())


@pytest.mark.parametrize(
    "recipe",
    [
        GradientDescent(lr=0.1, steps=8, loss="mse"),
        SGD(lr=0.1, epochs=2, batch_size=16, momentum=0.5),
        Adam(lr=1e-2, steps=8, weight_decay=1e-3),
        Adam(lr=1e-2, steps=8, batch_size=16),
    ],
    ids=["mse", "sgd", "adam", "adam in batches"],
)
def test_every_recipe_with_fixed_steps(recipe):
    assert_same_as_one_at_a_time(build("mlp:64-6-10:elu", generator=seeded(1)), recipe)


@pytest.mark.parametrize(
    ("spec", "recipe"),
    [
        ("mlp:64-6-5-10:sigmoid:nobias", GradientDescent(lr=0.1, steps=6, weight_decay=1e-2)),
        ("mlp:64-6-10:elu", SGD(lr=0.02, epochs=2, batch_size=7, loss="mse", weight_decay=1e-2)),
        ("mlp:64-10", GradientDescent(lr=0.1, steps=6)),
    ],
)
def test_every_dense_stack(spec, recipe):
    assert_same_as_one_at_a_time(build(spec, generator=seeded(1)), recipe)


def test_two_classes():
    model = build("mlp:64-6-1:elu", generator=seeded(1), dtype=torch.float64)
    fixed, others = digits()
    fixed, others = (replace(part, labels=part.labels % 2) for part in (fixed, others))
    recipe = GradientDescent(lr=0.1, momentum=0.9, steps=6, loss="bce")
    given = {"scaling": Scaling(), "generator": seeded(0)}
    stacked = train_fleet(model, fixed, others.inputs, others.labels, recipe, **given)
    for k in range(len(others)):
        alone = train(model, joined(fixed, others.take([k])), recipe, **given)
        for name, value in alone.final.items():
            assert torch.allclose(stacked[name][k], value, atol=1e-10, rtol=0)


def test_convolutions_by_mapping():
    model = build("cnn:1x8x8-c3k3s2-c4k2-6-10:elu", generator=seeded(1))
    assert_same_as_one_at_a_time(model, GradientDescent(lr=0.1, momentum=0.9, steps=5))


def test_chunks_change_nothing_and_single_precision_is_close():
    model, recipe = build("mlp:64-6-10:tanh", generator=seeded(1)), GradientDescent(lr=0.2, steps=9)
    fixed, others = digits()
    run = share(model, fixed, recipe, scaling=Scaling())
    one = chunk_size(run, 1)
    assert one == 1
    assert chunk_size(run, 1 << 30) > 1000
    whole, parts = (
        train_fleet(
            model, fixed, others.inputs, others.labels, recipe,
            scaling=Scaling(), generator=seeded(0), memory=memory,
        )
        for memory in (1 << 30, 1)
    )  # fmt: skip
    for name in whole:
        assert torch.allclose(whole[name], parts[name], atol=1e-6)


@pytest.mark.parametrize(
    "recipe", [SGD(lr=0.1, epochs=2, batch_size=16), GradientDescent(lr=0.1, steps=2)]
)
def test_every_model_may_have_its_own_order_and_start(recipe):
    models = [build("mlp:64-6-10:elu", generator=seeded(k), dtype=torch.float64) for k in range(3)]
    fixed, others = digits()
    states = [dict(model.named_parameters()) for model in models]
    initial = {name: torch.stack([s[name].detach() for s in states]) for name in states[0]}
    stacked = train_fleet(
        models[0], fixed, others.inputs, others.labels, recipe, scaling=Scaling(),
        generator=[seeded(10 + k) for k in range(3)], initial=initial,
    )  # fmt: skip
    for k, model in enumerate(models):
        alone = train(
            model, joined(fixed, others.take([k])), recipe,
            scaling=Scaling(), generator=seeded(10 + k),
        )  # fmt: skip
        for name, value in alone.final.items():
            assert torch.allclose(stacked[name][k], value, atol=1e-10)


def test_what_cannot_run_in_step_is_refused():
    model = build("mlp:64-6-10", generator=seeded(1))
    fixed, others = digits()
    for recipe, words in [
        (DecayTime(), "expected GradientDescent, SGD, Adam or PrivateDescent, got DecayTime"),
        (GradientDescent(lr=0.1, steps=3, stop_loss=0.1), "a fixed number of steps"),
    ]:
        with pytest.raises(InputError, match=words):
            train_fleet(
                model, fixed, others.inputs, others.labels, recipe,
                scaling=Scaling(), generator=seeded(0),
            )  # fmt: skip
    with pytest.raises(InputError, match="a generator for their order"):
        share(model, fixed, SGD(lr=0.1, epochs=1, batch_size=8), scaling=Scaling())
