"""Trainings with a privacy ledger: what it claims was done, or was not."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial

from truth_targets import of_checkpoints, of_gradients, of_runs
from truth_targets.dense import Dense, make_dense
from truth_targets.making import Target
from truth_targets.networks import Training

SAMPLE = {"ledger_false_gradient_noise4", "ledger_true_gradient_noise1"}


def target(name: str, truth: str, note: str, what: Dense, claimed: float, steps: int) -> Target:
    claims = {"noise": claimed, "steps": steps, "sampling": 1, "clip": 1, "delta": 1e-5}
    return Target(
        name=f"ledger_{name}",
        truth=truth,
        note=note,
        make=partial(make_dense, replace(what, extra=dict(what.extra) | {"privacy": claims})),
        ledger=name.partition("_")[0],
        sample=f"ledger_{name}" in SAMPLE,
    )


def noisy(n: int, noise: float, **scene: int) -> Dense:
    """One gradient, clipped, with that noise."""
    return replace(of_gradients.of(n, **scene), private=True, how=Training(noise=noise))


def descent(n: int, noise: float) -> Dense:
    how = Training(optimiser="private", lr=0.5, steps=20, noise=noise)
    return replace(of_checkpoints.of(n), how=how)


def targets() -> Iterator[Target]:
    yield from false()
    yield from true()


def false() -> Iterator[Target]:
    said = "no noise, the ledger claims 4"
    for s in ("", "_s2"):
        yield target(f"false_gradient_noise4{s}", "leaks", said, noisy(8, 0), 4.0, 1)
    yield target("false_gradient_noise1", "leaks", "noise 1e-5, claims 1", noisy(8, 1e-5), 1.0, 1)
    yield target("false_gradient_n1", "leaks", "one record; " + said, noisy(1, 0), 4.0, 1)
    yield target("false_gradient_h1500", "leaks", said, noisy(8, 0, holdout=1500), 4.0, 1)
    yield target("false_n6", "leaks", said, descent(6, 0), 4.0, 20)
    yield target("false_unclipped", "leaks", "no clipping, no noise", of_gradients.of(8), 4.0, 1)
    yield target("false_informed", "leaks", said, of_runs.of(), 4.0, 20)


def true() -> Iterator[Target]:
    for noise in (0.001, 0.0015, 0.002):  # below, the accounting is refused
        yield target(
            f"true_gradient_noise{noise:g}",
            "leaks",
            "no privacy, as the ledger says",
            noisy(8, noise),
            noise,
            1,
        )
    for noise in (0.01, 1.0, 4.0):
        yield target(
            f"true_gradient_noise{noise:g}",
            "defended",
            "one DP gradient",
            noisy(8, noise),
            noise,
            1,
        )
    yield target("true_ntk_noise0.001", "leaks", "DP descent", descent(6, 0.001), 0.001, 20)
    yield target("true_ntk_noise1", "defended", "DP descent", descent(12, 1.0), 1.0, 20)
    yield target("true_ntk_noise4", "defended", "DP descent", descent(12, 4.0), 4.0, 20)
