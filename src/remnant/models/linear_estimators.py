"""Fitted estimators of scikit-learn and statsmodels as linear models, saved, and fitted again.

Every library scales its penalty in its own way; here it always stands beside the sum of losses.
"""

from __future__ import annotations

import io
import json
import math
import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from remnant.errors import InputError, WeightsError, expected
from remnant.models.linear_model import FORMAT, LinearModel, Recipe
from remnant.types import Scaling
from remnant.untrusted.files import write_private

ESTIMATORS = ("LinearRegression", "Ridge", "LogisticRegression", "PoissonRegressor")
DIRECT = ("auto", "cholesky", "svd")  # of Ridge, for dense data
BY_GRADIENT = ("lbfgs", "newton-cg", "newton-cholesky")  # stop at max |gradient of the mean| < tol
READ = (
    f"{', '.join(ESTIMATORS)}, a Pipeline of StandardScaler "
    "and one of them, or results of statsmodels' OLS, WLS, GLM, Logit, Poisson or MNLogit"
)
LINKS = {
    ("Gaussian", "Identity"): "linear",
    ("Binomial", "Logit"): "logistic",
    ("Poisson", "Log"): "poisson",
    ("Gamma", "InversePower"): "gamma",
}
"""Families with their canonical links, in the words of statsmodels."""


def from_estimator(estimator: Any, *, scaler: Any = None, **changes: Any) -> LinearModel:
    """The linear model in a fitted estimator; `scaler` is a StandardScaler that was before it.

    `changes` are fields of LinearModel to set otherwise, such as the penalty of statsmodels'
    fit_regularized (alpha, penalty_per="record", penalise_intercept=True).
    """
    if hasattr(estimator, "steps"):  # a Pipeline
        *before, (_, estimator) = estimator.steps
        kinds = [type(step).__name__ for _, step in before]
        if kinds not in ([], ["StandardScaler"]):
            got = ", ".join(kinds)
            raise InputError(expected("steps before the model", "one StandardScaler", got))
        scaler = before[0][1] if before else scaler
    kind = type(estimator).__name__
    if hasattr(estimator, "params") and hasattr(estimator, "model"):
        fields = _statsmodels(estimator)
    elif kind in ESTIMATORS:
        if not hasattr(estimator, "coef_"):
            raise InputError(expected(kind, "a fitted one", "no coef_", "call fit first"))
        fields = _objective(estimator, kind) | _coefficients(estimator)
    else:
        raise InputError(expected("estimator", READ, kind))
    if scaler is not None:
        fields["scaling"] = _scaling(scaler, fields["coef"].shape[1])
    return LinearModel(**(fields | changes))


def _coefficients(estimator: Any) -> dict[str, Any]:
    coef = np.atleast_2d(estimator.coef_)
    iterations = np.max(np.ravel(getattr(estimator, "n_iter_", None) or 0))
    plain = (bool, int, float, str, type(None))
    parameters = estimator.get_params(deep=False)
    bias = np.broadcast_to(np.ravel(estimator.intercept_), len(coef)).copy()
    return {
        "coef": coef,
        "intercept": bias if estimator.fit_intercept else None,
        "features": tuple(map(str, getattr(estimator, "feature_names_in_", ()))),
        "precision": 2.0**-24 if coef.dtype == np.float32 else 2.0**-53,
        "solver": {
            "estimator": type(estimator).__name__,
            "parameters": {k: v for k, v in parameters.items() if isinstance(v, plain)},
            "iterations": int(iterations),
        },
    }


def _objective(estimator: Any, kind: str) -> dict[str, Any]:
    """What scikit-learn's estimator of this kind minimises, and how far its solver goes."""
    if kind == "LogisticRegression":
        return _logistic(estimator)
    if kind == "LinearRegression":
        return {"family": "linear", "tolerance": 0.0}
    penalty = estimator.alpha
    if np.ndim(penalty):
        raise InputError(expected(f"{kind}: alpha", "one number", f"{len(penalty)}"))
    if kind == "Ridge":
        direct = estimator.solver in DIRECT and not estimator.positive
        return {"family": "linear", "penalty": penalty, "tolerance": 0.0 if direct else None}
    per = {"penalty": penalty, "penalty_per": "record"}
    return {"family": "poisson", "tolerance": estimator.tol} | per


def _logistic(estimator: Any) -> dict[str, Any]:
    named = estimator.penalty  # newer versions say it with C and l1_ratio alone
    if named in ("l1", "elasticnet") or (named != "l2" and estimator.l1_ratio):
        raise InputError(expected("LogisticRegression: penalty", "l2 or none", "l1 or elastic net"))
    liblinear = estimator.solver == "liblinear"
    if liblinear and estimator.fit_intercept and estimator.intercept_scaling != 1:
        raise InputError(expected("intercept_scaling", 1, estimator.intercept_scaling))
    weight, classes = estimator.class_weight, np.asarray(estimator.classes_).tolist()
    if isinstance(weight, dict):
        weight = [float(weight.get(c, 1.0)) for c in classes]
    if all(isinstance(c, bool | float) and c == int(c) for c in classes):
        classes = [int(c) for c in classes]
    return {
        "family": "logistic" if len(estimator.coef_) == 1 else "multinomial",
        "penalty": 0.0 if named is None or math.isinf(estimator.C) else 1 / float(estimator.C),
        "penalise_intercept": liblinear,
        "tolerance": estimator.tol if estimator.solver in BY_GRADIENT else None,
        "classes": classes,
        "class_weight": weight,
    }


