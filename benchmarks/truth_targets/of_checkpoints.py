"""Weights before and after training are given."""

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

SAMPLE = {
    "leaky_n1",
    "leaky_wd_sgd",
    "cannot_other5_ntk",
    "cannot_nearest_neighbour_ntk10",
    "mis_flip5_ntk",
    "mis_bgr5_ntk",
    "mis_near_copies_ntk",
}


def target(name: str, truth: str, note: str, what: Dense) -> Target:
    return Target(
        name=name, truth=truth, note=note, make=partial(make_dense, what), sample=name in SAMPLE
    )


def of(n: int, *, width: int = 300, **scene: Any) -> Dense:
    return Dense(scene=Scene(n=n, **scene), shape=Shape(hidden=(width, width)))


def targets() -> Iterator[Target]:
    yield from leaky()
    yield from leaky_sets()
    yield from cannot()
    yield from misdeclared()
    yield from misdeclared_model()
    yield from defended()


def leaky() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"leaky_{name}", "leaks", note, what)

    for s in (1, 2, 3):
        yield one(f"ntk12_s{s}", "12 digits, descent with momentum", of(12))
    yield one("n1", "one record", of(1))
    yield one("n2", "two records", of(2))
    yield one("one_step_n6", "one full-batch step", replace(of(6), how=Training(steps=1, lr=0.1)))
    yield one(
        "wd_sgd",
        "mini-batches of 4 and weight decay",
        replace(of(12), how=Training(batch=4, decay=1e-3, lr=0.02)),
    )
    yield one("adam", "Adam", replace(of(12), how=Training(optimiser="adam", lr=1e-3)))
    yield one("raw_uncentred8", "nothing subtracted", replace(of(8), centre="none"))
    yield one("tanh", "tanh", _shaped(of(10), activation="tanh"))
    yield one("gelu6", "GELU", _shaped(of(6), activation="gelu"))
    yield one("three_layers", "3 hidden layers", _shaped(of(6), hidden=(300, 200, 100)))
    yield one("bf16", "released in bfloat16", replace(of(12), after=_bf16))
    yield one("noise1pct", "weights released with 1% noise", replace(of(12), after=_noise(0.01)))
    yield one("identical_pair", "one record twice", of(12, twice="same"))
    yield one("near_pairs", "half are the others with 3% noise", of(12, twice="near"))


def leaky_sets() -> Iterator[Target]:
    """Other data, and other shares of it declared."""

    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"leaky_{name}", "leaks", note, what)

    for s in (1, 2):
        yield one(
            f"faces_ntk10_s{s}" if s > 1 else "faces_ntk10",
            "faces",
            of(10, data="faces", holdout=60),
        )
        yield one(f"mnist_ntk10_s{s}", "MNIST", of(10, data="mnist"))
        yield one(f"bc_ntk8_s{s}", "breast cancer", replace(of(8, data="bc"), centre="standard"))
    yield one("wine_ntk6", "wine", replace(of(6, data="wine", holdout=60), centre="standard"))
    yield one("spectra_ntk6", "smooth curves", of(6, data="spectra"))
    yield one("patches_ntk6", "colour patches", of(6, data="patches"))
    yield one("decoys_half", "half of the trained records declared", of(12, declare="subset"))
    yield one("half_unused", "half of the declared records trained", of(12, declare="half"))
    yield one("superset", "12 of 24 declared were trained", of(12, declare="superset"))
    yield one("every_ntk8", "every adversary that applies", replace(of(8, width=100), every=True))
    for h in (1, 2, 5):
        yield one(f"holdout{h}_ntk8", f"{h} records held out", of(8, holdout=h))
    yield one(
        "first_layer_frozen",
        "the first layer did not move",
        replace(of(6), how=Training(frozen=True)),
    )


def cannot() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"cannot_{name}", "cannot", note, what)

    never = "declared never trained (others leak)"
    for s in ("", "_s2", "_s3"):
        yield one(f"other5_ntk{s}", never, of(5, declare="others"))
        yield one(
            f"nearest_neighbour_ntk10{s}",
            "declared: the nearest other of each trained",
            of(10, declare="neighbours"),
        )
    yield one("other12_ntk", never, of(12, declare="others"))
    yield one(
        "every_ntk8",
        f"{never}; every adversary that applies",
        replace(of(8, width=100, declare="others"), every=True),
    )
    yield one("other24_holdout6_ntk", never, of(24, declare="others", holdout=6))
    yield one("faces_other10_ntk", never, of(10, data="faces", declare="others", holdout=60))
    yield one("mnist_other10_ntk", never, of(10, data="mnist", declare="others"))
    yield one("init_equals_final", "never trained", replace(of(10), how=Training(steps=0)))
    yield one("random_weights", "final weights drawn anew", replace(of(12), after=_random))
    yield one("prototypes_ntk10", "trained on k-means centres", of(10, declare="centres"))


