"""Symmetric tensors as sums of powers, by simultaneous diagonalisation.

Kuleshov, Chaganty, Liang (2015): contract the tensor with L random vectors and diagonalise the L
matrices at once. (A second round, with vectors that single out one component each, gained nothing.)
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.solvers.numerics import best_fit


@dataclass(frozen=True, kw_only=True, eq=False)
class Components:
    """directions: B x B, unit rows u_i. off: share of the energy left off the diagonals."""

    directions: Tensor
    off: float


def decompose(
    moments: Tensor | list[Tensor], *, generator: torch.Generator, projections: int = 100
) -> Components:
    """Unit u_i with every moment = sum_i weight_i u_i^(x order).

    moments: stacks of symmetric tensors, k x B x B (orders 2), k x B x B x B (3) or fourth order;
    all share their directions, with weights of their own.
    """
    stacks = [moments] if isinstance(moments, Tensor) else moments
    size = stacks[0].shape[-1]
    if size == 1:
        return Components(directions=torch.ones(1, 1, dtype=torch.float64), off=0.0)
    matrices = torch.cat([_contract(t, projections, generator) for t in stacks])
    inverse = diagonalise(matrices)
    directions = normalize(torch.linalg.inv(inverse).T, dim=1)
    return Components(directions=directions, off=_off(matrices, inverse))


def _contract(stack: Tensor, projections: int, generator: torch.Generator) -> Tensor:
    """Matrices that share the directions: the stack along L random vectors.

    A fourth-order tensor, as a matrix on pairs, is sum_i weight_i (u_i u_i^T)(u_i u_i^T)^T: its B
    leading eigenvectors are mixtures of the u_i u_i^T and leave the rest, noise, behind.
    """
    size = stack.shape[-1]
    if stack.ndim == 5:
        values, pairs = torch.linalg.eigh(stack.reshape(-1, size**2, size**2))
        top = values.abs().argsort(dim=1, descending=True)[:, :size]
        leading = torch.gather(pairs * values[:, None], 2, top[:, None].expand(-1, size**2, -1))
        return leading.mT.reshape(-1, size, size)
    if stack.ndim == 4:
        vectors = torch.randn(projections, size, generator=generator, dtype=stack.dtype)
        return torch.einsum("kabc,lc->klab", stack, normalize(vectors, dim=1)).flatten(0, 1)
    return stack


def _scaled(matrices: Tensor, inverse: Tensor) -> tuple[Tensor, Tensor]:
    """V M V^T with V's rows scaled so that every diagonal has unit energy over the matrices."""
    turned = inverse @ matrices @ inverse.T
    size = turned.diagonal(dim1=1, dim2=2).square().sum(0).pow(0.25).clamp(min=1e-150)
    return turned / torch.outer(size, size), inverse / size[:, None]


def _off(matrices: Tensor, inverse: Tensor) -> float:
    turned, _ = _scaled(matrices, inverse)
    total = turned.square().sum()
    return float(1 - turned.diagonal(dim1=1, dim2=2).square().sum() / total)


def diagonalise(matrices: Tensor, iterations: int = 100) -> Tensor:
    """V (B x B) such that V M V^T is nearly diagonal for every M (L x B x B, symmetric).

    FFDIAG (Ziehe et al. 2004) from the identity: V <- (I + W) V with W from the linearised
    off-diagonal energy.
    """
    inverse = best = eye = torch.eye(matrices.shape[-1], dtype=matrices.dtype)
    lowest = float("inf")
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
    """Least-squares weights, k x B, of k x B x .. x B moments on the powers of the directions."""
    order = moment.ndim - 1
    gram = (directions @ directions.T) ** order
    right = torch.stack([_along(moment, u) for u in directions])  # B x k
    return best_fit(gram, right).T


def _along(moment: Tensor, u: Tensor) -> Tensor:
    while moment.ndim > 1:
        moment = moment @ u
    return moment
