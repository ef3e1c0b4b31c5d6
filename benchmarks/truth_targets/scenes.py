"""Which records were trained on, which are declared, and which are held out."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np

from truth_targets.sets import SETS, Array

Change = Callable[[Array, np.random.Generator], Array]


def _cut_out(x: Array, drawn: np.random.Generator) -> Array:
    """A square of a third of the width blanked in each image, each time another."""
    out, side = x.copy(), max(2, x.shape[-1] // 3)
    for image in out:
        top, left = drawn.integers(0, x.shape[-1] - side, 2)
        image[:, top : top + side, left : left + side] = 0
    return out


def _cropped(x: Array, drawn: np.random.Generator) -> Array:
    """Each image moved by up to three pixels (at least one), as a random crop after padding."""
    moves = drawn.integers(-3, 4, (len(x), 2))
    moves[(moves == 0).all(1)] = 1
    padded = np.pad(x, ((0, 0), (0, 0), (3, 3), (3, 3)))
    size = x.shape[-1]
    starts = zip(padded, 3 + moves, strict=True)
    return np.stack([image[:, a : a + size, b : b + size] for image, (a, b) in starts])


CHANGES: Mapping[str, Change] = {
    "mirrored": lambda x, drawn: x[..., ::-1],
    "upside_down": lambda x, drawn: x[..., ::-1, :],
    "bgr": lambda x, drawn: x[:, ::-1],
    "rot90": lambda x, drawn: np.rot90(x, 1, axes=(-2, -1)),
    "rot180": lambda x, drawn: np.rot90(x, 2, axes=(-2, -1)),
    "rot270": lambda x, drawn: np.rot90(x, 3, axes=(-2, -1)),
    "transposed": lambda x, drawn: np.swapaxes(x, -1, -2),
    "rolled": lambda x, drawn: np.roll(x, 2, axis=-1),
    "cropped": _cropped,
    "cutout": _cut_out,
    "permuted": lambda x, drawn: x[..., drawn.permutation(x.shape[-1])],
    "gamma": lambda x, drawn: x**3,
    "inverted": lambda x, drawn: 1 - x,
    "times255": lambda x, drawn: x * 255,
    "by255": lambda x, drawn: x / 255,
    "noisy": lambda x, drawn: x + 0.1 * x.std() * drawn.normal(size=x.shape),
}


@dataclass(frozen=True, kw_only=True)
class Scene:
    """How records are drawn.

    seen: the change between a record of the data file and what training saw. declare: "trained",
    "others", "neighbours" (the nearest other record of each), "half", "superset", "subset" or
    "centres" (training saw k-means centres of strangers). holdout_of: "plain", "sorted" by class,
    "inverted" or "copies": so many of the training records with noise of `noise` standard
    deviations of a feature, then strangers. public: so many strangers in a file of their own; with
    none, audits halve the hold-out. twice: records that stand in the training set more
    than once: "same" (the first two), "last" (the last and the first), "near" (half are nearly the
    other half), "labels" (the first two under two labels), "zero" (three blank ones) or "all".
    scaled: multiplies every value of the set. columns: only so many features of it.
    """

    data: str = "digits"
    n: int = 8
    holdout: int = 100
    declare: str = "trained"
    seen: str | None = None
    holdout_of: str = "plain"
    copies: int = 0
    noise: float = 0.02
    twice: str | None = None
    scaled: float = 1.0
    columns: int | None = None
    public: int = 0


@dataclass(frozen=True, kw_only=True, eq=False)
class Drawn:
    """All before scaling; `pool` is for a mean and a spread."""

    trained: Array
    trained_labels: Array
    declared: Array
    labels: Array
    used: Array
    holdout: Array
    holdout_labels: Array
    public: Array
    public_labels: Array
    pool: Array


def draw(scene: Scene, drawn: np.random.Generator) -> Drawn:
    x, y = SETS[scene.data]()
    x = x[:, : scene.columns] * scene.scaled if scene.columns else x * scene.scaled
    order = _order(x, scene, drawn)
    x, y, n = x[order], y[order], scene.n
    trained, labels = x[:n].copy(), y[:n].copy()
    if scene.twice:
        trained, labels = _twice(trained, labels, scene.twice, drawn)
    keep, rows = _declared(scene.declare, trained, x)
    declared = np.concatenate([trained[:keep], x[rows]])
    declared_labels = np.concatenate([labels[:keep], y[rows]])
    rest = np.setdiff1d(np.arange(2 * n, len(x)), rows)
    if scene.declare == "centres":
        rest, half = rest[: len(rest) // 2], rest[len(rest) // 2 :]
        trained, labels = _centres(x[half], y[half], n)
    source = trained
    used = (np.arange(len(declared)) < keep) | _among(declared, source)  # answers repeat
    if scene.seen:
        trained = np.ascontiguousarray(CHANGES[scene.seen](trained, drawn)).astype(x.dtype)
    held, held_labels = _held_out(scene, x[rest], y[rest], source, labels, drawn)
    return Drawn(
        trained=trained,
        trained_labels=labels,
        declared=declared,
        labels=declared_labels,
        used=used,
        holdout=held,
        holdout_labels=held_labels,
        public=x[rest[-scene.public :]] if scene.public else x[:0],
        public_labels=y[rest[-scene.public :]] if scene.public else y[:0],
        pool=x,
    )


def _declared(how: str, trained: Array, x: Array) -> tuple[int, Array]:
    """How many of the trained records are declared, and the rows of others that are."""
    n = len(trained)
    keep = {"trained": n, "superset": n, "subset": n // 2, "half": n // 2}.get(how, 0)
    more = {"trained": 0, "subset": 0, "half": n - n // 2}.get(how, n)
    if how == "neighbours":
        return 0, _nearest(trained, x[n:]) + n
    return keep, np.arange(n, n + more)


def _order(x: Array, scene: Scene, drawn: np.random.Generator) -> Array:
    """Rows in a random order. Where records repeat, those held out may be equal: as they come."""
    order = drawn.permutation(len(x))
    if scene.twice is None and scene.data not in ("onehot", "ages"):
        _, first = np.unique(x[order].reshape(len(x), -1), axis=0, return_index=True)
        order = order[np.sort(first)]
    return order


def _twice(x: Array, y: Array, how: str, drawn: np.random.Generator) -> tuple[Array, Array]:
    if how == "same":
        x[1], y[1] = x[0], y[0]
    elif how == "labels":
        x[1], y[1] = x[0], (y[0] + 1) % (y.max() + 1)
    elif how == "all":
        x[:], y[:] = x[0], y[0]
    elif how == "last":
        x[0], y[0] = x[-1], y[-1]
    elif how == "zero":
        x[:3] = 0
    else:  # near: half of the records are the others with a little noise
        half = len(x) // 2
        noise = 0.03 * x.std() * drawn.normal(size=x[:half].shape)
        x[half : 2 * half], y[half : 2 * half] = x[:half] + noise, y[:half]
        if x.min() < 0 and x.ndim == 4:
            x[:] = x.clip(0, 1)
    return x, y


def _among(records: Array, others: Array) -> Array:
    held = {row.tobytes() for row in others}
    return np.array([row.tobytes() in held for row in records])


def _nearest(records: Array, others: Array) -> Array:
    """For each record the row of its nearest other, none of them twice."""
    left, right = records.reshape(len(records), -1), others.reshape(len(others), -1)
    distance = ((left[:, None] - right[None]) ** 2).sum(2)
    rows = []
    for row in distance:
        row[rows] = np.inf
        rows.append(int(row.argmin()))
    return np.array(rows)


def _centres(x: Array, y: Array, n: int) -> tuple[Array, Array]:
    from sklearn.cluster import KMeans

    found = KMeans(n, n_init=1, random_state=0).fit(x.reshape(len(x), -1))
    labels = np.array([np.bincount(y[found.labels_ == k]).argmax() for k in range(n)])
    return found.cluster_centers_.reshape(n, *x.shape[1:]).astype(x.dtype), labels


def _held_out(
    scene: Scene, x: Array, y: Array, source: Array, labels: Array, drawn: np.random.Generator
) -> tuple[Array, Array]:
    held, held_labels = x[: scene.holdout], y[: scene.holdout]
    if scene.holdout_of == "sorted":
        order = held_labels.argsort(kind="stable")
        held, held_labels = held[order], held_labels[order]
    elif scene.holdout_of == "inverted":
        held = 1 - held
    elif scene.holdout_of == "copies":
        k = scene.copies
        spread = x.std(0) if x.ndim == 2 else x.std()
        noise = scene.noise * spread * drawn.normal(size=source[:k].shape)
        near = source[:k] + noise
        near = near.clip(0, 1) if x.ndim == 4 else near
        held = np.concatenate([near.astype(x.dtype), held[: scene.holdout - k]])
        held_labels = np.concatenate([labels[:k], held_labels[: scene.holdout - k]])
    return held, held_labels
