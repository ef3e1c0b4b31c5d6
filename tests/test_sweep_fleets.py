"""Fleets spread over workers and kept: the same models, and never stale ones."""

import itertools
from dataclasses import replace

import pytest
import safetensors.torch
import torch

from remnant.data import load
from remnant.errors import StoreError
from remnant.models import build
from remnant.store import read_run, spec_hash
from remnant.sweep import fleets
from remnant.sweep.executors import task_hash
from remnant.sweep.fleets import Fleet, fleet_spec, spread_fleet, train_part
from remnant.training import SGD, GradientDescent, PrivateDescent, train
from remnant.types import Scaling


def small_fleet(**changes):
    examples = load("digits")
    others = examples.take(range(40, 49))
    values = {
        "model": build("mlp:64-6-10:elu", generator=torch.Generator().manual_seed(0)),
        "fixed": examples.take(range(40)),
        "inputs": others.inputs,
        "labels": others.labels,
        "recipe": GradientDescent(lr=0.1, momentum=0.9, steps=5),
        "scaling": Scaling(mean=examples.inputs.mean(0)),
    }
    return Fleet(**{**values, **changes})


def folder(cache):
    (only,) = cache.glob("fleet-*")
    return only


def test_chunks_on_workers_are_the_fleet(tmp_path):
    fleet = small_fleet()
    whole = fleet.train(slice(None))
    spread = spread_fleet(fleet, cache=tmp_path, on="jobs:2", memory=30_000)
    for name, value in whole.items():
        assert spread[name].shape == value.shape
        assert torch.allclose(spread[name], value, atol=1e-6)
    assert read_run(folder(tmp_path)).finished


def test_a_small_memory_makes_small_chunks(tmp_path, monkeypatch):
    seen = []

    def watched(spec, fleet):
        seen.append((spec["begin"], spec["end"]))
        return train_part(spec, fleet)

    monkeypatch.setattr(fleets, "train_part", watched)
    spread_fleet(small_fleet(), cache=tmp_path / "a", on="jobs:1", memory=30_000)
    assert seen[0][0] == 0
    assert seen[-1][1] == 9
    assert all(before[1] == after[0] for before, after in itertools.pairwise(seen))
    small = len(seen)
    spread_fleet(small_fleet(), cache=tmp_path / "b", on="jobs:1")
    assert len(seen) == small + 1 > 2


def test_a_fleet_is_read_again_and_only_one_chunk_trained(tmp_path, monkeypatch):
    fleet = small_fleet()
    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 3)
    first = spread_fleet(fleet, cache=tmp_path, on="jobs:1")
    trained = []
    train = Fleet.train
    monkeypatch.setattr(
        Fleet, "train", lambda self, part, *more: trained.append(part) or train(self, part, *more)
    )
    again = spread_fleet(fleet, cache=tmp_path, on="jobs:1")
    assert all(torch.equal(first[name], again[name]) for name in first)
    assert [part.stop - part.start for part in trained] == [3]  # the check


def test_a_chunk_that_is_done_survives_a_kill(tmp_path, monkeypatch):
    fleet = small_fleet()
    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 4)

    def killed(run, name, value):
        raise KeyboardInterrupt

    monkeypatch.setattr("remnant.store.write_bytes", killed)
    with pytest.raises(KeyboardInterrupt):
        spread_fleet(fleet, cache=tmp_path, on="jobs:1")
    monkeypatch.undo()
    monkeypatch.setitem(fleets.spread_fleet.__kwdefaults__, "most", 4)
    monkeypatch.setattr(Fleet, "train", lambda *_, **__: pytest.fail("trained again"))
    weights = spread_fleet(fleet, cache=tmp_path, on="jobs:1")
    assert all(len(value) == 9 for value in weights.values())


def test_a_stale_fleet_is_caught_though_its_file_is_whole(tmp_path, monkeypatch):
    """As if the code that trains had changed: what is there is not what training gives now."""
    fleet = small_fleet()
    train = Fleet.train
    with monkeypatch.context() as patch:
        patch.setattr(
            Fleet,
            "train",
            lambda self, part, *m: {n: v + 0.01 for n, v in train(self, part).items()},
        )
        spread_fleet(fleet, cache=tmp_path, on="jobs:1")
    with pytest.raises(
        StoreError, match=r"a stale one: model \d+ off by 1.0e-02 in .*trained again"
    ):
        spread_fleet(fleet, cache=tmp_path, on="jobs:1")


