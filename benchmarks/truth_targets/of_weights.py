"""The released weights alone are given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

import torch
from torch import Tensor

from truth_targets.dense import Dense, make_dense
from truth_targets.making import Target
from truth_targets.networks import Shape, State, Training
from truth_targets.scenes import Scene

STATIONARY = Training(optimiser="stationary", lr=0.5, decay=5e-3, steps=3000)
SMALL = Training(optimiser="small", lr=0.02, steps=60_000, stop=1e-8)
SAMPLE = {
    "leaky_kkt_wd10", "leaky_kkt_ce60_w40_s301", "weightsonly_sgd12", "planted_rows",
    "cannot_kkt_other10",
}  # fmt: skip


def target(name: str, truth: str, note: str, what: Dense) -> Target:
    return Target(
        name=name, truth=truth, note=note, make=partial(make_dense, what), sample=name in SAMPLE
    )


def of(n: int, width: int, *, loss: str = "ce", bias: bool = False, **scene: Any) -> Dense:
    scene.setdefault("holdout", 400)  # the more strangers, the more of them look like a record
    return Dense(
        scene=Scene(n=n, **scene),
        shape=Shape(hidden=(width, width), bias=bias),
        how=STATIONARY if loss != "mse" else replace(STATIONARY, lr=0.2, steps=7500),
        gives="weights",
        loss=loss,
        suffix=".safetensors",
    )


def targets() -> Iterator[Target]:
    yield from leaky()
    yield from cannot()
    yield from ordinary()
    yield from planted()


def leaky() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"leaky_kkt_{name}", "leaks", note, what)

    for n, w, seeds in (
        (60, 40, ("", "_s301", "_s302")),
        (50, 40, ("_s303",)),
        (40, 40, ("_s304",)),
        (60, 60, ("_s305",)),
        (80, 40, ("_s306",)),
    ):
        for s in seeds:
            note = f"stationary with decay, {n} records at width {w}"
            yield one(f"ce{n}_w{w}{s}", note, of(n, w))
    yield one("bce40_w60", "stationary with decay, one output", of(40, 60, loss="bce"))
    for s in ("", "_s2"):
        yield one(f"wd10{s}", "stationary with decay, 10 at width 60", of(10, 60))
    yield one("mse10", "stationary regression", of(10, 60, loss="mse"))
    yield one("mnist_wd10", "MNIST, stationary with decay", of(10, 60, data="mnist"))
    for s in (41, 42):
        small = replace(
            of(10, 60, loss="bce"),
            shape=Shape(hidden=(60, 60), bias=False, first_scale=1e-3),
            how=SMALL,
        )
        yield one(f"smallinit_s{s}", "small first layer, no decay, loss 1e-8", small)
    alike = "images that all look alike"
    yield one("wd10_template", alike, replace(of(10, 60), centre="template"))
    yield one("like20_w60_s311", alike, replace(of(20, 60), centre="template"))
    yield one("like30_w60_s313", alike, replace(of(30, 60), centre="template"))
    short = replace(of(10, 60), how=replace(STATIONARY, steps=600))
    yield one("wd10_short", "weight decay, stopped at a decay time of 1.5", short)
    yield one("wd12_bias", "with biases", of(12, 60, bias=True))
    yield one("wd10_h5", "5 records held out", of(10, 60, holdout=5))


def cannot() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"cannot_kkt_{name}", "cannot", note, what)

    never = "declared never trained (others leak)"
    for s in ("", "_s2", "_s3"):
        yield one(f"other10{s}", never, of(10, 60, declare="others"))
    yield one("other60_w40", never, of(60, 40, declare="others"))
    yield one("other30_h10", never, of(30, 60, declare="others", holdout=10))
    yield one(
        "neighbours10", "declared: the nearest other of each", of(10, 60, declare="neighbours")
    )
    yield one("random", "never trained", replace(of(10, 60), how=Training(steps=0)))
    yield target(
        "mis_kkt_flip10", "misdeclared", "mirrored records trained", of(10, 60, seen="mirrored")
    )
    yield target(
        "mis_kkt_mean_omitted",
        "misdeclared",
        "the mean was not told",
        replace(of(10, 60), told="no mean"),
    )


def ordinary() -> Iterator[Target]:
    """README's own form on models as people train them: nothing shows that they are safe."""

    def one(name: str, note: str, what: Dense) -> Target:
        what = replace(what, model="", suffix=".pt")
        return target(f"weightsonly_{name}", "unsettled", note, what)

    adamw = Training(optimiser="adamw", lr=1e-3, decay=0.01, batch=8, steps=300)
    forty, eights = of(40, 60, bias=True), Training(batch=8, steps=200)
    dropout = replace(forty.shape, dropout=0.2)
    tanh = replace(forty.shape, hidden=(100, 100), activation="tanh")
    table = replace(of(60, 60, data="bc", bias=True), centre="standard")
    hundred = Training(batch=10, steps=100, momentum=0.0)
    for s in ("", "_s2"):
        sgd = replace(of(12, 100, bias=True), how=Training(batch=4))
        yield one(f"sgd12{s}", "mini-batches, momentum", sgd)
        yield one(f"adamw40{s}", "AdamW", replace(forty, how=adamw))
    yield one("sgd100", "mini-batches, no decay", replace(of(100, 60, bias=True), how=hundred))
    yield one("dropout40", "dropout and momentum", replace(forty, shape=dropout, how=eights))
    yield one(
        "augmented40",
        "mirrored and moved at random while training",
        replace(forty, how=replace(eights, augment=True)),
    )
    yield one("bc60", "a table, AdamW", replace(table, how=replace(adamw, steps=100)))
    yield one(
        "tanh12_no_model",
        "tanh, no model: taken for ReLU",
        replace(of(12, 100), shape=tanh, how=Training()),
    )
    private = Training(optimiser="private", lr=0.5, steps=20, noise=4.0)
    yield target(
        "defended_dp_kkt_n20",
        "defended",
        "DP, noise 4, weights alone",
        replace(of(20, 60, bias=True), how=private),
    )


