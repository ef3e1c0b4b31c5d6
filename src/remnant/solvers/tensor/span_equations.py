"""The equations of one gradient inside the records' span, and Levenberg-Marquardt on them.

With records x~_i (a bias' 1 appended), residuals R_ik = dL/df_k and e_ij = sum_k a_kj R_ik,

    dL/dW~_j = sum_i e_ij s'(w~_j.x~_i) x~_i,        dL/da_kj = sum_i R_ik s(w~_j.x~_i).

The first has rank B and its rows span the records, so x~_i = C_i right with B^2 unknown numbers C,
and R are B c more; m (B + c) equations. The normal equations are put together from Gram matrices of
m x B^2 and m x B c arrays; the Jacobian itself, m (B + c) x B (B + c), is never formed.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.errors import InputError
from remnant.solvers.numerics import levenberg_marquardt
from remnant.solvers.tensor.stein import Activation
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer


@dataclass(frozen=True, kw_only=True, eq=False)
class Equations:
    """Pre-activations of the records C (B x B) are w C^T + offset, m x B."""

    w: Tensor  # m x B
    offset: Tensor  # m x 1: biases whose gradient was not seen, else 0
    layer: Tensor  # m x B: dL/dW~ in the span
    heads: Tensor  # m x c: a
    activation: Activation
    head: Tensor | None  # m x c: dL/da less its mean over neurons (odd activations know no sign)
    weight: float  # of the head's equations, so that both kinds count alike
    last: Tensor | None  # B: C last = 1, where there are biases
    last_weight: float

    @property
    def count(self) -> int:
        return self.w.shape[1]

    @property
    def size(self) -> float:
        """The sum of squares that the equations explain."""
        return float(self.layer.square().sum()) * (1 if self.head is None else 2)


@dataclass(frozen=True, kw_only=True, eq=False)
class Point:
    """coordinates C: B x B, a record a row. residuals R: B x c. cost: relative sum of squares."""

    coordinates: Tensor
    residuals: Tensor
    cost: float


def stacked(network: TwoLayer, gradient: BatchGradient) -> tuple[Tensor, Tensor]:
    """First layer's gradient and weights, m x (d + 1) with the biases as last column."""
    if gradient.weights is None:
        raise InputError("span: expected the first layer's gradient, got none")
    if network.bias is None or gradient.bias is None:
        return gradient.weights, network.weights
    layer = torch.cat([gradient.weights, gradient.bias[:, None]], dim=1)
    return layer, torch.cat([network.weights, network.bias[:, None]], dim=1)


def pose(network: TwoLayer, gradient: BatchGradient, count: int) -> tuple[Equations, Tensor]:
    """The equations and the span, B x (d or d + 1) orthonormal rows."""
    layer, weights = stacked(network, gradient)
    right = torch.linalg.svd(layer, full_matrices=False)[2][:count]
    inside = layer @ right.T
    biased = layer.shape[1] > network.weights.shape[1]
    head, weight = None, 0.0
    if gradient.head is not None:
        head = (gradient.head - gradient.head.mean(1, keepdim=True)).T
        weight = float(inside.norm() / head.norm().clamp(min=1e-300))
    unseen = None if biased else network.bias
    equations = Equations(
        w=weights @ right.T,
        offset=torch.zeros(1, 1, dtype=torch.float64) if unseen is None else unseen[:, None],
        layer=inside,
        heads=network.head.T,
        activation=network.activation,
        head=head,
        weight=weight,
        last=right[:, -1] if biased else None,
        last_weight=float(inside.norm()) / count**0.5,
    )
    return equations, right


