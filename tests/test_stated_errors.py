"""What certified candidates state of their own error, against the truth."""

import pytest
import torch
from torch import nn

from remnant.attacks import NTK, Gradient
from remnant.attacks.outcome import stated_errors
from remnant.data import load
from remnant.solvers.spans import Spectrum, hides_more, told_apart
from remnant.types import Knowledge, Scaling, Status, Target
from seeding import seeded


def table(count, scaled=True, seed=0):
    """(records, classes, scaling) of breast cancer, as they are or in standard deviations."""
    held = load("breast_cancer")
    rows = torch.randperm(len(held), generator=seeded(seed))[:count]
    x = held.inputs.float()
    one = Scaling(mean=x.mean(0), std=x.std(0)) if scaled else Scaling()
    return x[rows], held.labels[rows], one


def dense(width, activation=nn.ReLU, seed=0):
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(30, width), activation(), nn.Linear(width, 10))


def gradient_target(x, y, scaling, model, stored=torch.float32, records=None):
    nn.functional.cross_entropy(model(scaling.to_model(x)), y).backward()
    seen = {n: p.grad.to(stored).float() for n, p in model.named_parameters()}
    held = Knowledge(gradient=seen, records=records)
    return Target(model=model, input_shape=(30,), bounds=None, scaling=scaling, knowledge=held)


def trained_target(x, y, scaling, model, rate, steps, stored=torch.float32):
    start = {n: p.detach().clone() for n, p in model.named_parameters()}
    descent = torch.optim.SGD(model.parameters(), lr=rate, momentum=0.9)
    for _ in range(steps):
        descent.zero_grad()
        nn.functional.cross_entropy(model(scaling.to_model(x)), y).backward()
        descent.step()
    initial = {n: w.to(stored).float() for n, w in start.items()}
    model.load_state_dict({n: w.to(stored).float() for n, w in model.state_dict().items()})
    held = Knowledge(initial=initial)
    return Target(model=model, input_shape=(30,), bounds=None, scaling=scaling, knowledge=held)


def check(target, truth, found, least, most):
    """Certified candidates are within what they state, and they state neither too much nor none."""
    assert found.status is Status.COMPLETE, found.reason
    mine, records = (target.scaling.to_model(t.double()) for t in (found.inputs, truth))
    true = torch.cdist(mine, records).min(1).values / truth.shape[1] ** 0.5
    stated = torch.tensor(found.stated.error, dtype=torch.float64)
    assert bool((true <= stated).all()), (true, stated)
    assert least < float(stated.min())
    assert float(stated.max()) < most
    assert "(root mean square, in the model's scale)" in found.reason


@pytest.mark.parametrize(
    ("activation", "stored", "most"),
    [
        (nn.ReLU, torch.float32, 1e-5),
        (nn.Tanh, torch.float32, 1e-4),
        (nn.ReLU, torch.bfloat16, 0.1),
    ],
)
def test_one_gradient(activation, stored, most):
    x, y, scaling = table(4)
    target = gradient_target(x, y, scaling, dense(150, activation), stored)
    check(target, x, Gradient()(target, generator=seeded()), 1e-7, most)


def test_a_single_record():
    x, y, scaling = table(1)
    target = gradient_target(x, y, scaling, dense(60))
    check(target, x, Gradient()(target, generator=seeded()), 1e-7, 1e-5)


@pytest.mark.parametrize(("stored", "most"), [(torch.float32, 1e-4), (torch.float16, 0.2)])
def test_two_checkpoints(stored, most):
    x, y, scaling = table(4, seed=1)
    target = trained_target(x, y, scaling, dense(150, seed=1), 0.02, 200, stored)
    check(target, x, NTK(preset="exact")(target, generator=seeded()), 1e-7, most)


def test_coarser_gradients_state_larger_errors():
    x, y, scaling = table(4)
    worst = []
    for stored in (torch.float32, torch.bfloat16):
        target = gradient_target(x, y, scaling, dense(150), stored)
        found = Gradient()(target, generator=seeded())
        worst.append(max(found.stated.error))
    assert worst[1] > 100 * worst[0]


def test_records_added_up_by_the_network_are_not_certified():
    """Unscaled, records of one class fire the same neurons and are taught the same: M has rank 1,
    and their blend explains it as well as a record would."""
    x, y, scaling = table(40, scaled=False, seed=3)
    x, y = x[y == 1][:2], y[y == 1][:2]
    model = dense(100, seed=3)
    fires = x @ model[0].weight.T + model[0].bias > 0
    with torch.no_grad():  # only neurons on which both agree learn
        model[2].weight[:, fires[0] != fires[1]] = 0
        model[2].weight[2:] = 0
        model[2].bias[2:] = -1e4  # two classes: residuals are parallel
    target = gradient_target(x, y, scaling, model)
    found = Gradient()(target, generator=seeded())
    assert found.stated.counted == 1
    assert found.stated.certified == 0
    assert "may be blends" in found.reason


def test_what_fires_others_at_another_size_is_told_apart():
    first = torch.randn(100, 31, generator=seeded(), dtype=torch.float64)
    small = torch.randn(3, 30, generator=seeded(1), dtype=torch.float64)
    assert told_apart(first, small).tolist() == [True] * 3
    assert told_apart(first, 1e4 * small).tolist() == [False] * 3


def test_weaker_records_beyond_the_count_are_noticed():
    weights = torch.randn(60, 11, generator=seeded(), dtype=torch.float64)

    def hides(values, precision):
        found = torch.tensor(values, dtype=torch.float64)
        return hides_more(Spectrum(values=found, count=1, gap=9.0, clear=True), weights, precision)

    noise = [3e-6, 2.9e-6, 2.8e-6, 2.7e-6, 2.6e-6, 2.5e-6, 1e-9]
    assert not hides([1.0, *noise], 1.2e-7)
    assert hides([1.0, 1e-4, *noise], 1.2e-7)


def test_no_stated_error_is_below_rounding():
    scaling = Scaling(mean=torch.tensor([0.0, 1000.0]), std=torch.tensor([1.0, 10.0]))
    target = Target(model=nn.Linear(2, 1), input_shape=(2,), bounds=None, scaling=scaling)
    data, squared = torch.tensor([[1.0, 1000.0], [1.0, 0.0]]), torch.tensor([1e-300, 2.0])
    stated = stated_errors(target, data, squared, torch.tensor([True, True]))
    assert stated[0] == pytest.approx(2.0**-23 * (1e4 / 2 + 0.5) ** 0.5)
    assert stated[1] == pytest.approx(1.0)
    assert stated_errors(target, data, squared, torch.tensor([False, True]))[0] is None


def test_records_that_fire_the_same_neurons_are_not_certified():
    """Their mixtures give back the same gradient, so nothing tells them apart."""
    torch.manual_seed(0)
    model = nn.Sequential(
        nn.Linear(30, 60), nn.ReLU(), nn.Linear(60, 60), nn.ReLU(), nn.Linear(60, 10)
    )  # fmt: skip
    x = torch.randn(4, 30, generator=seeded(1))
    x[1] = x[0] + 0.01 * torch.randn(30, generator=seeded(2))
    fired = model[0](x) > 0
    assert bool((fired[0] == fired[1]).all())
    assert not bool((fired[0] == fired[2]).all())
    target = gradient_target(x, torch.arange(4), Scaling(), model, records=4)
    found = Gradient()(target, generator=seeded())
    passed = torch.tensor(found.stated.passed)
    near = torch.cdist(found.inputs, x).argmin(1)[passed]
    assert sorted(near.tolist()) == [2, 3]
    assert found.status is Status.PARTIAL
