"""Records between two checkpoints of a network whose first activation is not ReLU.

Nothing is exactly zero there, so duals tell nothing. But the next layer's change, bias beside
weights, is sum_t d_i(t) [h_i(t), 1]^T, and a record's features h_i(t) = f(W1(t) x_i) move smoothly
along the training: the first n singular directions hold their mean, the next n their drift, and so
on, each n by orders weaker. So [f(t), 1] at the *initial* weights lies in the row space ever better
as directions are added, down to rounding, and where the network is wide that is nearly exact:
minimise sum_k (v_k . [f(t), 1])^2 / s_k^4, t = W1(0) x~ in the records' span, from random starts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from remnant.checkpoints import checkpoint
from remnant.progress import task
from remnant.solvers.algebra import damped_cholesky
from remnant.solvers.difference import exact
from remnant.solvers.difference.certificate import spread_of
from remnant.solvers.difference.exact import Recovery
from remnant.solvers.difference.search import Search
from remnant.solvers.difference.tolerances import TOLERANCES
from remnant.solvers.spans import Span, rounding_level


@dataclass(frozen=True, kw_only=True, eq=False)
class SmoothProblem:
    """Two layers seen from the records' span; y (n) are coordinates in it, y . last = 1."""

    span: Span
    activation: nn.Module
    start: Tensor  # w x n: pre-activations of y at the initial weights
    right: Tensor  # (w+1) x (w+1), or w x w if the next layer has no bias: its right directions
    sizes: Tensor  # their singular values, relative, not below rounding
    size: float  # first guess of the root-mean-square of t

    @property
    def last(self) -> Tensor:
        return self.span.right[:, -1]

    def penalty(self, exponent: float) -> Tensor:
        """Rows that measure how far images are outside the next layer's change: v_k / s_k^exponent.
        Larger exponents are more exact near a record, and have more false minima far from one."""
        return self.right / self.sizes.pow(exponent)[:, None]

    def images(self, t: Tensor) -> Tensor:
        return images_of(self.activation, t, len(self.right))


def images_of(activation: nn.Module, t: Tensor, columns: int) -> Tensor:
    """k x (w+1): [f(t), 1], or f(t) if the next layer has no bias, and w columns."""
    with torch.no_grad():
        values: Tensor = activation(t)
    ones = torch.ones(len(t), columns - t.shape[1], dtype=t.dtype)
    return torch.cat([values, ones], dim=1)


def slopes_of(activation: nn.Module, t: Tensor) -> Tensor:
    """k x w: f'(t)."""
    with torch.enable_grad():
        point = t.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(activation(point).sum(), point)
    return slope


@dataclass(frozen=True, kw_only=True, eq=False)
class Points:
    """Coordinates y (k x n), what they leave outside (k) and the squared error that it implies."""

    y: Tensor
    outside: Tensor
    error: Tensor

    def take(self, which: Tensor) -> Points:
        return Points(y=self.y[which], outside=self.outside[which], error=self.error[which])

    def __len__(self) -> int:
        return len(self.y)


def pose_smooth(
    span: Span,
    activation: nn.Module,
    first_start: Tensor,
    first_change: Tensor,
    next_change: Tensor,
    next_end: Tensor,
    *,
    precision: float,
) -> SmoothProblem:
    """first_*: w x (d+1). next_*: v x (w+1), the bias as last column, or v x w without one."""
    sizes, right = spectrum_of_features(next_change, next_end, precision)
    # Were the duals orthogonal, this would be the mean square of |t|.
    size = (first_change @ first_start.T).norm() / first_change[:, -1].norm()
    return SmoothProblem(
        span=span,
        activation=activation,
        start=first_start @ span.right.T,
        right=right,
        sizes=sizes,
        size=float(size) / math.sqrt(len(first_start)),
    )


def spectrum_of_features(
    change: Tensor, weights: Tensor, precision: float
) -> tuple[Tensor, Tensor]:
    """All w singular values of a layer's change (v x w), relative, and its right directions.

    None is below what rounding does to the weights that the change was stored with.
    """
    _, values, right = torch.linalg.svd(change, full_matrices=True)
    sizes = torch.zeros(change.shape[1], dtype=torch.float64)
    sizes[: len(values)] = values
    return sizes.clamp(min=rounding_level(weights, precision)) / float(values[0]), right


def recover_smooth(problem: SmoothProblem, search: Search, generator: torch.Generator) -> Recovery:
    """Every record on its own, as exactly as the drift of the weights allows."""
    found, series = find_smooth(
        problem, starts=search.starts, patience=search.patience, generator=generator
    )
    n = problem.start.shape[1]
    error = stated(problem, found.error)
    sure = error < TOLERANCES.sure * spread_of(found.y)
    duals = duals_of(problem.span, found.y) if len(found) == n else None
    return Recovery(
        inputs=(found.y @ problem.span.right)[:, :-1],
        duals=duals,
        passed=sure,
        confidence=(1 - found.outside).clamp(min=0) * (0.5 + 0.5 * sure),
        exact=False,
        found=series,
        error=error,
    )


