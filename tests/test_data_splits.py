"""Tasks, draws and splits: exact counts, balance, disjointness, and copies kept on one side."""

from collections import Counter

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from remnant.data import binary_task, draw, load, mean_image, split
from remnant.errors import DataError, InputError
from remnant.types import Examples
from seeding import seeded


def make(labels, inputs=None):
    labels = torch.as_tensor(labels)
    n = len(labels)
    inputs = torch.arange(n * 2.0).reshape(n, 2) if inputs is None else inputs
    ids = tuple(f"r{i}" for i in range(n))
    return Examples(inputs=inputs, labels=labels, ids=ids, bounds=None, name="own")


TEN = make(torch.arange(10).repeat(20))


def test_the_two_binary_tasks():
    odd = binary_task(TEN, "odd-even")
    assert torch.equal(odd.labels, TEN.labels % 2)
    animal = binary_task(TEN, "animal-vehicle")
    vehicles = {0, 1, 8, 9}  # airplane, automobile, ship, truck
    assert animal.labels.tolist() == [int(c not in vehicles) for c in TEN.labels.tolist()]
    assert animal.ids == TEN.ids
    assert torch.equal(animal.inputs, TEN.inputs)
    assert TEN.classes == 10
    assert animal.classes == 2


def test_a_task_needs_the_right_number_of_classes():
    with pytest.raises(DataError, match="classes: expected 10, got 3"):
        binary_task(make([0, 1, 2]), "odd-even")
    with pytest.raises(DataError, match="expected 10, got real numbers"):
        binary_task(make([0.5, 1.0]), "odd-even")
    with pytest.raises(InputError, match="task: expected odd-even or animal-vehicle, got 'cats'"):
        binary_task(TEN, "cats")


def test_mean_image():
    faces = load("faces")
    assert mean_image(faces).shape == (1, 25, 25)
    assert mean_image(faces).dtype == torch.float32
    wanted = sum(face.double() for face in faces.inputs) / 100
    torch.testing.assert_close(mean_image(faces).double(), wanted, atol=1e-7, rtol=0)
    with pytest.raises(DataError, match="at least 1"):
        mean_image(TEN.take([]))


@pytest.mark.parametrize("n", [1, 9, 10, 25, 200])
def test_a_draw_is_as_even_as_it_can_be(n):
    drawn = draw(TEN, n, generator=seeded(n))
    counts = [Counter(drawn.labels.tolist())[c] for c in range(10)]
    assert sum(counts) == len(set(drawn.ids)) == n
    assert max(counts) - min(counts) <= 1


def test_a_draw_keeps_inputs_labels_and_ids_together_and_mixes_the_order():
    drawn = draw(TEN, 50, generator=seeded())
    rows = [TEN.ids.index(i) for i in drawn.ids]
    assert torch.equal(drawn.inputs, TEN.inputs[rows])
    assert torch.equal(drawn.labels, TEN.labels[rows])
    assert rows != sorted(rows)
    assert drawn.labels.tolist() != sorted(drawn.labels.tolist())


def test_a_draw_is_its_generators_and_leaves_the_global_one_alone():
    before = torch.get_rng_state()
    assert draw(TEN, 30, generator=seeded(4)).ids == draw(TEN, 30, generator=seeded(4)).ids
    assert draw(TEN, 30, generator=seeded(4)).ids != draw(TEN, 30, generator=seeded(5)).ids
    assert torch.equal(torch.get_rng_state(), before)


def test_the_remainder_goes_to_random_classes():
    extra = {
        draw(make([0, 0, 1, 1, 2, 2]), 1, generator=seeded(s)).labels.item() for s in range(40)
    }
    assert extra == {0, 1, 2}


def test_classes_of_uneven_size():
    uneven = make([0, 0, 0, 0, 3])
    assert sorted(draw(uneven, 3, generator=seeded()).labels.tolist()) == [0, 0, 3]
    match = "records of class 3: expected 2 for a balanced draw of 4 from 2 classes, got 1"
    with pytest.raises(DataError, match=match):
        draw(uneven, 4, generator=seeded())
    assert len(draw(uneven, 4, generator=seeded(), balanced=False)) == 4


def test_real_labels_are_drawn_plainly():
    drawn = draw(make([0.5, 1.5, 1.5, 1.5]), 4, generator=seeded())
    assert sorted(drawn.labels.tolist()) == [0.5, 1.5, 1.5, 1.5]


