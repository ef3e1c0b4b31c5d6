"""The equations of one gradient inside the records' span, and Levenberg-Marquardt on them.

With records x~_i (a bias' 1 appended), residuals R_ik = dL/df_k and e_ij = sum_k a_kj R_ik,

    dL/dW~_j = sum_i e_ij s'(w~_j.x~_i) x~_i.

It has rank B and its rows span the records, so x~_i = C_i right with B^2 unknown numbers C, and R
are B c more; m B equations. (The output layer's gradient would be m c more, which changed nothing.)
The normal equations are put together from Gram matrices of m x B^2 and m x B c arrays; the Jacobian
itself, m B x B (B + c), is never formed.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.errors import InputError
from remnant.solvers.numerics import best_fit, levenberg_marquardt, slope_and_curvature, slope_at
from remnant.solvers.tensor.stein import Activation
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer


@dataclass(frozen=True, kw_only=True, eq=False)
class Equations:
    """Pre-activations of the records C (B x B) are w C^T, m x B."""

    w: Tensor  # m x B
    layer: Tensor  # m x B: dL/dW~ in the span
    heads: Tensor  # m x c: a
    activation: Activation
    last: Tensor | None  # B: C last = 1, where there are biases

    @property
    def last_weight(self) -> float:
        """Of those equations, so that both kinds count alike."""
        return float(self.layer.norm()) / math.sqrt(self.w.shape[1])


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """coordinates C: B x B, a record a row. residuals R: B x c. cost: relative sum of squares."""

    coordinates: Tensor
    residuals: Tensor
    cost: float


def affine(weights: Tensor, bias: Tensor | None) -> Tensor:
    """Of a layer or of its gradient: m x (d + 1) with the biases as last column, m x d without."""
    return weights if bias is None else torch.cat([weights, bias[:, None]], dim=1)


def pose(network: TwoLayer, gradient: BatchGradient, count: int) -> tuple[Equations, Tensor]:
    """The equations and the span, B x (d or d + 1) orthonormal rows."""
    if gradient.weights is None:
        raise InputError("span: expected the first layer's gradient, got none")
    layer = affine(gradient.weights, gradient.bias)
    right = torch.linalg.svd(layer, full_matrices=False)[2][:count]
    equations = Equations(
        w=affine(network.weights, network.bias) @ right.T,
        layer=layer @ right.T,
        heads=network.head.T,
        activation=network.activation,
        last=None if gradient.bias is None else right[:, -1],
    )
    return equations, right


def misfit(eq: Equations, c: Tensor, r: Tensor, s1: Tensor) -> list[Tensor]:
    """The equations' left minus right sides: layer m x B, last B."""
    parts = [(eq.heads @ r.T * s1) @ c - eq.layer]
    return parts if eq.last is None else [*parts, eq.last_weight * (c @ eq.last - 1)]


def evaluate(eq: Equations, c: Tensor, r: Tensor) -> Point:
    s1 = slope_at(eq.activation, eq.w @ c.T)
    cost = sum(float(part.square().sum()) for part in misfit(eq, c, r, s1))
    return Point(coordinates=c, residuals=r, cost=cost / float(eq.layer.square().sum()))