def test_an_altered_file_is_caught(tmp_path):
    fleet = small_fleet()
    spread_fleet(fleet, cache=tmp_path, on="jobs:1")
    path = folder(tmp_path) / "fleet.safetensors"
    weights = safetensors.torch.load_file(path)
    path.write_bytes(safetensors.torch.save({n: v.clone() * 2 for n, v in weights.items()}))
    with pytest.raises(StoreError, match="expected the file that the run wrote, got another"):
        spread_fleet(fleet, cache=tmp_path, on="jobs:1")


def test_all_that_decides_a_fleet_is_in_its_name():
    fleet = small_fleet()
    other = build("mlp:64-6-10:elu", generator=torch.Generator().manual_seed(1))
    variants = [
        fleet,
        replace(fleet, model=other),
        replace(fleet, model=build("mlp:64-6-10:tanh", generator=torch.Generator().manual_seed(0))),
        replace(fleet, fixed=fleet.fixed.take(range(39))),
        replace(fleet, inputs=fleet.inputs + 0.1),
        replace(fleet, labels=fleet.labels.flip(0)),
        replace(fleet, recipe=GradientDescent(lr=0.1, momentum=0.9, steps=6)),
        replace(fleet, recipe=SGD(lr=0.1, momentum=0.9, epochs=5, batch_size=8)),
        replace(fleet, scaling=Scaling()),
        replace(fleet, order_seed=1),
        replace(fleet, initial={n: p.detach() * 2 for n, p in fleet.model.named_parameters()}),
    ]
    assert len({spec_hash(fleet_spec(one)) for one in variants}) == len(variants)
    chunk = {"fleet": "x", "begin": 0, "end": 4, "memory": 1}
    assert task_hash(train_part, chunk) != task_hash(train_part, {**chunk, "end": 5})


class Times(torch.nn.Module):
    """Its text does not say by how much."""

    def __init__(self, factor):
        super().__init__()
        self.factor = factor

    def forward(self, inputs):
        return self.factor * inputs


def test_a_model_is_more_than_its_text_and_no_more_than_its_start():
    linear = small_fleet().model
    once, twice = (torch.nn.Sequential(Times(factor), linear) for factor in (1.0, 2.0))
    assert str(once) == str(twice)
    one, other = (spec_hash(fleet_spec(small_fleet(model=model))) for model in (once, twice))
    assert one != other
    start = {name: p.detach().clone() for name, p in linear.named_parameters()}
    released = build("mlp:64-6-10:elu", generator=torch.Generator().manual_seed(7))
    one, other = (
        spec_hash(fleet_spec(small_fleet(model=model, initial=start)))
        for model in (linear, released)
    )
    assert one == other


def test_a_private_fleet_is_kept_and_is_private_training_from_the_initial_weights(tmp_path):
    start = build("mlp:64-6-10:elu", generator=torch.Generator().manual_seed(7))
    initial = {name: p.detach() for name, p in start.named_parameters()}
    still = PrivateDescent(lr=0.5, steps=5, noise=0.0, clip=0.4)
    fleet = small_fleet(recipe=still, initial=initial)
    whole, digits = fleet.train(slice(None)), load("digits")
    alone = train(
        start, digits.take([*range(40), 42]), still,
        scaling=fleet.scaling, generator=torch.Generator(),
    )  # fmt: skip
    for name, value in alone.final.items():
        assert torch.allclose(whole[name][2], value, atol=1e-5), name
    noisy = replace(fleet, recipe=replace(still, noise=1.0))
    made = spread_fleet(noisy, cache=tmp_path, on="jobs:1", most=4)
    kept = spread_fleet(noisy, cache=tmp_path, on="jobs:1", most=4)  # one of them trained again
    assert all(torch.equal(kept[name], value) for name, value in made.items())
    assert not torch.allclose(made["1.weight"][0], whole["1.weight"][0], atol=1e-3)
