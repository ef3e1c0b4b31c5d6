"""Records of a network whose first activation is smooth: tanh, GELU, SiLU, ELU and others.

Nothing is exactly zero there. But the next layer's change, bias beside weights, is
sum_i d_i [h_i, 1]^T, with features h_i = f(W1 x_i). Behind one gradient its row space holds the
features of every record exactly. Between two checkpoints features move along the training: the
first n singular directions hold their mean, the next n their drift, and so on, each n by orders
weaker. So [f(t), 1] at the *initial* weights lies in the row space ever better as directions are
added, down to rounding, and where the network is wide that is nearly exact. Either way a record
minimises sum_k (v_k . [f(t), 1])^2 / s_k^2e, t = W1 x~ in the records' span, from random starts.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass, replace
from functools import cached_property

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize, pad

from remnant.solvers.dense.certificate import at_least_usual
from remnant.solvers.dense.rounds import Found, Search, in_rounds, nothing_found
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import complement, damped_cholesky, levenberg_marquardt, slope_at
from remnant.solvers.spans import Parts


@dataclass(frozen=True, kw_only=True, eq=False)
class SmoothProblem:
    """Two layers seen from the records' span; y (n) are coordinates in it, y . last = 1."""

    activation: nn.Module
    right: Tensor  # n x (d+1), orthonormal rows: takes y to its record x~
    start: Tensor  # w x n: pre-activations of y at the initial weights
    features: Tensor  # m x (w+1), or m x w if the next layer has no bias: its strong directions
    sizes: Tensor  # m: their singular values, relative
    floor: float  # the size that all other directions are given
    left: Tensor  # w x n, orthonormal columns, and
    scale: Tensor  # n: of the first layer's change, left diag(scale) right
    signals: Tensor | None = None  # w x n, likewise: behind one gradient, the frame of signals

    @property
    def last(self) -> Tensor:
        return self.right[:, -1]

    @cached_property
    def moves(self) -> Tensor:
        """n x (n-1): directions that keep y . last, the bias' 1."""
        return tangent(self.last)

    def shares(self, exponent: float) -> Tensor:
        """m: what a strong direction counts, where the others count 1. Larger exponents are more
        exact near a record, and have more false minima far from one."""
        return (self.floor / self.sizes).pow(2 * exponent)

    def images(self, t: Tensor) -> Tensor:
        return images_of(self.activation, t, self.features.shape[1])

    def outside(self, images: Tensor) -> tuple[Tensor, Tensor]:
        """What images (k x (w+1)) have beside the strong directions, and along them (k x m)."""
        inside = images @ self.features.T
        return images - inside @ self.features, inside


def images_of(activation: nn.Module, t: Tensor, columns: int) -> Tensor:
    """k x (w+1): [f(t), 1], or f(t) if the next layer has no bias, and w columns."""
    with torch.no_grad():
        values: Tensor = activation(t)
    ones = torch.ones(len(t), columns - t.shape[1], dtype=t.dtype)
    return torch.cat([values, ones], dim=1)


def tangent(last: Tensor) -> Tensor:
    """n x (n-1): directions orthogonal to `last` (n)."""
    full: Tensor = torch.linalg.qr(last[:, None], mode="complete")[0]
    return full[:, 1:]


def pose_smooth(
    span: Parts,
    activation: nn.Module,
    first: Tensor,
    next_change: Tensor,
    *,
    level: float,
    next_weight: Tensor | None = None,
) -> SmoothProblem:
    """span: of the first layer's change, cut at the number of records. first: w x (d+1).
    next_change: v x (w+1), the bias as last column, or v x w without one. level: the singular value
    of it that noise or rounding makes. next_weight: v x w, behind one gradient, where as many
    directions hold features as there are records.
    """
    left, scale, right = span
    back, values, directions = torch.linalg.svd(next_change, full_matrices=False)
    strong, signals = int((values > level).sum()), None
    if next_weight is not None:
        strong = len(scale)
        signals = torch.linalg.qr(next_weight.T @ back[:, :strong])[0]
    return SmoothProblem(
        activation=activation,
        right=right,
        start=first @ right.T,
        features=directions[:strong],
        sizes=values[:strong] / values[0],
        floor=level / float(values[0]),
        left=left,
        scale=scale,
        signals=signals,
    )


