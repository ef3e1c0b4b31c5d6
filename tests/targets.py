"""Small trained targets that tests share: plain PyTorch, as a user would have them."""

import functools
import itertools

import torch
from torch import nn

from remnant.data import load
from remnant.types import Knowledge, Scaling, Target


@functools.cache
def faces_target(
    records=12, width=192, seed=0, optimiser="sgd", stop=0.05, depth=2, centred=True, last=None
):
    """(target, truth n x 1 x 25 x 25, labels): a ReLU net trained on the first faces."""
    examples = load("faces")
    truth, labels = examples.inputs[:records], examples.labels[:records]
    mean = examples.inputs[50:].mean(0) * centred
    torch.manual_seed(seed)
    sizes = [625, *[width] * (depth - 1), last or width]
    layers = [nn.Flatten()]
    for before, after in itertools.pairwise(sizes):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers, nn.Linear(sizes[-1], 10))
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    kind = torch.optim.SGD if optimiser == "sgd" else torch.optim.Adam
    steps = kind(model.parameters(), lr=0.05 if optimiser == "sgd" else 1e-3)
    for _ in range(2000):
        loss = nn.functional.cross_entropy(model(truth - mean), labels)
        if loss.item() < stop:
            break
        steps.zero_grad()
        loss.backward()
        steps.step()
    target = Target(
        model=model.eval(),
        input_shape=(1, 25, 25),
        scaling=Scaling(mean=mean),
        knowledge=Knowledge(initial=initial),
    )
    return target, truth, labels
