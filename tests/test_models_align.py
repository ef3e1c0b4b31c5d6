"""Weights of other shapes of code: by name, by order, or an error that says where they part."""

from itertools import pairwise

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import nn

from remnant.errors import WeightsError
from remnant.models import align, build, infer_model, load_weights, read_weights, save_weights
from seeding import seeded


class Classes(nn.Module):
    def __init__(self, names=("fc1", "fc2"), sizes=(6, 5, 3)):
        super().__init__()
        self.names = names
        for name, before, after in zip(names, sizes, sizes[1:], strict=False):
            self.add_module(name, nn.Linear(before, after))

    def forward(self, x):
        for name in self.names[:-1]:
            x = torch.relu(self.get_submodule(name)(x))
        return self.get_submodule(self.names[-1])(x)


def plain(*sizes):
    layers = []
    for before, after in pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    return nn.Sequential(*layers[:-1])


def through(kind, tmp_path, weights):
    """The weights as they come back from a file of that kind."""
    path = tmp_path / f"w.{kind}"
    if kind == "safetensors":
        save_weights(path, weights)
    else:
        torch.save(weights, path)
    return read_weights(path)


OTHERS = {
    "the same": (lambda: build("mlp:6-5-3", generator=seeded()), "mlp:6-5-3"),
    "no flatten": (lambda: plain(6, 5, 3), "mlp:6-5-3"),
    "one layer": (lambda: plain(6, 3), "mlp:6-3"),
    "a class": (Classes, "mlp:6-5-3"),
    "wrapped": (lambda: nn.ModuleDict({"net": plain(6, 5, 3)}), "mlp:6-5-3"),
    "deep": (lambda: plain(6, *[5] * 12, 3), "mlp:6-" + "5-" * 12 + "3"),  # 10 sorts before 2
    "dropout": (
        lambda: nn.Sequential(nn.Linear(6, 5), nn.Dropout(), nn.ReLU(), nn.Linear(5, 3)),
        "mlp:6-5-3",
    ),
}


@pytest.mark.parametrize("kind", ["safetensors", "pt"])
@pytest.mark.parametrize("other", OTHERS)
def test_another_codes_weights_load_into_the_matching_mlp(tmp_path, other, kind):
    torch.manual_seed(0)
    make, text = OTHERS[other]
    theirs = make().eval()
    mine = build(text, generator=seeded(1))
    load_weights(mine, through(kind, tmp_path, theirs.state_dict()))
    x = torch.randn(7, 6, generator=seeded(2))
    body = theirs["net"] if isinstance(theirs, nn.ModuleDict) else theirs
    assert torch.equal(mine(x), body(x))
    assert infer_model(through(kind, tmp_path, theirs.state_dict())) == text


def test_a_convolutional_class_loads_into_the_matching_cnn(tmp_path):
    torch.manual_seed(0)
    theirs = nn.ModuleDict(
        {"conv1": nn.Conv2d(3, 4, 3), "fc1": nn.Linear(144, 5), "fc2": nn.Linear(5, 2)}
    )
    mine = build("cnn:3x8x8-c4k3-5-2", generator=seeded())
    load_weights(mine, through("safetensors", tmp_path, theirs.state_dict()))
    assert torch.equal(mine[0].weight, theirs["conv1"].weight)
    assert torch.equal(mine[5].bias, theirs["fc2"].bias)
    assert infer_model(theirs.state_dict()) is None


def test_names_win_over_order():
    model = build("mlp:4-4-4", generator=seeded())
    other = build("mlp:4-4-4", generator=seeded(1)).state_dict()
    shuffled = dict(reversed(other.items()))
    aligned = align(model, shuffled)
    assert list(aligned) == list(model.state_dict())
    assert all(torch.equal(aligned[name], other[name]) for name in other)


def test_aligned_values_keep_their_dtype_and_loaded_ones_take_the_models():
    model = build("mlp:4-3-2", generator=seeded())
    wide = {name: value.double() for name, value in plain(4, 3, 2).state_dict().items()}
    assert {value.dtype for value in align(model, wide).values()} == {torch.float64}
    load_weights(model, wide)
    assert model[1].weight.dtype == torch.float32
    assert torch.equal(model[1].weight.double(), wide["0.weight"])


MISMATCHES = [
    ("mlp:4-3-2", plain(4, 5, 2), "w: 1.weight: expected (3, 4), got (5, 4) (0.weight); "
     "these weights look like mlp:4-5-2"),
    ("mlp:4-3-2", plain(4, 3, 3, 2), "w: 3.weight: expected (2, 3), got (3, 3) (2.weight); "
     "these weights look like mlp:4-3-3-2"),
    ("mlp:4-3-3", plain(4, 3), "w: expected 4 tensors, one a parameter, got 2; "
     "these weights look like mlp:4-3"),
    ("mlp:4-3:nobias", plain(4, 3), "the weights of this model, got left over 0.bias (3,)"),
    ("mlp:4-3", nn.Conv2d(1, 1, 3), "w: 1.weight: expected (3, 4), got (1, 1, 3, 3); "
     "give the model that they belong to"),
    ("mlp:10-20-10", plain(20, 10, 20), "1.weight: expected (20, 10), got (10, 20)"),
]  # fmt: skip


