"""Every record of a batch behind one gradient, where batch norm in training mode follows the first
dense layer.

Such a layer sees each record only relative to the batch: z = W x + b, t = gamma (z - mean) / sd +
beta, with the batch's own mean and sd. Its gradient sums to zero over the batch, so its row space
V holds the records less their mean, and one record less than there are can be counted in it. The
running statistics before and after the step give mean and sd. Then

    t_i = (gamma / sd) W V^T y_i + beta        lies in a known space,
    h_i = relu(t_i)                            lies in the row space of the next layer's gradient,

and relaxed reflections find the points where the two meet. Each is known up to its length. All
together are not: the y_i add up to zero, and their squares to the variance. The mean record solves
W x + b = mean, where the layer has as many neurons as inputs; else nothing held tells all of it.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn.functional import normalize

from remnant.progress import task
from remnant.solvers.dense.batch_search import slopes
from remnant.solvers.dense.reflections import Graph, iterate, starting_at
from remnant.solvers.numerics import distinct
from remnant.solvers.spans import Spectrum, count_records


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """Nothing depends on the clock, so a seed decides the result."""

    iterates: int = 64  # points searched for at a time: more of them share a product
    iterations: int = 800  # of reflections in a round
    patience: int = 6  # rounds without a new record before giving up
    arrived: float = 1e-2  # gap of an iterate below which it is tried as a record
    apart: float = 0.98  # cosine that points may have with each other and with those found
    passes: int = 3  # of solving a record with the signs that it has by then
    exact: float = 1e-4  # residual of a record: right ones have 1e-5, one wrong sign costs 1e-3
    returned: float = 1e-3  # share of the gradient that all records may leave unexplained
    smallest: float = 1e-6  # of a space's singular values, relative: the rest is rounding
    kink: float = 1e-4  # a neuron this near to it may have fired there and not here: left out
    # A record's relative error was 0.4 to 2.6 times the share of the gradient left unexplained.
    safety: float = 5.0


@dataclass(frozen=True, kw_only=True, eq=False)
class NormedLayer:
    """A dense layer (w x d) with the batch norm behind it and the gradients of both. float64.

    mean, variance: of the batch, w each, the variance over n - 1.
    """

    weight: Tensor
    bias: Tensor
    scale: Tensor
    shift: Tensor
    eps: float
    mean: Tensor
    variance: Tensor
    gradient: Tensor
    shift_gradient: Tensor | None  # None where beta is not trained


@dataclass(frozen=True, kw_only=True, eq=False)
class NextLayer:
    """The dense layer after the activation, v x w, and its gradient; the batch's mean of what it
    gives (v, without its bias) where batch norm follows it too, None where none does."""

    weight: Tensor
    gradient: Tensor
    mean: Tensor | None


@dataclass(frozen=True, kw_only=True, eq=False)
class NormedRecovery:
    """All records of the batch (n x d), or none, and what says so without the truth."""

    inputs: Tensor
    error: Tensor  # n: the squared error to expect (L2, in the model's scale)
    counted: int
    found: int
    spectrum: Spectrum
    unexplained: float  # share of the gradient that the records do not give back
    complete: bool
    placed: bool  # the mean record is known, not only what records differ by


@dataclass(frozen=True, kw_only=True, eq=False)
class Spaces:
    """Orthonormal frames of t and of h (w x r each), and what takes t to y: the columns of
    (gamma / sd) W V^T beside beta, and V ((n-1) x d)."""

    t: Tensor
    h: Tensor
    columns: Tensor
    right: Tensor


def recover_normed(
    first: NormedLayer,
    following: NextLayer,
    *,
    precision: float,
    generator: torch.Generator,
    count: int | None = None,
    settings: Tolerances | None = None,
) -> NormedRecovery | str:
    """The records, or in a sentence why this network does not tell them."""
    settings = settings or Tolerances()
    parts = torch.linalg.svd(first.gradient, full_matrices=False)
    spectrum = count_records(parts.S, first.gradient, precision)
    n = count or spectrum.count + 1
    w, d = first.weight.shape
    if not spectrum.clear and count is None:
        return "no gap among the singular values of the gradient tells the number of records"
    if n < 2 or n - 1 >= min(w, d) or 2 * n >= w or n > len(following.weight):
        return f"{n} records need a wider first layer than {w} x {d}, and as many neurons after it"
    if following.mean is not None and len(following.weight) < w:
        return "batch norm after a second layer narrower than the first hides the mean features"
    sd = deviations(first, n)
    columns = torch.cat(
        [(first.scale / sd)[:, None] * (first.weight @ parts.Vh[: n - 1].T), first.shift[:, None]],
        dim=1,
    )
    spaces = Spaces(
        t=_frame(columns, settings.smallest),
        h=_features(following, n, settings.smallest),
        columns=columns,
        right=parts.Vh[: n - 1],
    )
    t = search(spaces, n, settings, generator)
    return _conclude(first, following, spaces, spectrum, t, n, settings)


def deviations(first: NormedLayer, n: int) -> Tensor:
    """What the layer divided by: the batch's own standard deviation, w."""
    return (first.variance.clamp_min(0) * (n - 1) / n + first.eps).sqrt()


