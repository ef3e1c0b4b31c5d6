"""Linear estimators in skops' format: a zip archive of `schema.json` and plain arrays.

Nothing in the archive is run or imported. The file only says which of the estimators in a fixed
list it holds, and what their attributes are: numbers, texts, lists and arrays.
"""

from __future__ import annotations

import json
import os
import zipfile
from pathlib import Path
from typing import Any

import numpy as np

from remnant.errors import InputError, WeightsError, expected
from remnant.models.linear_estimators import from_estimator
from remnant.models.linear_files import LIMIT, ROOM
from remnant.models.linear_model import LinearModel
from remnant.untrusted import Budget, archive_of, member_bytes, read_array, shown
from remnant.untrusted.files import JSON_LIMIT

KINDS = ("LinearRegression", "Ridge", "LogisticRegression", "PoissonRegressor")


def read_skops(path: str | os.PathLike[str]) -> LinearModel:
    """The linear model in a skops file: one of KINDS, or a Pipeline of a StandardScaler and one."""
    source = Path(path)
    budget = Budget(LIMIT, WeightsError)
    with archive_of(source, budget) as archive:
        size = archive.getinfo("schema.json").file_size
        if size > JSON_LIMIT:
            what = f"{source}: schema.json"
            raise WeightsError(expected(what, f"at most {JSON_LIMIT} bytes", size))
        schema = json.loads(member_bytes(archive, "schema.json", budget))
        try:
            return from_estimator(_Nodes(source, archive, budget).value(schema))
        except InputError as error:
            raise WeightsError(f"{source}: {error}") from None


class _Nodes:
    """The nodes of a schema; a member named by several of them is read once.

    most: nodes of a schema; a pipeline of two estimators has about a hundred.
    """

    def __init__(
        self, source: Path, archive: zipfile.ZipFile, budget: Budget, *, most: int = 100_000
    ) -> None:
        self.source, self.archive, self.budget = source, archive, budget
        self.most = self.left = most
        self.arrays: dict[str, Any] = {}

    def value(self, node: Any) -> Any:
        """What a node stands for; None for what a linear model has no need of."""
        self.left -= 1
        if self.left < 0:
            raise InputError(expected("schema.json", f"at most {self.most} nodes", "more"))
        kind = node["__loader__"]
        if kind == "JsonNode":
            return json.loads(node["content"])
        if kind == "DictNode":
            return {name: self.value(child) for name, child in node["content"].items()}
        if kind in ("ListNode", "TupleNode"):
            return [self.value(child) for child in node["content"]]
        if kind == "NdArrayNode":
            if node["type"] == "json":
                return np.array([self.value(child) for child in node["content"]])
            array = self.array(str(node["file"]))
            return array if node["__class__"] == "ndarray" else array[()]  # a single number
        if kind == "ObjectNode":
            return _estimator(node["__class__"], self.value(node["content"]))
        return None

    def array(self, name: str) -> Any:
        if name not in self.arrays:
            with self.archive.open(name) as member:
                what = f"{self.source}: {shown(name)[1:-1]}"
                self.arrays[name] = read_array(member, what, self.budget, room=ROOM)
        return self.arrays[name]


def _estimator(name: str, attributes: dict[str, Any]) -> Any:
    """One of the listed classes with these attributes."""
    from sklearn import linear_model
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    if not isinstance(attributes, dict):
        raise InputError(expected(shown(name), "attributes by name", shown(attributes)))
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
