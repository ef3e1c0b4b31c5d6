"""Targets that are linear models, fitted by scikit-learn, their coefficients as JSON."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from truth_targets.making import Made, write_json, write_records
from truth_targets.scenes import Drawn, Scene, draw
from truth_targets.sets import Array


@dataclass(frozen=True, kw_only=True)
class Linear:
    """family: logistic, multinomial or linear (ridge). penalty: as fitted; told: as declared.

    coefficients: "fitted", "random" (no fit at all) or "noisy" (N(0, .3) added). outlier: the
    first declared record lies far off. standard: features divided by their spread beforehand.
    """

    scene: Scene
    family: str = "logistic"
    penalty: float = 1.0
    told: float | None = None
    tolerance: float = 1e-12
    coefficients: str = "fitted"
    outlier: float = 0.0
    extra: dict[str, Any] = field(default_factory=dict)


def make_linear(what: Linear, folder: Path, seed: int) -> Made:
    drawn = np.random.default_rng(seed)
    records = draw(what.scene, drawn)
    spread = np.where(records.pool.std(0) > 0, records.pool.std(0), 1.0)
    mean = records.pool.mean(0)
    if what.scene.data == "ages":
        mean, spread = np.zeros(1), np.ones(1)  # whole numbers stay whole

    def unit(x: Array) -> Array:
        return (x - mean) / spread

    model = _fitted(what, unit(records.trained), records.trained_labels)
    values = _described(what, model, drawn)
    write_json(folder / "model.json", values)
    declared = unit(records.declared).copy()
    if what.outlier:
        declared[0] += what.outlier
    labels = (lambda y: y.astype(float)) if what.family == "linear" else (lambda y: y)
    write_records(folder / "train.npz", declared, labels(records.labels))
    write_records(folder / "test.npz", unit(records.holdout), labels(records.holdout_labels))
    return Made(
        options={"weights": "model.json", "data": "train.npz", "holdout": "test.npz"} | what.extra,
        declared=declared,
        used=records.used,
        trained=unit(records.trained),
        unit=_unit(records, unit),
    )


def _unit(records: Drawn, unit: Any) -> Array:
    spread: Array = unit(records.pool).std(0)
    return np.where(spread > 0, spread, 1.0)


def _fitted(what: Linear, x: Array, y: Array) -> Any:
    from sklearn import linear_model as sk

    if what.family == "linear":
        return sk.Ridge(alpha=what.penalty, solver="cholesky").fit(x, y.astype(float))
    quick = what.tolerance > 1e-6
    made = sk.LogisticRegression(
        C=1 / what.penalty,
        tol=what.tolerance,
        max_iter=10_000,
        solver="lbfgs" if quick else "newton-cholesky",
    )
    return made.fit(x, y)


def _described(what: Linear, model: Any, drawn: np.random.Generator) -> dict[str, Any]:
    coef, intercept = np.atleast_2d(model.coef_), np.atleast_1d(model.intercept_)
    if what.coefficients == "random":
        coef, intercept = drawn.normal(size=coef.shape), drawn.normal(size=intercept.shape)
    elif what.coefficients == "noisy":
        coef = coef + 0.3 * drawn.normal(size=coef.shape)
        intercept = intercept + 0.3 * drawn.normal(size=intercept.shape)
    one = len(coef) == 1
    values = {
        "family": what.family,
        "coef": coef[0].tolist() if one else coef.tolist(),
        "intercept": float(intercept[0]) if one else intercept.tolist(),
        "penalty": what.penalty if what.told is None else what.told,
        "tolerance": 0 if what.family == "linear" else what.tolerance,
    }
    if what.family != "linear":
        values["classes"] = [int(c) for c in model.classes_]
    return values
