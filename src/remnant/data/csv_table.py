"""Tables as comma-separated text, with a first row of column names.

The column `label` (or `target`, `class`, `y`) is the label, the last column where none is called
so; `id` names the records. Columns of numbers are kept in double precision; a column of words is a
category, and becomes a column of 0 and 1 for each of its words, in alphabetical order, called
`name=word`. Words as labels are classes in that order.
"""

from __future__ import annotations

import csv
import io
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch

from remnant.data.reading import RECORD, VALUE, Array, Raw
from remnant.errors import DataError, expected
from remnant.types import Examples
from remnant.untrusted.files import Budget, file_bytes, shown

LABELS = ("label", "target", "class", "y")
WORDS = "plain numbers, or words of a category"


def read_csv(path: Path, budget: Budget, *, most: int = 100) -> Raw:
    """The records of a table; a category may have `most` different words."""
    _, names, columns = read_columns(path, file_bytes(path, budget), budget)
    at = next((i for i, one in enumerate(names) if one.lower() in LABELS), len(names) - 1)
    by_id = next((i for i, one in enumerate(names) if one.lower() == "id"), None)
    features: list[str] = []
    values: list[Array] = []
    for i, (one, cells) in enumerate(zip(names, columns, strict=True)):
        if i in (at, by_id):
            continue
        numbers = _numbers(cells)
        if numbers is not None:
            features.append(one)
            values.append(numbers)
            continue
        words = _words(path, one, cells, most)
        budget.take(path, VALUE * len(words) * len(cells))
        features += [f"{one}={word}" for word in words]
        values += [np.array([cell == word for cell in cells], dtype=float) for word in words]
    if not values:
        raise DataError(expected(f"{path}: columns", "features beside the label", "none"))
    labels = _labels(path, names[at], columns[at], most)
    ids = None if by_id is None else columns[by_id]
    return Raw(np.stack(values, axis=1), labels, None, ids, tuple(features))


def with_columns(examples: Examples, features: tuple[str, ...]) -> Examples:
    """The table with the columns of another: a word of a category that it lacks is a column of 0.

    It comes back as it is where more than words is lacking.
    """
    own = {name: i for i, name in enumerate(examples.features)}
    kinds = {name.partition("=")[0] for name in own if "=" in name}
    lacking = [name for name in features if name not in own]
    if not lacking or not set(own) <= set(features):
        return examples
    if any(name.partition("=")[0] not in kinds for name in lacking):
        return examples
    wide = torch.zeros(len(examples), len(features), dtype=examples.inputs.dtype)
    for k, name in enumerate(features):
        if name in own:
            wide[:, k] = examples.inputs[:, own[name]]
    return replace(examples, inputs=wide, features=features)


def read_columns(path: Path, raw: bytes, budget: Budget) -> tuple[str, list[str], list[list[str]]]:
    """What stands between cells, the names, and the cells below each, none of them empty."""
    try:
        text = raw.decode("utf-8-sig")
        first = text.partition("\n")[0]
        mark = max(",;\t", key=first.count)
        rows = [row for row in csv.reader(io.StringIO(text), delimiter=mark, strict=True) if row]
    except (UnicodeDecodeError, csv.Error) as error:
        got = f"something else ({str(error)[:80]})"
        raise DataError(expected(f"{path}", "comma-separated text in UTF-8", got)) from error
    if len(rows) < 2:
        raise DataError(expected(f"{path}: rows", "column names and records", len(rows)))
    names = [cell.strip() for cell in rows[0]]
    if _numbers(names) is not None or len(set(names)) != len(names) or not all(names):
        do = "write a first row of column names"
        wanted = "different names in the first row"
        raise DataError(expected(f"{path}", wanted, shown(",".join(names)[:60]), do))
    budget.take(path, (RECORD + VALUE * len(names)) * len(rows))
    for k, row in enumerate(rows[1:], start=2):
        if len(row) != len(names):
            raise DataError(expected(f"{path}: row {k}", f"{len(names)} cells", len(row)))
        empty = next((n for n, cell in zip(names, row, strict=True) if not cell.strip()), None)
        if empty is not None:
            do = "fill it as the training did, or leave the record out"
            raise DataError(expected(f"{path}: row {k}, {shown(empty)}", "a value", "none", do))
    return mark, names, [[row[i].strip() for row in rows[1:]] for i in range(len(names))]


def _numbers(cells: list[str]) -> Array | None:
    try:
        return np.array([float(cell) for cell in cells])
    except ValueError:
        return None


def _words(path: Path, name: str, cells: list[str], most: int) -> list[str]:
    words = sorted(set(cells))
    if len(words) > most:
        got = f"{len(words)} different words"
        do = "call it id if it names the records, or leave it out"
        what = f"{path}: column {shown(name)}"
        raise DataError(expected(what, f"{WORDS}, at most {most}", got, do))
    return words


def _labels(path: Path, name: str, cells: list[str], most: int) -> Array:
    numbers = _numbers(cells)
    if numbers is None:
        words = _words(path, name, cells, most)
        return np.array([words.index(cell) for cell in cells])
    whole = all(cell.lstrip("+").isdecimal() for cell in cells)
    return np.array([int(cell) for cell in cells]) if whole else numbers
