"""A distillation step, 500 records of 784 to 20 images at depth 2, against its matrix products.

    python benchmarks/distill.py

A step is the loss, its slope in the images and Adam's move. Its two kernels, images by records and
images by images, need a product each, and their slopes go back through one each: those are timed in
turn with the steps, in one process with one thread, so that both find the same machine. CPU time,
medians; 4 is the ratio to stay below.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

import torch
from torch import Tensor

from remnant.distill import Distillation, Problem, problem
from remnant.distill.search import begin, loss_at
from remnant.kernels import Dense

RECORDS, IMAGES, PIXELS, ROUNDS = 500, 20, 784, 400


def products(images: Tensor, records: Tensor, one: Tensor, two: Tensor) -> None:
    images @ records.T, images @ images.T  # the kernels
    one @ records, (two + two.T) @ images  # their slopes


def seconds(work: Callable[[], object]) -> float:
    begun = time.process_time()
    work()
    return time.process_time() - begun


def measured(
    about: Problem, settings: Distillation, generator: torch.Generator
) -> tuple[float, float]:
    """Median seconds of a step and of its products."""
    images, wanted = begin(about, settings, generator)
    images.requires_grad_()
    adam = torch.optim.Adam([images])
    still = images.detach().clone()
    one, two = still @ about.inputs.T, still @ still.T

    def step() -> None:
        loss, _ = loss_at(about, settings, images, wanted)
        images.grad = torch.autograd.grad(loss, images)[0]
        adam.step()

    pairs = [
        (seconds(step), seconds(lambda: products(still, about.inputs, one, two)))
        for _ in range(ROUNDS)
    ]
    steps, plain = zip(*pairs, strict=True)
    return median(steps), median(plain)


def main() -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    records = torch.randn(RECORDS, PIXELS, generator=generator, dtype=torch.float64) / 4
    about = problem(Dense(hidden=2), records, torch.arange(RECORDS) % 2)
    print(f"{RECORDS} records of {PIXELS} to {IMAGES} images, float64, one thread, medians\n")
    print(f"{'':<8}{'step ms':>10}{'products ms':>14}{'ratio':>8}")
    for method in ("kip", "rkip"):
        step, product = measured(about, Distillation(method=method, steps=ROUNDS), generator)
        print(f"{method:<8}{1e3 * step:>10.2f}{1e3 * product:>14.2f}{step / product:>8.2f}")


if __name__ == "__main__":
    main()
