"""Small pieces of linear algebra that the solvers share."""

from __future__ import annotations

from functools import cache
from typing import Any

import torch
from scipy.linalg import eigh
from torch import Tensor
from torch.nn.functional import normalize


def damped_cholesky(grams: Tensor, ridge: float) -> Tensor:
    """Cholesky factors of k x n x n Gram matrices, `ridge` times their mean diagonal added.

    A matrix that is singular to rounding gets ten times the ridge until it factors.
    """
    mean = grams.diagonal(dim1=1, dim2=2).mean(1).clamp(min=torch.finfo(grams.dtype).tiny)
    eye = torch.eye(grams.shape[1], dtype=grams.dtype)
    factor: Tensor
    while True:
        factor, fault = torch.linalg.cholesky_ex(grams + (ridge * mean)[:, None, None] * eye)
        if not bool(fault.any()) or ridge > 1:
            return factor
        ridge *= 10


def complement(rows: Tensor, size: int) -> Tensor:
    """Orthonormal basis (size x r) of all that is orthogonal to the rows (k x size)."""
    if len(rows) == 0:
        return torch.eye(size, dtype=torch.float64)
    full: Tensor = torch.linalg.qr(rows.T, mode="complete")[0]
    return full[:, len(rows) :]


def eigenvectors(symmetric: Tensor, only: int | None = None) -> tuple[Tensor, Tensor]:
    """All eigenvalues (n) in rising order and eigenvectors (n x n, columns), or one alone.

    On as many threads as torch has: scipy's own would take all cores, and wait for each other.
    """
    how: dict[str, Any] = {"driver": "evd"} if only is None else {"subset_by_index": (only, only)}
    with _blas().limit(limits=torch.get_num_threads(), user_api="blas"):
        values, vectors = eigh(symmetric.cpu().numpy(), check_finite=False, **how)
    return torch.from_numpy(values).to(symmetric), torch.from_numpy(vectors).to(symmetric)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def distinct(rows: Tensor, cosine: float) -> list[int]:
    """Indices of rows (k x r), earlier ones first, that are pairwise below `cosine` in |cosine|."""
    unit = normalize(rows, dim=1)
    return _first_of_each((unit @ unit.T).abs() >= cosine)


def apart(rows: Tensor, within: float) -> list[int]:
    """Indices of rows (k x r), earlier ones first, that are not `within` of each other.

    Measured in the median distance of a row from the median row: records may share a large part.
    """
    if not len(rows):
        return []
    spread = (rows - rows.median(0).values).norm(dim=1).median()
    return _first_of_each(torch.cdist(rows, rows) <= within * spread)


def _first_of_each(close: Tensor) -> list[int]:
    kept: list[int] = []
    for i in range(len(close)):
        if not bool(close[i, kept].any()):
            kept.append(i)
    return kept


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Their product, in the matrix' precision."""
    return (rows.to(matrix.dtype) @ matrix).to(rows.dtype)
