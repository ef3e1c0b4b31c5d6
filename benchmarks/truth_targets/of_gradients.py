"""One gradient of a batch is given."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any

from truth_targets.dense import Dense, make_dense
from truth_targets.making import Target
from truth_targets.networks import Shape
from truth_targets.scenes import Scene

TABLES = ("bc", "wine", "g5", "onehot")
SAMPLE = {
    "leaky_gradient8",
    "cannot_other_gradient50_h8_s21",
    "cannot_nearest_neighbour_gradient30",
    "cannot_prototypes_gradient50_h100_s2",
    "mis_columns_permuted",
    "mis_remeasured_bc",
}


def target(name: str, truth: str, note: str, what: Dense) -> Target:
    return Target(
        name=name, truth=truth, note=note, make=partial(make_dense, what), sample=name in SAMPLE
    )


def of(n: int, *, width: int = 400, **scene: Any) -> Dense:
    table = scene.get("data") in ("bc", "wine")
    return Dense(
        scene=Scene(n=n, **scene),
        shape=Shape(hidden=(width, width)),
        gives="gradient",
        centre="standard" if table else "none" if scene.get("data") in TABLES else "mean",
    )


def targets() -> Iterator[Target]:
    yield from leaky()
    yield from leaky_odd()
    yield from cannot()
    yield from misdeclared()
    yield from holdouts()
    yield from few_held_out()


def leaky() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"leaky_{name}", "leaks", note, what)

    for s in ("", "_s2", "_s3"):
        yield one(f"gradient8{s}", "8 digits", of(8))
    for s in ("", "_s2"):
        yield one(f"bc_gradient8{s}", "breast cancer", of(8, data="bc"))
        yield one(f"wine_gradient8{s}", "wine", of(8, data="wine", holdout=60))
        yield one(f"g5_gradient3{s}", "five features", of(3, data="g5"))
        yield one(f"spectra_gradient7{s}", "smooth curves", of(7, data="spectra"))
        yield one(
            f"onehot_gradient8{s}", "one-hot; the hold-out repeats rows", of(8, data="onehot")
        )
    yield one("bc_gradient8_x1e8", "values times 1e8", of(8, data="bc", scaled=1e8))
    yield one("bc_gradient8_x1e-8", "values times 1e-8", of(8, data="bc", scaled=1e-8))
    yield one("mnist_gradient20", "20 MNIST digits", of(20, data="mnist"))
    yield one(
        "0_255_floats", "floats 0..255, not scaled", replace(of(6, scaled=255), centre="none")
    )


def leaky_odd() -> Iterator[Target]:
    """Records that repeat, batches half declared, and noise."""

    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"leaky_{name}", "leaks", note, what)

    yield one("identical8", "one record eight times", of(8, twice="all"))
    yield one("twins_two_labels", "one record under two labels", of(8, twice="labels"))
    yield one(
        "zero_images3of8", "three records are all zero", replace(of(8, twice="zero"), centre="none")
    )
    yield one("near_pairs_gradient8", "half are the others with 3% noise", of(8, twice="near"))
    yield one(
        "every_gradient8", "every adversary that applies", replace(of(8, width=100), every=True)
    )
    yield one("gradient_half8", "4 of 8 declared in the batch", of(8, declare="half"))
    yield one("ages_gradient1", "one number, one record", of(1, data="ages"))
    yield one(
        "gradient_noise10pct", "noise of 10%: rough copies", replace(of(8), gradient_noise=0.1)
    )
    yield target(
        "defended_gradient_noise1",
        "defended",
        "noise as large as the gradient",
        replace(of(8), gradient_noise=1.0),
    )
    yield target(
        "defended_gradient_n100", "defended", "100 records at width 128", of(100, width=128)
    )


def cannot() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"cannot_{name}", "cannot", note, what)

    never = "declared not in the batch (others leak)"
    for s in (21, 22, 23, 24):
        yield one(f"other_gradient50_h8_s{s}", never, of(50, declare="others", holdout=8))
    for s in (26, 27):
        yield one(f"other_gradient50_h100_s{s}", never, of(50, declare="others"))
    for h in (1, 2, 5):
        yield one(f"other_gradient20_h{h}", never, of(20, declare="others", holdout=h))
    yield one("gradient_other8", never, of(8, declare="others"))
    yield one(
        "other50_holdout_unlike",
        f"{never}; hold-out inverted",
        of(50, declare="others", holdout_of="inverted"),
    )
    yield one(
        "other50_holdout_sorted",
        f"{never}; hold-out sorted by class",
        of(50, declare="others", holdout_of="sorted"),
    )
    for s in ("", "_s2"):
        yield one(
            f"nearest_neighbour_gradient30{s}",
            "declared: the nearest other of each",
            of(30, declare="neighbours"),
        )
    for s, h in ((1, 40), (2, 100), (3, 100), (4, 100)):
        yield one(
            f"prototypes_gradient50_h{h}_s{s}",
            "batch of k-means centres of strangers",
            of(50, declare="centres", holdout=h),
        )
    yield one("bc_gradient20", never, of(20, data="bc", declare="others"))
    yield one("wine_gradient10", never, of(10, data="wine", declare="others", holdout=60))
    yield one("g5_gradient3", never, of(3, data="g5", declare="others"))
    yield one("spectra_gradient7", never, of(7, data="spectra", declare="others"))


def misdeclared() -> Iterator[Target]:
    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"mis_{name}", "misdeclared", note, what)

    names = {"mirrored": "gradient_flip8"}
    for seen in (
        "mirrored",
        "upside_down",
        "rot90",
        "rot180",
        "transposed",
        "cutout",
        "cropped",
        "rolled",
        "inverted",
    ):
        yield one(names.get(seen, f"{seen}_gradient8"), f"{seen} batch", of(8, seen=seen))
    yield one("bgr_gradient8", "BGR batch", of(8, data="patches", seen="bgr"))
    yield one("mnist_cropped_gradient20", "each image moved", of(20, data="mnist", seen="cropped"))
    yield one("columns_permuted", "columns in another order", of(8, data="bc", seen="permuted"))
    yield one("columns_permuted_g5", "columns in another order", of(3, data="g5", seen="permuted"))
    yield one(
        "times255_gradient8",
        "0..255 in training, 0..1 declared",
        replace(of(8, seen="times255"), centre="none"),
    )
    yield one("gradient_mean_omitted", "the mean was not told", replace(of(8), told="no mean"))
    yield one(
        "gradient_bc_scaler_omitted",
        "a scaler was not told",
        replace(of(8, data="bc"), told="nothing"),
    )


def holdouts() -> Iterator[Target]:
    """Leaks beside hold-outs that hide them: near copies of the records."""

    def one(name: str, note: str, what: Dense) -> Target:
        return target(f"mis_{name}", "misdeclared", note, what)

    near: dict[str, Any] = {"holdout_of": "copies"}
    yield one(
        "nearcopies_16",
        "hold-out: 8 near copies (3%) + 8 strangers",
        of(8, holdout=16, copies=8, noise=0.03, **near),
    )
    yield one(
        "nearcopies_8",
        "the hold-out is 8 near copies; strangers are public",
        of(8, holdout=8, copies=8, public=100, **near),
    )
    yield one(
        "nearcopies_all_n2pct",
        "hold-out of 208 with 8 near copies",
        of(8, holdout=208, copies=8, **near),
    )
    yield one(
        "nearcopies_one_n5pct",
        "hold-out of 101 with 1 near copy",
        of(8, holdout=101, copies=1, noise=0.05, **near),
    )
    yield one(
        "remeasured_bc",
        "the same 10 patients measured again + 10 others",
        of(10, data="bc", holdout=20, copies=10, noise=0.05, **near),
    )


def few_held_out() -> Iterator[Target]:
    """Leaks beside hold-outs that are small, sorted or of another kind."""
    for h in (1, 2, 5):
        yield target(f"leaky_gradient8_h{h}", "leaks", f"{h} records held out", of(8, holdout=h))
    yield target("leaky_gradient30_h8", "leaks", "8 held out of 30", of(30, holdout=8))
    yield target(
        "leaky_gradient8_sorted", "leaks", "hold-out sorted by class", of(8, holdout_of="sorted")
    )
    yield target(
        "leaky_gradient8_unlike", "leaks", "hold-out inverted", of(8, holdout_of="inverted")
    )
