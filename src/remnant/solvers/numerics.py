"""What solvers share: conjugate gradients, Levenberg-Marquardt, L-BFGS, linear algebra.

Points are rows, `k x n`, one problem each. Rows do not meet: each has its own step and its own
damping, and one that has arrived, or cannot go on, stays where it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache
from typing import Any

import torch
from scipy.linalg import eigh
from torch import Tensor
from torch.nn.functional import normalize

from remnant.checkpoints import checkpoint

Rows = Callable[[Tensor], Tensor]

Objective = Callable[[Tensor], tuple[Tensor, Tensor]]
"""K x d -> values K and gradients K x d, row by row."""

Pair = tuple[Tensor, ...]
"""A step, the change of the gradient (K x d each), and 1 / their product (K; 0: not used)."""


def least_squares(
    forward: Rows,
    backward: Rows,
    wanted: Tensor,
    *,
    iterations: int,
    tolerance: float = 0.0,
    enough: Tensor | float = 0.0,
) -> Tensor:
    """Rows x (k x n) that bring forward(x) near `wanted` (k x q), from 0, by conjugate gradients.

    forward is linear, row by row, and backward its transpose: no matrix is asked for. A row ends
    where the gradient backward(wanted - forward(x)) is `tolerance` times as long as at first, or
    no longer than `enough` (k x 1, or one number). Few iterations damp: weak directions come last.
    """
    left = wanted
    gradient = backward(left)
    found, direction = torch.zeros_like(gradient), gradient
    square = gradient.square().sum(1, keepdim=True)
    goal = torch.maximum(tolerance**2 * square, torch.as_tensor(enough).to(square).square())
    for _ in range(iterations):
        running = square > goal
        if not bool(running.any()):
            break
        image = forward(direction)
        bend = image.square().sum(1, keepdim=True)
        running = running & (bend > 0)  # else the direction is in the null space
        step = torch.where(running, square / bend, 0.0)
        found, left = found + step * direction, left - step * image
        gradient = backward(left)
        square, before = torch.where(running, gradient.square().sum(1, keepdim=True), 0.0), square
        direction = gradient + torch.where(running, square / before, 0.0) * direction
    return found


def levenberg_marquardt(
    cost: Rows,
    linearise: Callable[[Tensor], tuple[Tensor, Tensor]],
    start: Tensor,
    *,
    steps: int,
    move: Callable[[Tensor, Tensor], Tensor] = torch.add,
    damping: float = 1e-2,
    factor: float = 5.0,
    limits: tuple[float, float] = (1e-10, 1e6),
    enough: float = 0.0,
    progress: float = 0.0,
    patience: int = 10,
) -> Tensor:
    """Rows (k x n) of a cost no higher than at `start`, after at most that many steps.

    cost: k x n -> k. linearise: the Gauss-Newton matrix J^T J (k x n x n) and gradient J^T r (k x
    n) there. move: from a point along a step, which may keep it on a surface. A step solves
    (J^T J + damping diag(J^T J)) step = -J^T r; where it lowers the cost it is taken and the
    damping falls by `factor`, elsewhere it rises, within `limits`. Ends where no row can go on,
    where every cost is at most `enough`, or after more than `patience` steps that lowered none by
    the share `progress`.
    """
    at, value = start, cost(start)
    held, slow = torch.full_like(value, damping), 0
    gram, gradient = linearise(at)
    eye = torch.eye(gram.shape[1], dtype=gram.dtype)
    for _ in range(steps):
        size = gram.diagonal(dim1=1, dim2=2).clamp(min=torch.finfo(gram.dtype).tiny).sqrt()
        unit = gram / (size[:, :, None] * size[:, None, :])
        factors, fault = torch.linalg.cholesky_ex(unit + held[:, None, None] * eye)
        step = -torch.cholesky_solve((gradient / size)[:, :, None], factors)[:, :, 0] / size
        trial = move(at, step)
        trial_value = cost(trial)
        better = (trial_value < value) & (fault == 0)
        stuck = ~better & (held >= limits[1])
        falling = better & (trial_value < (1 - progress) * value)
        at = torch.where(better[:, None], trial, at)
        value = torch.where(better, trial_value, value)
        held = torch.where(better, held / factor, held * factor).clamp(*limits)
        slow = 0 if bool(falling.any()) else slow + int(better.any())
        if bool(stuck.all()) or bool((value <= enough).all()) or slow > patience:
            break
        if bool(better.any()):
            gram, gradient = linearise(at)
    return at


@dataclass(frozen=True, kw_only=True, eq=False)
class Minimum:
    """Where each row ended: points K x d, values K, and the values after every evaluation."""

    points: Tensor
    values: Tensor
    evaluations: int
    trace: tuple[Tensor, ...]


def joined(parts: Sequence[Minimum]) -> Minimum:
    """The rows of several runs of `minimise` as one, their values after each evaluation side by
    side; a run that ended early is continued by its last value."""
    most = max(part.evaluations for part in parts)
    traces = [[*part.trace, *[part.trace[-1]] * (most - part.evaluations)] for part in parts]
    return Minimum(
        points=torch.cat([part.points for part in parts]),
        values=torch.cat([part.values for part in parts]),
        evaluations=most,
        trace=tuple(torch.cat(values) for values in zip(*traces, strict=True)),
    )


def minimise(
    objective: Objective,
    start: Tensor,
    *,
    evaluations: int,
    history: int = 30,
    enough: Tensor | float = 0.0,
    armijo: float = 1e-4,
    each: Callable[[], object] = lambda: None,
) -> Minimum:
    """Descend from `start` (K x d) until every value is at most `enough` or evaluations run out.

    A row whose trial point does not fall by `armijo` times what its slope promises stays where it
    is and tries a shorter step at the next. The first step of a row has length one.
    """
    x = start.clone()
    f, g = objective(x)
    each()
    pairs: list[Pair] = []
    step = torch.ones_like(f)
    direction = _two_loop(pairs, g)
    trace, count = [f], 1
    kept = checkpoint("lbfgs", x, f, g, evaluations, history)  # f and g stand for the objective
    if kept.state is not None:
        x, f, g, direction, step, pairs, trace, count = kept.state
    while count < evaluations and bool((~(f <= enough)).any()):
        slope = _dot(g, direction)
        tried = x + step[:, None] * direction
        value, gradient = objective(tried)
        each()
        count += 1
        good = (value <= f + armijo * step * slope) & value.isfinite()
        good &= gradient.isfinite().all(1)
        pairs = _remember(pairs, good, tried - x, gradient - g, history)
        shorter = _shorter(f, slope, step, value)
        x, g = torch.where(good[:, None], tried, x), torch.where(good[:, None], gradient, g)
        f = torch.where(good, value, f)
        turned = _two_loop(pairs, g)
        direction = torch.where(good[:, None], turned, direction)
        step = torch.where(good, torch.ones_like(step), shorter)
        # A row that cannot fall along its direction starts again downhill, with a small step.
        stuck = step < 1e-8
        direction = torch.where(stuck[:, None], _downhill(g), direction)
        step = torch.where(stuck, torch.full_like(step, 1e-2), step)
        trace.append(f)
        if kept.due():
            kept.save([x, f, g, direction, step, pairs, trace, count])
    return Minimum(points=x, values=f, evaluations=count, trace=tuple(trace))


def _dot(a: Tensor, b: Tensor) -> Tensor:
    return (a * b).sum(1)


def _downhill(g: Tensor) -> Tensor:
    return normalize(g, dim=1, eps=1e-30).neg()


def _shorter(f: Tensor, slope: Tensor, step: Tensor, value: Tensor) -> Tensor:
    """The next trial step of a row whose last one was too long: the minimum of the parabola
    through the value and slope at the start and the value at the trial point, kept between a
    tenth and half of that step."""
    parabola = -slope * step.square() / (2 * (value - f - slope * step))
    parabola = torch.where(parabola.isfinite(), parabola, 0.1 * step)
    return torch.minimum(torch.maximum(parabola, 0.1 * step), 0.5 * step)


def _remember(
    pairs: list[Pair], good: Tensor, moved: Tensor, change: Tensor, history: int
) -> list[Pair]:
    """The pairs of moves and changes of the slope from which curvature is estimated, the newest
    last, `history` of them."""
    s = torch.where(good[:, None], moved, 0.0)
    y = torch.where(good[:, None], change, 0.0)
    product = _dot(s, y)
    curved = product > 1e-12 * s.norm(dim=1) * y.norm(dim=1)
    inverse = torch.where(curved, 1 / product.clamp(min=1e-30), 0.0)
    usable = inverse.isfinite() & (product > 1e-30)
    inverse = torch.where(usable, inverse, 0.0)
    return [*pairs, (s, y, inverse)][-history:] if bool((inverse > 0).any()) else pairs


def _two_loop(pairs: list[Pair], g: Tensor) -> Tensor:
    """The quasi-Newton direction, or downhill where that would climb."""
    q, weights = g, []
    scale = torch.zeros_like(g[:, 0])
    for s, y, inverse in reversed(pairs):
        weight = inverse * _dot(s, q)
        q = q - weight[:, None] * y
        weights.append(weight)
        newest = (scale == 0) & (inverse > 0)
        scale = torch.where(newest, _dot(s, y) / _dot(y, y).clamp(min=1e-30), scale)
    plain = 1 / g.norm(dim=1).clamp(min=1e-30)
    q = q * torch.where(scale > 0, scale, plain)[:, None]
    for (s, y, inverse), weight in zip(pairs, reversed(weights), strict=True):
        q = q + (weight - inverse * _dot(y, q))[:, None] * s
    return torch.where((_dot(q, g) <= 0)[:, None], _downhill(g), -q)


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
        values, vectors = eigh(symmetric.numpy(), check_finite=False, **how)
    return torch.as_tensor(values).to(symmetric), torch.as_tensor(vectors).to(symmetric)


@cache
def _blas() -> Any:
    from threadpoolctl import ThreadpoolController  # type: ignore[import-untyped]

    return ThreadpoolController()


def distinct(rows: Tensor, cosine: float) -> list[int]:
    """Indices of rows (k x r) of which no two have a cosine above `cosine`, either sign; of two
    that do, the earlier stays."""
    unit = normalize(rows, dim=1)
    return _first_of_each((unit @ unit.T).abs() >= cosine)


def apart(rows: Tensor, within: float) -> list[int]:
    """Indices of rows (k x r) of which no two are within `within` of each other; of two that are,
    the earlier stays.

    The unit is the median distance of a row from the median row, since records may share a large
    part.
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


