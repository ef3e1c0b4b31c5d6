import pytest
import torch
from torch import nn

from remnant.errors import InputError
from remnant.solvers.descent.images import draw, total_variation
from remnant.solvers.descent.label_counts import infer_labels, labels_of_run
from remnant.solvers.descent.matching import Matching, match_gradient
from remnant.training import GradientDescent, loss_named, train
from remnant.types import Examples, Scaling
from seeding import seeded


def net(*layers, seed=0, dtype=torch.float64):
    model = nn.Sequential(*layers).to(dtype)
    g = seeded(seed)
    with torch.no_grad():
        for p in model.parameters():
            p.copy_((torch.rand(p.shape, generator=g) - 0.5) * 2 / p[0].numel() ** 0.5)
    return model


def smooth(outputs=4):
    return net(nn.Linear(12, 16), nn.Sigmoid(), nn.Linear(16, outputs))


def small_cnn(outputs=3):
    return net(
        nn.Conv2d(1, 6, 3, padding=1), nn.ReLU(), nn.Flatten(), nn.Linear(6 * 36, outputs), seed=3
    )


def records(n, shape, seed=5):
    return torch.rand(n, *shape, generator=seeded(seed), dtype=torch.float64)


def gradient(model, loss, inputs, labels):
    value = loss_named(loss)(model(inputs), labels)
    found = torch.autograd.grad(value, list(model.parameters()))
    return dict(zip(dict(model.named_parameters()), found, strict=True))


def solve(model, loss, inputs, classes, settings, **more):
    return match_gradient(
        model,
        loss,
        gradient(model, loss, inputs, classes),
        count=len(inputs),
        input_shape=tuple(inputs.shape[1:]),
        settings=settings,
        generator=seeded(1),
        **more,
    )


def test_one_record_comes_back_on_a_smooth_net():
    x, y = records(1, (12,)), torch.tensor([2])
    found = solve(smooth(), "ce", x, y, Matching(steps=600), bounds=(0.0, 1.0))
    assert (found.inputs - x).square().sum() < 1e-2
    assert found.labels.tolist() == [2]


def test_known_labels_are_taken_and_the_best_restart_is_kept():
    x, y = records(2, (12,)), torch.tensor([3, 0])
    settings = Matching(restarts=2, steps=300)
    found = solve(smooth(), "ce", x, y, settings, labels=y)
    assert found.labels.tolist() == [3, 0]
    assert found.loss == min(found.restarts) < 1e-3
    assert len(found.restarts) == 2


def test_cosine_lowers_the_loss_and_stays_in_the_box():
    x, y = records(2, (1, 6, 6)), torch.tensor([0, 2])
    found = solve(small_cnn(), "ce", x, y, Matching(steps=150), bounds=(0.0, 1.0))
    assert found.loss < 0.1 * found.trace[0]
    assert len(found.trace) == 150
    assert found.labels.tolist() == [0, 2]
    assert 0 <= float(found.inputs.min()) <= float(found.inputs.max()) <= 1


def test_total_variation_is_the_mean_of_neighbouring_differences():
    image = torch.tensor([[0.0, 1.0], [0.5, 0.5]]).view(1, 1, 2, 2)
    assert float(total_variation(image)) == pytest.approx((0.5 + 0.5) / 2 + (1.0 + 0.0) / 2)
    assert float(total_variation(torch.rand(3, 9))) == 0
    assert float(total_variation(torch.ones(2, 3, 4, 4))) == 0


def test_the_prior_smooths():
    x, y = records(1, (1, 6, 6)), torch.tensor([1])
    plain, strong = (
        solve(small_cnn(), "ce", x, y, Matching(steps=100, tv=tv), bounds=(0.0, 1.0))
        for tv in (0.0, 1.0)
    )
    assert total_variation(strong.inputs) < total_variation(plain.inputs)


