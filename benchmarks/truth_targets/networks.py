"""Networks and their training in plain PyTorch."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import pairwise

import torch
from torch import Tensor, nn

State = dict[str, Tensor]
ACTIVATIONS: Mapping[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "tanh": nn.Tanh,
    "gelu": nn.GELU,
    "elu": nn.ELU,
    "silu": nn.SiLU,
}


@dataclass(frozen=True, kw_only=True)
class Shape:
    """A dense network. Its state dict has the names that nn.Sequential gives."""

    hidden: tuple[int, ...] = (300, 300)
    activation: str = "relu"
    bias: bool = True
    dropout: float = 0.0
    first_scale: float = 1.0  # multiplies the first layer as it is initialised


def network(shape: Shape, inputs: int, outputs: int) -> nn.Sequential:
    sizes = (inputs, *shape.hidden, outputs)
    layers: list[nn.Module] = []
    for k, (d, w) in enumerate(pairwise(sizes)):
        layers.append(nn.Linear(d, w, bias=shape.bias))
        if k < len(shape.hidden):
            layers.append(ACTIVATIONS[shape.activation]())
            if shape.dropout:
                layers.append(nn.Dropout(shape.dropout))
    layers[0].weight.data *= shape.first_scale
    return nn.Sequential(*layers)


def model_text(shape: Shape, inputs: int, outputs: int) -> str:
    sizes = "-".join(map(str, (inputs, *shape.hidden, outputs)))
    rest = "" if shape.activation == "relu" else f":{shape.activation}"
    return f"mlp:{sizes}{rest}" + ("" if shape.bias else ":nobias")


def state_of(model: nn.Module) -> State:
    return {name: value.detach().clone() for name, value in model.state_dict().items()}


def loss_of(name: str, outputs: Tensor, y: Tensor) -> Tensor:
    if name == "ce":
        return nn.functional.cross_entropy(outputs, y)
    if name == "bce":
        return nn.functional.binary_cross_entropy_with_logits(outputs[:, 0], y.to(outputs.dtype))
    return 0.5 * (outputs[:, 0] - y).square().mean()


@dataclass(frozen=True, kw_only=True)
class Training:
    """optimiser: gd, sgd, adam, adamw, stationary (descent with decay to the end), small (from a
    small first layer far past separation) or private (clipped, noisy). stop: the loss to end at."""

    optimiser: str = "gd"
    lr: float = 0.05
    momentum: float = 0.9
    decay: float = 0.0
    steps: int = 3000
    stop: float | None = 0.02
    batch: int | None = None
    noise: float = 0.0
    clip: float = 1.0
    augment: bool = False  # each batch mirrored at random and moved by a pixel
    frozen: bool = False  # the first layer stays as it is


def train(model: nn.Module, x: Tensor, y: Tensor, loss: str, how: Training) -> None:
    model.train()
    next(model.children()).requires_grad_(not how.frozen)
    if how.optimiser == "stationary":
        _to_stationarity(model, x, y, loss, how)
    elif how.optimiser == "small":
        _past_separation(model, x, y, loss, how)
    elif how.optimiser == "private":
        _privately(model, x, y, loss, how)
    else:
        _descend(model, x, y, loss, how)
    model.eval()


def _descend(model: nn.Module, x: Tensor, y: Tensor, loss: str, how: Training) -> None:
    kinds = {"adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    if how.optimiser in kinds:
        optimiser = kinds[how.optimiser](model.parameters(), lr=how.lr, weight_decay=how.decay)
    else:
        optimiser = torch.optim.SGD(
            model.parameters(), lr=how.lr, momentum=how.momentum, weight_decay=how.decay
        )
    batch = how.batch or len(x)
    for _ in range(how.steps):
        order = torch.randperm(len(x)) if how.batch else torch.arange(len(x))
        total = 0.0
        for rows in order.split(batch):
            optimiser.zero_grad()
            inputs = _augmented(x[rows]) if how.augment else x[rows]
            value = loss_of(loss, model(inputs), y[rows])
            value.backward()
            optimiser.step()
            total += value.item() * len(rows)
        if how.stop is not None and total / len(x) < how.stop:
            return


def _augmented(x: Tensor) -> Tensor:
    side = round(x.shape[1] ** 0.5)
    images = x.reshape(-1, side, side)
    if torch.rand(()) < 0.5:
        images = images.flip(2)
    moved = torch.roll(
        images, (int(torch.randint(-1, 2, ())), int(torch.randint(-1, 2, ()))), (1, 2)
    )
    return moved.reshape(len(x), -1)


def _to_stationarity(model: nn.Module, x: Tensor, y: Tensor, loss: str, how: Training) -> None:
    """Full-batch descent on loss + decay / 2 |theta|^2, a rate that falls whenever that rises."""
    weights, rate, last = list(model.parameters()), how.lr, float("inf")
    done = 0.0
    for step in range(100 * how.steps):
        value = loss_of(loss, model(x), y)
        grads = torch.autograd.grad(value, weights)
        if step % 200 == 199:
            size = sum(w.detach().square().sum().item() for w in weights)
            whole = value.item() + how.decay / 2 * size
            rate, last = (rate * 0.7 if whole > last else rate), whole
        now = rate * min(1.0, (step + 1) / 300)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight -= now * (grad + how.decay * weight)
        done += now
        if done >= how.steps * how.lr:
            return


def _past_separation(model: nn.Module, x: Tensor, y: Tensor, loss: str, how: Training) -> None:
    """Steps that grow as the loss shrinks, for a small first layer and no decay."""
    weights, share, last = list(model.parameters()), 1.0, float("inf")
    kept = [w.detach().clone() for w in weights]
    for _ in range(how.steps):
        value = loss_of(loss, model(x), y)
        if value.item() > 1.02 * last:  # too far: back, and shorter
            share /= 2
            with torch.no_grad():
                for weight, old in zip(weights, kept, strict=True):
                    weight.copy_(old)
            value = loss_of(loss, model(x), y)
        else:
            share = min(1.0, share * 1.01)
        last = value.item()
        if how.stop is not None and last < how.stop:
            return
        kept = [w.detach().clone() for w in weights]
        grads = torch.autograd.grad(value, weights)
        step = how.lr * share / (last if last < 0.3 else 1.0)
        with torch.no_grad():
            for weight, grad in zip(weights, grads, strict=True):
                weight -= step * grad


def clipped_sum(model: nn.Module, x: Tensor, y: Tensor, loss: str, clip: float) -> list[Tensor]:
    """The sum over records of their gradients, each scaled down to a norm of `clip`."""
    weights = list(model.parameters())
    total = [torch.zeros_like(w) for w in weights]
    for i in range(len(x)):
        grads = torch.autograd.grad(loss_of(loss, model(x[i : i + 1]), y[i : i + 1]), weights)
        norm = torch.sqrt(sum((g.square().sum() for g in grads), torch.zeros(())))
        for part, grad in zip(total, grads, strict=True):
            part += grad * min(1.0, clip / max(float(norm), 1e-30))
    return total


def _privately(model: nn.Module, x: Tensor, y: Tensor, loss: str, how: Training) -> None:
    """DP gradient descent: every record in every step, N(0, (noise clip)^2) on the sum."""
    weights = list(model.parameters())
    for _ in range(how.steps):
        total = clipped_sum(model, x, y, loss, how.clip)
        with torch.no_grad():
            for weight, part in zip(weights, total, strict=True):
                noisy = part + how.noise * how.clip * torch.randn_like(part)
                weight -= how.lr * noisy / len(x)


def gradient(model: nn.Module, x: Tensor, y: Tensor, loss: str) -> State:
    """Of the mean loss, under the names of the state dict."""
    named = dict(model.named_parameters())
    grads = torch.autograd.grad(loss_of(loss, model(x), y), list(named.values()))
    return dict(zip(named, grads, strict=True))
