"""Networks from strings: their layers, the law of their weights, the user's own file."""

import math
import random
import textwrap

import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.models import ACTIVATIONS, build
from seeding import seeded


def kinds(model):
    return [type(layer).__name__ for layer in model]


def test_layers_are_a_plain_sequential():
    dense = build("mlp:784-30-20-10:tanh", generator=seeded())
    assert type(dense) is nn.Sequential
    assert kinds(dense) == ["Flatten", "Linear", "Tanh", "Linear", "Tanh", "Linear"]
    assert list(dense.state_dict()) == [f"{i}.{n}" for i in (1, 3, 5) for n in ("weight", "bias")]
    assert dense(torch.zeros(2, 1, 28, 28)).shape == (2, 10)
    conv = build("cnn:3x32x32-c16k4s2-m2-c32k4-10-7", generator=seeded())
    middle = ["MaxPool2d", "Conv2d", "ReLU", "Flatten", "Linear", "ReLU", "Linear"]
    assert kinds(conv) == ["Conv2d", "ReLU", *middle]
    assert conv(torch.zeros(2, 3, 32, 32)).shape == (2, 7)
    assert not any(
        "bias" in name for name in build("mlp:4-3-2:nobias", generator=seeded()).state_dict()
    )


@pytest.mark.parametrize("name", ACTIVATIONS)
def test_every_activation_builds_and_differentiates(name):
    model = build(f"mlp:3-4-1:{name}", generator=seeded())
    model(torch.ones(2, 3)).sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters())


def test_standard_weights_follow_the_law_of_pytorch():
    ours = build("cnn:3x20x20-c50k5-100-10", generator=seeded(), dtype=torch.float64)
    torch_law = nn.Sequential(nn.Conv2d(3, 50, 5), nn.ReLU(), nn.Flatten(), nn.Linear(12800, 100))
    for index, fan_in in ((0, 75), (3, 12800)):
        bound = 1 / math.sqrt(fan_in)
        for model in (ours, torch_law):  # the law is PyTorch's, so its own layers pass too
            weight, bias = model[index].weight.detach(), model[index].bias.detach()
            assert float(weight.abs().max()) <= bound * (1 + 1e-6)  # float32 rounds
            assert float(bias.abs().max()) <= bound
            assert float(weight.abs().max()) > 0.99 * bound
            assert float(bias.abs().max()) > 0.8 * bound
            error = 5 / math.sqrt(weight.numel())
            assert abs(float(weight.mean())) < bound * error
            assert float(weight.square().mean()) == pytest.approx(bound**2 / 3, rel=error)


def test_normal_weights_follow_their_law():
    layer = build("mlp:400-300-2", generator=seeded(), init="normal")[1]
    scaled = layer.weight.detach().double().flatten() * 20
    assert float(scaled.mean()) == pytest.approx(0, abs=0.02)
    assert float(scaled.var()) == pytest.approx(1, rel=0.02)
    assert float(scaled.pow(4).mean()) == pytest.approx(3, rel=0.05)  # a Gaussian's, not 1.8
    assert not layer.bias.any()


@pytest.mark.parametrize("init", ["standard", "normal"])
def test_a_first_layer_scale_is_its_standard_deviation(init):
    plain = build("mlp:400-300-2", generator=seeded(), dtype=torch.float64, init=init)
    small = build(
        "mlp:400-300-2", generator=seeded(), dtype=torch.float64, init=init, first_layer_scale=1e-4
    )
    assert float(small[1].weight.detach().std()) == pytest.approx(1e-4, rel=0.01)
    factor = small[1].weight / plain[1].weight
    torch.testing.assert_close(factor, factor[0, 0].expand_as(factor))
    torch.testing.assert_close(small[1].bias, plain[1].bias * factor[0, 0])
    assert torch.equal(small[3].weight, plain[3].weight)


def test_the_generator_alone_decides():
    before = torch.get_rng_state()
    first = build("cnn:3x8x8-c4k3-6-2", generator=seeded(3))
    assert torch.equal(torch.get_rng_state(), before)
    torch.rand(7)
    again = build("cnn:3x8x8-c4k3-6-2", generator=seeded(3))
    other = build("cnn:3x8x8-c4k3-6-2", generator=seeded(4))
    for name, value in first.state_dict().items():
        assert torch.equal(value, again.state_dict()[name])
        assert not torch.equal(value, other.state_dict()[name])


def test_every_dtype_starts_at_the_same_weights():
    double = build("mlp:9-5-2", generator=seeded(), dtype=torch.float64)
    single = build("mlp:9-5-2", generator=seeded())
    for wide, narrow in zip(double.parameters(), single.parameters(), strict=True):
        assert (wide.dtype, narrow.dtype) == (torch.float64, torch.float32)
        assert torch.equal(wide.float(), narrow)


