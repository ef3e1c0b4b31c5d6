"""Datasets become Examples: bundled sets, files, balanced draws and disjoint splits."""

from __future__ import annotations

from remnant.data.bundled import BUNDLED
from remnant.data.sources import load
from remnant.data.splits import Split, draw, split
from remnant.data.tasks import TASKS, binary_task, mean_image, relabel

__all__ = [
    "BUNDLED",
    "TASKS",
    "Split",
    "binary_task",
    "draw",
    "load",
    "mean_image",
    "relabel",
    "split",
]
