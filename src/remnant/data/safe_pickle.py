"""The one pickle that is read here: the batches of CIFAR's Python archives.

A pickle names functions to call. This reader looks names up in the table below and nowhere else,
and even NumPy's names lead to stand-ins that only keep what they are given: no function of NumPy
or of the standard library is ever called by the file. What is not in the table is refused.
"""

from __future__ import annotations

import pickle
import pickletools
from collections.abc import Callable
from io import BytesIO
from typing import Any

import numpy as np

from remnant.data.reading import Array
from remnant.errors import DataError, expected


class _Dtype:
    """Stands in for numpy.dtype: keeps the type's code."""

    def __init__(self, code: str | bytes, *rest: object) -> None:
        self.code = code.decode() if isinstance(code, bytes) else code

    def __setstate__(self, state: object) -> None:
        pass  # byte order and alignment, of no matter for bytes


class _Array:
    """Stands in for numpy.ndarray: keeps (version, shape, dtype, by columns, bytes)."""

    state: Any = None

    def __setstate__(self, state: object) -> None:
        self.state = state


def _reconstruct(*rest: object) -> _Array:
    return _Array()


def _encode(text: str, encoding: str | bytes) -> bytes:
    if encoding not in ("latin1", b"latin1"):
        raise pickle.UnpicklingError("an encoding that CIFAR does not use")
    return text.encode("latin1")  # how protocol 2 spells bytes


ALLOWED: dict[tuple[str, str], Callable[..., Any]] = {
    ("numpy.core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy._core.multiarray", "_reconstruct"): _reconstruct,
    ("numpy", "ndarray"): _Array,
    ("numpy", "dtype"): _Dtype,
    ("_codecs", "encode"): _encode,
}


class _Unpickler(pickle.Unpickler):
    def find_class(self, module: str, name: str) -> Callable[..., Any]:
        if (module, name) not in ALLOWED:
            raise pickle.UnpicklingError(f"the name {module}.{name}")
        return ALLOWED[module, name]


def _check_opcodes(body: bytes) -> None:
    """Walk the file without running it: lengths must fit it, and so must the places in its memo.

    The interpreter makes room for the memo's highest place, which ten bytes can put at 2**32.
    """
    for opcode, argument, _ in pickletools.genops(body):
        if "PUT" in opcode.name and argument is not None and int(argument) > len(body):
            raise pickle.UnpicklingError("a memo larger than the file")


def read_batch(body: bytes, what: str, labels_key: bytes) -> tuple[Array, Array]:
    """The pixels (n x 3072, uint8) and the labels (n) of one batch; nothing in it is executed."""
    do = "use the binary archive (cifar-10-binary.tar.gz, cifar-100-binary.tar.gz)"
    try:
        _check_opcodes(body)
        # find_class resolves only to the stand-ins above, so a hostile file has nothing to call.
        batch = _Unpickler(BytesIO(body), encoding="bytes").load()
        _, shape, dtype, by_columns, raw = batch[b"data"].state
        n, pixels = shape
        if dtype.code != "u1" or by_columns or pixels != 3072 or len(raw) != n * pixels:
            raise ValueError(f"data of {dtype.code} {shape}")
        data = np.frombuffer(raw, dtype=np.uint8).reshape(n, pixels)
        return data, np.array(batch[labels_key], dtype=np.int64).reshape(n)
    except Exception as error:  # a pickle can raise anything; none of it may pass for data
        said = " ".join(f"{type(error).__name__}: {error}".split())[:160]
        raise DataError(expected(what, "a CIFAR batch of plain bytes", said, do)) from None
