"""Gram matrix of 200 inputs on a 784-1000-1000-1 ReLU network: layerwise against stacked gradients.

    python benchmarks/gram.py

Each way runs in its own process with one thread: memory first (the peak above what the process
held before), then the best of several times. Stacked gradients are vmap(grad) to 200 x parameters
and J J^T, parameter by parameter, so that J is held once and never copied into one matrix.
Linux only: memory is read from /proc.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vmap

from remnant.gradients import gram

INPUTS, WIDTHS = 200, (784, 1000, 1000, 1)
WAYS = {"layerwise": 20, "stacked": 3}  # and how often each is timed


def network(widths: tuple[int, ...], generator: torch.Generator) -> nn.Module:
    layers: list[nn.Module] = []
    for before, after in pairwise(widths):
        layers += [nn.Linear(before, after), nn.ReLU()]
    model = nn.Sequential(*layers[:-1]).requires_grad_(False)
    for value in model.parameters():
        value.copy_(torch.randn(value.shape, generator=generator) / value.shape[-1] ** 0.5)
    return model


def stacked(model: nn.Module, inputs: Tensor) -> Tensor:
    def output(weights: dict[str, Tensor], one: Tensor) -> Tensor:
        return functional_call(model, weights, (one[None],))[0, 0]

    weights = dict(model.named_parameters())
    rows = vmap(grad(output), in_dims=(None, 0))(weights, inputs)
    kernel = torch.zeros(len(inputs), len(inputs))
    for part in rows.values():
        kernel += part.flatten(1) @ part.flatten(1).T
    return kernel


def resident(field: str) -> float:
    """VmRSS or VmHWM (its peak) of this process, in MB."""
    for line in Path("/proc/self/status").read_text().splitlines():
        if line.startswith(field):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"no {field} in /proc/self/status")


def peak_above_baseline(compute: Callable[[], Tensor]) -> tuple[Tensor, float]:
    # Pages that were freed but not given back would hide what the computation takes.
    ctypes.CDLL(None).malloc_trim(0)
    Path("/proc/self/clear_refs").write_text("5")  # the peak starts anew
    before = resident("VmRSS")
    result = compute()
    return result, resident("VmHWM") - before


def measure(way: str, out: Path) -> None:
    torch.set_num_threads(1)
    generator = torch.Generator().manual_seed(0)
    compute = gram if way == "layerwise" else stacked
    # Loads the code of both passes; far too small to warm up any memory.
    compute(network((6, 5, 5, 1), generator), torch.rand(3, 6, generator=generator))
    model = network(WIDTHS, generator)
    inputs = torch.rand(INPUTS, WIDTHS[0], generator=generator)
    kernel, megabytes = peak_above_baseline(lambda: compute(model, inputs))
    times = []
    for _ in range(WAYS[way]):
        start = time.perf_counter()
        compute(model, inputs)
        times.append(time.perf_counter() - start)
    np.save(out, kernel.numpy())
    print(json.dumps({"seconds": min(times), "megabytes": megabytes}))


def main() -> None:
    figures, kernels = {}, {}
    with tempfile.TemporaryDirectory() as folder:
        for way in WAYS:
            out = Path(folder) / f"{way}.npy"
            command = [sys.executable, __file__, "--way", way, "--out", str(out)]
            done = subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True)
            figures[way] = json.loads(done.stdout)
            kernels[way] = np.load(out, allow_pickle=False).astype(np.float64)
    print(f"Gram matrix, {INPUTS} inputs, {'-'.join(map(str, WIDTHS))} ReLU, float32, one thread\n")
    print(f"{'':<12}{'seconds':>10}{'peak MB':>10}")
    for way, found in figures.items():
        print(f"{way:<12}{found['seconds']:>10.4f}{found['megabytes']:>10.1f}")
    fast, slow = figures["layerwise"], figures["stacked"]
    ratios = [slow[key] / fast[key] for key in ("seconds", "megabytes")]
    print(f"{'ratio':<12}{ratios[0]:>9.0f}x{ratios[1]:>9.0f}x\n")
    gap = np.abs(kernels["layerwise"] - kernels["stacked"]) / np.abs(kernels["stacked"])
    print(f"largest relative difference of an entry: {gap.max():.1e}")


if __name__ == "__main__":
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--way", choices=WAYS, help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help=argparse.SUPPRESS)
    asked = parser.parse_args()
    measure(asked.way, asked.out) if asked.way else main()
