"""Tasks for tests of executors: they leave a mark when they begin and when they end."""

import os
import time
import uuid
from pathlib import Path

import torch

from remnant.errors import InputError


def mark(folder, kind, n):
    Path(folder, f"{kind}-{n}-{uuid.uuid4().hex}").touch()


def marks(folder, kind):
    """The numbers of the tasks that left such a mark, in order, as often as they did."""
    return sorted(int(path.name.split("-")[1]) for path in Path(folder).glob(f"{kind}-*"))


def wait_for(path, seconds=30.0):
    end = time.monotonic() + seconds
    while not Path(path).exists():
        assert time.monotonic() < end, f"no {path} after {seconds} s"
        time.sleep(0.01)


def square(spec, shared):
    n = spec["n"]
    generator = torch.Generator().manual_seed(n)
    return {"square": n * n, "plus": shared}, {"draws": torch.randn(3, generator=generator)}


def marked(spec, folder):
    """Begins, waits for the file named in the spec, ends."""
    mark(folder, "begun", spec["n"])
    if spec.get("until"):
        wait_for(spec["until"])
    mark(folder, "ended", spec["n"])
    return {"n": spec["n"], "pid": os.getpid()}


def deadly(spec, folder):
    """Kills its own process, the first time or always."""
    first = not marks(folder, "begun").count(spec["n"])
    mark(folder, "begun", spec["n"])
    if spec.get("dies") == "always" or (spec.get("dies") == "once" and first):
        os.kill(os.getpid(), 9)
    mark(folder, "ended", spec["n"])
    return spec["n"]


def faulty(spec, folder):
    mark(folder, "begun", spec["n"])
    if spec["n"] == 1:
        raise InputError("n: expected another, got 1")
    if spec["n"] == 2:
        raise ZeroDivisionError("a fault")
    return float("nan")


def outputs(spec, model):
    with torch.no_grad():
        return model(torch.full((1, 4), float(spec["n"]))).tolist()
