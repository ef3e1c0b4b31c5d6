"""Features at the dense layers of networks whose front nothing exact reads."""

import copy

import pytest
import torch
from torch import nn

from remnant import NTK, Gradient, Knowledge, Status, Target, capture
from remnant.attacks.about import Scene
from remnant.models.fronts import before_dense
from remnant.models.residual import freeze_norms, residual
from remnant.models.tokens import logits_of
from remnant.solvers.dense.output_layer import recover_output
from seeding import seeded


def network(dense, seed=0):
    pool = len(dense) == 1
    model = residual((1, 8, 8), (4, 8), dense, generator=seeded(seed), pool=pool)
    for k in range(5):
        model.train()(torch.rand(32, 1, 8, 8, generator=seeded(k)))
    return model.eval()


def attacked(model, gradient, **known):
    known = Knowledge(gradient=gradient, loss="ce", **known)
    target = Target(model=model, input_shape=(1, 8, 8), bounds=(0, 1), knowledge=known)
    return Gradient(steps=2)(target, generator=seeded())


@pytest.mark.parametrize("count", [1, 3, 5])
def test_a_lone_output_layer_gives_the_features_and_labels(count):
    with torch.random.fork_rng():
        torch.manual_seed(count)
        layer = nn.Linear(24, 10).double()
    h = torch.rand(count, 24, generator=seeded(1)).double()
    labels = torch.arange(count) * 2
    nn.functional.cross_entropy(layer(h), labels).backward()
    whole = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1)
    given = layer.weight.detach(), layer.bias.detach(), whole.float().double()
    found = recover_output(*given, precision=1.2e-7, generator=seeded())
    assert found.exact
    near = torch.cdist(h, found.inputs).min(1)
    assert float(near.values.max()) < 1e-4
    assert found.labels[near.indices].tolist() == labels.tolist()
    told = recover_output(*given, precision=1.2e-7, generator=seeded(), count=34)
    assert told.exact
    assert len(told.inputs) == count  # an audit tells all that were trained on


def test_a_full_output_layer_does_not_say_how_many_records_it_saw():
    layer, h = nn.Linear(24, 10).double(), torch.rand(34, 24, generator=seeded(1)).double()
    nn.functional.cross_entropy(layer(h), torch.arange(34) % 10).backward()
    whole = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1).float().double()
    given = layer.weight.detach(), layer.bias.detach(), whole
    found = recover_output(*given, precision=1.2e-7, generator=seeded(), count=34)
    assert found == "34 records need more than 34 outputs, and there are 10"


def test_a_gradient_of_another_loss_is_not_called_exact():
    layer = nn.Linear(24, 10).double()
    h = torch.rand(4, 24, generator=seeded(1)).double()
    layer(h).square().mean().backward()
    whole = torch.cat([layer.weight.grad, layer.bias.grad[:, None]], dim=1)
    given = layer.weight.detach(), layer.bias.detach(), whole
    found = recover_output(*given, precision=1e-9, generator=seeded(), count=4)
    assert isinstance(found, str) or not found.exact


@pytest.mark.parametrize("dense", [(10,), (64, 10)])
@pytest.mark.parametrize("training", [True, False])
def test_a_residual_network_gives_its_features_in_either_mode(dense, training):
    inputs, labels = torch.rand(3, 1, 8, 8, generator=seeded(9)), torch.tensor([7, 1, 4])
    model = network(dense)
    gradient = capture(copy.deepcopy(model).train(training), "ce", (inputs, labels))
    found = attacked(model, gradient, records=3)
    assert found.figures["features"] == 3, found.reason
    assert found.status is Status.INCONCLUSIVE  # of images nothing is proved
    assert not found.stated.certified
    assert sorted(found.labels.tolist()) == [1, 4, 7]


def test_a_frozen_backbone_and_a_tuned_head_give_features_between_checkpoints():
    model = freeze_norms(network((96, 5)))
    for layer in list(model)[:6]:
        layer.requires_grad_(False)
    inputs, labels = torch.rand(5, 1, 8, 8, generator=seeded(9)), torch.arange(5)
    before = copy.deepcopy(model.state_dict())
    descent = torch.optim.SGD([p for p in model.parameters() if p.requires_grad], lr=0.05)
    for _ in range(10):
        descent.zero_grad()
        nn.functional.cross_entropy(model(inputs), labels).backward()
        descent.step()
    known = Knowledge(initial=before, records=5)
    target = Target(model=model, input_shape=(1, 8, 8), bounds=(0, 1), knowledge=known)
    found = NTK(preset="exact")(target, generator=seeded())
    assert "features at the dense layers" in found.reason
    assert found.stated.counted == 5


def test_a_stack_is_taken_apart_where_its_dense_layers_begin():
    model = network((64, 10))
    parts = before_dense(model, (1, 8, 8))
    inputs = torch.rand(2, 1, 8, 8, generator=seeded())
    assert torch.equal(parts.rest(parts.front(inputs)), model(inputs))
    whole = model.state_dict()
    assert parts.of_front(whole).keys() == parts.front.state_dict().keys()
    assert parts.of_rest(whole).keys() == parts.rest.state_dict().keys()
    assert before_dense(nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Linear(4, 2)), (3,)) is None


class Written(nn.Module):
    """A network as a user writes it: a module of its own, which returns more than logits."""

    def __init__(self, layers):
        super().__init__()
        self.body, self.fc = layers[:-1], layers[-1]

    def forward(self, x):
        features = self.body(x)
        return {"logits": self.fc(features), "features": features}


@pytest.mark.parametrize("kind", [nn.Sequential, Written])
def test_a_head_that_was_tuned_alone_gives_its_features(kind):
    model = kind(network((10,)))
    before = copy.deepcopy(model.state_dict())
    inputs, labels = torch.rand(3, 1, 8, 8, generator=seeded(9)), torch.tensor([7, 1, 4])
    optimizer = torch.optim.SGD(list(model.parameters())[-2:], lr=0.2)
    for _ in range(4):
        optimizer.zero_grad()
        nn.functional.cross_entropy(logits_of(model(inputs)), labels).backward()
        optimizer.step()
    known = Knowledge(initial=before, loss="ce")
    target = Target(model=model, input_shape=(1, 8, 8), bounds=(0, 1), knowledge=known)
    assert NTK().why_not(Scene(target=target, records=3, loss="ce")) is None
    found = NTK(steps=2)(target, generator=seeded())
    assert found.figures["features"] == 3, found.reason
    assert sorted(found.labels.tolist()) == [1, 4, 7]
    assert found.status is Status.INCONCLUSIVE  # that images are right is not proved
    with torch.no_grad():  # a front that moved takes the features with it
        next(model.parameters()).mul_(1.01)
    assert NTK().why_not(Scene(target=target, records=3, loss="ce")) is not None


def test_a_module_is_cut_before_the_layer_that_returns_what_it_does():
    model, inputs = Written(network((10,))), torch.rand(2, 1, 8, 8, generator=seeded())
    parts = before_dense(model, (1, 8, 8))
    assert torch.equal(parts.rest(parts.front(inputs)), model(inputs)["logits"])
    whole = model.state_dict()
    assert parts.of_front(whole).keys() == parts.front.state_dict().keys()
    assert parts.of_rest(whole).keys() == parts.rest.state_dict().keys()

    class Scaled(Written):
        def forward(self, x):
            return 2 * super().forward(x)["logits"]

    assert before_dense(Scaled(network((10,))), (1, 8, 8)) is None
