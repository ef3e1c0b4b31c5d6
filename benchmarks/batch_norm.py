"""Batches behind one gradient through batch norm in training mode (docs/research/batch-norm.md).

    python benchmarks/batch_norm.py --seeds 20,21,22

A row for each batch and width: records found and certified, wrongly or beyond their stated error,
the largest squared error and CPU seconds. Digits of the bundled MNIST, weights as PyTorch makes
them, or after `--steps` of SGD on other batches.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import nn

from remnant import Gradient, Knowledge, Target, capture, load, split

ROWS = ((8, 256), (16, 256), (8, 1024), (16, 1024), (32, 1024), (64, 1024), (100, 1024))


def network(width: int, seed: int) -> nn.Module:
    torch.manual_seed(seed)
    return nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, width), nn.BatchNorm1d(width), nn.ReLU(),
        nn.Linear(width, 10),
    )  # fmt: skip


def measure(records: int, width: int, seed: int, steps: int) -> list[object]:
    sides = split(load("mnist"), train=records, public=None, holdout=2, seed=seed)
    model = network(width, seed).train()
    descent = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for k in range(steps):
        some = sides.public.take(range(64 * (k % 20), 64 * (k % 20) + 64))
        descent.zero_grad()
        nn.functional.cross_entropy(model(some.inputs), some.labels).backward()
        descent.step()
    sent = copy.deepcopy(model).eval()
    gradient = capture(model, "ce", sides.train)
    known = Knowledge(gradient=gradient, loss="ce")
    target = Target(model=sent, input_shape=(1, 28, 28), bounds=(0, 1), knowledge=known)
    begun = time.process_time()
    found = Gradient()(target, generator=torch.Generator().manual_seed(seed))
    seconds = time.process_time() - begun
    truth, inputs = (part.inputs.flatten(1).double() for part in (sides.train, found))
    passed = torch.tensor([*found.stated.passed], dtype=torch.bool)
    if len(inputs) and not bool(passed.any()):  # up to a common shift
        truth, inputs = truth - truth.mean(0), inputs - inputs.mean(0)
    if not len(inputs):
        return [records, width, seed, steps, 0, 0, 0, "-", f"{seconds:.1f}"]
    square = torch.cdist(inputs, truth).square().min(1).values
    stated = [error or 0.0 for error in found.stated.error]
    beyond = (square / 784).sqrt() > torch.tensor(stated)
    over = int((beyond & passed).sum())
    right = int((square < 1e-3).sum())
    worst = f"{float(square.max()):.0e}"
    return [records, width, seed, steps, right, int(passed.sum()), over, worst, f"{seconds:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="20,21,22")
    parser.add_argument("--steps", type=int, default=0, help="of SGD before the gradient")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    heads = ["records", "width", "seed", "steps", "found", "certified", "beyond", "worst", "CPU_s"]
    print(f"| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
    for records, width in ROWS:
        for seed in map(int, chosen.seeds.split(",")):
            row = measure(records, width, seed, chosen.steps)
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
