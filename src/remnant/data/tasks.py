"""The papers' tasks with two classes, and the mean image that their models subtract.

Labels follow Haim et al. (2022), whose protocol the later papers keep: odd digits are 1 and even
ones 0; animals are 1 and vehicles (airplane, automobile, ship, truck) 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from remnant.errors import DataError, InputError, expected
from remnant.types import Examples

TASKS: Mapping[str, tuple[int, ...]] = {
    "odd-even": (0, 1, 0, 1, 0, 1, 0, 1, 0, 1),  # by digit
    # airplane, automobile, bird, cat, deer, dog, frog, horse, ship, truck
    "animal-vehicle": (0, 0, 1, 1, 1, 1, 1, 1, 0, 0),
}


def binary_task(examples: Examples, name: str) -> Examples:
    """The same records with labels 0 and 1 of the task `name`, one of TASKS."""
    if name not in TASKS:
        raise InputError(expected("task", " or ".join(TASKS), repr(name)))
    return relabel(examples, TASKS[name])


def relabel(examples: Examples, table: Sequence[int]) -> Examples:
    """The same records, class c relabelled as `table[c]`; there must be `len(table)` classes."""
    if examples.classes != len(table):
        got = examples.classes or "real numbers"
        do = "relabel the whole set, before drawing from it"
        raise DataError(expected(f"{examples.name}: classes", len(table), got, do))
    return replace(examples, labels=torch.tensor(table, dtype=torch.int64)[examples.labels])


def mean_image(examples: Examples) -> Tensor:
    """The mean of the inputs, in the shape of one; summed in float64."""
    if len(examples) < 1:
        raise DataError(expected(f"{examples.name}: records", "at least 1", 0))
    return examples.inputs.mean(0, dtype=torch.float64).to(examples.inputs.dtype)
