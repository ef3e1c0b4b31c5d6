"""What training on a distilled set is worth: test accuracy of three kinds of networks."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.devices import computed_there
from remnant.distill.flow import flow
from remnant.kernels import Dense, ntk, regress
from remnant.training import accuracy, solve_linearised
from remnant.types import Examples, Scaling


@dataclass(frozen=True, kw_only=True, eq=False)
class Judged:
    """Shares of right classes in 0..1; `standard_loss`: what that network's training left over."""

    standard: float
    linearised: float
    infinite: float
    standard_loss: float


@computed_there
def judge(
    model: nn.Module,
    network: Dense,
    images: Tensor,
    labels: Tensor,
    *,
    test: Tensor,
    classes: Tensor,
) -> Judged:
    """Train on images m x d with targets m x c; test on inputs t x d with classes t.

    All are in the model's scale. `model` is a fresh network, `network` its limit of infinite width.
    """
    flat, asked = images.flatten(1), test.flatten(1)
    flowed = flow(model, flat.float(), labels.float())
    return Judged(
        standard=accuracy(_outputs(flowed.model, asked.float()), classes),
        linearised=linearised_accuracy(model, flat, labels, test=asked, classes=classes),
        infinite=infinite_accuracy(network, flat, labels, test=asked, classes=classes),
        standard_loss=flowed.loss,
    )


def linearised_accuracy(
    model: nn.Module, images: Tensor, labels: Tensor, *, test: Tensor, classes: Tensor
) -> float:
    """Of the Taylor model about the present weights, trained to the end."""
    names = tuple(str(i) for i in range(len(images)))
    small = Examples(inputs=images.flatten(1), labels=labels.double(), ids=names, bounds=None)
    trained = solve_linearised(model, small, scaling=Scaling()).model
    return accuracy(_outputs(trained.float(), test.flatten(1).float()), classes)


def infinite_accuracy(
    network: Dense, images: Tensor, labels: Tensor, *, test: Tensor, classes: Tensor
) -> float:
    """Of kernel regression with the infinite-width NTK."""
    duals = regress(ntk(network, images), labels)
    parts = [ntk(network, part, images) @ duals for part in test.split(1000)]
    return accuracy(torch.cat(parts), classes)


@torch.no_grad()
def _outputs(model: nn.Module, inputs: Tensor) -> Tensor:
    return torch.cat([model(part) for part in inputs.split(1000)])