def normal_equations(eq: Equations, c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """J^T J and J^T F for the unknowns (C, R), B^2 + B c of them, rows first."""
    n, k, (m, _) = len(c), r.shape[1], eq.w.shape
    s1, s2 = slope_and_curvature(eq.activation, eq.w @ c.T)
    e = eq.heads @ r.T
    q = e * s1
    curved = ((e * s2)[:, :, None] * eq.w[:, None, :]).reshape(m, n * n)  # (i b): dq_i / dC_ib
    slope = (s1[:, :, None] * eq.heads[:, None, :]).reshape(m, n * k)  # (i k): dq_i / dR_ik
    dot, eye = c @ c.T, torch.eye(n, dtype=c.dtype)
    cross = torch.einsum("ibj,id->ibjd", (curved.T @ q).reshape(n, n, n), c)
    cc = (curved.T @ curved).reshape(n, n, n, n) * dot[:, None, :, None]
    cc = cc + cross + cross.permute(2, 3, 0, 1) + torch.einsum("ij,bd->ibjd", q.T @ q, eye)
    cr = (curved.T @ slope).reshape(n, n, n, k) * dot[:, None, :, None]
    cr = cr + torch.einsum("ijk,jb->ibjk", (q.T @ slope).reshape(n, n, k), c)
    rr = (slope.T @ slope).reshape(n, k, n, k) * dot[:, None, :, None]
    parts = misfit(eq, c, r, s1)
    along = parts[0] @ c.T  # m x B
    gc = ((along * e * s2).T @ eq.w) + q.T @ parts[0]
    gr = (along * s1).T @ eq.heads
    if eq.last is not None:
        outer = eq.last_weight**2 * torch.outer(eq.last, eq.last)
        cc = cc + torch.einsum("ij,bd->ibjd", eye, outer)
        gc = gc + eq.last_weight * torch.outer(parts[-1], eq.last)
    top = torch.cat([cc.reshape(n * n, n * n), cr.reshape(n * n, n * k)], dim=1)
    bottom = torch.cat([cr.reshape(n * n, n * k).T, rr.reshape(n * k, n * k)], dim=1)
    return torch.cat([top, bottom]), torch.cat([gc.reshape(-1), gr.reshape(-1)])


def with_best_residuals(eq: Equations, c: Tensor) -> Point:
    """Given records with the R that fits the equations best: they are linear in it."""
    zero = torch.zeros(len(c), eq.heads.shape[1], dtype=c.dtype)
    matrix, right = normal_equations(eq, c, zero)
    own = matrix[c.numel() :, c.numel() :]
    solution = best_fit(own, -right[c.numel() :])
    return evaluate(eq, c, solution.reshape(zero.shape))


def descend(eq: Equations, start: Point, iterations: int, target: float) -> Point:
    """Levenberg-Marquardt on all unknowns, down to a relative cost of `target` or to where no step
    helps."""
    shape, size = start.coordinates.shape, start.coordinates.numel()

    def unknowns(row: Tensor) -> tuple[Tensor, Tensor]:
        return row[:size].reshape(shape), row[size:].reshape(shape[0], -1)

    def cost(rows: Tensor) -> Tensor:
        return rows.new_tensor([evaluate(eq, *unknowns(row)).cost for row in rows])

    def linearise(rows: Tensor) -> tuple[Tensor, Tensor]:
        matrix, right = normal_equations(eq, *unknowns(rows[0]))
        return matrix[None], right[None]

    first = torch.cat([start.coordinates.reshape(-1), start.residuals.reshape(-1)])
    end = levenberg_marquardt(
        cost,
        linearise,
        first[None],
        steps=iterations,
        damping=1e-3,
        limits=(1e-15, 1e8),
        enough=target,
        progress=1e-3,
    )
    return evaluate(eq, *unknowns(end[0]))


def deviations(eq: Equations, at: Point) -> Tensor:
    """B: how far (L2) each record may be off, one standard deviation, for the misfit left over."""
    matrix, _ = normal_equations(eq, at.coordinates, at.residuals)
    spare = max(1, eq.layer.numel() - len(matrix))
    scale = matrix.diagonal().clamp(min=1e-300).sqrt()
    values, vectors = torch.linalg.eigh(matrix / torch.outer(scale, scale))
    spread = (vectors**2 / values.clamp(min=1e-15)).sum(1) / scale**2
    variance = spread[: at.coordinates.numel()].reshape(at.coordinates.shape).sum(1)
    left = at.cost * float(eq.layer.square().sum())
    spreads: Tensor = (variance * left / spare).sqrt()
    return spreads
