"""Paper 000's Figure 10: its attack beside that on final weights alone (Haim et al. 2022)."""

from __future__ import annotations

from typing import Any

from remnant.attacks import KKT
from remnant.experiments.kernel_targets import attack_named, finish_training, sides_of
from remnant.experiments.paper_004 import make_victim
from remnant.experiments.study import Figure, Rows, Study
from remnant.experiments.targets import attack as play
from remnant.experiments.targets import squared_scores
from remnant.types import Examples


def measure_haim(
    examples: Examples, *, trained: str, attack: str, task: str, records: int, width: int,
    steps: int, trials: int, rate: float, seed: int,
) -> Rows:  # fmt: skip
    """The attack on final weights alone and those that hold the initial ones too, on a network of
    each one's own kind.

    trained: `margin`, cross-entropy far past separation from a small first layer without biases;
    `kernel`, as the other studies here. attack: haim, paper or exact. trials: of haim's search.
    rate: of its steps, which they draw from 1e-5 to 1: most of the larger ones diverge.
    """
    if trained == "kernel":
        sides = sides_of(examples, task, records, seed)
        scene = finish_training(sides, width=width, seed=seed)
    else:
        scene = make_victim(examples, records=records, width=width, task="odd-even",
                            loss="bce", init=1e-4,
                            seed=seed, tell=("initial", "records", "loss"))  # fmt: skip
    if attack == "haim":
        how: Any = KKT(preset="paper", objective="margin", steps=steps, trials=trials, lr=rate)
    else:
        how = attack_named(attack, scene, steps)
    found, seconds = play(how, scene.target, seed)
    return [{"records": records} | squared_scores(scene, found, seconds)]


STUDY = Study(
    title="Final weights alone, or with the initial ones: each attack on each kind of training",
    measure=measure_haim,
    settings={
        "trained attack": [(t, a) for t in ("margin", "kernel")
                           for a in ("haim", "paper", "exact")],
        "records": [20, 50],
        "width": 1024,
        "trials": 5,
        "rate": 0.01,
        "task": "odd-even", "steps": 6000, "data": "mnist",
    },
    quick={"records": 8, "width": 128, "steps": 2000, "trials": 3},
    columns=(
        "trained", "attack", "records", "seed", "mean_error", "median_error", "near", "null_error",
        "null_near", "status", "cpu_seconds",
    ),
    figures=(
        Figure(
            x="records", lines={"mean_error": "{attack}", "null_error": "other images"},
            across="records", up="mean squared L2", panel="trained: {trained}", log_x=False,
        ),
    ),
)  # fmt: skip
