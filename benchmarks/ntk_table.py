"""What the exact solver of the attack `ntk` takes back from two checkpoints, row by row.

    python benchmarks/ntk_table.py                       the list of rows
    python benchmarks/ntk_table.py mnist-100-1024-ce ... --seeds 1 2 3 --data-dir DIR
    python benchmarks/ntk_table.py mnist-20-512-mse --seeds 1 --paper 20000

Every row trains a fresh network on N records (PyTorch's default initialisation, momentum 0.9) and
attacks it. Recovered: records with a candidate within squared L2 1e-3, in the data's own scale.
Wrongly certified: candidates called certified that are within 0.1 of no record, which is far less
than two records differ by; or, where they are said to be estimates, within a tenth of the records'
spread (their median squared distance from the median record). Farther than stated: certified, and
farther than the error that the finding states of it. Times
are CPU seconds of one thread. CIFAR-10 is read from --data-dir, as cifar10.npz or as published.
--paper STEPS runs the paper's descent on the same targets.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from remnant.attacks import NTK
from remnant.experiments.demo import Demo, divide, model_string, recipe, scaling_by
from remnant.models import build, load_weights
from remnant.seeds import generator_for
from remnant.training import Adam, train
from remnant.types import Examples, Knowledge, Target

NEAR, SAME = 1e-3, 0.1  # squared L2


@dataclass(frozen=True, kw_only=True)
class Row:
    """One setting: what is trained, and how its weights are stored."""

    demo: Demo
    activation: str = "relu"
    stored: torch.dtype = torch.float32
    adam: bool = False
    noise: float = 0.0  # on the update, relative to its standard deviation; then the count is told


def row(data: str, records: int, width: int, *, row_options: Any = None, **demo: Any) -> Row:
    common = {"balanced": True, "stop_loss": 0.02} | demo
    return Row(demo=Demo(data=data, records=records, width=width, **common), **(row_options or {}))


def rows() -> dict[str, Row]:
    """All rows by name."""
    table: dict[str, Row] = {}
    for records, width in ((20, 512), (50, 512), (100, 1024), (200, 1024), (300, 2048)):
        name = f"mnist-{records}-{width}"
        table[f"{name}-ce"] = row("mnist", records, width)
        table[f"{name}-mse"] = row("mnist", records, width, loss="mse", lr=0.01)
    for records, width in ((50, 512), (100, 1024)):
        name = f"mnist-{records}-{width}"
        table[f"{name}-batches"] = row("mnist", records, width, batch_size=10, lr=0.02)
        table[f"{name}-decay"] = row("mnist", records, width, weight_decay=1e-3)
        table[f"{name}-stop"] = row("mnist", records, width, stop_loss=0.01)
    for name, dtype in (("fp16", torch.float16), ("bf16", torch.bfloat16)):
        table[f"mnist-20-512-{name}"] = row("mnist", 20, 512, row_options={"stored": dtype})
    table["mnist-20-384-noise"] = row("mnist", 20, 384, row_options={"noise": 0.01})
    table["mnist-20-512-adam"] = row("mnist", 20, 512, lr=1e-3, row_options={"adam": True})
    table["breast-cancer-20-512"] = row("breast_cancer", 20, 512)
    table["mnist-20-512-binary"] = row("mnist", 20, 512, task="odd-even", loss="mse", lr=0.01)
    table["mnist-20-512-one-layer"] = row("mnist", 20, 512, depth=1)
    table["mnist-50-1024-one-layer"] = row("mnist", 50, 1024, depth=1)
    for name in ("tanh", "gelu", "silu", "leaky0.1", "elu", "sigmoid"):
        table[f"mnist-20-512-{name}"] = row("mnist", 20, 512, row_options={"activation": name})
    table["mnist-50-512-gelu"] = row("mnist", 50, 512, row_options={"activation": "gelu"})
    pushes = (
        ("cifar10", 100, 1024), ("cifar10", 200, 2048), ("faces", 50, 512),
        ("mnist", 60, 256), ("mnist", 150, 512), ("cifar10", 100, 512),
        ("cifar10", 200, 1024), ("mnist", 300, 1024), ("cifar10", 500, 2048),
        ("mnist", 500, 2048),
    )  # fmt: skip
    for data, records, width in pushes:
        table[f"{data}-{records}-{width}"] = row(data, records, width)
    # Of MNIST 1000 are too many: its records have at most 784 directions. Four of the same share.
    series = ((125, 1024), (250, 2048), (500, 4096), (1000, 8192))
    for records, width in ((400, 4096), *series):
        name = f"cifar10-{records}-{width}"
        table[name] = row("cifar10", records, width, batch_size=100)
    return table


def prepare(chosen: Row, data_dir: Path | None) -> tuple[Target, Examples]:
    """Train and hand over what leaks, and the truth."""
    demo = chosen.demo
    sides = divide(demo, data_dir)
    scaling = scaling_by(sides.public)
    text = model_string(demo, sides.train, sides.train.classes)
    if chosen.activation != "relu":
        text += f":{chosen.activation}"
    model = build(text, generator=generator_for(demo.seed, "weights"))
    for parameter in model.parameters():
        parameter.data = parameter.data.to(chosen.stored).float()
    initial = {name: p.detach().clone() for name, p in model.named_parameters()}
    steps = Adam(lr=demo.lr, steps=demo.epochs, loss=demo.loss, stop_loss=demo.stop_loss)
    result = train(
        model,
        sides.train,
        steps if chosen.adam else recipe(demo),
        scaling=scaling,
        generator=generator_for(demo.seed, "batches"),
    )
    final = {name: p.to(chosen.stored).float() for name, p in result.final.items()}
    generator = generator_for(demo.seed, "noise")
    for name, value in final.items() if chosen.noise else ():
        spread = chosen.noise * (value - initial[name]).std()
        final[name] = value + spread * torch.randn(value.shape, generator=generator)
    load_weights(model, final)
    target = Target(
        model=model,
        input_shape=sides.train.shape,
        bounds=sides.train.bounds,
        scaling=scaling,
        knowledge=Knowledge(initial=initial, records=len(sides.train) if chosen.noise else None),
    )
    return target, sides.train


def measure(chosen: Row, target: Target, truth: Examples) -> dict[str, Any]:
    """Attack, and compare with the truth."""
    begun = time.process_time()
    found = NTK(preset="exact")(target, generator=generator_for(chosen.demo.seed, "attack"))
    seconds = time.process_time() - begun
    scale = target.scaling.std.double()
    x = truth.inputs.double() / scale
    distance = torch.cdist(x.flatten(1), (found.inputs.double() / scale).flatten(1)).square()
    nearest = distance.min(1).values if len(found) else torch.full((len(x),), float("inf"))
    passed = torch.tensor(found.stated.passed, dtype=torch.bool)
    flat = x.flatten(1)
    spread = float((flat - flat.median(0).values).square().sum(1).median())
    same = SAME if found.figures.get("exact") else SAME * spread
    right = distance.min(0).values < same if len(found) else passed
    stated = torch.tensor([error or 0.0 for error in found.stated.error])
    within = flat.shape[1] * stated.double().square()
    farther = passed & (distance.min(0).values > within) if len(found) else passed
    hit = nearest < NEAR
    return {
        "counted": found.stated.counted,
        "recovered": f"{int(hit.sum())} of {len(x)}",
        "max error": f"{float(nearest.max()):.1e}",
        "mean error": float(nearest.mean()),
        "seconds": seconds,
        "certified": int(passed.sum()),
        "wrongly certified": int((passed & ~right).sum()),
        "farther than stated": int(farther.sum()),
        "status": str(found.status),
        "CPU s": f"{seconds:.1f}",
        "reason": found.reason,
    }


def beside(chosen: Row, target: Target, truth: Examples, steps: int, exact: dict[str, Any]) -> str:
    """The paper's descent, told the number of records and cut at `steps`, against the exact one."""
    known = replace(target.knowledge, records=len(truth))
    generator = generator_for(chosen.demo.seed, "attack")
    begun = time.process_time()
    found = NTK(preset="paper", steps=steps)(replace(target, knowledge=known), generator=generator)
    seconds = time.process_time() - begun
    scale = target.scaling.std.double()
    x, near = ((some.inputs.double() / scale).flatten(1) for some in (truth, found))
    mean = float(torch.cdist(x, near).square().min(1).values.mean())
    ratio = seconds / exact["seconds"]
    return (
        f"mean squared error {exact['mean error']:.1e} after {exact['seconds']:.1f} s (exact), "
        f"{mean:.1e} after {seconds:.0f} s, {steps} steps (paper): {ratio:.0f} times as long"
    )


