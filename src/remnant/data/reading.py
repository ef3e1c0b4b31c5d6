"""What every reader of data shares: limits, and arrays made into Examples."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from remnant.errors import DataError, InputError, expected
from remnant.types import Examples
from remnant.untrusted.files import Budget, shown

LIMIT = 4 * 1024**3
"""The most bytes that reading one dataset may take in memory."""
VALUE = 8
"""Bytes for each number besides its own: the float that it becomes, and again while checked."""
RECORD = 256
"""Bytes for each record besides its numbers: its name, as text, in a tuple and in a set."""
Array = NDArray[Any]
Bounds = tuple[float, float] | None


class Raw(NamedTuple):
    """What a reader makes of a file: arrays, not yet checked against each other.

    Bytes are 0..255 and become 0..1. Integer labels are classes 0, 1, ...; float labels are
    regression targets. ids: none where records are to be called after the file. features: names of
    a table's columns.
    """

    inputs: Array
    labels: Array
    bounds: Bounds
    ids: Sequence[str] | None = None
    features: tuple[str, ...] = ()


def make_examples(raw: Raw, name: str, budget: Budget, path: Path | None = None) -> Examples:
    """Examples of float32 inputs; tables of doubles stay doubles, since attacks on linear models
    need every digit. budget: arrays are counted as they were read, here what they become. path: of
    the file, by which faults call it; else `name`."""
    inputs, n, where = raw.inputs, len(raw.inputs), str(path or name)
    if n < 1 or inputs[0].size < 1:
        raise DataError(expected(f"{where}: records", "at least 1", f"shape {inputs.shape}"))
    named = 0 if raw.ids else RECORD * n
    budget.take(where, VALUE * (inputs.size + raw.labels.size) + named)
    values = _values(inputs)
    wrong = ~torch.isfinite(values.float()).flatten(1).all(1)  # models are float32
    if bool(wrong.any()):
        first = int(wrong.nonzero()[0])
        got = f"NaN or infinity in {int(wrong.sum())} of {n} records, first at index {first}"
        raise DataError(expected(f"{where}: inputs", "finite float32", got, "clean the data"))
    for given in raw.ids or ():
        check_id(given, where)
    labels = _labels(raw.labels, where, _precision(inputs))
    try:
        return Examples(
            inputs=values,
            labels=torch.from_numpy(labels).clone(),
            ids=tuple(raw.ids or (f"{name}-{i:05d}" for i in range(n))),
            bounds=raw.bounds,
            name=name,
            features=raw.features,
        )
    except InputError as error:
        raise DataError(f"{error}") from None


def _values(inputs: Array) -> torch.Tensor:
    """The inputs as floats in memory that torch allocated: aligned alike each time, so that sums
    round alike."""
    precision = torch.float64 if _precision(inputs) is np.float64 else torch.float32
    values = torch.empty(inputs.shape, dtype=precision)
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused
        if inputs.dtype == np.uint8:
            np.divide(inputs, 255, out=values.numpy(), dtype=np.float32)
        else:
            np.copyto(values.numpy(), inputs, casting="unsafe")
    return values


def check_id(given: str, name: str, *, longest: int = 512) -> None:
    """Refuse record ids that are empty, long, unprintable or paths that lead upward: they end up in
    files, pages and scripts."""
    path = given.replace("\\", "/")
    upward = path.startswith("/") or ".." in path.split("/")
    if not given or len(given) > longest or not given.isprintable() or upward:
        wanted = f"1 to {longest} printable characters, no path that leads upward"
        raise DataError(expected(f"{name}: record ids", wanted, shown(given)))


def _precision(inputs: Array) -> type[np.floating[Any]]:
    return np.float64 if inputs.ndim == 2 and inputs.dtype == np.float64 else np.float32


def _labels(labels: Array, name: str, precision: type[np.floating[Any]]) -> Array:
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]  # a column, as some archives store classes
    if labels.dtype.kind == "f" and labels.ndim in (1, 2):
        with np.errstate(over="ignore"):
            targets = labels.astype(precision)
            finite = np.isfinite(targets.astype(np.float32)).all()
        if not finite:
            raise DataError(expected(f"{name}: labels", "finite float32", "NaN or infinity"))
        return targets
    if labels.dtype.kind not in "iub" or labels.ndim != 1:
        got = f"{labels.dtype} of shape {labels.shape}"
        raise DataError(expected(f"{name}: labels", "n integers, or n or n x c floats", got))
    classes = labels.astype(np.int64)
    if classes.min() < 0:
        do = "number the classes from 0, or store real targets as floats"
        raise DataError(expected(f"{name}: labels", "classes 0, 1, ...", int(classes.min()), do))
    return classes
