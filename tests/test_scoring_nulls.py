"""Nulls: what they are made of, and that the seed alone decides."""

import pytest
import torch

from remnant.errors import DataError
from remnant.scoring import squared_l2
from remnant.scoring.nulls import blends, held_out, nearest_public, span_noise
from seeding import seeded

TRAIN = torch.rand(6, 1, 5, 5, generator=seeded(9))


def test_held_out_draws_each_input_once():
    pool = torch.arange(20.0).reshape(10, 2)
    drawn = held_out(pool, 10, seeded())
    assert sorted(drawn[:, 0].tolist()) == pool[:, 0].tolist()
    assert held_out(pool, 4, seeded(1)).shape == (4, 2)
    with pytest.raises(DataError, match="expected at least 11 inputs, got 10; hold out more"):
        held_out(pool, 11, seeded())


@pytest.mark.parametrize("k", [1, 2, 3])
def test_blends_are_convex_and_of_k_records(k):
    mixed = blends(TRAIN, 50, seeded(), k=k)
    assert mixed.shape == (50, 1, 5, 5)
    assert mixed.dtype == TRAIN.dtype
    weights = torch.linalg.lstsq(TRAIN.flatten(1).T.double(), mixed.flatten(1).T.double()).solution
    assert ((weights > 1e-6).sum(0) <= k).all()
    assert (weights > -1e-5).all()
    torch.testing.assert_close(weights.sum(0), torch.ones(50).double(), rtol=0, atol=1e-5)
    if k > 1:
        assert float(((weights > 1e-6).sum(0) == k).double().mean()) > 0.9


def test_span_noise_lies_in_the_span_and_is_as_long_as_a_record():
    noise = span_noise(TRAIN.double(), 30, seeded()).flatten(1)
    rows = TRAIN.double().flatten(1)
    projected = noise @ torch.linalg.pinv(rows) @ rows
    torch.testing.assert_close(projected, noise)
    lengths = rows.norm(dim=1)
    gaps = (noise.norm(dim=1)[:, None] - lengths[None]).abs().min(1).values
    assert float(gaps.max()) < 1e-9


@pytest.mark.parametrize("null", [blends, span_noise])
def test_the_seed_alone_decides_and_none_is_allowed(null):
    torch.testing.assert_close(null(TRAIN, 7, seeded(3)), null(TRAIN, 7, seeded(3)), rtol=0, atol=0)
    assert not torch.equal(null(TRAIN, 7, seeded(3)), null(TRAIN, 7, seeded(4)))
    assert null(TRAIN, 0, seeded()).shape == (0, 1, 5, 5)
    assert null(TRAIN[:1], 2, seeded()).shape == (2, 1, 5, 5)


def test_nearest_public_agrees_with_the_whole_matrix():
    public = torch.rand(300, 1, 5, 5, generator=seeded(1))
    public[17] = TRAIN[2]
    index, distance = nearest_public(TRAIN, public, block=4)
    whole = squared_l2(TRAIN, public)
    assert index.tolist() == whole.argmin(1).tolist()
    torch.testing.assert_close(distance, whole.min(1).values)
    assert int(index[2]) == 17
    assert float(distance[2]) == 0.0
    with pytest.raises(DataError, match="at least one public input, got 0"):
        nearest_public(TRAIN, public[:0])
