"""Batches behind one gradient through dropout (docs/research/batch.md).

    python benchmarks/dropout.py --seeds 51

A row for each batch, width and p: records certified, the largest squared error, CPU seconds. Digits
of the bundled MNIST less 0.13, weights as PyTorch makes them, dropout after both hidden layers.
"""

from __future__ import annotations

import argparse
import copy
import time

import torch
from torch import nn

from remnant import Gradient, Knowledge, Target, capture, load, split

ROWS = ((16, 256, 0.1), (16, 256, 0.3), (16, 256, 0.5), (32, 512, 0.1), (32, 512, 0.5))


def measure(records: int, width: int, p: float, seed: int) -> list[object]:
    sides = split(load("mnist"), train=records, public=None, holdout=2, seed=seed)
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Flatten(),
        nn.Linear(784, width), nn.ReLU(), nn.Dropout(p),
        nn.Linear(width, width), nn.ReLU(), nn.Dropout(p),
        nn.Linear(width, 10),
    )  # fmt: skip
    inputs = sides.train.inputs - 0.13
    gradient = capture(copy.deepcopy(model).train(), "ce", (inputs, sides.train.labels))
    known = Knowledge(gradient=gradient, loss="ce")
    target = Target(model=model.eval(), input_shape=(1, 28, 28), bounds=None, knowledge=known)
    begun = time.process_time()
    found = Gradient(patience=1)(target, generator=torch.Generator().manual_seed(seed))
    seconds = time.process_time() - begun
    worst = float("inf")
    if len(found):
        both = inputs.flatten(1).double(), found.inputs.flatten(1).double()
        far = torch.cdist(*both).square()
        worst = float(far.min(1).values.max())
    return [records, width, p, seed, found.stated.certified, f"{worst:.0e}", f"{seconds:.1f}"]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seeds", default="51,52,53")
    torch.set_num_threads(1)
    print(
        "| records | width | p | seed | certified | worst | CPU_s |\n|---|---|---|---|---|---|---|"
    )
    for records, width, p in ROWS:
        for seed in map(int, parser.parse_args().seeds.split(",")):
            row = measure(records, width, p, seed)
            print(f"| {' | '.join(map(str, row))} |", flush=True)


if __name__ == "__main__":
    main()
