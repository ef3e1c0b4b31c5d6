import stat

import pytest
import torch
from torch import nn

from remnant.capturing import GradientHook, capture, capture_step, save_gradient
from remnant.errors import InputError
from remnant.models import read_weights
from remnant.training import loss_named
from remnant.types import Examples
from seeding import seeded


@pytest.fixture
def model():
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 3))


@pytest.fixture
def batch():
    g = seeded(1)
    return torch.rand(8, 6, generator=g), torch.arange(8) % 3


def by_backward(model, loss, inputs, labels):
    model.zero_grad()
    loss(model(inputs), labels).backward()
    found = {name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None}
    model.zero_grad()
    return found


def same(one, other):
    assert list(one) == list(other)
    for name in one:
        torch.testing.assert_close(one[name], other[name])


@pytest.mark.parametrize("loss", ["ce", "mse", "huber1"])
def test_capture_is_what_backward_gives(model, batch, loss):
    wanted = by_backward(model, loss_named(loss), *batch)
    found = capture(model, loss, batch)
    same(found, wanted)
    assert list(found) == list(model.state_dict())
    assert all(p.grad is None for p in model.parameters())


def test_capture_takes_examples_and_a_function(model, batch):
    inputs, labels = batch
    examples = Examples(inputs=inputs, labels=labels, ids=tuple("abcdefgh"))
    same(capture(model, nn.CrossEntropyLoss(), examples), capture(model, "ce", batch))


def test_capture_works_without_gradients_on(model, batch):
    with torch.no_grad():
        found = capture(model, "ce", batch)
    assert not any(value.requires_grad for value in found.values())
    same(found, capture(model, "ce", batch))


def test_frozen_parameters_are_left_out_and_unreached_ones_are_zero(model, batch):
    model[0].weight.requires_grad_(False)
    model.register_parameter("spare", nn.Parameter(torch.ones(2)))
    found = capture(model, "ce", batch)
    assert "0.weight" not in found
    assert torch.equal(found["spare"], torch.zeros(2))


def test_faults_are_one_line(model, batch, tmp_path):
    inputs, labels = batch
    with pytest.raises(InputError, match="batch: expected one label an input"):
        capture(model, "ce", (inputs, labels[:3]))
    with pytest.raises(InputError, match="loss: expected one number, got \\(8,\\)"):
        capture(model, nn.CrossEntropyLoss(reduction="none"), batch)
    with pytest.raises(InputError, match="classes 0 to 2"):
        capture(model, "ce", (inputs, labels + 1))
    with pytest.raises(InputError, match=r"gradient: w: expected finite numbers"):
        save_gradient(tmp_path / "g.safetensors", {"w": torch.tensor([float("nan")])})
    with pytest.raises(InputError, match="parameters that are trained"):
        capture(model.requires_grad_(False), "ce", batch)
    assert not list(tmp_path.iterdir())


def test_a_saved_gradient_reads_back_and_is_private(model, batch, tmp_path):
    path = tmp_path / "g.safetensors"
    gradient = capture(model, "ce", batch)
    save_gradient(path, gradient)
    same(read_weights(path), dict(sorted(gradient.items())))
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_a_captured_step_in_a_plain_loop(model, batch, tmp_path):
    inputs, labels = batch
    path = tmp_path / "g.safetensors"
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = None
    for step in range(3):
        optimizer.zero_grad()
        if step == 1:
            wanted = capture(model, "ce", batch)
            with capture_step(model, path):
                nn.functional.cross_entropy(model(inputs), labels).backward()
        else:
            nn.functional.cross_entropy(model(inputs), labels).backward()
        optimizer.step()
    same(read_weights(path), dict(sorted(wanted.items())))


def test_a_captured_block_is_what_it_adds(model, batch, tmp_path):
    inputs, labels = batch
    path = tmp_path / "g.safetensors"
    model[2].bias.requires_grad_(False)
    nn.functional.cross_entropy(model(inputs[:2]), labels[:2]).backward()  # accumulated before
    with capture_step(model, path):
        for part in (slice(2, 5), slice(5, 8)):
            (nn.functional.cross_entropy(model(inputs[part]), labels[part]) / 2).backward()
    halves = [capture(model, "ce", (inputs[p], labels[p])) for p in (slice(2, 5), slice(5, 8))]
    wanted = {name: (halves[0][name] + halves[1][name]) / 2 for name in sorted(halves[0])}
    assert "2.bias" not in wanted
    same(read_weights(path), wanted)


def test_a_captured_block_without_backward_or_with_a_fault_writes_nothing(model, tmp_path):
    path = tmp_path / "g.safetensors"
    with pytest.raises(InputError, match=r"loss.backward\(\) inside the block"):  # noqa: SIM117
        with capture_step(model, path):
            pass
    with pytest.raises(RuntimeError, match="mine"):  # noqa: SIM117
        with capture_step(model, path):
            raise RuntimeError("mine")
    assert not path.exists()


def test_the_hook_writes_the_chosen_optimiser_step(model, batch, tmp_path):
    inputs, labels = batch
    path = tmp_path / "g.safetensors"
    model[0].bias.requires_grad_(False)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    wanted = []
    with GradientHook(path, model, optimizer, step=1) as hook:
        for _ in range(3):
            optimizer.zero_grad()
            wanted.append(capture(model, "ce", batch))
            for part in (slice(0, 4), slice(4, 8)):  # accumulation
                (nn.functional.cross_entropy(model(inputs[part]), labels[part]) / 2).backward()
            optimizer.step()
    assert hook.written
    same(read_weights(path), dict(sorted(wanted[1].items())))
    path.unlink()
    optimizer.step()
    assert hook.seen == 3
    assert not path.exists()


def test_the_hook_says_what_is_wrong(model, tmp_path):
    other = torch.optim.SGD([nn.Parameter(torch.ones(1))], lr=0.1)
    with pytest.raises(InputError, match="one of the model's parameters"):
        GradientHook(tmp_path / "g.safetensors", model, other)
    with pytest.raises(InputError, match="0 or more, got -1"):
        GradientHook(tmp_path / "g.safetensors", model, other, step=-1)
