"""One gradient seen from four linear spaces that shrink as records are found.

Between two consecutive dense layers, record i has a pre-activation t_i, features h_i = f(t_i), a
signal p_i = W2^T d_i that comes back from the next layer and a dual a_i = f'(t_i) * p_i. The two
layers' gradients M1 = sum_i a_i x~_i^T and M2 = sum_i d_i h_i^T hold each of the four in a known
space with as many dimensions as there are records:

    t = t_frame y,   h = h_frame e,   a = a_frame z,   p = p_frame c.

In these coordinates M1 is sum_i z_i y_i^T and M2 is sum_i c_i e_i^T, so that the inverses of both
cores pair every record with itself alone: y_i . inverse1 z_k = 0 and e_i . inverse2 c_k = 0 for
different records. Whoever knows all four of one record can leave its directions out for the rest.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.solvers.numerics import complement
from remnant.solvers.spans import Parts


@dataclass(frozen=True, kw_only=True, eq=False)
class Frames:
    """Orthonormal columns, w x r each, and the inverse cores, r x r. float64."""

    t: Tensor
    h: Tensor
    a: Tensor
    p: Tensor
    inverse1: Tensor
    inverse2: Tensor

    @property
    def remaining(self) -> int:
        """The number of records that these spaces still hold."""
        return self.t.shape[1]


@dataclass(frozen=True, kw_only=True, eq=False)
class Coordinates:
    """The four coordinates of k records in some frames, k x r each, every one up to its scale."""

    y: Tensor
    e: Tensor
    z: Tensor
    c: Tensor


def first_side(first: Tensor, parts: Parts) -> tuple[Tensor, Tensor, Tensor]:
    """From the first layer (w x (d+1)) and the parts of its gradient M1 = left scale right:

    the frame of t (w x n), inverse1 (n x n) and the n x (d+1) matrix that takes y to its record
    x~ = y @ matrix. M1 = left (scale upper^T) matrix, with `upper` of the frame's decomposition.
    """
    _, scale, right = parts
    frame, upper = torch.linalg.qr(first @ right.T)
    to_record = torch.linalg.solve_triangular(upper.T, right, upper=False)
    inverse = torch.linalg.solve_triangular(upper.T, torch.diag(1 / scale), upper=False)
    return frame, inverse, to_record


def pose_frames(
    first: Tensor, next_weight: Tensor, first_parts: Parts, next_parts: Parts
) -> tuple[Frames, Tensor]:
    """The frames of all n records, and the matrix (n x (d+1)) from y to x~.

    first: w x (d+1). next_weight: v x w. The parts belong to M1 (w x (d+1)) and M2 (v x w).
    """
    t, inverse1, to_record = first_side(first, first_parts)
    left, scale, right = next_parts
    p, upper = torch.linalg.qr(next_weight.T @ left)
    frames = Frames(
        t=t,
        h=right.T.contiguous(),
        a=first_parts[0],
        p=p,
        inverse1=inverse1,
        inverse2=torch.linalg.inv(upper * scale),
    )
    return frames, to_record


def deflate(frames: Frames, found: Coordinates) -> Frames:
    """The frames without the found records (k rows of coordinates in them)."""
    r = frames.remaining
    keep_y = complement(found.z @ frames.inverse1.T, r)
    keep_z = complement(found.y @ frames.inverse1, r)
    keep_e = complement(found.c @ frames.inverse2.T, r)
    keep_c = complement(found.e @ frames.inverse2, r)
    return Frames(
        t=frames.t @ keep_y,
        h=frames.h @ keep_e,
        a=frames.a @ keep_z,
        p=frames.p @ keep_c,
        inverse1=keep_y.T @ frames.inverse1 @ keep_z,
        inverse2=keep_e.T @ frames.inverse2 @ keep_c,
    )