def _statsmodels(results: Any) -> dict[str, Any]:
    model, kind = results.model, type(results.model).__name__
    plain = {"OLS": "linear", "WLS": "linear", "Logit": "logistic", "Poisson": "poisson"}
    family = (plain | {"MNLogit": "multinomial"}).get(kind)
    if kind == "GLM":
        pair = (type(model.family).__name__, type(model.family.link).__name__)
        family = LINKS.get(pair)
        kind = f"GLM of {' with link '.join(pair)}"
    if family is None:
        raise InputError(expected("estimator", f"{READ}, with the canonical link", kind))
    every = np.atleast_2d(np.asarray(results.params, dtype=float).T)
    at = model.data.const_idx  # the column of ones that add_constant made
    keep = [i for i in range(every.shape[1]) if i != at]
    names = [str(name) for name in model.exog_names]
    classes: tuple[int, ...] = ()
    if family in ("logistic", "multinomial"):
        classes = tuple(range(2 if family == "logistic" else len(every) + 1))
    return {
        "family": family,
        "coef": every[:, keep],
        "intercept": None if at is None else every[:, at],
        "classes": classes,
        "features": tuple(names[i] for i in keep),
        "tolerance": 0.0 if family == "linear" else None,
    }


def _scaling(scaler: Any, features: int) -> Scaling:
    zeros, ones = np.zeros(features), np.ones(features)
    mean = zeros if getattr(scaler, "mean_", None) is None else scaler.mean_
    std = ones if getattr(scaler, "scale_", None) is None else scaler.scale_
    return Scaling(mean=torch.tensor(mean), std=torch.tensor(std))


def save_linear(path: str | os.PathLike[str], model: Any, **changes: Any) -> None:
    """Write a LinearModel, or a fitted estimator, as JSON or npz after the file's ending."""
    target = Path(path)
    if not isinstance(model, LinearModel):
        model = from_estimator(model, **changes)
    held = {"format": FORMAT, "coef": model.dense.weight.tolist()}
    for name in (
        "family", "penalty", "penalty_per", "penalise_intercept", "tolerance", "classes",
        "class_weight", "features", "solver",
    ):  # fmt: skip
        held[name] = getattr(model, name)
    held["intercept"] = None if model.dense.bias is None else model.dense.bias.tolist()
    held = {name: value for name, value in held.items() if value is not None and value != ()}
    scaling = {"mean": model.scaling.mean.tolist(), "scale": model.scaling.std.tolist()}
    if target.suffix == ".npz":
        if "solver" in held:
            held["solver"] = json.dumps(held["solver"])
        stream = io.BytesIO()
        np.savez(stream, **held | scaling)
        data = stream.getvalue()
    elif target.suffix == ".json":
        data = (json.dumps(held | {"scaling": scaling}, indent=2) + "\n").encode()
    else:
        raise WeightsError(expected(f"{target}", "a .json or .npz ending", target.suffix or "none"))
    try:
        write_private(target, data, prefix=f".{target.name}.")
    except OSError as error:
        raise WeightsError(f"{target}: cannot be written: {error.strerror}") from error


def recipe(model: LinearModel) -> Recipe:
    """Fits scikit-learn's estimator again as the model says it was made, by a fixed list of names.

    Where the number of iterations is known they are all done and no more, so that coefficients
    depend smoothly on a record.
    """
    from sklearn import linear_model
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    said = model.solver or {}
    kind = str(said.get("estimator"))
    if kind not in ESTIMATORS:
        raise InputError(expected("solver: estimator", " or ".join(ESTIMATORS), kind))
    parameters = dict(said.get("parameters", {}))
    iterations = int(said.get("iterations", 0))
    if iterations and parameters.get("solver") in BY_GRADIENT:
        # A tolerance that no solver meets, so that it does the iterations it is told.
        parameters |= {"max_iter": iterations, "tol": 1e-300}
    try:
        estimator = getattr(linear_model, kind)(**parameters)
    except TypeError as error:
        raise InputError(f"solver: parameters do not fit {kind}: {error}") from None

    threads = ThreadpoolController()

    def fit(inputs: Tensor, labels: Tensor, weights: Tensor | None) -> Tensor:
        # One thread: many small fits are slower on several, and must come out the same each time.
        with warnings.catch_warnings(), threads.limit(limits=1):
            warnings.simplefilter("ignore")  # that it stops early is the point
            each = None if weights is None else weights.numpy()
            try:
                estimator.fit(inputs.numpy(), labels.numpy(), each)
            except ValueError as error:  # checked by scikit-learn only now
                why = str(error).partition("\n")[0][:160]
                raise InputError(f"solver: {kind} cannot be fitted so: {why}") from None
        coef = torch.tensor(np.atleast_2d(estimator.coef_), dtype=torch.float64)
        if not estimator.fit_intercept:
            return coef
        bias = torch.tensor(np.ravel(estimator.intercept_), dtype=torch.float64)
        return torch.cat([coef, bias[:, None]], 1)

    return fit