def stated(problem: SmoothProblem, error: Tensor, *, wide: float = 16.0) -> Tensor:
    """k: squared errors as they are stated: larger where there are fewer than `wide` neurons a
    record, which tell records less well than a linear estimate says."""
    width, n = problem.start.shape
    return max(1.0, (wide * n / width) ** 2) * exact.stated(error)


def duals_of(span: Span, y: Tensor) -> Tensor:
    """n x w, from M = sum_i a_i x~_i^T with all points y (n x n) known."""
    z: Tensor = torch.linalg.solve(y, torch.diag(span.scale)).T
    return z @ span.left.T


def find_smooth(
    problem: SmoothProblem, *, starts: int, patience: int, generator: torch.Generator
) -> tuple[Points, list[float]]:
    """Different points that fit, until there are as many as records or nothing new comes.

    Found points and false ones alike repel later starts.
    """
    n = problem.start.shape[1]
    none = torch.zeros(0, dtype=torch.float64)
    found = Points(y=torch.zeros(0, n, dtype=torch.float64), outside=none, error=none)
    traps, barren, series = found.y, 0, [0.0]
    kept = checkpoint("nearly exact", problem, starts, patience, generator=generator)
    if kept.state is not None:
        points, traps, barren, series = kept.state
        found = Points(**points)
    with task("searching for records", n) as step:
        step(len(found))
        while len(found) < n and barren < patience:
            lost = barren % 2 == 1  # then look where no record was, and do not mind the traps
            count = min(starts, max(8, 2 * n))
            y = random_starts(problem, count, found.y[: len(found) * lost], generator)
            away = torch.cat([found.y, traps[: len(traps) * (not lost)]])
            y = descend(problem, y, 1.0, 15, away=away)
            y = descend(problem, y, 2.0, 12, away=found.y[:0])
            points = judge(problem, y, 2.0)
            good = points.outside < TOLERANCES.foreign
            fresh = new_points(problem, points.take(good), found.y)[: n - len(found)]
            chosen = good.nonzero()[:, 0][fresh]
            traps = torch.cat([traps, y[~good][new_points(problem, points.take(~good), traps)]])
            before, found = len(found), without_odd(join(found, points.take(chosen)))
            barren = 0 if len(found) > before else barren + 1
            step(len(found) - before, note=f"{len(found)} of {n}")
            series.append(float(len(found)))
            if kept.due():
                kept.save([found, traps, barren, series])
    return found, series


def without_odd(points: Points) -> Points:
    """Records leave similar shares outside; a point that stopped short of one leaves far more."""
    if not len(points):
        return points
    return points.take(points.outside <= TOLERANCES.odd * points.outside.median())


def join(one: Points, other: Points) -> Points:
    return Points(
        y=torch.cat([one.y, other.y]),
        outside=torch.cat([one.outside, other.outside]),
        error=torch.cat([one.error, other.error]),
    )


def random_starts(
    problem: SmoothProblem,
    count: int,
    known: Tensor,
    generator: torch.Generator,
    *,
    sizes: tuple[float, float] = (0.4, 1.2),
) -> Tensor:
    """k x n points with the bias' 1, whose t are orthogonal to those of known points and of `sizes`
    (from, to) around the guessed one."""
    n = problem.start.shape[1]
    y = torch.randn(count, n, generator=generator, dtype=torch.float64)
    draw = torch.rand(count, 1, generator=generator, dtype=torch.float64)
    if len(known):
        others = known @ problem.start.T
        y = y - torch.linalg.lstsq(others.T, problem.start @ y.T, driver="gelsd").solution.T @ known
    low, high = sizes
    rms = (y @ problem.start.T).square().mean(1, keepdim=True).sqrt()
    y = y * problem.size * low * (high / low) ** draw / rms
    return y + ((1 - y @ problem.last) / problem.last.square().sum())[:, None] * problem.last


def new_points(problem: SmoothProblem, points: Points, known: Tensor) -> Tensor:
    """Indices of the points, best first, that are neither known nor twice among themselves."""
    order = points.outside.argsort()
    kept: list[int] = []
    spread = (points.y @ problem.start.T).norm(dim=1)
    for i in order.tolist():
        others = torch.cat([known, points.y[kept]])
        away = ((others - points.y[i]) @ problem.start.T).norm(dim=1)
        if not bool((away < 0.1 * spread[i]).any()):
            kept.append(i)
    return torch.tensor(kept, dtype=torch.long)


