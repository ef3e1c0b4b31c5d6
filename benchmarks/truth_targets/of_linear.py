"""Coefficients of a linear model are given, and every record but one is known."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from truth_targets.linear import Linear, make_linear
from truth_targets.making import Target
from truth_targets.scenes import Scene

SAMPLE = {"leaky_glm_bc", "leaky_glm_1feature", "cannot_glm_other_bc"}


def target(name: str, truth: str, note: str, what: Linear) -> Target:
    return Target(
        name=name, truth=truth, note=note, make=partial(make_linear, what), sample=name in SAMPLE
    )


def of(
    data: str, n: int = 60, *, declare: str = "trained", columns: int | None = None, **more: Any
) -> Linear:
    holdout = 60 if data == "wine" else 100
    return Linear(
        scene=Scene(
            data=data,
            n=n if data != "wine" else 50,
            declare=declare,
            columns=columns,
            holdout=holdout,
        ),
        **more,
    )


def targets() -> Iterator[Target]:
    yield from leaky()
    yield from cannot()


def leaky() -> Iterator[Target]:
    def one(name: str, note: str, what: Linear) -> Target:
        return target(f"leaky_glm_{name}", "leaks", note, what)

    ridge: dict[str, Any] = {"family": "linear", "penalty": 0.1}
    for s in ("", "_s2"):
        yield one(f"bc{s}", "logistic regression", of("bc"))
        yield one(f"ridge_diab{s}", "ridge regression", of("diab", **ridge))
        yield one(f"1feature{s}", "one feature", of("bc", columns=1))
    yield one("wine3", "three classes", of("wine", family="multinomial"))
    yield one("2features", "two features", of("bc", columns=2))
    yield one("ages", "one whole-number feature", of("ages"))
    yield one("onehot", "one-hot table", of("onehot"))
    yield one("ridge_1feature", "simple regression", of("diab", columns=1, **ridge))
    yield one("default_tol", "lbfgs at a tolerance of 1e-4", of("bc", 30, tolerance=1e-4))
    yield target(
        "defended_glm_noise", "defended", "coefficients + N(0, .3)", of("bc", coefficients="noisy")
    )


def cannot() -> Iterator[Target]:
    def one(name: str, note: str, what: Linear) -> Target:
        return target(f"cannot_glm_{name}", "cannot", note, what)

    ridge: dict[str, Any] = {"family": "linear", "penalty": 0.1}
    never = "declared never fitted"
    for s in ("", "_s2"):
        yield one(f"other_bc{s}", never, of("bc", declare="others"))
    yield one("other_1feature", f"{never}; one feature", of("bc", declare="others", columns=1))
    yield one("other_2features", f"{never}; two features", of("bc", declare="others", columns=2))
    yield one(
        "other_wine3", f"{never}; three classes", of("wine", declare="others", family="multinomial")
    )
    for k in (1, 2, 5):
        yield one(
            f"ridge_other_{k}f",
            f"{never}; {k} features",
            of("diab", declare="others", columns=k, **ridge),
        )
    yield one("random_coef", "never fitted", of("bc", coefficients="random"))
    yield one(
        "outlier_other", f"{never}; the first lies far off", of("bc", declare="others", outlier=5.0)
    )
    yield target(
        "mis_glm_wrong_penalty", "misdeclared", "another penalty declared", of("bc", told=10.0)
    )
    yield target(
        "mis_glm_half",
        "misdeclared",
        "half of the declared records were fitted",
        of("bc", declare="half"),
    )