def derivatives(activation: Activation, z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """s, s', s'' entry by entry, for any elementwise activation."""
    with torch.enable_grad():
        z = z.detach().requires_grad_()
        s = activation(z)
        (s1,) = torch.autograd.grad(s.sum(), z, create_graph=True)
        s2 = torch.zeros_like(z)
        if s1.requires_grad:
            (s2,) = torch.autograd.grad(s1.sum(), z)
    return s.detach(), s1.detach(), s2.detach()


def misfit(eq: Equations, c: Tensor, r: Tensor, s: Tensor, s1: Tensor) -> list[Tensor]:
    """The equations' left minus right sides: layer m x B, head m x c, last B."""
    parts = [(eq.heads @ r.T * s1) @ c - eq.layer]
    if eq.head is not None:
        parts.append(eq.weight * ((s - s.mean(0)) @ r - eq.head))
    if eq.last is not None:
        parts.append(eq.last_weight * (c @ eq.last - 1))
    return parts


def evaluate(eq: Equations, c: Tensor, r: Tensor) -> Point:
    s, s1, _ = derivatives(eq.activation, eq.w @ c.T + eq.offset)
    cost = sum(float(part.square().sum()) for part in misfit(eq, c, r, s, s1))
    return Point(coordinates=c, residuals=r, cost=cost / eq.size)


def normal_equations(eq: Equations, c: Tensor, r: Tensor) -> tuple[Tensor, Tensor]:
    """J^T J and J^T F for the unknowns (C, R), B^2 + B c of them, rows first."""
    n, k, (m, _) = eq.count, r.shape[1], eq.w.shape
    s, s1, s2 = derivatives(eq.activation, eq.w @ c.T + eq.offset)
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
    parts = misfit(eq, c, r, s, s1)
    along = parts[0] @ c.T  # m x B
    gc = ((along * e * s2).T @ eq.w) + q.T @ parts[0]
    gr = (along * s1).T @ eq.heads
    if eq.head is not None:
        cc, cr, rr, gc, gr = _add_head(eq, r, (s, s1), parts[1], (cc, cr, rr, gc, gr))
    if eq.last is not None:
        outer = eq.last_weight**2 * torch.outer(eq.last, eq.last)
        cc = cc + torch.einsum("ij,bd->ibjd", eye, outer)
        gc = gc + eq.last_weight * torch.outer(parts[-1], eq.last)
    top = torch.cat([cc.reshape(n * n, n * n), cr.reshape(n * n, n * k)], dim=1)
    bottom = torch.cat([cr.reshape(n * n, n * k).T, rr.reshape(n * k, n * k)], dim=1)
    return torch.cat([top, bottom]), torch.cat([gc.reshape(-1), gr.reshape(-1)])


Blocks = tuple[Tensor, Tensor, Tensor, Tensor, Tensor]


def _add_head(
    eq: Equations, r: Tensor, values: tuple[Tensor, Tensor], part: Tensor, blocks: Blocks
) -> Blocks:
    """The head's equations: sum_i R_ik (s_ij - mean) = dL/da_kj - mean, times their weight."""
    cc, cr, rr, gc, gr = blocks
    n, k, m = eq.count, r.shape[1], len(eq.w)
    s, s1 = values[0] - values[0].mean(0), values[1]
    moved = (s1[:, :, None] * eq.w[:, None, :]).reshape(m, n * n)
    moved = eq.weight * (moved - moved.mean(0))
    s = eq.weight * s
    cc = cc + (moved.T @ moved).reshape(n, n, n, n) * (r @ r.T)[:, None, :, None]
    cr = cr + torch.einsum("ibj,ik->ibjk", (moved.T @ s).reshape(n, n, n), r)
    rr = rr + torch.einsum("ij,kl->ikjl", s.T @ s, torch.eye(k, dtype=s.dtype))
    gc = gc + torch.einsum("ibk,ik->ib", (moved.T @ part).reshape(n, n, k), r)
    return cc, cr, rr, gc, gr + s.T @ part


def best_residuals(eq: Equations, c: Tensor) -> Tensor:
    """R that fits the equations best for given records: they are linear in it."""
    k = eq.heads.shape[1]
    zero = torch.zeros(len(c), k, dtype=c.dtype)
    matrix, right = normal_equations(eq, c, zero)
    own = matrix[c.numel() :, c.numel() :]
    solution = torch.linalg.lstsq(own, -right[c.numel() :, None], driver="gelsd").solution
    fitted: Tensor = solution.reshape(len(c), k)
    return fitted


def descend(eq: Equations, start: Point, iterations: int, target: float) -> Point:
    """Levenberg-Marquardt on all unknowns, down to a relative cost of `target` or to where no step
    helps."""
    shape, size = start.coordinates.shape, start.coordinates.numel()

    def point(row: Tensor) -> Point:
        return evaluate(eq, row[:size].reshape(shape), row[size:].reshape(shape[0], -1))

    def cost(rows: Tensor) -> Tensor:
        return torch.tensor([point(row).cost for row in rows], dtype=rows.dtype)

    def linearise(rows: Tensor) -> tuple[Tensor, Tensor]:
        matrix, right = normal_equations(
            eq, rows[0, :size].reshape(shape), rows[0, size:].reshape(shape[0], -1)
        )
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
    return point(end[0])


def deviations(eq: Equations, at: Point) -> Tensor:
    """B: how far (L2) each record may be off, one standard deviation, for the misfit left over."""
    matrix, _ = normal_equations(eq, at.coordinates, at.residuals)
    heads = 0 if eq.head is None else eq.head.numel()
    spare = max(1, eq.layer.numel() + heads - len(matrix))
    scale = matrix.diagonal().clamp(min=1e-300).sqrt()
    values, vectors = torch.linalg.eigh(matrix / torch.outer(scale, scale))
    spread = (vectors**2 / values.clamp(min=1e-15)).sum(1) / scale**2
    n = at.coordinates.numel()
    variance = spread[:n].reshape(at.coordinates.shape).sum(1)
    spreads: Tensor = (variance * at.cost * eq.size / spare).sqrt()
    return spreads
