"""What many runs cost: two workers, fleets against single models, searches against defaults.

    python benchmarks/sweep.py workers             # throughput of 1 and 2 processes
    python benchmarks/sweep.py fleet               # models/s and memory, stacked and one at a time
    python benchmarks/sweep.py candidates          # time and memory of the final-weights attack
    python benchmarks/sweep.py search --seeds 1 2 3  # binary KKT, N = 50, at equal CPU time

Run it on idle cores. Times of `workers` are of the clock, all others CPU seconds of one thread.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from scipy.optimize import nnls

from remnant.attacks.kkt import KKT, duals_for
from remnant.data import load, split
from remnant.experiments.paper_004 import make_victim
from remnant.experiments.targets import Scene, above
from remnant.models import build
from remnant.seeds import generator_for
from remnant.solvers.consensus import pool
from remnant.solvers.kkt.network import read_network
from remnant.solvers.kkt.problem import pose
from remnant.solvers.kkt.search import descend
from remnant.store import hash_tensors, open_run
from remnant.sweep.executors import map_tasks, run_tasks
from remnant.sweep.fleets import spread_fleet, train_part
from remnant.sweep.search import SAME, Search, run_trial, search, search_spec
from remnant.training import SGD, GradientDescent, Recipe, train
from remnant.training.shadows import Fleet
from remnant.types import Candidates, Examples, Knowledge, Scaling, Target

SIZES = ((10, 300), (50, 300), (100, 300), (50, 1000), (100, 1000), (200, 1000), (100, 2000))
SPACE = {  # of the search: how long a trial descends, with how many candidates, and how
    "steps": [1000, 2000, 4000],
    "candidates": [100, 150, 200],
    "whiten": {"low": 0.5, "high": 1.1},
    "range_weight": {"low": 8.0, "high": 30.0, "log": True},
}


def victim_of(seed: int, records: int, width: int, task: str = "bce") -> Scene:
    return make_victim(load("mnist"), records=records, width=width, loss=task, seed=seed)


def compare_workers(args: argparse.Namespace) -> None:
    """The same attacks on one process and on two; processes are started before the clock."""
    target = victim_of(0, 10, 100).target
    specs = [
        {"attack": "kkt", "settings": {"steps": args.steps}, "seed": seed, "run": "bench"}
        for seed in range(args.tasks)
    ]
    rates = {}
    for jobs in (1, 2):
        with tempfile.TemporaryDirectory() as folder:
            run = open_run(Path(folder) / "run", {"verb": "bench"})
            where = f"jobs:{jobs}"
            list(run_tasks(run_trial, specs[:2], on=where, shared=target))
            begun = time.perf_counter()
            done = map_tasks(run_trial, specs, run=run, on=where, shared=target)
            rates[jobs] = len(specs) / (time.perf_counter() - begun)
            each = sum(outcome.value["cpu_seconds"] for outcome in done) / len(done)
        print(f"{jobs} worker(s): {rates[jobs]:.3f} tasks/s, {each:.2f} CPU s a task", flush=True)
    factor = rates[2] / rates[1]
    print(f"two workers: {factor:.2f} times one, efficiency {factor / 2:.0%}")


RECIPES: dict[str, Recipe] = {
    "full batch, 100 steps": GradientDescent(lr=0.2, momentum=0.9, steps=100),
    "batches of 100, 10 epochs": SGD(lr=0.05, momentum=0.9, epochs=10, batch_size=100),
    "batches of 32, 10 epochs": SGD(lr=0.05, momentum=0.9, epochs=10, batch_size=32),
    "batches of 8, 3 epochs": SGD(lr=0.02, momentum=0.9, epochs=3, batch_size=8),
}


def fleet_of(models: int, fixed: int, recipe: Recipe) -> Fleet:
    """Of all ten classes: bundled MNIST is in the order of its labels, and one class has few
    pixels that are not black."""
    drawn = split(load("mnist"), train=fixed, public=models, holdout=1, seed=0)
    assert drawn.public is not None
    return Fleet(
        model=build("mlp:784-10-10:elu", generator=torch.Generator().manual_seed(0)),
        fixed=drawn.train,
        inputs=drawn.public.inputs,
        labels=drawn.public.labels,
        recipe=recipe,
        scaling=Scaling(),
    )


def train_alone(fleet: Fleet, k: int) -> dict[str, torch.Tensor]:
    one = Examples(
        inputs=torch.cat([fleet.fixed.inputs, fleet.inputs[k : k + 1]]),
        labels=torch.cat([fleet.fixed.labels, fleet.labels[k : k + 1]]),
        ids=(*fleet.fixed.ids, "differing"),
    )
    order = torch.Generator().manual_seed(fleet.order_seed)
    return train(fleet.model, one, fleet.recipe, scaling=fleet.scaling, generator=order).final


def compare_fleet(args: argparse.Namespace) -> None:
    """Stacked against one at a time, and on two workers; half of the single ones come before the
    fleet and half after, so that what else the machine does weighs on both."""
    for name, recipe in RECIPES.items():
        fleet = fleet_of(args.models, 1000, recipe)
        alone, clock = [], [time.process_time()]
        for k in range(args.alone):
            alone.append(train_alone(fleet, k))
        clock.append(time.process_time())
        weights = fleet.train(slice(None), args.memory << 20)
        clock.append(time.process_time())
        for k in range(args.alone, 2 * args.alone):
            alone.append(train_alone(fleet, k))
        clock.append(time.process_time())
        single = 2 * args.alone / (clock[1] - clock[0] + clock[3] - clock[2])
        rate = len(fleet) / (clock[2] - clock[1])
        off = max(
            float((weights[n][k] - value).abs().max() / value.abs().max())
            for k, one in enumerate(alone)
            for n, value in one.items()
        )
        print(f"{name}: {single:.2f} models/s one at a time, {rate:.1f} stacked: "
              f"{rate / single:.1f} times, weights {off:.0e} apart", flush=True)  # fmt: skip
        both = [workers_rate(fleet, jobs, args.memory << 20) for jobs in (1, 2)]
        print(f"  by the clock: {both[0]:.1f} models/s on one worker, {both[1]:.1f} on two")
    left, right = torch.randn(2000, 784), torch.randn(784, 1000)
    begun = time.process_time()
    for _ in range(20):
        left @ right
    speed = 20 * 2 * 2000 * 784 * 1000 / (time.process_time() - begun)
    flops = 100 * 4 * 1001 * 784 * 10
    print(f"this core multiplies {speed / 1e9:.0f} GFLOP/s: at most {speed / flops:.1f} models/s "
          "of the full batch, were all pixels in use")  # fmt: skip
    for limit in (16, 64, 256):
        print(f"memory limit {limit} MB: {peak(limit, args.models):.0f} MB used beyond the data")


def workers_rate(fleet: Fleet, jobs: int, memory: int) -> float:
    """Models a second by the clock, in chunks; the processes are started before it."""
    warm = [{"begin": k, "end": k + 1, "memory": memory} for k in range(jobs)]
    list(run_tasks(train_part, warm, on=f"jobs:{jobs}", shared=fleet))
    with tempfile.TemporaryDirectory() as folder:
        begun = time.perf_counter()
        spread_fleet(fleet, cache=folder, on=f"jobs:{jobs}", memory=memory)
        return len(fleet) / (time.perf_counter() - begun)


def peak(limit: int, models: int) -> float:
    """MB that training a fleet adds to a process that has read its data."""
    words = [sys.executable, __file__, "peak", "--memory", str(limit), "--models", str(models)]
    return float(subprocess.run(words, capture_output=True, text=True, check=True).stdout)


def print_peak(args: argparse.Namespace) -> None:
    short = GradientDescent(lr=0.2, momentum=0.9, steps=3)
    fleet = fleet_of(args.models, 1000, short)
    few = fleet_of(1, 1000, short)
    few.train(slice(None))  # what the libraries need themselves
    before = memory_now(reset=True)
    fleet.train(slice(None), args.memory << 20)
    print(memory_now() - before)


def measure_candidates(args: argparse.Namespace) -> None:
    """CPU seconds and memory of a step of the default attack, and a model fitted to them.

    Seconds a start and step = a + b m (r W + W W) + c m m (r + W) with m candidates of rank r at
    width W: products with the layers, and inner products of all candidates' gradients.
    """
    rows, seconds = [], []
    for records, width in SIZES:
        words = [sys.executable, __file__, "candidate", "--records", str(records)]
        done = subprocess.run([*words, "--width", str(width)], capture_output=True, text=True)
        each, memory = map(float, done.stdout.split())
        print(
            f"{records:5} records, width {width:5}: {1e3 * each:8.2f} ms, {memory:6.0f} MB",
            flush=True,
        )
        rows.append(terms(records, width))
        seconds.append(each)
    # Relative errors count, not those of the largest.
    weighted = [[value / s for value in row] for row, s in zip(rows, seconds, strict=True)]
    fitted, _ = nnls(np.array(weighted), np.ones(len(rows)))
    print("a, b, c =", ", ".join(f"{value:.3g}" for value in fitted))
    for row, s, size in zip(rows, seconds, SIZES, strict=True):
        print(f"{size}: fitted {np.dot(row, fitted) / s:.2f} of measured")
    for records, width in ((500, 1000), (5000, 10_000)):
        whole = float(np.dot(terms(records, width), fitted)) * 4 * 1000 / 3600
        print(
            f"{records} records, width {width}: {whole:.1f} core hours for 4 starts of 1000 steps"
        )


def terms(records: int, width: int) -> list[float]:
    m, r = 2.0 * records, min(records, width)
    return [1.0, m * (r * width + width * width), m * m * (r + width)]


def print_candidate(args: argparse.Namespace) -> None:
    """A step of one start on an untrained network, without what is done once, and its memory."""
    sizes = f"mlp:3072-{args.width}-{args.width}-10:nobias"
    model = build(sizes, generator=torch.Generator().manual_seed(0))
    known = Knowledge(records=args.records, loss="ce")
    target = Target(model=model, input_shape=(3, 32, 32), knowledge=known)
    layers = read_network(target.model)
    assert not isinstance(layers, str)
    duals = duals_for(target, 10, 2 * args.records, None)
    rank = min(args.records, args.width)
    problem = pose(
        layers,
        target.input_shape,
        records=args.records,
        rank=rank,
        inner_rank=40,
        bias_decayed=False,
        box=None,
    )
    how = KKT().search(duals, layers, args.records)
    before = memory_now(reset=True)
    times = []
    for steps in (2, 2, 2 + args.few):  # the first one warms up
        begun = time.process_time()
        plan = replace(how, steps=steps)
        descend(problem, duals, plan, starts=1, generator=torch.Generator().manual_seed(0))
        times.append(time.process_time() - begun)
    memory = memory_now() - before
    print((times[2] - times[1]) / args.few, memory)


def memory_now(*, reset: bool = False) -> float:
    """MB at the most so far, or now, from where the most is counted again (Linux)."""
    if reset:
        Path("/proc/self/clear_refs").write_text("5")
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) for line in lines if line.startswith("VmHWM")) / 1024


def compare_search(args: argparse.Namespace) -> None:
    """Chosen by consensus alone; the truth only counts what was chosen. The default settings then
    get as many starts as take the time of the search."""
    for seed in args.seeds:
        victim = victim_of(seed, 50, args.width)
        hashes = {"weights": hash_tensors(victim.target.weights)}
        pooled = Search(attack="kkt", space=SPACE, trials=args.trials, seed=seed)
        with tempfile.TemporaryDirectory() as folder:
            # The same trials under both names: the second search finds all of them done.
            run = open_run(Path(folder) / "run", search_spec(pooled, hashes))
            for how in (pooled, replace(pooled, answer="best")):
                found = search(victim.target, how, hashes, run=run, on="jobs:1")
                told: Any = found.disclosed
                value, own = told["chosen_value"], told["own_value"]
                print(f"seed {seed} search, {how.answer}: {counts(victim, found.best.inputs)} in "
                      f"{found.seconds:.0f} s, chosen {told['chosen']} at {value:.3f} "
                      f"(own {own:.3f}) {told['settings']}", flush=True)  # fmt: skip
        begun, each = time.process_time(), []
        while not each or (time.process_time() - begun) * (1 + 0.5 / len(each)) < found.seconds:
            each.append(KKT()(victim.target, generator=generator_for(seed, f"own {len(each)}")))
        say_own(f"{len(each)} times 4 starts, pooled", seed, victim, pool_of(each, victim), begun)
        starts = starts_within(found.seconds, victim, seed)
        begun = time.process_time()
        once = KKT(starts=starts)(victim.target, generator=generator_for(seed, "attack"))
        say_own(f"{starts} starts", seed, victim, once, begun)


def starts_within(seconds: float, victim: Scene, seed: int) -> int:
    """As many starts at once as take that long, by the time of 16."""
    begun = time.process_time()
    KKT(starts=16)(victim.target, generator=generator_for(seed, "timing"))
    return max(4, round(16 * seconds / (time.process_time() - begun)))


def pool_of(each: list[Candidates], victim: Scene) -> Candidates:
    return pool(each, victim.target.scaling, alike=SAME) if len(each) > 1 else each[0]


def say_own(name: str, seed: int, victim: Scene, found: Candidates, begun: float) -> None:
    seconds = time.process_time() - begun
    print(
        f"seed {seed} own settings, {name}: {counts(victim, found.inputs)} in {seconds:.0f} s",
        flush=True,
    )


def counts(victim: Scene, inputs: torch.Tensor) -> str:
    return f"{above(victim.truth, inputs, 0.8)} / {above(victim.truth, inputs, 0.9)} of 50"


def main() -> None:
    for name in ("OMP_NUM_THREADS", "MKL_NUM_THREADS"):
        os.environ[name] = "1"
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("what", choices=(*BENCHMARKS, "peak", "candidate"))
    parser.add_argument("--tasks", type=int, default=24)
    parser.add_argument("--steps", type=int, default=500)
    parser.add_argument("--models", type=int, default=256)
    parser.add_argument("--alone", type=int, default=5, help="models trained one at a time")
    parser.add_argument("--memory", type=int, default=256, help="MB")
    parser.add_argument("--records", type=int, default=10)
    parser.add_argument("--width", type=int, default=100)
    parser.add_argument("--few", type=int, default=8, help="steps that are timed")
    parser.add_argument("--seeds", type=int, nargs="+", default=[1])
    parser.add_argument("--trials", type=int, default=8)
    args = parser.parse_args()
    {**BENCHMARKS, "peak": print_peak, "candidate": print_candidate}[args.what](args)


BENCHMARKS = {
    "workers": compare_workers,
    "fleet": compare_fleet,
    "candidates": measure_candidates,
    "search": compare_search,
}

if __name__ == "__main__":
    main()
