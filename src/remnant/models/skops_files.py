"""Linear estimators in skops' format: a zip archive of `schema.json` and plain arrays.

Nothing in the archive is run or imported. The file only says which of the estimators in a fixed
list it holds, and what their attributes are: numbers, texts, lists and arrays.
"""

from __future__ import annotations

import io
import json
import math
import os
import zipfile
import zlib
from pathlib import Path
from typing import Any

import numpy as np

from remnant.errors import InputError, WeightsError, expected
from remnant.models.linear_estimators import from_estimator
from remnant.models.linear_files import LIMIT, LinearModel

KINDS = ("LinearRegression", "Ridge", "LogisticRegression", "PoissonRegressor")
_HEADERS = {
    (1, 0): np.lib.format.read_array_header_1_0,
    (2, 0): np.lib.format.read_array_header_2_0,
}


def read_skops(path: str | os.PathLike[str]) -> LinearModel:
    """The linear model in a skops file: one of KINDS, or a Pipeline of a StandardScaler and one."""
    source = Path(path)
    if source.exists() and not source.is_file():  # a pipe would be waited for
        got = "a folder, a device or a pipe"
        raise WeightsError(expected(f"{source}", "a skops file", got))
    try:
        with zipfile.ZipFile(source) as archive:
            if sum(info.file_size for info in archive.infolist()) > LIMIT:
                raise WeightsError(expected(f"{source}", f"at most {LIMIT} bytes", "more"))
            return from_estimator(_value(json.loads(_bytes(archive, "schema.json")), archive))
    except OSError as error:
        got = (error.strerror or "another").lower()
        raise WeightsError(expected(f"{source}", "a skops file", got)) from None
    except InputError as error:
        raise WeightsError(f"{source}: {error}") from None
    except (
        ValueError, LookupError, TypeError, AttributeError, RecursionError, NotImplementedError,
        EOFError, RuntimeError, zipfile.BadZipFile, zlib.error,
    ) as error:  # fmt: skip
        lines = str(error).splitlines()
        got = f"a fault ({lines[0][:80] if lines else type(error).__name__})"
        raise WeightsError(expected(f"{source}", "a linear model by skops", got)) from None


def _bytes(archive: zipfile.ZipFile, name: str) -> bytes:
    info = archive.getinfo(name)
    if info.file_size > LIMIT:
        raise InputError(expected(name, f"at most {LIMIT} bytes", info.file_size))
    return archive.read(info)


def _value(node: dict[str, Any], archive: zipfile.ZipFile) -> Any:
    """What a node stands for; None for what a linear model has no need of."""
    kind = node["__loader__"]
    if kind == "JsonNode":
        return json.loads(node["content"])
    if kind == "DictNode":
        return {name: _value(child, archive) for name, child in node["content"].items()}
    if kind in ("ListNode", "TupleNode"):
        return [_value(child, archive) for child in node["content"]]
    if kind == "NdArrayNode":
        if node["type"] == "json":
            return np.array([_value(child, archive) for child in node["content"]])
        array = _array(_bytes(archive, node["file"]))
        return array if node["__class__"] == "ndarray" else array[()]  # a single number
    if kind == "ObjectNode":
        return _estimator(node["__class__"], _value(node["content"], archive))
    return None


def _array(raw: bytes) -> Any:
    """An npy file whose header asks for no more than there is, and for no objects."""
    stream = io.BytesIO(raw)
    version = np.lib.format.read_magic(stream)
    if version not in _HEADERS:
        raise InputError(expected("npy version", "1 or 2", version))
    shape, _, dtype = _HEADERS[version](stream)
    if dtype.hasobject or math.prod(shape) * dtype.itemsize > len(raw):
        raise InputError(expected("an array", "plain numbers, all of them", f"{dtype} {shape}"))
    return np.load(io.BytesIO(raw), allow_pickle=False)


def _estimator(name: str, attributes: dict[str, Any]) -> Any:
    """One of the listed classes with these attributes."""
    from sklearn import linear_model
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    if name == "Pipeline":
        return Pipeline([(str(step), made) for step, made in attributes["steps"]])
    if name == "StandardScaler":
        made = StandardScaler()
    elif name in KINDS:
        made = getattr(linear_model, name)()
    else:
        return None  # a solver's loss object, or the like
    vars(made).update({str(key): value for key, value in attributes.items()})
    return made
