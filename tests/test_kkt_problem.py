"""The misfit of stationarity, layer by layer, against sums of gradients by autograd."""

from dataclasses import replace

import pytest
import torch
from torch import nn

from remnant.gradients import smoothed, weighted_sum
from remnant.solvers.kkt.duals import Duals, balanced_labels
from remnant.solvers.kkt.network import FROZEN, balance, read_network
from remnant.solvers.kkt.objective import (
    Objective,
    Weights,
    forward,
    misfits,
    outside_columns,
    signals,
    sums,
)
from remnant.solvers.kkt.prior import expected_sizes
from remnant.solvers.kkt.problem import pose, row_space
from remnant.solvers.kkt.scale import largest_in_box, scaled_to_box
from remnant.solvers.kkt.tolerances import TOLERANCES, Tolerances


def dense(bias=True, c=3):
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(12, 9, bias=bias),
        nn.ReLU(),
        nn.Linear(9, 8, bias=bias),
        nn.ReLU(),
        nn.Linear(8, c, bias=bias),
    ).double()


def convolutional():
    torch.manual_seed(0)
    return nn.Sequential(
        nn.Conv2d(1, 3, 3, stride=2, padding=1),
        nn.ReLU(),
        nn.Conv2d(3, 4, 2),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(16, 7),
        nn.ReLU(),
        nn.Linear(7, 3),
    ).double()


def normed(layers):
    """Frozen batch norm behind two layers of the network, with statistics of its own."""
    model = nn.Sequential(*(m for layer in layers for m in layer)).double().eval()
    generator = torch.Generator().manual_seed(1)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm1d | nn.BatchNorm2d):
            for values in (module.running_var, module.weight.data):
                values.copy_(0.5 + torch.rand(values.shape, generator=generator))
            for values in (module.running_mean, module.bias.data):
                values.copy_(torch.randn(values.shape, generator=generator))
    return model


def dense_normed(bias=True):
    torch.manual_seed(0)
    first = nn.Flatten(), nn.Linear(12, 9, bias=bias), nn.BatchNorm1d(9), nn.ReLU()
    return normed([first, (nn.Linear(9, 8), nn.BatchNorm1d(8), nn.ReLU()), (nn.Linear(8, 3),)])


def convolutional_normed():
    torch.manual_seed(0)
    first = nn.Conv2d(1, 3, 3, stride=2, padding=1, bias=False), nn.BatchNorm2d(3), nn.ReLU()
    return normed([first, (nn.Flatten(), nn.Linear(27, 7), nn.ReLU(), nn.Linear(7, 3))])


