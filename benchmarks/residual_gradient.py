"""Images out of one gradient of a residual network, beside the nearest image of others.

    python benchmarks/residual_gradient.py --seeds 31 32 33 --batch 1 --data-dir DIR

CIFAR-10 less its mean image, over a deviation of .25; an untrained network (`models.residual`: a
block each of 64, 128 and 256 channels, mean over places, ten classes; batch norm frozen at its
start), cross-entropy, one float32 gradient. The attack `gradient` as it is, told nothing else.
PSNR in dB, images in 0..1: of each record with its best candidate, and with the nearest of 5000
images of others. CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch
from torch import Tensor

from remnant.attacks import Gradient
from remnant.capturing import capture
from remnant.data import load, mean_image, split
from remnant.models.residual import freeze_norms, residual
from remnant.seeds import generator_for
from remnant.types import Knowledge, Scaling, Target

WIDTHS = (64, 128, 256)


def best_psnr(records: Tensor, others: Tensor) -> str:
    """Of each record with the nearest of the others."""
    gaps = torch.cdist(records.double().flatten(1), others.double().flatten(1)).min(1).values
    values = -10 * torch.log10(gaps.square() / records[0].numel())
    return ", ".join(f"{value:.1f}" for value in values.tolist())


def measure(seed: int, batch: int, steps: int, data_dir: Path | None) -> list[str]:
    """The cells of one line."""
    examples = load("cifar10", data_dir=data_dir)
    sides = split(examples, train=batch, public=5000, holdout=1, seed=seed)
    model = residual(
        sides.train.shape, WIDTHS, (10,), generator=generator_for(seed, "weights")
    ).float()
    freeze_norms(model)
    scaling = Scaling(mean=mean_image(sides.public), std=torch.tensor(0.25))
    given = scaling.to_model(sides.train.inputs), sides.train.labels
    target = Target(
        model=model,
        input_shape=sides.train.shape,
        scaling=scaling,
        bounds=sides.train.bounds,
        knowledge=Knowledge(gradient=capture(model, "ce", given), loss="ce"),
    )
    begun = time.process_time()
    found = Gradient(steps=steps)(target, generator=generator_for(seed, "attack"))
    seconds = time.process_time() - begun
    came = best_psnr(sides.train.inputs, found.inputs) if len(found) else "none"
    null = best_psnr(sides.train.inputs, sides.public.inputs)
    return [str(seed), str(batch), came, null, f"{seconds:.0f}", found.reason]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seeds", nargs="+", type=int, default=[31, 32, 33])
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    heads = "seed|records|PSNR|nearest of others|CPU s|reason"
    print(f"| {' | '.join(heads.split('|'))} |\n{'|---' * 6}|")
    for seed in arguments.seeds:
        cells = measure(seed, arguments.batch, arguments.steps, arguments.data_dir)
        print(f"| {' | '.join(cells)} |", flush=True)


if __name__ == "__main__":
    main()
