"""The missing record of a linear model: 50 targets a set and family, closed form and refitting.

    python benchmarks/glm.py [--targets 50] [--refits 5] [--art 2] [--seed 1] [--sets wine,diabetes]

Features are standardised by the known records alone, so that the scaler tells nothing. `converged`
solvers run to the end (direct, or a tolerance of 1e-15), `default` ones are scikit-learn's as
they come. Error: |found - true| / |true| in standardised features; "within": how often the real
error is at most the predicted one. Times are CPU seconds of one process.
"""

from __future__ import annotations

import argparse
import importlib
import time
import warnings
from collections.abc import Iterator
from dataclasses import dataclass
from statistics import median
from typing import Any

import numpy as np
import torch
from sklearn.base import clone
from sklearn.datasets import load_breast_cancer, load_diabetes, load_digits, load_wine
from sklearn.linear_model import LinearRegression, LogisticRegression, PoissonRegressor, Ridge

from remnant.attacks.glm import GLM
from remnant.models.linear_estimators import from_estimator, recipe
from remnant.models.linear_files import linear_target
from remnant.types import Candidates, Examples

TIGHT = {"solver": "newton-cholesky", "tol": 1e-15, "max_iter": 60}
CONVERGED = {
    "linear": LinearRegression(),
    "ridge": Ridge(alpha=1.0),
    "logistic": LogisticRegression(**TIGHT),
    "poisson": PoissonRegressor(alpha=0.1, **TIGHT),
    "multinomial": LogisticRegression(**TIGHT),
}
DEFAULT = {
    "logistic": LogisticRegression(),
    "poisson": PoissonRegressor(alpha=0.1),
    "multinomial": LogisticRegression(),
}


@dataclass(frozen=True, kw_only=True)
class Set:
    name: str
    inputs: np.ndarray
    labels: dict[str, np.ndarray]  # by family


def sets() -> Iterator[Set]:
    """Classes, a real target and a count out of each set, where it has them."""
    x, y = load_breast_cancer(return_X_y=True)
    area, rest = x[:, 3], np.delete(x, 3, 1)  # a number to predict from the others
    yield Set(name="breast_cancer", inputs=x, labels={"logistic": y})
    numbers = {"linear": area / 100, "ridge": area / 100, "poisson": (area / 100).round()}
    yield Set(name="breast_cancer (area)", inputs=rest, labels=numbers)
    x, y = load_diabetes(return_X_y=True)
    above = (y > np.median(y)).astype(int)
    labels = {"linear": y, "ridge": y, "poisson": (y / 10).round(), "logistic": above}
    yield Set(name="diabetes", inputs=x, labels=labels)
    x, y = load_wine(return_X_y=True)
    proline, others = x[:, -1] / 100, x[:, :-1]
    labels = {"multinomial": y, "logistic": (y == 1).astype(int), "linear": proline}
    labels |= {"ridge": proline, "poisson": proline.round()}
    yield Set(name="wine", inputs=others, labels=labels)
    x, y = load_digits(return_X_y=True)
    yield Set(name="digits", inputs=x[:600, x[:600].std(0) > 0], labels={"multinomial": y[:600]})


def attack_one(
    estimator: Any, data: Set, family: str, at: int, attempts: int
) -> tuple[Candidates, float, bool]:
    """(candidates, relative error, label right) for the record at `at`."""
    others = np.arange(len(data.inputs)) != at
    known = data.inputs[others]
    spread = known.std(0)
    x = (data.inputs - known.mean(0)) / np.where(spread > 0, spread, 1)
    y = data.labels[family]
    rows, labels = np.vstack([x[others], x[at]]), np.append(y[others], y[at])
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        fitted = clone(estimator).fit(rows, labels)
    model = from_estimator(fitted)
    examples = Examples(
        inputs=torch.tensor(x[others]),
        labels=torch.tensor(y[others]),
        ids=tuple(map(str, range(len(known)))),
        bounds=None,
    )
    target = linear_target(model, examples, recipe=recipe(model) if attempts else None)
    found = GLM(attempts=attempts)(target, generator=torch.Generator().manual_seed(at))
    error = float(np.linalg.norm(found.inputs[0].numpy() - x[at]) / np.linalg.norm(x[at]))
    assert found.labels is not None
    return found, error, bool(abs(float(found.labels[0]) - y[at]) <= 1e-3 * max(1.0, abs(y[at])))