def test_bad_initialisations_are_refused():
    for scale in (0.0, -1.0, math.inf, math.nan):
        with pytest.raises(InputError, match="first-layer scale: expected a positive number"):
            build("mlp:4-2", generator=seeded(), first_layer_scale=scale)
    with pytest.raises(InputError, match="expected standard or normal, got 'he'"):
        build("mlp:4-2", generator=seeded(), init="he")


OWN = """
    from __future__ import annotations
    from dataclasses import dataclass
    import torch
    from torch import nn

    @dataclass
    class Sizes:
        hidden: int = 5

    class Net(nn.Module):
        def __init__(self):
            super().__init__()
            self.fc1 = nn.Linear(4, Sizes().hidden)
            self.fc2 = nn.Linear(5, 2)

        def forward(self, x):
            return self.fc2(torch.relu(self.fc1(x)))

    def make():
        return Net()

    def number():
        return 3

    def needs(width):
        return Net()

    def leaves():
        raise SystemExit("usage: net.py\\nmore")

    class Odd(BaseException):
        def __str__(self):
            raise RuntimeError

    def odd():
        raise Odd

    def lazy():
        return nn.Sequential(nn.LazyLinear(3))

    def meta():
        return nn.Linear(3, 2, device="meta")

    def waves():
        return nn.Linear(3, 2, dtype=torch.complex64)

    def empty():
        return nn.ReLU()

    constant = 3
"""


@pytest.fixture
def own(tmp_path):
    path = tmp_path / "net.py"
    path.write_text(textwrap.dedent(OWN))
    return path


@pytest.mark.parametrize("factory", ["make", "Net"])
def test_a_users_own_module_is_built_from_its_file(own, factory):
    before, plain = torch.get_rng_state(), random.getstate()
    model = build(f"{own}:{factory}", generator=seeded(1), dtype=torch.float64)
    assert torch.equal(torch.get_rng_state(), before)
    assert random.getstate() == plain
    assert model(torch.zeros(3, 4, dtype=torch.float64)).shape == (3, 2)
    torch.rand(5)
    again = build(f"{own}:{factory}", generator=seeded(1), dtype=torch.float64)
    other = build(f"{own}:{factory}", generator=seeded(2), dtype=torch.float64)
    assert torch.equal(model.fc1.weight, again.fc1.weight)
    assert not torch.equal(model.fc1.weight, other.fc1.weight)


@pytest.mark.parametrize(
    ("factory", "why"),
    [
        ("gone", "expected a function gone without arguments, got no such name"),
        ("constant", "expected a function constant without arguments, got a int"),
        ("number", "expected a factory that returns an nn.Module, got a int"),
        ("needs", "the factory failed: TypeError: needs() missing 1 required"),
        ("leaves", "the factory failed: SystemExit: usage: net.py"),
        ("odd", "the factory failed: Odd"),
        ("lazy", "0.weight: expected dense real numbers, got a lazy one that has no shape"),
        ("meta", "weight: expected dense real numbers, got torch.strided on meta"),
        ("waves", "weight: expected dense real numbers, got torch.complex64"),
        ("empty", "expected a module with parameters, got none"),
    ],
)
def test_a_bad_factory_is_one_line(own, factory, why):
    with pytest.raises(InputError) as caught:
        build(f"{own}:{factory}", generator=seeded())
    assert why in str(caught.value)
    assert len(str(caught.value).splitlines()) == 1


def test_a_bad_file_is_one_line(tmp_path):
    (tmp_path / "folder.py").mkdir()
    (tmp_path / "syntax.py").write_text("def make(:\n")
    (tmp_path / "sibling.py").write_text("import helper_next_to_me\n")
    (tmp_path / "helper_next_to_me.py").write_text("")
    cases = {
        "gone.py": "gone.py, got no such file",
        "folder.py": "folder.py, got a folder",
        "syntax.py": "importing the file failed: SyntaxError",
        "sibling.py": "importing the file failed: ModuleNotFoundError: No module named 'helper_n",
    }
    for name, why in cases.items():
        with pytest.raises(InputError) as caught:
            build(f"{tmp_path / name}:make", generator=seeded())
        assert why in str(caught.value)
        assert len(str(caught.value).splitlines()) == 1


def test_a_users_module_initialises_itself(own):
    with pytest.raises(InputError, match="expected weights from its factory"):
        build(f"{own}:make", generator=seeded(), first_layer_scale=1e-4)