def search_smooth(
    problem: SmoothProblem,
    search: Search,
    tolerance: float,
    generator: torch.Generator,
    refine: Callable[[SmoothProblem, Tensor], Found] | None = None,
) -> tuple[Found, list[float]]:
    """Different points that fit, until there are as many as records or nothing new comes, and their
    number after each round.

    refine: behind one gradient, makes points (k x n) exact together with their duals, which leave
    the span that is searched. Between two checkpoints, without it, the residual of a point is its
    `outside_share`. tolerance: the largest residual of a record.
    """
    n, two_sided = problem.start.shape[1], refine is not None

    def once(found: Found, state: None, barren: int) -> tuple[Found, None]:
        # What duals exclude is excluded a little wrongly: when lost, look everywhere.
        known = found.z[: len(found) * (two_sided and barren % 2 == 0)]
        y = propose(problem, complement(known / problem.scale, n), found.y, search, generator)
        if refine is not None:
            near = refine(problem, y[new_points(problem, y, found.y)])
        else:
            near = Found(y=y, z=y, residual=outside_share(problem, y, 2.0))
        near = near.take(near.residual.argsort())
        near = near.take(near.residual < tolerance)
        new = new_points(problem, near.y, found.y)[: n - len(found)]
        return without_odd(found.with_more(near.take(new)), two_sided), None

    return in_rounds(
        once,
        nothing_found(n),
        None,
        given=(problem, search, tolerance),
        restore=lambda state: None,
        patience=search.patience,
        generator=generator,
    )


def propose(
    problem: SmoothProblem,
    basis: Tensor,
    found: Tensor,
    search: Search,
    generator: torch.Generator,
    *,
    near: float = 2.0,
) -> Tensor:
    """Points y (k x n) that are near records or nowhere, best first, from random starts in the span
    of `basis` (n x r). Those that leave more than `near` outside, where
    lost ones leave 4, are not worth refining.

    For small t a smooth f is nearly linear, and only what is not linear in it tells records apart.
    That part has a benign landscape if the size of t is held fixed meanwhile, or it would shrink to
    where f is linear. Once the direction is known, the bias' 1 sets the size.
    """
    frame, triangle = torch.linalg.qr(problem.start @ basis)
    count = min(search.starts, max(4, 2 * basis.shape[1]))
    drawn = torch.randn(count, basis.shape[1], generator=generator, dtype=torch.float64)
    if problem.signals is None and len(found):  # no dual excludes what was found
        known = torch.linalg.qr(frame.T @ problem.start @ found.T)[0]
        drawn = drawn - (drawn @ known) @ known.T
    sizes = likely_sizes(problem, found, count, generator) * math.sqrt(len(frame))
    u = on_sphere(problem, frame, normalize(drawn, dim=1) * sizes[:, None])
    y = torch.linalg.solve_triangular(triangle, u.T, upper=True).T @ basis.T
    one = y @ problem.last
    y = y[one.abs() > 1e-6] / one[one.abs() > 1e-6, None]
    y = descend(problem, y)
    share = outside_share(problem, y, 2.0)
    return y[share.argsort()][: int((share < near).sum())]


def likely_sizes(
    problem: SmoothProblem,
    found: Tensor,
    count: int,
    generator: torch.Generator,
    *,
    largest: float = 40.0,
    like: tuple[float, float] = (0.6, 1.0),
) -> Tensor:
    """Root-mean-square pre-activations to start from, `count` of them.

    Once points are found (k x n): theirs, times a factor of the range `like`. Before: from the
    least size that t can have up to `largest` times that. A start at half to 1.1 times the right
    size finds a record.
    """
    draw, which = torch.rand(2, count, generator=generator, dtype=torch.float64)
    if not len(found):
        across = torch.linalg.solve(problem.start.T @ problem.start, problem.last)
        least = 1 / math.sqrt(float(problem.last @ across) * len(problem.start))
        return least * torch.exp(math.log(largest) * draw)
    known = (found @ problem.start.T).square().mean(1).sqrt()
    sizes: Tensor = known[(which * len(found)).long()] * (like[0] + (like[1] - like[0]) * draw)
    return sizes


def on_sphere(problem: SmoothProblem, frame: Tensor, u: Tensor, *, steps: int = 15) -> Tensor:
    """Levenberg-Marquardt over u (k x r) of a fixed length, t = frame u (w x r, orthonormal).

    f(c t) is about f(0) + c (f(t) - f(0)) for small t, so that the image of 0 beside the strong
    directions holds a record's features at any small size.
    """
    zero = problem.images(torch.zeros(1, len(frame), dtype=u.dtype))
    held = problem.features
    if float(zero.abs().max()) > 0:
        held = torch.linalg.qr(torch.cat([held, zero]).T)[0].T
    sphere = replace(problem, start=frame, features=held)
    shares = pad(problem.shares(1.0), (0, len(held) - len(problem.features)))
    every = torch.eye(u.shape[1], dtype=u.dtype)

    def tangential(u: Tensor) -> tuple[Tensor, Tensor]:
        gram, gradient = linearise(sphere, u, shares, every)
        normal = normalize(u, dim=1)[:, :, None]
        mean = gram.diagonal(dim1=1, dim2=2).mean(1)[:, None, None]
        outer = normal * torch.matmul(gram, normal).mT
        both = torch.matmul(normal.mT, torch.matmul(gram, normal)) + mean
        gram = gram - outer - outer.mT + both * normal * normal.mT
        return gram, gradient - (gradient * normal[:, :, 0]).sum(1, keepdim=True) * normal[:, :, 0]

    def move(at: Tensor, step: Tensor) -> Tensor:
        moved: Tensor = normalize(at + step, dim=1) * at.norm(dim=1, keepdim=True)
        return moved

    return levenberg_marquardt(
        lambda u: cost(sphere, u, shares), tangential, u, steps=steps, move=move
    )


