"""Losses by name: values against formulas, and one-line errors for heads that do not fit."""

import pytest
import torch
from torch.func import grad, vmap
from torch.nn import functional as F

from remnant.errors import InputError
from remnant.training import LOSSES, check_labels, loss_named, targets


def draw(n: int, c: int, seed: int = 0) -> torch.Tensor:
    return torch.randn(n, c, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


CLASSES = torch.tensor([0, 2, 1, 2])
BINARY = torch.tensor([0, 1, 1, 0])


def test_targets_are_those_of_the_papers():
    assert targets(draw(4, 1), BINARY).tolist() == [[-1.0], [1.0], [1.0], [-1.0]]
    wanted = F.one_hot(CLASSES, 3).double() - 0.1
    assert torch.equal(targets(draw(4, 3), CLASSES), wanted)
    real = draw(4, 1, 5)
    assert torch.equal(targets(draw(4, 1), real[:, 0]), real)
    assert torch.equal(targets(draw(4, 3), wanted), wanted)


def test_classification_losses_are_means_over_records():
    f = draw(4, 1)
    margins = (2 * BINARY - 1) * f[:, 0]
    torch.testing.assert_close(LOSSES["bce"](f, BINARY), F.softplus(-margins).mean())
    f = draw(4, 3)
    each = f.logsumexp(1) - f[torch.arange(4), CLASSES]
    torch.testing.assert_close(LOSSES["ce"](f, CLASSES), each.mean())


@pytest.mark.parametrize(
    ("name", "each"),
    [
        ("mse", lambda r: r**2),
        ("power2", lambda r: r**2),
        ("power", lambda r: r.abs() ** 2.5),
        ("power2.5", lambda r: r.abs() ** 2.5),
        ("power3", lambda r: r.abs() ** 3),
        ("huber", lambda r: torch.where(r.abs() < 1, r**2 / 2, r.abs() - 0.5)),
        ("huber0.5", lambda r: torch.where(r.abs() < 0.5, r**2 / 2, 0.5 * (r.abs() - 0.25))),
    ],
)
@pytest.mark.parametrize(("c", "labels"), [(1, BINARY), (3, CLASSES)])
def test_regression_losses_sum_over_outputs(name, each, c, labels):
    f = draw(4, c)
    wanted = each(f - targets(f, labels)).sum() / 4
    torch.testing.assert_close(loss_named(name)(f, labels), wanted)


def test_a_zero_residual_has_a_zero_gradient():
    f = torch.tensor([[-1.0], [1.0]], requires_grad=True)
    for name in ("mse", "power1", "power2.5", "huber1"):
        (found,) = torch.autograd.grad(loss_named(name)(f, torch.tensor([0, 1])), f)
        assert torch.equal(found, torch.zeros(2, 1))


@pytest.mark.parametrize(("name", "c"), [("bce", 1), ("ce", 3), ("mse", 3), ("huber", 1)])
def test_losses_can_be_mapped_over_records(name, c):
    f, labels = draw(4, c), CLASSES if c > 1 else BINARY
    loss = loss_named(name)
    each = vmap(grad(lambda row, y: loss(row[None], y[None])))(f, labels)
    torch.testing.assert_close(each / 4, grad(lambda rows: loss(rows, labels))(f))


@pytest.mark.parametrize("name", ["l1", "power", "power0.5", "huber0", "powerx", "CE", "mse2"])
def test_only_known_names_have_a_loss(name):
    if name in LOSSES:
        assert loss_named(name) is LOSSES[name]
        return
    with pytest.raises(InputError, match=f"loss: expected bce, .*, got {name}"):
        loss_named(name)


@pytest.mark.parametrize(
    ("name", "c", "labels", "says"),
    [
        ("bce", 10, BINARY, "loss bce: expected one output, got 10 outputs; use ce"),
        ("ce", 1, BINARY, "loss ce: expected two outputs or more, got one output; use bce"),
        ("ce", 3, draw(4, 1)[:, 0], "loss ce: labels: expected n integers, got torch.float64"),
        ("mse", 3, draw(4, 1)[:, 0], r"labels: targets: expected 4 x 3, got \(4,\)"),
        ("ce", 3, CLASSES + 1, "loss ce: labels: expected classes 0 to 2, got 1 to 3; relabel"),
        ("mse", 3, CLASSES - 1, "loss mse: labels: expected classes 0 to 2, got -1 to 1"),
        ("bce", 1, CLASSES, "loss bce: labels: expected classes 0 to 1, got 0 to 2"),
        ("bce", 1, draw(4, 1)[:, 0] - 9, "loss bce: labels: expected 0 to 1, got -"),
        (
            "mse",
            1,
            torch.zeros(3),
            r"targets: outputs and labels: expected n x c and n, got \(4, 1\)",
        ),
    ],
)
def test_labels_that_do_not_fit_the_head_are_named_in_one_line(name, c, labels, says):
    with pytest.raises(InputError, match=says) as caught:
        check_labels(name, draw(4, c), labels)
    assert "\n" not in str(caught.value)