@pytest.mark.parametrize("label", range(4))
@pytest.mark.parametrize("held", [("2.weight", "2.bias"), ("2.weight",)])
def test_the_label_of_one_record_is_where_the_gradient_is_negative(label, held):
    model, x = smooth(), records(1, (12,))
    seen = gradient(model, "ce", x, torch.tensor([label]))
    probes = draw(64, (12,), None, seeded(0))
    found = infer_labels(model, "ce", {k: seen[k] for k in held}, count=1, probes=probes)
    assert found.tolist() == [label]


def test_label_counts_of_a_batch():
    model = net(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 10))
    labels = torch.tensor([0, 0, 0, 1, 4, 4, 7, 7, 7, 7, 9, 9])
    probes = draw(256, (30,), (0.0, 1.0), seeded(0))
    seen = gradient(model, "ce", records(12, (30,)), labels.flip(0))
    assert infer_labels(model, "ce", seen, count=12, probes=probes).equal(labels)
    binary = net(nn.Linear(30, 40), nn.ReLU(), nn.Linear(40, 1))
    labels = torch.tensor([0, 0, 0, 1, 1, 1, 1, 1])
    seen = gradient(binary, "bce", records(8, (30,)), labels)
    assert infer_labels(binary, "bce", seen, count=8, probes=probes).equal(labels)


def test_the_same_seed_gives_the_same_bytes():
    x, y = records(2, (1, 6, 6)), torch.tensor([0, 2])
    settings = Matching(steps=20, restarts=2)
    one, two = (solve(small_cnn(), "ce", x, y, settings) for _ in range(2))
    assert one.inputs.numpy().tobytes() == two.inputs.numpy().tobytes()
    assert one.trace == two.trace


def test_the_model_is_left_alone_and_frozen_parameters_are_not_matched():
    model, x, y = smooth(), records(1, (12,)), torch.tensor([1])
    seen = gradient(model, "ce", x, y)
    del seen["0.bias"]
    model.requires_grad_(False)
    before = {name: p.clone() for name, p in model.state_dict().items()}
    found = match_gradient(
        model,
        "ce",
        seen,
        count=1,
        input_shape=(12,),
        settings=Matching(steps=600),
        generator=seeded(0),
    )
    assert found.loss < 1e-3
    assert not any(p.requires_grad for p in model.parameters())
    assert all(torch.equal(before[name], p) for name, p in model.state_dict().items())


def test_faults_are_one_line():
    model, x, y = smooth(), records(1, (12,)), torch.tensor([1])
    with pytest.raises(InputError, match="labels: expected 1, one a record, got 2"):
        solve(model, "ce", x, y, Matching(), labels=torch.tensor([1, 2]))
    with pytest.raises(InputError, match="steps: expected 1 or more, got 0"):
        Matching(steps=0)
    with pytest.raises(InputError, match="lr: expected a positive number"):
        Matching(lr=0.0)
    common = {
        "count": 1,
        "input_shape": (12,),
        "settings": Matching(steps=1),
        "generator": seeded(0),
    }
    with pytest.raises(InputError, match=r"gradient: 0\.weight"):
        match_gradient(model, "ce", {"0.weight": torch.ones(2)}, **common)
    with pytest.raises(InputError, match="zeros or nothing"):
        match_gradient(model, "ce", {}, **common)
    with pytest.raises(InputError, match="output layer 2: expected its gradient"):
        match_gradient(model, "ce", {"0.bias": torch.ones(16)}, **common)


def test_labels_of_a_short_run_of_descent():
    model = net(nn.Linear(30, 40), nn.ELU(), nn.Linear(40, 10))
    labels = torch.tensor([0, 0, 3, 7, 7, 7])
    batch = Examples(inputs=records(6, (30,)) - 0.5, labels=labels, ids=tuple("abcdef"))
    recipe = GradientDescent(lr=0.05, momentum=0.9, steps=5)
    ran = train(model, batch, recipe, scaling=Scaling(), generator=seeded(0))
    found = labels_of_run(ran.model, ran.initial, recipe, count=6, shape=(30,))
    assert found.equal(labels)
    bare = net(nn.Linear(30, 10, bias=False))
    with pytest.raises(InputError, match="a bias"):
        labels_of_run(bare, dict(bare.named_parameters()), recipe, count=6, shape=(30,))
