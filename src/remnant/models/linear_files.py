"""Linear models out of files: JSON, npz of the same names, or what skops wrote; nothing is run.

    family              linear, logistic, poisson, gamma or multinomial
    coef                d numbers, or c x d
    intercept           a number or c of them; left out where the model has none
    penalty             lambda of penalty / 2 |coef|^2 beside the sum of losses (default 0)
    penalty_per         "total", or "record" where it is multiplied by the number of records
    penalise_intercept  whether the intercept is penalised alike (default false)
    tolerance           largest entry of the mean loss's gradient at which the solver stopped;
                        0 for a direct solver; left out where it is not known
    classes, class_weight, features, scaling {"mean": ..., "scale": ...}
    solver              {"estimator": name, "parameters": {...}}: how to fit it again

A skops file only says which estimators of a fixed list it holds, and what their attributes are:
numbers, texts, lists and arrays.
"""

from __future__ import annotations

import inspect
import json
import os
import zipfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from torch import Tensor

from remnant.errors import InputError, WeightsError, expected
from remnant.models.linear_estimators import ESTIMATORS, from_estimator
from remnant.models.linear_model import FORMAT, LinearModel, Recipe
from remnant.types import Examples, Knowledge, Target
from remnant.untrusted.archives import archive_of, member_bytes, read_array
from remnant.untrusted.files import JSON_LIMIT, Budget, json_file, reading, shown

LIMIT = 1024**3  # bytes that a file may take in memory
ROOM = 64  # bytes for each number besides its own: a Python object of it in a list, and a tensor
FIELDS = {"format", *inspect.signature(LinearModel).parameters} - {"precision"}


def linear_target(
    model: LinearModel,
    known: Examples,
    *,
    records: int | None = None,
    labels: Tensor | None = None,
    recipe: Recipe | None = None,
) -> Target:
    """The adversary who knows all training records but one (`records` - n), in the data's scale.

    labels: of the missing record, where it is known. recipe: fits the model again, see `recipe`.
    """
    features = model.dense.in_features
    if known.shape != (features,):
        raise InputError(expected("known records", f"n x {features}", f"n x {known.shape}"))
    return Target(
        model=model,
        input_shape=(features,),
        bounds=None,
        scaling=model.scaling,
        knowledge=Knowledge(known=known, records=records, labels=labels, recipe=recipe),
    )


def read_linear(path: str | os.PathLike[str]) -> LinearModel:
    """The linear model in a file; the top of this module says what each kind holds."""
    source = Path(path)
    readers = {".json": _read_json, ".npz": _read_npz, ".skops": _read_skops}
    if source.suffix.lower() not in readers:
        do = "write one with save_linear; pickles are never read"
        raise WeightsError(
            expected(f"{source}", "a .json, .npz or .skops file", source.suffix or "none", do)
        )
    try:
        with reading(source, WeightsError):
            return readers[source.suffix.lower()](source)
    except InputError as error:
        raise WeightsError(f"{source}: {error}") from None


def _read_json(source: Path) -> LinearModel:
    return _model(json_file(source, WeightsError, larger="save it as npz"))


def _read_npz(source: Path) -> LinearModel:
    budget = Budget(LIMIT, WeightsError)
    with archive_of(source, budget) as archive:
        names = {info.filename: info.filename.removesuffix(".npy") for info in archive.infolist()}
        held = {name: _array(source, archive, file, budget) for file, name in names.items()}
    plain: dict[str, Any] = {name: value.tolist() for name, value in held.items()}
    if {"mean", "scale"} & plain.keys():  # archives do not nest
        plain["scaling"] = {k: plain.pop(k) for k in ("mean", "scale") if k in plain}
    if isinstance(plain.get("solver"), str):
        plain["solver"] = _parsed(plain["solver"], "solver")
    coarse = getattr(held.get("coef"), "dtype", None) == np.float32
    return _model(plain, **({"precision": 2.0**-24} if coarse else {}))


def _array(source: Path, archive: zipfile.ZipFile, name: str, budget: Budget) -> Any:
    with archive.open(name) as member:
        return read_array(member, f"{source}: {shown(name)[1:-1]}", budget, room=ROOM)


def _parsed(text: str, what: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise InputError(expected(what, "JSON", shown(text))) from None


def _model(held: Mapping[str, Any], **more: Any) -> LinearModel:
    """A model from the fields of a file."""
    if held.get("format", FORMAT) != FORMAT:
        raise InputError(expected("format", FORMAT, shown(held["format"])))
    unknown = sorted(held.keys() - FIELDS)
    if unknown:
        got = ", ".join(shown(name)[1:-1] for name in unknown[:4])
        raise InputError(expected("names", ", ".join(sorted(FIELDS)), got))
    missing = [name for name in ("family", "coef") if name not in held]
    if missing:
        raise InputError(expected("names", "family and coef", f"no {' and no '.join(missing)}"))
    return LinearModel(**{k: v for k, v in held.items() if k != "format"}, **more)


def _read_skops(source: Path) -> LinearModel:
    """A zip archive of `schema.json`, a tree of nodes, and of plain arrays that they name."""
    budget = Budget(LIMIT, WeightsError)
    with archive_of(source, budget) as archive:
        size = archive.getinfo("schema.json").file_size
        if size > JSON_LIMIT:
            raise InputError(expected("schema.json", f"at most {JSON_LIMIT} bytes", size))
        schema = json.loads(member_bytes(archive, "schema.json", budget))
        return from_estimator(_Nodes(source, archive, budget).value(schema))


@dataclass
class _Nodes:
    """The nodes of a schema; a member named by several of them is read once.

    most: nodes of a schema; a pipeline of two estimators has about a hundred.
    """

    source: Path
    archive: zipfile.ZipFile
    budget: Budget
    most: int = 100_000
    seen: int = 0
    arrays: dict[str, Any] = field(default_factory=dict)

    def value(self, node: Any) -> Any:
        """What a node stands for; None for what a linear model has no need of."""
        self.seen += 1
        if self.seen > self.most:
            raise InputError(expected("schema.json", f"at most {self.most} nodes", "more"))
        match node["__loader__"]:
            case "JsonNode":
                return json.loads(node["content"])
            case "DictNode":
                return {name: self.value(child) for name, child in node["content"].items()}
            case "ListNode" | "TupleNode":
                return [self.value(child) for child in node["content"]]
            case "NdArrayNode" if node["type"] == "json":
                return np.array([self.value(child) for child in node["content"]])
            case "NdArrayNode":
                name = str(node["file"])
                if name not in self.arrays:
                    self.arrays[name] = _array(self.source, self.archive, name, self.budget)
                single = node["__class__"] != "ndarray"
                return self.arrays[name][()] if single else self.arrays[name]
            case "ObjectNode":
                return _estimator(node["__class__"], self.value(node["content"]))
        return None


def _estimator(name: str, attributes: dict[str, Any]) -> Any:
    """An estimator of the list with these attributes; None for a solver's loss, or the like."""
    from sklearn import linear_model
    from sklearn.pipeline import Pipeline
    from sklearn.preprocessing import StandardScaler

    if not isinstance(attributes, dict):
        raise InputError(expected(shown(name), "attributes by name", shown(attributes)))
    if name == "Pipeline":
        return Pipeline([(str(step), made) for step, made in attributes["steps"]])
    if name != "StandardScaler" and name not in ESTIMATORS:
        return None
    made = StandardScaler() if name == "StandardScaler" else getattr(linear_model, name)()
    vars(made).update({str(key): value for key, value in attributes.items()})
    return made
