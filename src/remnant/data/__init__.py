"""Datasets become Examples: bundled sets, files, balanced draws and disjoint splits."""

from __future__ import annotations

from remnant.data.bundled import BUNDLED
from remnant.data.sources import load
from remnant.data.splits import TASKS, Split, binary_task, draw, mean_image, split
from remnant.data.texts import Tokenizer, load_texts, read_tokenizer

__all__ = [
    "BUNDLED",
    "TASKS",
    "Split",
    "Tokenizer",
    "binary_task",
    "draw",
    "load",
    "load_texts",
    "mean_image",
    "read_tokenizer",
    "split",
]
