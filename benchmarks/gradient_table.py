"""What the attack `gradient` takes back from one gradient, row by row of one table.

    python benchmarks/gradient_table.py                      the list of rows
    python benchmarks/gradient_table.py relu-100-256 ... --seeds 21 22 23 --data-dir DIR

A row is a batch of B records, inputs less the mean image, ten-class cross-entropy, one float32
gradient at PyTorch's default initialisation; nothing else is told. Recovered: records with a
candidate within squared L2 1e-6. Wrongly certified: candidates called certified that are within
1e-2 of no record. Times are CPU seconds of one thread. CIFAR-10 is read from --data-dir, as
cifar10.npz or as published.
"""

from __future__ import annotations

import argparse
import time
from pathlib import Path

import torch

from remnant.attacks import Gradient
from remnant.capturing import capture
from remnant.data import load, mean_image, split
from remnant.models import build
from remnant.seeds import generator_for
from remnant.types import Examples, Knowledge, Scaling, Target

NEAR, SAME = 1e-6, 1e-2  # squared L2
ROWS: dict[str, tuple[str, str, int]] = {  # name: data, model, records
    f"relu-{b}-{w}": ("mnist", f"mlp:784-{w}-{w}-10", b)
    for b, w in (
        (100, 256), (112, 256), (120, 256), (200, 512), (225, 512), (300, 1024), (400, 1024),
        (400, 2048),
    )
} | {
    f"cifar-{b}-{w}": ("cifar10", f"mlp:3072-{w}-{w}-10", b)
    for b, w in ((100, 256), (200, 512), (500, 2048), (1000, 4096))
} | {
    f"{name}-100-1024": ("mnist", f"mlp:784-1024-1024-10:{name}", 100)
    for name in ("tanh", "gelu", "silu", "sigmoid", "elu")
} | {
    f"{name}-50-512": ("mnist", f"mlp:784-512-512-10:{name}", 50)
    for name in ("leaky", "tanh", "sigmoid", "elu")
} | {
    "one-layer-100-1024": ("mnist", "mlp:784-1024-10", 100),
    "one-layer-tanh-8-500": ("mnist", "mlp:784-500-10:tanh", 8),
    "one-layer-tanh-16-4000": ("mnist", "mlp:784-4000-10:tanh", 16),
    "cnn-mnist-32": ("mnist", "cnn:1x28x28-c16k3s2p1-512-512-10", 32),
    "cnn-cifar-32": ("cifar10", "cnn:3x32x32-c32k3s2p1-512-512-10", 32),
}  # fmt: skip


def prepare(name: str, seed: int, data_dir: Path | None) -> tuple[Target, Examples]:
    data, text, records = ROWS[name]
    sides = split(load(data, data_dir=data_dir), train=records, public=None, holdout=1, seed=seed)
    model = build(text, generator=generator_for(seed, "weights"))
    scaling = Scaling(mean=mean_image(sides.public))
    batch = (scaling.to_model(sides.train.inputs), sides.train.labels)
    target = Target(
        model=model,
        input_shape=sides.train.shape,
        scaling=scaling,
        knowledge=Knowledge(gradient=capture(model, "ce", batch), loss="ce"),
    )
    return target, sides.train


def measure(name: str, seed: int, data_dir: Path | None) -> list[str]:
    """The cells of one line."""
    target, truth = prepare(name, seed, data_dir)
    begun = time.process_time()
    found = Gradient()(target, generator=generator_for(seed, "attack"))
    seconds = time.process_time() - begun
    distance = torch.full((len(truth), 1), float("inf"), dtype=torch.float64)
    if len(found):
        flat = truth.inputs.double().flatten(1), found.inputs.double().flatten(1)
        # Differences, not inner products: those cancel at 1e-12.
        distance = torch.stack([(flat[1] - row).square().sum(1) for row in flat[0]])
    nearest, which = distance.min(1)
    hit = nearest < NEAR
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    wrong = int((passed & (distance.min(0).values > SAME)).sum()) if len(found) else 0
    right = 0
    if found.labels is not None and bool(hit.any()):
        right = int((found.labels[which][hit] == truth.labels[hit]).sum())
    said = str(found.status)
    return [
        name,
        str(seed),
        f"{int(hit.sum())} of {len(truth)}",
        f"{float(nearest.max()):.1e}",
        str(int(passed.sum())),
        str(wrong),
        str(right),
        f"{seconds:.1f}",
        said if said == "complete" else f"{said}: {found.reason}",
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("rows", nargs="*", choices=[[], *ROWS], metavar="ROW")
    parser.add_argument("--seeds", nargs="+", type=int, default=[21, 22, 23])
    parser.add_argument("--data-dir", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if not arguments.rows:
        print("\n".join(ROWS))
        return
    heads = "row|seed|recovered|max error|certified|wrongly|labels right|CPU s|status"
    print(f"| {' | '.join(heads.split('|'))} |\n{'|---' * 9}|")
    for name in arguments.rows:
        for seed in arguments.seeds:
            print(f"| {' | '.join(measure(name, seed, arguments.data_dir))} |", flush=True)


if __name__ == "__main__":
    main()