@pytest.mark.parametrize(("text", "theirs", "why"), MISMATCHES)
def test_a_mismatch_names_the_first_place_and_changes_nothing(text, theirs, why):
    model = build(text, generator=seeded())
    before = {name: value.clone() for name, value in model.state_dict().items()}
    with pytest.raises(WeightsError) as caught:
        load_weights(model, theirs.state_dict(), what="w")
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1
    assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())


def test_names_that_match_with_another_shape_or_more_are_named():
    model = build("mlp:4-3-2", generator=seeded())
    other = build("mlp:4-7-2", generator=seeded()).state_dict()
    with pytest.raises(
        WeightsError, match=r"1.weight: expected \(3, 4\), got \(7, 4\); .*mlp:4-7-2"
    ):
        align(model, other)
    deeper = build("mlp:4-3-2-2", generator=seeded()).state_dict()
    with pytest.raises(WeightsError, match=r"left over 5.bias \(2,\), 5.weight \(2, 2\)"):
        align(model, deeper)
    whole = {name: value.int() for name, value in model.state_dict().items()}
    with pytest.raises(WeightsError, match=r"1.weight: expected floats, got torch.int32"):
        align(model, whole)


def test_an_order_that_a_file_does_not_keep_is_not_guessed(tmp_path):
    torch.manual_seed(0)
    theirs = Classes(("zeroth", "second", "first"), (6, 6, 6, 3)).state_dict()
    mine = build("mlp:6-6-6-3", generator=seeded())
    load_weights(mine, through("pt", tmp_path, theirs))
    assert torch.equal(mine[3].weight, theirs["second.weight"])
    with pytest.raises(WeightsError):
        load_weights(mine, through("safetensors", tmp_path, theirs))
    alike = Classes(("early", "late"), (6, 6, 6)).state_dict()
    mine = build("mlp:6-6-6", generator=seeded())
    with pytest.raises(
        WeightsError, match=r"which of early.weight and late.weight comes .* 1.weight, 1.bias"
    ):
        load_weights(mine, through("safetensors", tmp_path, alike))
    load_weights(mine, through("pt", tmp_path, alike))
    assert torch.equal(mine[1].weight, alike["early.weight"])


def normed():
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2))
    model(torch.randn(8, 4))
    return model


def test_buffers_align_by_name(tmp_path):
    theirs, mine = (
        normed(),
        nn.Sequential(nn.Linear(4, 3), nn.BatchNorm1d(3), nn.ReLU(), nn.Linear(3, 2)),
    )
    state = through(
        "safetensors", tmp_path, {"net." + n: v for n, v in theirs.state_dict().items()}
    )
    load_weights(mine, state)
    for name, value in theirs.state_dict().items():
        assert torch.equal(mine.state_dict()[name], value)
    assert int(mine[1].num_batches_tracked) == 1
    gradient = {name: torch.ones_like(p) for name, p in theirs.named_parameters()}
    assert list(align(mine, gradient)) == list(gradient)
    without = {n: v for n, v in theirs.state_dict().items() if n != "1.num_batches_tracked"}
    load_weights(mine, without)
    del without["1.running_var"]
    with pytest.raises(
        WeightsError, match=r"1.running_var: expected \(3,\), got nothing; save the whole"
    ):
        load_weights(mine, without)


def test_counters_beside_dense_weights_are_tolerated():
    model = build("mlp:4-3", generator=seeded())
    extra = {"0.weight": torch.ones(3, 4), "0.bias": torch.ones(3), "steps": torch.tensor(9)}
    load_weights(model, extra)
    assert torch.equal(model[1].weight, torch.ones(3, 4))


def test_tied_weights_load_with_or_without_their_second_name():
    class Tied(nn.Module):
        def __init__(self):
            super().__init__()
            self.one = nn.Linear(3, 3)
            self.two = self.one

    source, target = Tied(), Tied()
    load_weights(target, source.state_dict())
    assert torch.equal(target.two.weight, source.one.weight)
    load_weights(target, {"one.weight": torch.ones(3, 3), "one.bias": torch.ones(3)})
    assert torch.equal(target.two.weight, torch.ones(3, 3))


@settings(max_examples=60, deadline=None)
@given(st.lists(st.integers(1, 9), min_size=2, max_size=13), st.booleans(), st.booleans())
def test_a_stack_of_dense_weights_says_its_widths(widths, bias, sort):
    text = "mlp:" + "-".join(map(str, widths)) + ("" if bias else ":nobias")
    model = build(text, generator=seeded())
    state = model.state_dict()
    held = dict(sorted(state.items())) if sort else dict(state)
    assert infer_model(held) == text
    other = build(text, generator=seeded(1))
    load_weights(other, {f"net.{name}": value for name, value in held.items()})
    assert all(torch.equal(other.state_dict()[name], state[name]) for name in state)


def test_weights_that_imply_no_mlp():
    assert infer_model({}) is None
    assert infer_model({"a": torch.zeros(3)}) is None
    assert infer_model({"a": torch.zeros(3, 4), "b": torch.zeros(2, 5)}) is None
    assert (
        infer_model({"a": torch.zeros(3, 4), "b": torch.zeros(2, 3), "c": torch.zeros(2)}) is None
    )
    assert infer_model(normed().state_dict()) is None
