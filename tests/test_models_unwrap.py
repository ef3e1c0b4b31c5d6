"""A module that is a chain of layers comes apart under its own names; anything else stays whole."""

import pytest
import torch
from torch import nn
from torch.nn import functional as F

from remnant.models import build, load_weights
from remnant.models.unwrap import unwrapped
from remnant.solvers.layers import Pair, first_pair
from seeding import seeded


class Wrapper(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Sequential(nn.Linear(6, 5), nn.ReLU(), nn.Linear(5, 4), nn.Linear(4, 3))

    def forward(self, x):
        return self.net(x)


class Flattens(Wrapper):
    def forward(self, x):
        return self.net(x.view(x.size(0), -1))


class Functions(nn.Module):
    def __init__(self):
        super().__init__()
        self.fc1, self.fc2, self.out = nn.Linear(6, 5), nn.Linear(5, 5), nn.Linear(5, 3)

    def forward(self, x):
        x = torch.flatten(x, 1)
        x = F.dropout(F.relu(self.fc1(x)), training=self.training)
        return self.out(torch.tanh(self.fc2(x)))


class SharedActivation(nn.Module):
    def __init__(self):
        super().__init__()
        self.act, self.body, self.out = nn.ELU(), Wrapper(), nn.Linear(3, 2)

    def forward(self, x):
        return self.out(self.act(self.act(self.body(x.reshape(-1, 6)))))


class Convolutions(nn.Module):
    def __init__(self):
        super().__init__()
        self.conv, self.a, self.b = nn.Conv2d(1, 2, 3), nn.Linear(72, 6), nn.Linear(6, 2)

    def forward(self, x):
        return self.b(F.relu(self.a(F.relu(self.conv(x)).flatten(1))))


class Residual(Functions):
    def forward(self, x):
        x = F.relu(self.fc1(x))
        return self.out(x + self.fc2(x))


class Doubled(Functions):
    def forward(self, x):
        return self.out(2 * F.relu(self.fc2(F.relu(self.fc1(x)))))


class Twice(Functions):
    def forward(self, x):
        return self.out(self.fc2(self.fc2(self.fc1(x))))


class Branches(Functions):
    def forward(self, x):
        return self.out(self.fc1(x)) if x.sum() > 0 else self.out(self.fc2(self.fc1(x)))


class Unused(Functions):
    def forward(self, x):
        return self.out(F.relu(self.fc1(x)))


class Slope(Functions):
    def forward(self, x):
        return self.out(F.leaky_relu(self.fc2(self.fc1(x)), 0.3))  # not the layer's own slope


@pytest.mark.parametrize("kind", [Wrapper, Flattens, Functions, SharedActivation, Convolutions])
def test_a_chain_comes_apart_and_computes_the_same(kind):
    torch.manual_seed(0)
    model = kind()
    chain = unwrapped(model)
    assert isinstance(chain, nn.Sequential)
    assert chain.state_dict().keys() == model.state_dict().keys()
    assert isinstance(first_pair(chain, after_convolutions=True), Pair)
    shape = (1, 8, 8) if kind is Convolutions else (6,)
    inputs = torch.randn(4, *shape)
    assert torch.equal(chain.eval()(inputs), model.eval()(inputs))
    fresh = kind()
    load_weights(chain, fresh.state_dict())
    assert torch.equal(chain(inputs), fresh.eval()(inputs))


@pytest.mark.parametrize("kind", [Residual, Doubled, Twice, Branches, Unused, Slope])
def test_what_is_no_chain_stays_as_it_is(kind):
    model = kind()
    assert unwrapped(model) is model


def test_a_factory_of_a_wrapper_builds_the_chain(tmp_path):
    text = (
        "from torch import nn\nclass Net(nn.Module):\n"
        "  def __init__(self):\n    super().__init__()\n"
        "    self.net = nn.Sequential(nn.Linear(4, 3), nn.ReLU(), nn.Linear(3, 2))\n"
        "  def forward(self, x):\n    return self.net(x)\ndef make():\n  return Net()\n"
    )
    (tmp_path / "net.py").write_text(text)
    model = build(f"{tmp_path / 'net.py'}:make", generator=seeded())
    assert isinstance(first_pair(model), Pair)
    assert list(model.state_dict()) == ["net.0.weight", "net.0.bias", "net.2.weight", "net.2.bias"]
