"""NumPy archives: `x` and `y`, optional `id`; or `x_train` and `y_train`, optional `id_train`.

Where an archive holds both a training and a test part, the training part is read, because that is
what an audit is about. `x` may be

- n x h x w: greyscale images, which become n x 1 x h x w;
- n x h x w x 1 or 3 (and h neither 1 nor 3): images, which become n x 1 or 3 x h x w;
- any other n x shape, kept; n x d is a table.

uint8 is 0..255 and becomes 0..1. Floats are kept; bounds are (0, 1) for images within them, and
None for images that leave them and for tables. Integer labels are classes, floats are targets.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np

from remnant.data.reading import RECORD, Array, Bounds, Raw
from remnant.errors import DataError, expected
from remnant.untrusted.archives import archive_of, read_array
from remnant.untrusted.files import Budget, shown


def read_npz(path: Path, budget: Budget) -> Raw:
    """The records of an npz archive; see the top of this file for what it may hold."""
    with archive_of(path, budget) as archive:
        held = {info.filename.removesuffix(".npy") for info in archive.infolist()}
        part = next((s for s in ("", "_train") if {f"x{s}", f"y{s}"} <= held), None)
        if part is None:
            got = ", ".join(shown(key).strip("'") for key in sorted(held)[:8]) or "nothing"
            raise DataError(expected(f"{path}: arrays", "x and y, or x_train and y_train", got))
        found: dict[str, Array] = {}
        for key, room in (("y", 0), ("x", 0), ("id", RECORD)):
            if f"{key}{part}" in held:
                with archive.open(f"{key}{part}.npy") as member:
                    found[key] = read_array(member, f"{path}: {key}{part}", budget, room=room)
        x, y = found["x"], found["y"]
        if x.ndim < 2 or y.ndim < 1:
            got = f"shapes {x.shape} and {y.shape}"
            raise DataError(expected(f"{path}: x and y", "n x shape and n", got))
        ids = _ids(found["id"]) if "id" in found else None
    inputs, bounds = _scaled(_channels_first(x), path)
    return Raw(inputs, y, bounds, ids)


def _channels_first(x: Array) -> Array:
    if x.ndim == 3:
        return x[:, None]
    if x.ndim == 4 and x.shape[3] in (1, 3) and x.shape[1] not in (1, 3):
        return np.moveaxis(x, 3, 1)
    return x


def _scaled(x: Array, path: Path) -> tuple[Array, Bounds]:
    table = x.ndim == 2
    if x.dtype == np.uint8:
        return x, (0.0, 1.0)
    if x.dtype.kind == "f" or (table and x.dtype.kind in "iub"):
        inside = not table and x.size > 0 and bool(x.min() >= 0 and x.max() <= 1)
        return x, (0.0, 1.0) if inside else None
    do = "save it as one of them"
    raise DataError(expected(f"{path}: x", "uint8 0..255 or floats 0..1", x.dtype, do))


def _ids(ids: Array) -> list[str]:
    if ids.ndim != 1 or ids.dtype.kind not in "USiu":
        raise ValueError(f"id holds {ids.dtype} of shape {ids.shape}, not n texts or integers")
    return [i.decode() if isinstance(i, bytes) else str(i) for i in ids.tolist()]