def without_odd(found: Found, two_sided: bool) -> Found:
    """The points found without those that stopped short of a record: records between two
    checkpoints leave similar shares of their features outside the change, such a point leaves
    far more."""
    if two_sided or not len(found):
        return found
    return found.take(found.residual <= TOLERANCES.odd * found.residual.median())


def new_points(problem: SmoothProblem, y: Tensor, known: Tensor) -> list[int]:
    """Indices of rows y (k x n) that are neither known nor repeated; of two alike the earlier."""
    kept: list[int] = []
    spread = (y @ problem.start.T).norm(dim=1)
    for i in range(len(y)):
        others = torch.cat([known, y[kept]])
        away = ((others - y[i]) @ problem.start.T).norm(dim=1)
        if not bool((away < 0.1 * spread[i]).any()):
            kept.append(i)
    return kept


def cost(problem: SmoothProblem, y: Tensor, shares: Tensor) -> Tensor:
    """k: the sum that records minimise, in units of `floor`."""
    rest, inside = problem.outside(problem.images(y @ problem.start.T))
    total = rest.square().sum(1) + (inside.square() * shares).sum(1)
    return total.clamp(min=1e-300)


def linearise(
    problem: SmoothProblem, y: Tensor, shares: Tensor, moves: Tensor
) -> tuple[Tensor, Tensor]:
    """Gram matrix (k x m x m) and gradient (k x m) of half that sum, along `moves` (n x m)."""
    t = y @ problem.start.T
    rest, inside = problem.outside(problem.images(t))
    width = t.shape[1]
    jacobian = slope_at(problem.activation, t)[:, :, None] * (problem.start @ moves)
    along = torch.matmul(problem.features[:, :width], jacobian)
    gram = torch.matmul(jacobian.mT, jacobian)
    gram = gram - torch.matmul(along.mT, (1 - shares)[:, None] * along)
    gradient = torch.matmul(rest[:, None, :width], jacobian)
    gradient = gradient + torch.matmul((shares * inside)[:, None, :], along)
    return gram, gradient[:, 0]


def descend(problem: SmoothProblem, y: Tensor, *, exponent: float = 2.0, steps: int = 12) -> Tensor:
    """Levenberg-Marquardt on the cost from points y (k x n), the bias' 1 kept."""
    shares, moves = problem.shares(exponent), problem.moves
    return levenberg_marquardt(
        lambda y: cost(problem, y, shares),
        lambda y: linearise(problem, y, shares, moves),
        y,
        steps=steps,
        move=lambda at, step: at + step @ moves.T,
    )


def outside_share(problem: SmoothProblem, y: Tensor, exponent: float) -> Tensor:
    """k: what each point leaves outside, over what is not linear in its features."""
    t = y @ problem.start.T
    rest = cost(problem, y, problem.shares(exponent)).sqrt()
    values, centred = problem.images(t)[:, : t.shape[1]], t - t.mean(1, keepdim=True)
    values = values - values.mean(1, keepdim=True)
    slope = (values * centred).sum(1) / centred.square().sum(1).clamp(min=1e-300)
    bent = (values - slope[:, None] * centred).norm(dim=1)
    return torch.nan_to_num(rest / bent.clamp(min=1e-300), nan=math.inf)


def squared_errors(problem: SmoothProblem, y: Tensor, *, wide: float = 16.0) -> Tensor:
    """k: squared errors to state of points y (k x n), by what they leave outside: larger where
    there are fewer than `wide` neurons a record, which tell records less well than a linear
    estimate says; and those that came out small by chance are not much smaller than the others."""
    shares, (width, n) = problem.shares(2.0), problem.start.shape
    gram, gradient = linearise(problem, y, shares, problem.moves)
    freedom = max(1, problem.features.shape[1] - n)
    inverse = torch.cholesky_inverse(damped_cholesky(gram, 1e-14))
    scatter = inverse.diagonal(dim1=1, dim2=2).sum(1) * cost(problem, y, shares) / freedom
    short = (inverse @ gradient[:, :, None]).square().sum((1, 2))  # where a descent was cut short
    error = 2 * TOLERANCES.safety * torch.nan_to_num(scatter + short, nan=math.inf)
    return max(1.0, (wide * n / width) ** 2) * at_least_usual(error)