@pytest.mark.parametrize(
    ("model", "shape", "m"),
    [
        (dense(), (3, 4), 6),
        (dense(bias=False), (12,), 6),
        (convolutional(), (1, 6, 6), 5),
        (dense_normed(), (12,), 6),
        (dense_normed(bias=False), (12,), 6),
        (convolutional_normed(), (1, 6, 6), 5),
    ],
)
def test_misfits_are_those_of_the_gradient_sum(model, shape, m):
    layers = read_network(model)
    problem = pose(layers, shape, rank=12, inner_rank=None, records=9, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    s = torch.randn(2, m, problem.coordinates, generator=generator, dtype=torch.float64)
    dual = torch.rand(2, m, generator=generator, dtype=torch.float64)
    duals = Duals(objective="soft", labels=balanced_labels(m, 3), outputs=3)
    seen = forward(problem, s)
    direction = duals.directions(dual, seen.outputs[-1])
    arrived = signals(problem, seen, direction, 4.0, [1.0] * 9)
    found = misfits(problem, sums(problem, seen, arrived, dual), whiten=0.0)
    for k in range(2):
        x = problem.inputs(s[k]).view(m, *shape)
        coefficients = dual[k][:, None] * direction.view(2, m, 3)[k]
        total = weighted_sum(smoothed(model, alpha=4.0), x, coefficients)
        parts = {}
        for name, weight in model.named_parameters():
            if isinstance(model.get_submodule(name.split(".")[0]), FROZEN):
                continue
            layer = parts.setdefault(name.split(".")[0], [0.0, 0.0])
            change = (weight - total[name]).detach()
            if name == "1.weight" and problem.basis is not None:  # the span is all that is seen
                change = change @ problem.basis
            layer[0] += float(change.square().sum())
            layer[1] += float(weight.detach().square().sum())
        wanted = [a / b for a, b in parts.values()]
        assert found[k].tolist() == pytest.approx(wanted, rel=1e-9)


def test_an_inner_layer_in_low_rank_is_compared_in_its_leading_columns():
    layers = read_network(dense(bias=False))
    s = torch.randn(1, 4, 9, generator=torch.Generator().manual_seed(2), dtype=torch.float64)
    problem = pose(layers, (12,), rank=9, inner_rank=3, records=9, dtype=torch.float64)
    seen = forward(problem, s)
    arrived = signals(problem, seen, torch.ones(4, 3, dtype=torch.float64), 5.0, [1.0, 1.0])
    found = misfits(problem, sums(problem, seen, arrived, torch.ones(1, 4).double()), 0.5)[0]
    left = torch.linalg.svd(layers[1].weight)[0][:, :3]
    residual = left.T @ (layers[1].weight - arrived[1].T @ seen.inputs[1])
    wanted = residual.square().sum() / layers[1].weight.square().sum()
    torch.testing.assert_close(found[1], wanted)


def test_blocks_of_candidates_have_the_gradient_of_all():
    layers = read_network(dense())
    problem = pose(layers, (3, 4), rank=9, inner_rank=None, records=3, dtype=torch.float64)
    generator = torch.Generator().manual_seed(1)
    u, raw = torch.randn(2, 7, 9, generator=generator).double(), torch.randn(2, 7).double()
    problem = replace(problem, low=-0.2 * torch.ones(12), high=0.2 * torch.ones(12))
    at = Objective(
        problem=problem,
        duals=Duals(objective="soft", labels=balanced_labels(7, 3), outputs=3),
        weights=Weights(
            sharpness=5.0, whiten=0.5, columns=2.0, rows=3.0, box=1.0, sizes=0.5, variation=0.1
        ),
        spreads=[1.0, 1.0],
    )
    assert problem.rows
    for whole, blocks in zip(
        at.gradient(u, raw, rows=14), at.gradient(u, raw, rows=4), strict=True
    ):
        assert whole.abs().max() > 0
        torch.testing.assert_close(whole, blocks)


def test_a_row_space_stands_above_the_noise_or_says_nothing():
    generator = torch.Generator().manual_seed(0)
    h = torch.randn(10, 60, generator=generator, dtype=torch.float64)
    noise = 1e-3 * torch.randn(60, 60, generator=generator, dtype=torch.float64)
    for signal, held in (
        (torch.randn(60, 10, generator=generator).double(), True),
        (torch.randn(60, 1, generator=generator).double().expand(60, 10), False),
    ):
        _, values, right = torch.linalg.svd(signal @ h + noise)
        rows = row_space(values, right, records=10)
        assert (rows is not None) == held
        if rows is not None:
            unit, other = torch.nn.functional.normalize(h), torch.randn(9, 60, generator=generator)
            assert len(rows) == 10
            assert (unit @ rows.T).square().sum(1).min() > 0.99
            other = torch.nn.functional.normalize(other.double())
            assert (other @ rows.T).square().sum(1).max() < 0.6


def test_expected_sizes_are_those_of_a_smooth_covariance_and_of_public_records():
    basis = torch.linalg.qr(torch.randn(60, 5).double())[0]
    at = torch.cartesian_prod(torch.arange(4.0), torch.arange(5.0)).double()
    near = torch.exp(-torch.cdist(at, at) / (TOLERANCES.smooth_length * 20**0.5))
    alike = TOLERANCES.alike_channels
    channels = torch.full((3, 3), alike).double() + (1 - alike) * torch.eye(3)
    square = (basis * (torch.kron(channels, near) @ basis)).sum(0)
    found = expected_sizes(basis, (3, 4, 5))
    torch.testing.assert_close(found, (square / square.mean()).sqrt())
    assert torch.equal(expected_sizes(basis, (60,)), torch.ones(5).double())
    mean = torch.linspace(0, 1, 60).double()  # of a box from 0 to 1: none of its ends may be left
    varies = (basis * (mean * (1 - mean)).sqrt()[:, None]).T
    square = (varies @ torch.kron(channels, near) * varies).sum(1)
    boxed = expected_sizes(basis, (3, 4, 5), box=(-mean, 1 - mean))
    torch.testing.assert_close(boxed, (square / square.mean()).sqrt())
    for box in (
        (0 * mean, mean),
        (-torch.ones(60), torch.ones(60)),
    ):  # no mean off; all alike
        torch.testing.assert_close(expected_sizes(basis, (3, 4, 5), box=box), found)
    public = basis[:, :1].T * torch.tensor([[2.0], [-2.0]])
    assert expected_sizes(basis, (60,), public).argmax() == 0


def stationary():
    """A small network trained by plain descent with decay until nothing moves."""
    model = dense(c=2)
    generator = torch.Generator().manual_seed(3)
    x = torch.randn(4, 12, generator=generator, dtype=torch.float64)
    y = torch.tensor([0, 1, 0, 1])
    optimiser = torch.optim.SGD(model.parameters(), lr=0.3, weight_decay=0.02)
    for _ in range(3500):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimiser.step()
    return model, x, y


def test_a_stationary_network_is_balanced_and_explained_by_its_records():
    model, x, y = stationary()
    layers = read_network(model)
    state = balance(layers)
    assert state.imbalance < 1e-3
    assert state.bias_decayed
    assert balance(read_network(dense())).imbalance > 0.1
    problem = pose(layers, (12,), rank=4, inner_rank=None, records=9, dtype=torch.float64)
    s = (x @ problem.basis)[None]
    seen = forward(problem, s)
    p = torch.softmax(seen.outputs[-1], 1)
    dual = (1 - p.gather(1, y[:, None])[:, 0])[None] / 4 / 0.02
    duals = Duals(objective="soft", labels=y, outputs=2)
    direction = duals.directions(dual, seen.outputs[-1])
    arrived = signals(problem, seen, direction, 1e9, [1.0, 1.0])
    right, wrong = (
        misfits(problem, sums(problem, seen, arrived, some), 0.0)[0] for some in (dual, 1.5 * dual)
    )
    assert right[2] < 1e-4 < 0.1 < wrong[2]
    # Further down some neurons rest at zero on some records, where any slope from 0 to 1 is ReLU's.
    assert right[1] < 0.2
    assert right[0] < 0.4
    assert outside_columns(problem, arrived, dual).max() < 1e-3
    others = [torch.randn_like(arrived[0]), *arrived[1:]]
    assert outside_columns(problem, others, dual).min() > 0.1


def test_the_balance_tells_whether_biases_were_decayed():
    model = dense()
    with torch.no_grad():  # balance by hand, biases left out
        for layer, after in ((model[1], model[3]), (model[3], model[5])):
            ratio = layer.weight.norm(dim=1) / after.weight.norm(dim=0)
            after.weight.mul_(ratio)
    state = balance(read_network(model))
    assert not state.bias_decayed
    assert state.imbalance < 1e-12


@pytest.mark.parametrize("bias", [False, True])
def test_frozen_batch_norm_is_balanced_where_decay_and_records_are(bias):
    torch.manual_seed(3)
    first = nn.Linear(6, 20, bias=bias), nn.BatchNorm1d(20), nn.ReLU()
    model = normed([first, (nn.Linear(20, 2),)])
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(0.5)
    x, y = torch.randn(8, 6).double(), torch.arange(8) % 2
    descend_with_decay(model, x, y)
    assert balance(read_network(model)).imbalance < 0.02
    descend_with_decay(model.train(), x, y)  # statistics of the batch: no stationary point
    assert balance(read_network(model.eval())).imbalance > 0.2


def descend_with_decay(model, x, y):
    optimizer = torch.optim.SGD(model.parameters(), lr=0.2, weight_decay=0.02, momentum=0.9)
    for _ in range(800):
        optimizer.zero_grad()
        nn.functional.cross_entropy(model(x), y).backward()
        optimizer.step()


@pytest.mark.parametrize(
    ("model", "words"),
    [
        (nn.Sequential(nn.BatchNorm1d(3), nn.Linear(3, 3), nn.ReLU()), "BatchNorm1d"),
        (nn.Sequential(nn.Linear(3, 3), nn.LayerNorm(3), nn.ReLU()), "LayerNorm"),
        (
            nn.Sequential(nn.Linear(3, 3), nn.BatchNorm1d(3, track_running_stats=False), nn.ReLU()),
            "no running statistics",
        ),
        (nn.Sequential(nn.Linear(3, 3), nn.Tanh(), nn.Linear(3, 1)), "one is Tanh"),
        (nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 1)), "without a ReLU"),
        (nn.Sequential(nn.Linear(3, 3)), "at least one hidden layer"),
        (nn.Sequential(nn.Conv2d(1, 2, 3, dilation=2), nn.ReLU(), nn.Linear(3, 1)), "dilation"),
    ],
)  # fmt: skip
def test_what_cannot_be_read_is_said(model, words):
    assert words in read_network(model)


