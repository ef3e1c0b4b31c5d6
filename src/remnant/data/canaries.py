"""Canaries: records made up for an audit, in the form that the data has.

Each value is drawn from that column (that pixel, that token's place among the words) of the data,
so that a canary has the data's units and categories, and its label by itself: nothing but having
been trained on it can make a model sure of it. Planted ones are added to the training; unplanted
ones, by the same draws, are kept for comparison.
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from remnant.data.csv_table import read_columns
from remnant.data.npz import read_npz
from remnant.data.reading import LIMIT
from remnant.data.texts import ENDINGS, read_lines
from remnant.errors import DataError, expected
from remnant.untrusted.files import Budget, file_bytes

KINDS = (".npz", ".csv", ".tsv", *ENDINGS)
UNPLANTED = "-unplanted"


def make_canaries(source: Path, counts: Sequence[int], seed: int) -> list[bytes]:
    """Files of so many canaries each, of the kind that `source` is, all different draws."""
    suffix = source.suffix.lower()
    if suffix not in KINDS or not source.is_file():
        wanted = f"a file of {', '.join(KINDS)}"
        raise DataError(expected(f"{source}: canaries", wanted, suffix or "no ending"))
    draw = np.random.default_rng(seed)
    make = {".npz": _arrays, ".csv": _table, ".tsv": _table}.get(suffix, _texts)
    named = zip(("canary", "unplanted"), counts, strict=True)
    return [make(source, [f"{k}-{i:04d}" for i in range(count)], draw) for k, count in named]


def unplanted_beside(planted: Path) -> Path:
    """Where the canaries that were not planted are."""
    return planted.with_name(f"{planted.stem}{UNPLANTED}{planted.suffix}")


def _arrays(source: Path, names: list[str], draw: np.random.Generator) -> bytes:
    read_npz(source, Budget(LIMIT))  # refuses what is none of ours, before it is unpacked
    with np.load(source, allow_pickle=False) as held:
        x, y = (held[key if key in held else f"{key}_train"] for key in ("x", "y"))
    flat = x.reshape(len(x), -1)
    rows = draw.integers(len(x), size=(len(names), flat.shape[1]))
    made = np.take_along_axis(flat, rows, 0).reshape(-1, *x.shape[1:])
    labels, stream = y[draw.integers(len(y), size=len(names))], io.BytesIO()
    np.savez(stream, x=made, y=labels, id=np.array(names))
    return stream.getvalue()


def _table(source: Path, names: list[str], draw: np.random.Generator) -> bytes:
    mark, titles, columns = read_columns(source, file_bytes(source, Budget(LIMIT)), Budget(LIMIT))
    made = [[cells[i] for i in draw.integers(len(cells), size=len(names))] for cells in columns]
    made = [names if t.lower() == "id" else cells for t, cells in zip(titles, made, strict=True)]
    stream = io.StringIO()
    out = csv.writer(stream, delimiter=mark, lineterminator="\n")
    out.writerows([titles, *zip(*made, strict=True)])
    return stream.getvalue().encode()


def _texts(source: Path, names: list[str], draw: np.random.Generator, field: str = "text") -> bytes:
    """Lines as long as those of the data, of its words, each drawn by itself."""
    held = [one for _, one in read_lines(source, Budget(LIMIT), field)]
    if not all(isinstance(one.get(field), str) and one[field].split() for one in held):
        wanted = f"lines with a text under {field}"
        raise DataError(expected(f"{source}: canaries", wanted, "something else"))
    words = [word for one in held for word in one[field].split()]
    said, objects = [], source.suffix.lower() == ".jsonl"
    for name in names:
        length = len(held[draw.integers(len(held))][field].split())
        text = " ".join(words[i] for i in draw.integers(len(words), size=length))
        label = held[draw.integers(len(held))].get("label")
        known = {} if label is None else {"label": label}
        said.append(json.dumps({field: text, "id": name} | known) if objects else text)
    return ("\n".join(said) + "\n").encode()
