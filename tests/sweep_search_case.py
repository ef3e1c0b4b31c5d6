"""A search small enough for tests: 24 trials of a fraction of a second each."""

import json
import os
import sys
from pathlib import Path

import torch

from remnant.models import build
from remnant.progress import listening
from remnant.store import hash_tensors, open_run
from remnant.sweep.search import Search, search, search_spec
from remnant.types import Knowledge, Target
from sweep_tasks import wait_for

HOW = Search(attack="kkt", space="papers", objective="residual", trials=24, settings={"steps": 20})


def small_target():
    model = build("mlp:16-8-8-1:nobias", generator=torch.Generator().manual_seed(0))
    known = Knowledge(records=3, loss="bce")
    return Target(model=model, input_shape=(1, 4, 4), knowledge=known)


def run_search(out, how=HOW, **more):
    """(disclosed, hash of the candidates, the run)."""
    target = small_target()
    hashes = {"weights": hash_tensors(target.weights)}
    run = open_run(out, search_spec(how, hashes))
    found = search(target, how, hashes, run=run, **more)
    assert found.seconds > 0
    return dict(found.disclosed), hash_tensors({"x": found.best.inputs}), run


def after(count, act):
    """A listener that acts once `count` attacks have ended."""
    left = [count]

    def listener(name, total):
        def step(amount=1.0, *, note=""):
            if name == "attacks":
                left[0] -= amount
                if left[0] <= 0 < left[0] + amount:
                    act()

        return step, lambda: None

    return listening(listener)


if __name__ == "__main__":  # OUT PLACE STORAGE GATE KILL
    out, on, storage, gate, kill = sys.argv[1:]
    if gate:
        Path(f"{out}.ready").touch()
        wait_for(gate, 120)
    with after(float(kill), lambda: os.kill(os.getpid(), 9)):
        disclosed, digest, _ = run_search(out, on=on, storage=storage or None)
    print(json.dumps([disclosed, digest]))
