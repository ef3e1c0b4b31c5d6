"""Linear models as targets: coefficients with their objective, from files and from estimators.

A file is JSON, or an npz archive of the same names; nothing in it is ever run:

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
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remnant.errors import InputError, WeightsError, expected
from remnant.models.linear_model import LinearModel
from remnant.types import Examples, Knowledge, Scaling, Target
from remnant.untrusted import Budget, archive_of, json_file, read_array, reading, shown

FORMAT = "remnant.linear/1"
LIMIT = 1024**3  # bytes that a file may take in memory
ROOM = 64  # bytes for each number besides its own: a Python object of it in a list, and a tensor
KEYS = {
    "format", "family", "coef", "intercept", "penalty", "penalty_per", "penalise_intercept",
    "tolerance", "classes", "class_weight", "features", "scaling", "solver",
}  # fmt: skip
Recipe = Callable[[Tensor, Tensor, Tensor | None], Tensor]
"""Fits again: inputs n x d, labels n, weights n or None -> coefficients c x d, bias last if any."""


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
    """The model in a JSON or npz file; the top of this file says what it may hold."""
    source = Path(path)
    readers = {".json": _read_json, ".npz": _read_npz}
    if source.suffix.lower() not in readers:
        do = "write one with save_linear; pickles are never read"
        raise WeightsError(
            expected(f"{source}", "a .json or .npz file", source.suffix or "none", do)
        )
    held = readers[source.suffix.lower()](source)
    try:
        with reading(source, WeightsError):
            return model_of(held)
    except InputError as error:
        raise WeightsError(f"{source}: {error}") from None


def _read_json(source: Path) -> dict[str, Any]:
    return json_file(source, WeightsError, larger="save it as npz")


def _read_npz(source: Path) -> dict[str, Any]:
    budget, held = Budget(LIMIT, WeightsError), {}
    with archive_of(source, budget) as archive:
        for info in archive.infolist():
            name = info.filename.removesuffix(".npy")
            with archive.open(info) as member:
                held[name] = read_array(member, f"{source}: {shown(name)[1:-1]}", budget, room=ROOM)
        plain: dict[str, Any] = {name: value.tolist() for name, value in held.items()}
    if getattr(held.get("coef"), "dtype", None) == np.float32:
        plain["precision"] = 2.0**-24
    if {"mean", "scale"} & plain.keys():  # archives do not nest
        plain["scaling"] = {k: plain.pop(k) for k in ("mean", "scale") if k in plain}
    if isinstance(plain.get("solver"), str):
        plain["solver"] = _solver(source, plain["solver"])
    return plain


def _solver(source: Path, text: str) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise WeightsError(expected(f"{source}: solver", "JSON", shown(text))) from None


def model_of(held: Mapping[str, Any]) -> LinearModel:
    """A model from plain values, all checked."""
    if held.get("format", FORMAT) != FORMAT:
        raise InputError(expected("format", FORMAT, shown(held["format"])))
    unknown = sorted(held.keys() - KEYS - {"precision"})
    if unknown:
        got = ", ".join(shown(name)[1:-1] for name in unknown[:4])
        raise InputError(expected("names", ", ".join(sorted(KEYS)), got))
    missing = [name for name in ("family", "coef") if name not in held]
    if missing:
        raise InputError(expected("names", "family and coef", f"no {' and no '.join(missing)}"))
    coef = _numbers("coef", held["coef"])
    coef = coef[None] if coef.ndim == 1 else coef
    if coef.ndim != 2 or not coef.numel():
        raise InputError(expected("coef", "d numbers or c x d", f"shape {tuple(coef.shape[:8])}"))
    intercept = None
    if held.get("intercept") is not None:
        intercept = _numbers("intercept", held["intercept"]).reshape(-1)
    weight = held.get("class_weight")
    if weight is not None and weight != "balanced":
        weight = tuple(_numbers("class_weight", weight).reshape(-1).tolist())
    tolerance = held.get("tolerance")
    return LinearModel(
        _word("family", held["family"]),
        coef,
        intercept,
        penalty=_number("penalty", held.get("penalty", 0.0)),
        penalty_per=_word("penalty_per", held.get("penalty_per", "total")),
        penalise_intercept=_switch("penalise_intercept", held.get("penalise_intercept", False)),
        tolerance=None if tolerance is None else _number("tolerance", tolerance),
        classes=_names("classes", held.get("classes", ())),
        class_weight=weight,
        features=tuple(map(str, _names("features", held.get("features", ())))),
        scaling=_scaling(held.get("scaling"), coef.shape[1]),
        solver=_settings(held.get("solver")),
        precision=_number("precision", held.get("precision", 2.0**-53)),
    )


def _numbers(what: str, value: object) -> Tensor:
    try:
        found = torch.tensor(value, dtype=torch.float64)
    except (TypeError, ValueError, RuntimeError, OverflowError, RecursionError):
        found = torch.full((), torch.nan)
    if not bool(torch.isfinite(found).all()):
        raise InputError(expected(what, "finite numbers in even rows", shown(value)))
    return found


def _number(what: str, value: object) -> float:
    found = _numbers(what, value)
    if found.numel() != 1:
        raise InputError(expected(what, "one number", shown(value)))
    return float(found)


def _word(what: str, value: object) -> str:
    if not isinstance(value, str):
        raise InputError(expected(what, "a word", shown(value)))
    return value


def _switch(what: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise InputError(expected(what, "true or false", shown(value)))
    return value


def _settings(value: object, *, most: int = 10**7) -> Mapping[str, Any] | None:
    """How the model was fitted: plain values, as they are given to an estimator again.

    most: iterations of a solver; no fit of a linear model takes more.
    """
    if value is None:
        return None
    if not isinstance(value, Mapping):
        raise InputError(expected("solver", "an object", shown(value)))
    parameters = value.get("parameters", {})
    plain = (bool, int, float, str, type(None))
    if not isinstance(parameters, Mapping) or not all(
        isinstance(setting, plain) for setting in parameters.values()
    ):
        raise InputError(expected("solver: parameters", "plain values", shown(parameters)))
    iterations = value.get("iterations", 0)
    if type(iterations) is not int or not 0 <= iterations < most:
        wanted = f"0 to {most}"
        raise InputError(expected("solver: iterations", wanted, shown(iterations)))
    return value


def _names(what: str, value: object) -> tuple[Any, ...]:
    if not isinstance(value, list | tuple) or not all(
        isinstance(v, str) or (isinstance(v, int) and abs(v) < 2**63) for v in value
    ):
        raise InputError(expected(what, "a list of names or whole numbers", shown(value)))
    if len(set(value)) != len(value):
        raise InputError(expected(what, "different ones", shown(value)))
    return tuple(value)


def _scaling(value: object, features: int) -> Scaling:
    if value is None:
        return Scaling()
    if not isinstance(value, Mapping) or set(value) != {"mean", "scale"}:
        raise InputError(expected("scaling", "mean and scale", shown(value)))
    mean, std = (_numbers(f"scaling: {k}", value[k]) for k in ("mean", "scale"))
    for what, part in (("mean", mean), ("scale", std)):
        if part.shape not in ((), (features,)):
            got = f"shape {tuple(part.shape)}"
            raise InputError(expected(f"scaling: {what}", f"1 or {features} numbers", got))
    return Scaling(mean=mean, std=std)