def misdeclared() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"mis_{name}", "misdeclared", note, what)

    for seen in (
        "mirrored",
        "rot90",
        "rot180",
        "rot270",
        "transposed",
        "rolled",
        "gamma",
        "inverted",
        "cutout",
    ):
        names = {"mirrored": "flip5_ntk"}
        yield one(names.get(seen, f"{seen}5_ntk"), f"{seen} records trained", of(5, seen=seen))
    yield one("flip5_ntk_s2", "mirrored records trained", of(5, seen="mirrored"))
    yield one("bgr5_ntk", "BGR trained", of(5, data="patches", seen="bgr"))
    yield one(
        "faces_mirrored_ntk10", "mirrored faces", of(10, data="faces", seen="mirrored", holdout=60)
    )
    yield one(
        "by255_ntk8",
        "trained on 0..1, declared 0..255",
        replace(of(8, seen="by255", scaled=255), centre="none"),
    )


def misdeclared_model() -> Iterator[Target]:
    """Scaling, activation, checkpoints and the hold-out are not what they are said to be."""

    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"mis_{name}", "misdeclared", note, what)

    for s in ("", "_s2"):
        yield one(f"mean_omitted{s}", "the mean was not told", replace(of(12), told="no mean"))
        yield one(
            f"std_omitted{s}",
            "the std was not told",
            replace(of(12), centre="standard", told="no std"),
        )
    yield one(
        "scaling_omitted",
        "neither mean nor std was told",
        replace(of(8), centre="standard", told="nothing"),
    )
    yield one("activation", "ReLU declared tanh", replace(of(12), model="mlp:64-300-300-10:tanh"))
    yield one(
        "tanh_as_relu",
        "tanh declared ReLU",
        replace(_shaped(of(10), activation="tanh"), model="mlp:64-300-300-10"),
    )
    yield one("swapped", "initial and final weights swapped", replace(of(12), after=_swapped))
    yield one("initial_other_seed", "another seed's initial", replace(of(12), after=_other_initial))
    copies: dict[str, Any] = {"holdout_of": "copies", "noise": 0.02}
    yield one(
        "all_copies_ntk",
        "the hold-out is 12 near copies; strangers are public",
        of(12, holdout=12, copies=12, public=100, **copies),
    )
    for s in ("", "_s2"):
        yield one(
            f"near_copies_ntk{s}",
            "hold-out: training records with 2% noise",
            of(12, holdout=24, copies=12, **copies),
        )


def defended() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"defended_{name}", "defended", note, what)

    private = Training(optimiser="private", lr=0.5, steps=20)
    yield one("dp_noise1_n12", "DP, noise 1", replace(of(12), how=replace(private, noise=1.0)))
    yield one("dp_noise4_n20", "DP, noise 4", replace(of(20), how=replace(private, noise=4.0)))
    yield one("weight_noise05", "N(0, .05) on the weights", replace(of(12), after=_noise(1.0)))
    clip = replace(of(6), how=private)
    yield target("leaky_clip_only_n6", "leaks", "clipped, no noise: no privacy", clip)
    little = replace(of(6), how=replace(private, noise=0.001))
    yield target("leaky_dp_noise001_n6", "leaks", "DP, noise .001: no privacy", little)


def _shaped(what: Dense, **changes: Any) -> Dense:
    return replace(what, shape=replace(what.shape, **changes))


def _bf16(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    return {name: value.bfloat16().float() for name, value in final.items()}, initial


def _noise(share: float) -> Any:
    """Noise on every change of a weight, as a share of the changes' root mean square."""

    def after(final: State, initial: State, x: Tensor) -> tuple[State, State]:
        size = {name: (final[name] - initial[name]).square().mean().sqrt() for name in final}
        noisy = {n: v + share * size[n] * torch.randn_like(v) for n, v in final.items()}
        return noisy, initial

    return after


def _random(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    return {name: value.std() * torch.randn_like(value) for name, value in final.items()}, initial


def _swapped(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    return initial, final


def _other_initial(final: State, initial: State, x: Tensor) -> tuple[State, State]:
    return final, {n: v.abs().max() * (2 * torch.rand_like(v) - 1) for n, v in initial.items()}
