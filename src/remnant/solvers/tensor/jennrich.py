"""Symmetric tensors as sums of powers, by simultaneous diagonalisation.

Kuleshov, Chaganty, Liang (2015), Algorithm 1: contract the tensor with L random vectors,
diagonalise the L matrices at once, then again with vectors that single out one component each.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize


@dataclass(frozen=True, kw_only=True, eq=False)
class Components:
    """directions: B x B, unit rows u_i. off: share of the energy left off the diagonals."""

    directions: Tensor
    off: float


def decompose(moment: Tensor, *, generator: torch.Generator, projections: int = 100) -> Components:
    """Unit u_i with moment = sum_i weight_i u_i^(x 3), B x B x B and symmetric."""
    size = len(moment)
    if size == 1:
        return Components(directions=torch.ones(1, 1, dtype=torch.float64), off=0.0)
    vectors = torch.randn(projections, size, generator=generator, dtype=moment.dtype)
    inverse = diagonalise(_contract(moment, vectors), generator=generator)
    # Rows of `inverse` are dual to the components: contracting with one leaves one component.
    matrices = _contract(moment, inverse)
    better = _ffdiag(matrices, inverse)
    directions = normalize(torch.linalg.inv(better).T, dim=1)
    return Components(directions=directions, off=_off(matrices, better))


def _contract(moment: Tensor, vectors: Tensor) -> Tensor:
    """L x B x B matrices that share the directions: the moment along each of L vectors."""
    return torch.einsum("abc,lc->lab", moment, normalize(vectors, dim=1))


def diagonalise(matrices: Tensor, *, generator: torch.Generator, starts: int = 10) -> Tensor:
    """V (B x B) such that V M V^T is nearly diagonal for every M (L x B x B, symmetric).

    Starts: eigenvectors of M1 M2^-1 for random mixtures (Jennrich), the one with the least off the
    diagonal, then FFDIAG from there.
    """
    best, lowest = torch.eye(matrices.shape[-1], dtype=matrices.dtype), float("inf")
    for _ in range(starts):
        mix = torch.randn(2, len(matrices), generator=generator, dtype=matrices.dtype)
        one, two = torch.einsum("tl,lab->tab", mix, matrices)
        ratio, fault = torch.linalg.solve_ex(two, one, left=False)
        if bool(fault) or not bool(ratio.isfinite().all()):  # records that nothing tells apart
            continue
        values, vectors = torch.linalg.eig(ratio)
        real = _real_basis(values, vectors)
        if float(torch.linalg.cond(real)) > 1e12:
            continue
        inverse = torch.linalg.inv(real)
        score = _off(matrices, inverse)
        if score < lowest:
            best, lowest = inverse, score
    return _ffdiag(matrices, best)


def _real_basis(values: Tensor, vectors: Tensor) -> Tensor:
    """Real columns with the eigenvectors' span: of a conjugate pair, real and imaginary part."""
    real = torch.where(values.imag < 0, vectors.imag, vectors.real)
    return normalize(real, dim=0)


def _scaled(matrices: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """V M V^T with V's rows scaled so that every diagonal has unit energy over the matrices."""
    turned = inverse @ matrices @ inverse.T
    size = turned.diagonal(dim1=1, dim2=2).square().sum(0).pow(0.25).clamp(min=1e-150)
    return turned / torch.outer(size, size), inverse / size[:, None]


def _off(matrices: Tensor, inverse: Tensor) -> float:
    turned, _ = _scaled(matrices, inverse)
    total = turned.square().sum()
    return float(1 - turned.diagonal(dim1=1, dim2=2).square().sum() / total)


def _ffdiag(matrices: Tensor, inverse: Tensor, iterations: int = 100) -> Tensor:
    """FFDIAG (Ziehe et al. 2004): V <- (I + W) V, W from the linearised off-diagonal energy."""
    best, lowest = inverse, float("inf")
    eye = torch.eye(len(inverse), dtype=inverse.dtype)
    for _ in range(iterations):
        turned, inverse = _scaled(matrices, inverse)
        diagonal = turned.diagonal(dim1=1, dim2=2)  # L x B
        off = float(turned.square().sum() - diagonal.square().sum())
        if off < lowest * (1 - 1e-9):
            best, lowest = inverse, off
        elif off > 2 * lowest:
            break
        z = diagonal.T @ diagonal
        y = torch.einsum("lj,lij->ij", diagonal, turned)
        energy = z.diagonal()
        bottom = energy[:, None] * energy[None] - z**2 + eye
        step = (z * y.T - energy[:, None] * y) / bottom.clamp(min=1e-12)
        step = step - torch.diag(step.diagonal())
        norm = float(step.norm())
        if norm < 1e-14:
            break
        inverse = inverse + (step * min(1.0, 0.5 / norm)) @ inverse
    return best


def component_weights(moment: Tensor, directions: Tensor) -> Tensor:
    """Least-squares weights, B, of a B x .. x B moment on the powers of the directions."""
    gram = (directions @ directions.T) ** moment.ndim
    right = torch.stack([_along(moment, u) for u in directions])
    solution: Tensor = torch.linalg.lstsq(gram, right[:, None], driver="gelsd").solution
    return solution[:, 0]


def _along(moment: Tensor, u: Tensor) -> Tensor:
    while moment.ndim:
        moment = moment @ u
    return moment