def search(spaces: Spaces, n: int, settings: Tolerances, generator: torch.Generator) -> Tensor:
    """Pre-activations of records, k x w, each up to its length."""
    found, lost = spaces.t.new_zeros(0, len(spaces.t)), 0
    with task("searching for records", n) as step:
        while len(found) < n and lost < settings.patience:
            points = _settle(spaces, _wander(spaces, found, settings, generator), settings)
            together = torch.cat([found, points[_misfit(spaces, points) < settings.exact]])
            kept = distinct(together, 0.999)[:n]
            new = len(kept) - len(found)
            found, lost = together[kept], 0 if new else lost + 1
            step(new, note=f"{len(found)} of {n}")
    return found


def _wander(
    spaces: Spaces, found: Tensor, settings: Tolerances, generator: torch.Generator
) -> Tensor:
    """Points (k x w) near records, by reflections from random starts, away from those found."""
    graph = Graph(
        ends=spaces.t.float(),
        features=spaces.h.float(),
        found=normalize(found @ spaces.t, dim=1).float(),
        cosine=settings.apart,
    )
    iterates = iterate(
        graph,
        starting_at(graph.starts(settings.iterates, generator)),
        iterations=settings.iterations,
        hurry=settings.iterations / 4,
        arrived=settings.arrived,
    )
    points = iterates.best[0][iterates.gap < settings.arrived].double()
    return points[distinct(points, 0.999)]


def _settle(spaces: Spaces, points: Tensor, settings: Tolerances) -> Tensor:
    """The point of the space of t whose features lie nearest to theirs, at the signs it has."""
    for _ in range(settings.passes):
        if not len(points):
            break
        fires, sure = slopes(points, 0.0, 0.02)
        on = (fires * sure)[:, :, None] * spaces.t  # k x w x r
        off = sure[:, :, None] * spaces.h
        both = torch.cat([on, -off], dim=2)
        least = torch.linalg.eigh(both.mT @ both).eigenvectors[:, : spaces.t.shape[1], 0]
        moved = least @ spaces.t.T
        moved = moved * torch.sign((moved * points).sum(1, keepdim=True))
        points = math.sqrt(points.shape[1]) * normalize(moved, dim=1)
    return points


def _misfit(spaces: Spaces, points: Tensor) -> Tensor:
    """The share of relu(t) outside the space of features."""
    features = points.clamp(min=0)
    rest = features - (features @ spaces.h) @ spaces.h.T
    share: Tensor = rest.norm(dim=1) / features.norm(dim=1).clamp_min(1e-300)
    return share


def _conclude(
    first: NormedLayer,
    following: NextLayer,
    spaces: Spaces,
    spectrum: Spectrum,
    t: Tensor,
    n: int,
    settings: Tolerances,
) -> NormedRecovery:
    w, d = first.weight.shape
    inputs, error = first.weight.new_zeros(0, d), first.weight.new_zeros(0)
    unexplained, complete, placed = math.inf, False, w >= d
    y = lengths(first, spaces, t, n) if len(t) == n else None
    if y is not None:
        centred = y @ spaces.right
        inputs = mean_record(first) + centred
        unexplained = resimulate(first, following, inputs, settings.kink)
        complete = unexplained < settings.returned
        own = (settings.safety * unexplained) ** 2 * centred.square().sum(1)
        error = own + (mean_error(first) if placed else 0.0)
    return NormedRecovery(
        inputs=inputs,
        error=error,
        counted=n,
        found=len(t),
        spectrum=spectrum,
        unexplained=unexplained,
        complete=complete,
        placed=placed,
    )


