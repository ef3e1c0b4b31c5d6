"""How far an image may move where its equations hold it loosely or not at all.

Few directions are weak: those of the smallest singular values of the equations. Along these the
silent units' inequalities and the pixel box still hold it. Linear programs over the weak directions
alone give the range of each, so that an image can be vouched for which the equations leave open.
"""

from __future__ import annotations

import numpy as np
import scipy.sparse as sp
from numpy.typing import NDArray
from scipy.optimize import linprog
from scipy.sparse.linalg import LinearOperator, SuperLU, eigsh

Vector = NDArray[np.float64]


def weak_directions(
    gram: sp.csc_matrix, factor: SuperLU, *, weak: float, most: int
) -> tuple[Vector, Vector] | None:
    """Singular values (k) and directions (pixels x k) that are weak; None if more than `most` are.

    gram: of the equations, pixels x pixels. factor: of the same, made regular. weak: the singular
    value, relative to the root-mean-square column, below which a direction is.
    """
    size = gram.shape[0]
    inverse = LinearOperator((size, size), matvec=factor.solve, dtype=np.float64)
    count = min(most + 1, size - 2)
    start = np.random.default_rng(0).standard_normal(size)
    values, vectors = eigsh(gram, k=count, sigma=0.0, OPinv=inverse, v0=start)
    loose = values < weak**2 * gram.diagonal().mean()
    if loose.all():
        return None
    return np.sqrt(values[loose].clip(min=0)), vectors[:, loose]


def room_along(
    values: Vector, directions: Vector, rows: sp.csr_matrix, most: Vector, noise: float
) -> tuple[Vector, float]:
    """The middle of what is allowed (pixels) and how far from it the image may be, in L2.

    rows (r x pixels), most (r): any move v has to keep rows v <= most. noise: that of the
    equations, in L2; a direction of singular value s may move by noise / s.
    """
    reach = noise / np.maximum(values, 1e-300)
    limits = rows @ directions
    slack = most.clip(min=0) + noise
    touching = np.abs(limits) @ reach.clip(max=1e6) > slack
    low, high = np.zeros(len(values)), np.zeros(len(values))
    for i in range(len(values)):
        for sign, end in ((1.0, low), (-1.0, high)):
            cost = np.zeros(len(values))
            cost[i] = sign
            found = linprog(
                cost,
                A_ub=limits[touching],
                b_ub=slack[touching],
                bounds=np.stack([-reach, reach], axis=1).clip(-1e6, 1e6),
            )
            end[i] = found.x[i] if found.success else -sign * np.inf
    with np.errstate(invalid="ignore"):
        middle = np.where(np.isfinite(high - low), (low + high) / 2, 0.0)
    return directions @ middle, float(np.linalg.norm((high - low) / 2))
