"""What every reader shares: limits, one-line faults, and arrays made into Examples."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, cast

import numpy as np
import torch
from numpy.typing import NDArray

from remnant.errors import DataError, RemnantError, expected
from remnant.types import Examples

RATIO, SMALL = 100, 64 * 1024**2
"""Records are hardly packed more than 100 to 1; what unpacks to less than 64 MB does no harm."""
LIMIT = 4 * 1024**3
"""The most bytes that one dataset may fill once it is in memory as float32."""

LONGEST_ID = 512
Array = NDArray[Any]
Bounds = tuple[float, float] | None


@contextmanager
def reading(path: Path) -> Iterator[None]:
    """Turn any fault of the bytes at `path` into one line.

    The standard readers raise nearly every kind of error on broken or hostile bytes, hence the wide
    net; the fault itself stays attached as the cause.
    """
    try:
        yield
    except RemnantError:
        raise
    except Exception as error:
        what = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        said = " ".join(what.split())[:160] or type(error).__name__
        do = "is it cut short or of another kind?"
        raise DataError(expected(str(path), "a whole file", f"a fault ({said})", do)) from error


def check_size(what: object, shape: Sequence[int], limit: int, itemsize: int = 1) -> None:
    """Refuse a declared array before a byte of it is read: small files can declare huge ones."""
    size = max(itemsize, 4)  # inputs become float32
    for length in shape:
        if length < 0:
            raise DataError(expected(f"{what}: shape", "sizes of at least 0", tuple(shape)))
        size *= length
    if size > limit:
        got = f"{size / 1024**3:.3g} GB declared for {tuple(shape)}"
        do = "take fewer records, or raise limit"
        raise DataError(expected(str(what), f"at most {limit / 1024**3:.3g} GB", got, do))


def check_packing(what: object, size: int, packed: int) -> None:
    """Refuse a packed array before it is unpacked: a megabyte can unpack to a gigabyte of zeros."""
    if size > SMALL and size > RATIO * packed:
        got = f"{size / 1024**2:.0f} MB out of {packed / 1024**2:.2g} MB"
        do = "save it unpacked if it is right"
        raise DataError(expected(str(what), f"at most {RATIO} to 1 of packing", got, do))


def open_bytes(path: Path) -> IO[bytes]:
    """The file's bytes, unpacked where its first two bytes say gzip."""
    with path.open("rb") as file:
        packed = file.read(2) == b"\x1f\x8b"
    return cast(IO[bytes], gzip.open(path, "rb")) if packed else path.open("rb")


def make_examples(
    inputs: Array, labels: Array, *, name: str, bounds: Bounds, ids: Sequence[str] | None = None
) -> Examples:
    """Examples of float32 inputs; ids count the position in the source where none are given.

    Integer labels are classes 0, 1, ...; float labels are regression targets. Tables of doubles
    stay doubles: attacks on linear models need every digit.
    """
    n = len(inputs)
    if n < 1 or inputs[0].size < 1:
        raise DataError(expected(f"{name}: records", "at least 1", f"shape {inputs.shape}"))
    if len(labels) != n:
        raise DataError(expected(f"{name}: labels", f"{n}, one a record", len(labels)))
    with np.errstate(over="ignore"):  # what float32 cannot hold is refused below
        values = np.ascontiguousarray(inputs, dtype=_precision(inputs))
        finite = np.isfinite(values.astype(np.float32, copy=False)).all()  # models are float32
    if not finite:
        got = "NaN or infinity"
        raise DataError(expected(f"{name}: inputs", "finite float32", got, "clean the data"))
    names = tuple(ids) if ids is not None else tuple(f"{name}-{i:05d}" for i in range(n))
    for given in ids or ():
        _check_id(given, name)
    if len(names) != n or len(set(names)) != n:
        got = f"{len(names)}, of which {len(set(names))} differ"
        raise DataError(expected(f"{name}: record ids", f"{n} different ones", got))
    return Examples(
        inputs=torch.from_numpy(values),
        labels=torch.from_numpy(_labels(labels, name, _precision(inputs))),
        ids=names,
        bounds=bounds,
        name=name,
    )


def _check_id(given: str, name: str) -> None:
    """Ids end up in files, pages and scripts, and may be taken for paths there."""
    path = given.replace("\\", "/")
    upward = path.startswith("/") or ".." in path.split("/")
    if not given or len(given) > LONGEST_ID or not given.isprintable() or upward:
        wanted = f"1 to {LONGEST_ID} printable characters, no path that leads upward"
        raise DataError(expected(f"{name}: record ids", wanted, ascii(given[:40])))


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


def unit(pixels: Array) -> Array:
    """Bytes 0..255 as float32 0..1."""
    return np.divide(pixels, 255, dtype=np.float32)