def lengths(first: NormedLayer, spaces: Spaces, t: Tensor, n: int) -> Tensor | None:
    """y of all records (n x (n-1)) from their directions t; None where no lengths make them add up
    to zero."""
    y = t @ torch.linalg.pinv(spaces.columns)[: n - 1].T
    weights = torch.linalg.svd(y.T).Vh[-1]
    weights = weights * torch.sign(weights.sum())
    if bool((weights <= 0).any()):
        return None
    y = weights[:, None] * y
    spread = (y @ spaces.right @ first.weight.T).square().sum(0)
    seen = (n - 1) * first.variance
    scaled: Tensor = y * ((spread * seen).sum() / spread.square().sum()).sqrt()
    return scaled


def mean_record(first: NormedLayer) -> Tensor:
    """d: what W x + b = mean says of the mean record; the shortest where that leaves it open."""
    rest = (first.mean - first.bias)[:, None]
    solved: Tensor = torch.linalg.lstsq(first.weight, rest, driver="gelsd").solution[:, 0]
    return solved


def resimulate(first: NormedLayer, following: NextLayer, inputs: Tensor, kink: float) -> float:
    """The largest relative residual of what the records give back: nothing is left to choose.

    Features follow from the records, signals from the next layer's gradient, and with these the
    gradients of the first layer and of beta, but for neurons within `kink` of their kink.
    """
    n = len(inputs)
    z = inputs @ first.weight.T
    z = z - z.mean(0)
    normed = z / (z.square().mean(0) + first.eps).sqrt()
    t = first.scale * normed + first.shift
    features = t.clamp(min=0)
    centred = features - features.mean(0) if following.mean is not None else features
    signals = torch.linalg.lstsq(centred.T, following.gradient.T, driver="gelsd").solution
    if following.mean is not None:  # they add up to zero, which the centred features leave open
        signals = signals - signals.mean(0)
    next_rest = features.T @ signals - following.gradient.T
    back = (t > 0) * (signals @ following.weight)
    through = back - back.mean(0) - normed * (back * normed).mean(0)
    gradient = ((first.scale / deviations(first, n)) * through).T @ inputs
    sure = (t.abs() > kink).all(0)
    pairs = [
        (next_rest, following.gradient),
        ((gradient - first.gradient)[sure], first.gradient[sure]),
    ]
    if first.shift_gradient is not None:
        pairs.append(((back.sum(0) - first.shift_gradient)[sure], first.shift_gradient[sure]))
    return max(float(rest.norm() / whole.norm().clamp_min(1e-300)) for rest, whole in pairs)


def mean_error(first: NormedLayer) -> float:
    """The squared error of the mean record to expect from what its equations leave."""
    rest = first.weight @ mean_record(first) + first.bias - first.mean
    free = max(1, len(rest) - first.weight.shape[1])
    rounding = 1e-7 * first.mean.square().mean()
    noise = max(float(rest.square().sum() / free), float(rounding**2))
    return noise * float(torch.linalg.pinv(first.weight).square().sum())


def _features(following: NextLayer, n: int, smallest: float) -> Tensor:
    """The frame of all features, w x n."""
    right: Tensor = torch.linalg.svd(following.gradient, full_matrices=False).Vh
    if following.mean is None:
        return right[:n].T
    mean = torch.linalg.lstsq(following.weight, following.mean[:, None], driver="gelsd").solution
    return _frame(torch.cat([right[: n - 1].T, normalize(mean, dim=0)], dim=1), smallest)


def _frame(columns: Tensor, smallest: float) -> Tensor:
    """Orthonormal columns that span these."""
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    kept: Tensor = left[:, values > smallest * values[0]]
    return kept
