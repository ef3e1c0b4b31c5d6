"""Final weights: the default, seed by seed, and against the papers' descent.

    python benchmarks/kkt.py paper --seconds 60    # the papers' random search at equal CPU time
    python benchmarks/kkt.py table --task bce --records 50 --seeds 5    # the default, seed by seed
    python benchmarks/kkt.py table --data cifar10 --data-dir DIR --records 50 --sheet sheet.png

Records above .8 and .9 are counted against the truth, beside as many held-out records. The papers'
search is given every advantage: the candidates of all its trials are pooled, as in 004, and scored
by the truth.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Iterator
from pathlib import Path

import torch
from torch import Tensor

from remnant.attacks.kkt import KKT
from remnant.data import load
from remnant.experiments.paper_004 import make_victim, measured
from remnant.experiments.targets import Scene, above
from remnant.report.sheet import draw_sheet, finding_sheet
from remnant.scoring import score_with_nulls
from remnant.seeds import generator_for
from remnant.types import Finding


def victims(seeds: range, task: str, records: int, width: int) -> Iterator[tuple[int, Scene]]:
    digits = load("mnist")
    for seed in seeds:
        yield seed, make_victim(digits, records=records, width=width, loss=task, seed=seed)


def attack(victim: Scene, how: KKT, seed: int) -> tuple[int, int, float, Tensor]:
    """Records above .8, above .9, CPU seconds, and the candidates."""
    begun = time.process_time()
    found = how(victim.target, generator=generator_for(seed, "attack"))
    seconds = time.process_time() - begun
    counts = [above(victim.truth, found.inputs, at) for at in (0.8, 0.9)]
    return counts[0], counts[1], seconds, found.inputs


def compare_paper(args: argparse.Namespace) -> None:
    """Both curves: what has been found after how many CPU seconds."""
    seeds = range(args.seed, args.seed + args.seeds)
    for seed, victim in victims(seeds, args.task, args.records, args.width):
        words = f"{args.task} {args.records} width {args.width} seed {seed}"
        null = above(victim.truth, victim.holdout.inputs, 0.8)
        print(f"{words} held-out: >.8 {null}", flush=True)
        for starts, steps in ((1, 50), (1, 100), (1, 200), (1, 500), (1, 1000), (4, 1000)):
            found = attack(victim, KKT(starts=starts, steps=steps), seed)
            told = f">.8 {found[0]} >.9 {found[1]} in {found[2]:.1f} s"
            print(f"{words} default, {starts} x {steps} steps: {told}", flush=True)
        spent, best, pool = 0.0, (0, 0), list[Tensor]()
        while spent < args.seconds:
            how = KKT(preset="paper", steps=args.paper_steps)
            more = attack(victim, how, 1000 * seed + len(pool))
            spent, best = spent + more[2], max(best, more[:2])
            pool.append(more[3])
            trial = len(pool)
            pooled = [above(victim.truth, torch.cat(pool), at) for at in (0.8, 0.9)]
            told = f"{spent:.0f} s: >.8 {pooled[0]} >.9 {pooled[1]}, the best alone {best}"
            print(f"{words} paper, {trial} trials of {args.paper_steps}, {told}", flush=True)


def tabulate(args: argparse.Namespace) -> None:
    """The default attack, and its sheet where one is asked for."""
    examples = load(args.data, data_dir=args.data_dir)
    for seed in range(args.seed, args.seed + args.seeds):
        victim = make_victim(
            examples,
            records=args.records,
            width=args.width,
            loss=args.task,
            seed=seed,
            model=args.model,
            lr=args.lr,
            bias=args.model is not None,
        )
        found, row = measured(victim, KKT(starts=args.starts, steps=args.steps), seed)
        shown = " ".join(f"{name} {value}" for name, value in row.items())
        print(
            f"{args.data} {args.task} {args.records}/{args.width} seed {seed}: {shown}", flush=True
        )
        if args.sheet:
            finding = Finding(
                attack="kkt",
                status=found.status,
                reason=found.reason,
                counted=found.stated.counted,
                **score_with_nulls(
                    victim.truth,
                    found,
                    holdout=victim.holdout.take(range(args.records)),
                    generator=generator_for(seed, "nulls"),
                ),
            )
            args.sheet.write_bytes(draw_sheet(**finding_sheet(finding, victim.truth, found.inputs)))


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=("paper", "table"))
    parser.add_argument("--task", default="ce", choices=("ce", "bce", "mse"))
    parser.add_argument("--data", default="mnist")
    parser.add_argument("--data-dir", type=Path)
    parser.add_argument("--model", help="instead of two dense layers of --width")
    parser.add_argument("--lr", type=float, help="of the target's training")
    parser.add_argument("--starts", type=int, default=4)
    parser.add_argument("--sheet", type=Path, help="where to draw what came back")
    parser.add_argument("--records", type=int, default=20)
    parser.add_argument("--width", type=int, default=300)
    parser.add_argument("--steps", type=int, default=1000)
    parser.add_argument("--paper-steps", type=int, default=2000)
    parser.add_argument("--seconds", type=float, default=60.0)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--seeds", type=int, default=1)
    args = parser.parse_args()
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    {"paper": compare_paper, "table": tabulate}[args.what](args)


if __name__ == "__main__":
    main()