def test_directions_of_the_objectives():
    outputs = torch.tensor([[2.0, 1.0, 0.0], [0.0, 3.0, 1.0]])
    labels = torch.tensor([0, 2])
    raw = torch.ones(1, 2)
    margin = Duals(objective="margin", labels=labels, outputs=3).directions(raw, outputs)
    assert margin.tolist() == [[1, -1, 0], [0, -1, 1]]
    soft = Duals(objective="soft", labels=labels, outputs=3).directions(raw, outputs)
    logits = outputs.clone().requires_grad_()
    nn.functional.cross_entropy(logits, labels, reduction="sum").backward()
    assert (torch.cosine_similarity(soft, -logits.grad) > 1 - 1e-6).all()
    binary = Duals(objective="margin", labels=torch.tensor([0, 1]), outputs=1)
    assert binary.directions(raw, outputs[:, :1]).tolist() == [[-1], [1]]
    free = Duals(objective="free", labels=labels, outputs=3)
    several = torch.randn(1, 2, 3)
    back = free.values(several)[..., None] * free.directions(several, outputs).view(1, 2, 3)
    torch.testing.assert_close(back, several)


def test_duals_stay_above_their_least():
    duals = Duals(objective="margin", labels=balanced_labels(5, 1), outputs=1, least=0.2)
    assert (duals.values(duals.start(2, torch.float32)) > 0.2).all()
    assert (duals.values(torch.full((1, 5), -9.0)) >= 0.2).all()


def test_the_largest_scale_that_fits_the_box():
    low, high = -torch.full((4,), 0.5), torch.full((4,), 0.5)
    inputs = torch.tensor([[0.25, 0.1, 0.0, -0.2], [1.0, 0.0, 0.0, 0.0]])
    found = largest_in_box(inputs, low, high, Tolerances(outside=0.0))
    assert found[0] == pytest.approx(2.0, rel=0.02)
    assert found[1] == pytest.approx(0.5, rel=0.02)
    # told the scale, only data that fill the box are brought to it
    corners = 0.25 * torch.tensor([[1.0, -1.0, 1.0, 1.0], [-1.0, -1.0, 1.0, -1.0]])
    for rows, told in ((inputs, False), (corners, True)):
        largest = rows * largest_in_box(rows, low, high, TOLERANCES)[:, None]
        assert torch.equal(scaled_to_box(rows, low, high, told=told), largest)
    assert torch.equal(scaled_to_box(inputs, low, high, told=True), inputs)
