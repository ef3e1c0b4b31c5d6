"""The one pickle that data is read from: the batches of CIFAR's Python archives.

Nothing in it is called (`remnant.untrusted.pickles`): of NumPy's names and the few others that
such a file has a need for, it is only looked at what they were given.
"""

from __future__ import annotations

from io import BytesIO
from typing import Any

import numpy as np

from remnant.data.reading import Array
from remnant.errors import DataError, expected
from remnant.untrusted.files import shown
from remnant.untrusted.pickles import ENCODE, Call, Foreign, pickled

PIXELS = 3 * 32 * 32
RECONSTRUCT = ("numpy.core.multiarray._reconstruct", "numpy._core.multiarray._reconstruct")
DTYPE = "numpy.dtype"
ALLOWED = {*RECONSTRUCT, "numpy.ndarray", DTYPE, ENCODE}


def read_batch(body: bytes, what: str, labels_key: bytes) -> tuple[Array, Array]:
    """The pixels (n x 3072, uint8) and the labels (n) of one batch; nothing in it is executed."""
    do = "use the binary archive (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz)"
    try:
        batch = pickled(BytesIO(body), ALLOWED.__contains__, len(body))
        if not isinstance(batch, dict):
            raise ValueError(f"{shown(batch)} in place of a table")
        data = _pixels(batch.get(b"data"))
        return data, _labels(batch.get(labels_key), len(data))
    except Foreign as error:
        said = f"the name {shown(str(error))[1:-1]}"
    except Exception as error:  # whatever broken bytes provoke, they are no batch
        said = " ".join(f"{type(error).__name__}: {error}"[:400].split())[:160]
    raise DataError(expected(what, "a CIFAR batch of plain bytes", said, do))


def _pixels(array: Any) -> Array:
    """n x 3072, of an array that was described as (version, shape, dtype, by columns, bytes)."""
    state = array.state if isinstance(array, Call) and array.name in RECONSTRUCT else None
    match state:
        case (_, (count, width), dtype, by_columns, raw) if type(count) is type(width) is int:
            raw = _bytes(raw)
        case _:
            raise ValueError(f"no array of data n x {PIXELS}, but {shown(array)}")
    described = isinstance(dtype, Call) and dtype.name == DTYPE and len(dtype.arguments) > 0
    code = _bytes(dtype.arguments[0]) if described else b""
    if code != b"u1" or by_columns or width != PIXELS or len(raw) != count * PIXELS:
        sizes = f"{shown(count)} x {shown(width)}"
        raise ValueError(f"data of {shown(code)[2:-1]}, {sizes}, in {len(raw)} bytes")
    return np.frombuffer(raw, dtype=np.uint8).reshape(-1, PIXELS)


def _bytes(value: Any) -> bytes:
    if isinstance(value, str):
        return value.encode("latin1")
    if not isinstance(value, bytes):
        raise ValueError(f"{shown(value)} in place of bytes")
    return value


def _labels(labels: Any, n: int) -> Array:
    if not isinstance(labels, list) or len(labels) != n:
        raise ValueError(f"{shown(labels)} in place of {n} labels")
    if not all(type(label) is int and 0 <= label < 2**31 for label in labels):
        raise ValueError("labels that are no classes")
    return np.array(labels, dtype=np.int64)
