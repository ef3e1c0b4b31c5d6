"""The whole training run is known, and every record but one; and audits that get no time."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from truth_targets import of_checkpoints, of_gradients, of_weights
from truth_targets.dense import Dense, make_dense
from truth_targets.making import Made, Target, write_json, write_records
from truth_targets.networks import Shape, Training
from truth_targets.scenes import Scene

LAST = 15
SAMPLE = {"cannot_informed_neighbour", "budget_kkt"}


def of(**scene: Any) -> Dense:
    return Dense(
        scene=Scene(n=LAST + 1, **scene),
        shape=Shape(hidden=(12,), activation="elu"),
        how=Training(lr=0.2, steps=20, stop=None),
        gives="recipe",
        ids=True,
        centre="none",
        extra={"targets": f"r{LAST}"},
    )


def target(name: str, truth: str, note: str, what: Dense, make: Any = make_dense) -> Target:
    return Target(
        name=name, truth=truth, note=note, make=partial(make, what), sample=name in SAMPLE
    )


def targets() -> Iterator[Target]:
    for s in ("", "_s2", "_s3"):
        yield target(f"leaky_informed_elu16{s}", "leaks", "one of 16 left out", of())
    yield target(
        "leaky_informed_two",
        "leaks",
        "two of 16 left out in turn",
        replace(of(), extra={"targets": 2}),
    )
    yield target(
        "leaky_informed_duplicate",
        "leaks",
        "the known hold an identical copy",
        of(),
        make_duplicate,
    )
    yield from others()
    yield from hurried()


def others() -> Iterator[Target]:
    """The record that is sought, the run or all records are not those of the training."""
    yield target("cannot_informed_other", "cannot", "declared never trained", of(declare="others"))
    for s in ("", "_s2"):
        yield target(
            f"cannot_informed_neighbour{s}",
            "cannot",
            "its nearest other was trained in its place; that one is tried",
            of(),
            make_neighbour,
        )
        yield target(
            f"cannot_informed_swapped{s}",
            "cannot",
            "a stranger was trained in its place; that one is tried",
            of(),
            make_stranger,
        )
    yield target(
        "mis_informed_wrong_lr", "misdeclared", "another rate in the recipe", of(), make_wrong_rate
    )
    yield target(
        "mis_informed_flip", "misdeclared", "mirrored records trained", of(seen="mirrored")
    )


def hurried() -> Iterator[Target]:
    """One second is too little to say anything."""
    hurry = {"budget": "1s"}
    for name, what in (
        ("kkt", of_weights.of(60, 60)),
        (
            "kkt_ordinary",
            replace(of_weights.of(40, 60, bias=True), how=Training(batch=8, steps=50)),
        ),
        ("ntk", of_checkpoints.of(40)),
        ("gradient", of_gradients.of(40)),
        ("informed", of()),
    ):
        yield target(
            f"budget_{name}",
            "unsettled",
            "a budget of one second",
            replace(what, extra=dict(what.extra) | hurry),
        )


def _redeclared(folder: Path, made: Made, row: int, record: Any, label: int, used: bool) -> Made:
    """The same target, but for what the data file says of one record."""
    with np.load(folder / "train.npz") as held:
        x, y = held["x"].copy(), held["y"].copy()
    x[row], y[row] = record, label
    write_records(folder / "train.npz", x, y, made.ids)
    usage = made.used.copy()
    usage[row] = used
    return replace(made, declared=x, used=usage)


def make_neighbour(what: Dense, folder: Path, seed: int, nearest: bool = True) -> Made:
    """The declared record is the nearest of the hold-out to the one that was trained on."""
    made = make_dense(what, folder, seed)
    with np.load(folder / "test.npz") as held:
        x, y = held["x"], held["y"]
    gaps = ((x - made.declared[LAST]) ** 2).reshape(len(x), -1).sum(1)
    row = int(gaps.argmin() if nearest else gaps.argmax())
    keep = np.arange(len(x)) != row
    write_records(folder / "test.npz", x[keep], y[keep])
    return _redeclared(folder, made, LAST, x[row], y[row], used=False)


def make_stranger(what: Dense, folder: Path, seed: int) -> Made:
    return make_neighbour(what, folder, seed, nearest=False)


def make_duplicate(what: Dense, folder: Path, seed: int) -> Made:
    """The last record stands twice in the training set."""
    return make_dense(replace(what, scene=replace(what.scene, twice="last")), folder, seed)


def make_wrong_rate(what: Dense, folder: Path, seed: int) -> Made:
    import json

    made = make_dense(what, folder, seed)
    told = json.loads((folder / "recipe.json").read_text("utf-8"))
    write_json(folder / "recipe.json", told | {"lr": 0.1})
    return made