def lines(
    names: list[str], seeds: list[int], data_dir: Path | None, paper: int | None = None
) -> Iterator[str]:
    """The table, a line at a time."""
    table = rows()
    shown = (
        "counted", "recovered", "max error", "certified", "wrongly certified",
        "farther than stated", "CPU s",
    )  # fmt: skip
    yield "| row | seed | " + " | ".join((*shown, "status")) + " |"
    yield "|---" * (len(shown) + 3) + "|"
    for name in names:
        for seed in seeds:
            chosen = replace(table[name], demo=replace(table[name].demo, seed=seed))
            target, truth = prepare(chosen, data_dir)
            result = measure(chosen, target, truth)
            cells = [str(result[key]) for key in (*shown, "status")]
            if result["status"] != "complete":
                cells[-1] += f": {result['reason']}"
            yield f"| {name} | {seed} | " + " | ".join(cells) + " |"
            if paper is not None:
                yield beside(chosen, target, truth, paper, result)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("rows", nargs="*", choices=[[], *rows()], help="rows to run")
    parser.add_argument("--seeds", nargs="+", type=int, default=[1, 2, 3])
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--paper", type=int, metavar="STEPS", help="the paper's descent beside")
    chosen = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    if not chosen.rows:
        print("\n".join(rows()))
        return
    for line in lines(chosen.rows, chosen.seeds, chosen.data_dir, chosen.paper):
        print(line, flush=True)


if __name__ == "__main__":
    main()