def row(name: str, solver: str, family: str, estimator: Any, data: Set, targets: list[int],
        attempts: int = 0) -> str:  # fmt: skip
    start = time.process_time()
    done = [attack_one(estimator, data, family, at, attempts) for at in targets]
    seconds = (time.process_time() - start) / len(targets)
    errors = [error for _, error, _ in done]
    predicted = [found.figures["predicted_error"][0] for found, _, _ in done]
    sure = [error for found, error, _ in done if float(found.confidence[0]) > 0]
    within = sum(e <= p for e, p in zip(errors, predicted, strict=True))
    wrong = f"{max(sure):.0e}" if sure else "-"
    return (
        f"| {name} | {family} | {solver} | {len(targets)} | {median(errors):.0e} | "
        f"{max(errors):.0e} | {median(predicted):.0e} | {within} | "
        f"{sum(right for *_, right in done)} | {len(sure)} | {wrong} | {seconds:.2f} |"
    )


def art_lines(data: Set, targets: list[int]) -> Iterator[str]:
    """ART's attack on the same models: it searches the record and each label by refitting."""
    try:
        attacks = importlib.import_module("art.attacks.inference.reconstruction")
        wrappers = importlib.import_module("art.estimators.classification.scikitlearn")
    except ImportError:
        yield "ART (adversarial-robustness-toolbox) is not installed: its attack is skipped."
        return
    for solver, estimator in (
        ("converged", CONVERGED["logistic"]),
        ("default", DEFAULT["logistic"]),
    ):
        errors, start = [], time.process_time()
        for at in targets:
            others = np.arange(len(data.inputs)) != at
            known, y = data.inputs[others], data.labels["logistic"]
            x = (data.inputs - known.mean(0)) / known.std(0)
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")
                fitted = clone(estimator).fit(
                    np.vstack([x[others], x[at]]), np.append(y[others], y[at])
                )
                wrapped = wrappers.ScikitlearnLogisticRegression(model=fitted)
                found, _ = attacks.DatabaseReconstruction(wrapped).reconstruct(x[others], y[others])
            errors.append(float(np.linalg.norm(found[0] - x[at]) / np.linalg.norm(x[at])))
        seconds = (time.process_time() - start) / len(targets)
        yield (
            f"ART on {data.name}, logistic, {solver}: {len(targets)} targets, error median "
            f"{median(errors):.1e}, largest {max(errors):.1e}, {seconds:.1f} s each."
        )


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawTextHelpFormatter
    )
    parser.add_argument("--targets", type=int, default=50)
    parser.add_argument("--refits", type=int, default=5, help="targets attacked by refitting")
    parser.add_argument("--attempts", type=int, default=4, help="starts of each such search")
    parser.add_argument("--art", type=int, default=2, help="targets attacked by ART")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sets", help="only those whose names begin so, such as wine,diabetes")
    asked = parser.parse_args()
    torch.set_num_threads(1)
    print("| set | family | solver | targets | median error | largest | predicted (median) "
          "| within | labels right | trusted | largest of these | s |")  # fmt: skip
    print("|---" * 12 + "|")
    only = tuple(asked.sets.split(",")) if asked.sets else ("",)
    every = [data for data in sets() if data.name.startswith(only)]
    for data in every:
        chosen = np.random.default_rng(asked.seed).permutation(len(data.inputs)).tolist()
        for family in data.labels:
            targets = chosen[: asked.targets]
            print(row(data.name, "converged", family, CONVERGED[family], data, targets), flush=True)
            if family not in DEFAULT:
                continue
            print(row(data.name, "default", family, DEFAULT[family], data, targets), flush=True)
            few = targets[: asked.refits]
            if few and family != "poisson" and data.name != "digits":
                solver = "default, refitted"
                line = row(data.name, solver, family, DEFAULT[family], data, few, asked.attempts)
                print(line, flush=True)
    print()
    data = next((data for data in every if "logistic" in data.labels), None)
    if data is None or not asked.art:
        print("ART's attack was not asked for.")
        return
    few = np.random.default_rng(asked.seed).permutation(len(data.inputs))[: asked.art].tolist()
    for line in art_lines(data, few):
        print(line, flush=True)


if __name__ == "__main__":
    main()