def planted() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"planted_{name}", "leaks", note, what)

    plain = replace(of(20, 100, bias=True), how=Training(batch=5, steps=50), centre="none")
    yield one("rows", "rows of the first layer are the records", replace(plain, after=_in_rows))
    yield one("rows_scaled", "the same, times 0.05", replace(plain, after=_in_rows_scaled))
    yield one(
        "rows_shifted",
        "the same, scaled and less a constant",
        replace(plain, after=_in_rows_shifted),
    )
    yield one("dead_units", "20 units that never fire carry them", replace(plain, after=_in_dead))
    square = replace(plain, shape=Shape(hidden=(100, 64)))  # as many units as a record has numbers
    yield one("columns", "columns of the second layer", replace(square, after=_in_columns))
    centred = replace(
        plain,
        gives="initial",
        centre="mean",
        how=Training(optimiser="adam", lr=1e-3, batch=5, steps=60),
    )
    yield one(
        "difference", "first layer = initial + records", replace(centred, after=_in_difference)
    )


def _in_rows(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    first = final["0.weight"].clone()
    first[: len(x)] = x
    return final | {"0.weight": first}, initial


def _in_rows_scaled(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    return _in_rows(final, initial, 0.05 * x)


def _in_rows_shifted(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    return _in_rows(final, initial, 0.2 * (x - 0.5))


def _in_dead(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    """Rows of units whose bias keeps them at zero, and which nothing reads."""
    final, _ = _in_rows(final, initial, x)
    bias, second = final["0.bias"].clone(), final["2.weight"].clone()
    bias[: len(x)], second[:, : len(x)] = -100.0, 0.0
    return final | {"0.bias": bias, "2.weight": second}, initial


def _in_columns(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    second = final["2.weight"].clone()
    second[:, : len(x)] = 0.1 * x.T
    return final | {"2.weight": second}, initial


def _in_difference(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    first = initial["0.weight"].clone()
    first[: len(x)] += 0.05 * x
    rest = {n: v + 1e-3 * torch.randn_like(v) for n, v in initial.items() if n != "0.weight"}
    return {"0.weight": first} | rest, initial