@pytest.mark.parametrize("n", [0, -1])
def test_nothing_cannot_be_drawn(n):
    with pytest.raises(InputError, match=f"expected at least 1, got {n}"):
        draw(TEN, n, generator=seeded())
    for side in ("train", "public", "holdout"):
        sizes = {"train": 5, "public": 5, "holdout": 5} | {side: n}
        with pytest.raises(InputError, match="expected at least 1"):
            split(TEN, **sizes, seed=0)


def test_too_much_cannot_be_drawn():
    with pytest.raises(DataError, match="expected at least 201, got 200 left of 200"):
        draw(TEN, 201, generator=seeded())
    with pytest.raises(DataError, match="expected at least 51, got 50 left of 200"):
        split(TEN, train=100, holdout=50, public=51, seed=0)
    with pytest.raises(DataError, match="public records: expected at least 1 left, got 0"):
        split(TEN, train=100, holdout=100, public=None, seed=0)
    with pytest.raises(DataError, match="expected at least 5, got 0 left of 0"):
        split(TEN.take([]), train=5, holdout=5, public=None, seed=0)


def test_a_split_takes_all_that_is_left_as_public():
    parts = split(TEN, train=20, holdout=30, public=None, seed=1)
    ids = [*parts.train.ids, *parts.holdout.ids, *parts.public.ids]
    assert (len(parts.train), len(parts.holdout), len(parts.public)) == (20, 30, 150)
    assert sorted(ids) == sorted(TEN.ids)
    assert set(Counter(parts.train.labels.tolist()).values()) == {2}
    assert parts.duplicates == 0


def test_the_training_set_does_not_depend_on_the_other_sizes():
    first = split(TEN, train=20, holdout=30, public=None, seed=1)
    second = split(TEN, train=20, holdout=7, public=9, seed=1)
    assert first.train.ids == second.train.ids
    assert first.train.ids != split(TEN, train=20, holdout=7, public=9, seed=2).train.ids


@pytest.mark.parametrize("seed", [-1, 2**63])
def test_a_seed_out_of_range(seed):
    with pytest.raises(InputError, match="seed: expected 0 to"):
        split(TEN, train=1, holdout=1, public=1, seed=seed)


def test_copies_count_once_whatever_their_label():
    inputs = torch.tensor([[0.0, 1], [2, 3], [-0.0, 1], [2, 3], [4, 5], [2, 3.0000002]])
    parts = split(make([0, 1, 1, 1, 0, 0], inputs), train=1, holdout=1, public=None, seed=0)
    assert parts.duplicates == 2
    ids = {*parts.train.ids, *parts.holdout.ids, *parts.public.ids}
    assert ids == {"r0", "r1", "r4", "r5"}  # the first of each


@settings(max_examples=60, deadline=None)
@given(data=st.data(), seed=st.integers(0, 2**63 - 1), balanced=st.booleans(), real=st.booleans())
def test_any_seed_and_sizes_give_disjoint_sides_of_exact_counts(data, seed, balanced, real):
    n = data.draw(st.integers(4, 60))
    labels = torch.tensor(data.draw(st.lists(st.integers(0, 3), min_size=n, max_size=n)))
    values = torch.tensor(data.draw(st.lists(st.integers(0, 90), min_size=n, max_size=n)))
    examples = make(labels.double() if real else labels, values[:, None].float())
    distinct = len(values.unique())
    sizes = [data.draw(st.integers(1, n)) for _ in range(2)]
    public = data.draw(st.none() | st.integers(1, n))
    try:
        parts = split(
            examples, train=sizes[0], holdout=sizes[1], public=public, seed=seed, balanced=balanced
        )
    except DataError:
        # Only too few records, or (where it was asked for) too few of a class, may stop a split.
        assert (balanced and not real) or sum(sizes) + (public or 1) > distinct
        return
    left = distinct - sum(sizes) if public is None else public
    sides = (parts.train, parts.holdout, parts.public)
    assert [len(side) for side in sides] == [*sizes, left]
    ids = [i for side in sides for i in side.ids]
    inputs = [float(x) for side in sides for x in side.inputs]
    assert len(set(ids)) == len(ids) == len(set(inputs))
    assert parts.duplicates == n - distinct
    for side in sides:
        assert side.labels.tolist() == [examples.labels[examples.ids.index(i)] for i in side.ids]