def tangent(last: Tensor) -> Tensor:
    """n x (n-1): directions that keep y . last, the bias' 1."""
    full: Tensor = torch.linalg.qr(last[:, None], mode="complete")[0]
    return full[:, 1:]


def linearise(
    problem: SmoothProblem, y: Tensor, penalty: Tensor, moves: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gram matrix (k x m x m), gradient (k x m) and cost (k) of |penalty [f(t), 1]|^2 at y."""
    t = y @ problem.start.T
    rest = problem.images(t) @ penalty.T
    frame = problem.start @ moves
    slopes = slopes_of(problem.activation, t)
    grams, gradients = [], []
    for slope, row in zip(slopes, rest, strict=True):
        jacobian = penalty[:, : len(frame)] @ (slope[:, None] * frame)
        grams.append(jacobian.T @ jacobian)
        gradients.append(row @ jacobian)
    return torch.stack(grams), torch.stack(gradients), rest.square().sum(1)


def descend(
    problem: SmoothProblem, y: Tensor, exponent: float, steps: int, *, away: Tensor
) -> Tensor:
    """Levenberg-Marquardt on the cost times prod_k (1 + (|t_k| / |t - t_k|)^2) over `away`."""
    penalty = problem.penalty(exponent)
    moves = tangent(problem.last)
    damping = torch.full((len(y),), 1e-2, dtype=torch.float64)
    value = cost(problem, y, penalty).log() + repulsion(problem, y, away)[0]
    for _ in range(steps):
        gram, gradient, here = linearise(problem, y, penalty, moves)
        push = 0.5 * repulsion(problem, y, away)[1] @ moves
        cross = gradient[:, :, None] * push[:, None, :]
        outer = here[:, None, None] * push[:, :, None] * push[:, None, :]
        size = gram.diagonal(dim1=1, dim2=2).clamp(min=1e-300)
        full = gram + cross + cross.mT + outer + torch.diag_embed(damping[:, None] * size)
        slope = gradient + here[:, None] * push
        step = torch.cholesky_solve(slope[:, :, None], damped_cholesky(full, 1e-14))[:, :, 0]
        trial = y - step @ moves.T
        trial_value = cost(problem, trial, penalty).log() + repulsion(problem, trial, away)[0]
        better = trial_value < value
        y = torch.where(better[:, None], trial, y)
        value = torch.where(better, trial_value, value)
        damping = torch.where(better, damping / 5, damping * 5).clamp(1e-10, 1e6)
    return y


def cost(problem: SmoothProblem, y: Tensor, penalty: Tensor) -> Tensor:
    return (problem.images(y @ problem.start.T) @ penalty.T).square().sum(1).clamp(min=1e-300)


def repulsion(problem: SmoothProblem, y: Tensor, away: Tensor) -> tuple[Tensor, Tensor]:
    """sum_k log(1 + |t_k|^2 / |t - t_k|^2) (k) and its gradient by y (k x n)."""
    if not len(away):
        return torch.zeros(len(y), dtype=torch.float64), torch.zeros_like(y)
    t, others = y @ problem.start.T, away @ problem.start.T
    reach = others.square().sum(1).median()
    distance = torch.cdist(t, others).square().clamp(min=1e-9 * float(reach))
    pull = -2 * reach / (distance * (distance + reach))
    gradient = (pull.sum(1, keepdim=True) * t - pull @ others) @ problem.start
    return torch.log1p(reach / distance).sum(1), gradient


def judge(problem: SmoothProblem, y: Tensor, exponent: float) -> Points:
    """What each point leaves outside, over what is not linear in its features, and the squared
    error that this implies for it."""
    penalty = problem.penalty(exponent)
    t = y @ problem.start.T
    images = problem.images(t)
    rest = (images @ penalty.T).norm(dim=1) * float(problem.sizes[-1]) ** exponent
    values, centred = images[:, : t.shape[1]], t - t.mean(1, keepdim=True)
    values = values - values.mean(1, keepdim=True)
    slope = (values * centred).sum(1) / centred.square().sum(1).clamp(min=1e-300)
    bent = (values - slope[:, None] * centred).norm(dim=1)
    gram, gradient, here = linearise(problem, y, penalty, tangent(problem.last))
    freedom = max(1, len(problem.right) - y.shape[1])
    inverse = torch.cholesky_inverse(damped_cholesky(gram, 1e-14))
    scatter = inverse.diagonal(dim1=1, dim2=2).sum(1) * here / freedom
    short = (inverse @ gradient[:, :, None]).square().sum((1, 2))  # where a descent was cut short
    error = 2 * TOLERANCES.safety * (scatter + short)
    outside = torch.nan_to_num(rest / bent.clamp(min=1e-300), nan=math.inf)
    return Points(y=y, outside=outside, error=torch.nan_to_num(error, nan=math.inf))