def slope_at(function: Rows, t: Tensor) -> Tensor:
    """The derivative of an elementwise function, entry by entry."""
    with torch.enable_grad():
        point = t.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(point).sum(), point)
    return slope


def slope_and_curvature(function: Rows, t: Tensor) -> tuple[Tensor, Tensor]:
    """The first and the second derivative of an elementwise function, entry by entry."""
    with torch.enable_grad():
        point = t.detach().clone().requires_grad_()
        (slope,) = torch.autograd.grad(function(point).sum(), point, create_graph=True)
        curvature = torch.zeros_like(point)  # of a function made of straight lines
        if slope.requires_grad:
            (curvature,) = torch.autograd.grad(slope.sum(), point)
    return slope.detach(), curvature


def best_fit(columns: Tensor, wanted: Tensor, rcond: float | None = None) -> Tensor:
    """Least squares: the shortest x with columns @ x nearest to `wanted`.

    Not by the default driver, whose pivots begin at whatever was in memory: last bits would vary.
    On the CPU, since a GPU takes matrices of full rank alone.
    """
    sides = columns.cpu(), wanted.cpu()
    found: Tensor = torch.linalg.lstsq(*sides, driver="gelsd", rcond=rcond).solution
    return found.to(columns)


def with_one(rows: Tensor) -> Tensor:
    """Rows with a 1 appended, which meets the bias in a layer's gradient."""
    return torch.cat([rows, torch.ones_like(rows[:, :1])], 1)


def times(rows: Tensor, matrix: Tensor) -> Tensor:
    """Their product, in the matrix' precision."""
    return (rows.to(matrix.dtype) @ matrix).to(rows.dtype)
