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
from dataclasses import dataclass, replace

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from remnant.models.stack import working
from remnant.progress import task
from remnant.solvers.dense.batch_search import slopes
from remnant.solvers.dense.reflections import Graph, iterate, starting_at
from remnant.solvers.numerics import best_fit, distinct
from remnant.solvers.spans import Spectrum, count_records
from remnant.types import Evidence, Weights


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    """What the search spends, and when records are believed. Nothing depends on the clock, so a
    seed decides the result."""

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
class Normed:
    """A dense layer (w x d) with the batch norm behind it, the dense layer after that (v x w), and
    the gradients of all three. float64.

    mean, variance: of the batch, w each, the variance over n - 1. next_mean: the batch's mean of
    what the next layer gives (v, without its bias), where batch norm follows it too.
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
    next_weight: Tensor
    next_gradient: Tensor
    next_mean: Tensor | None

    def deviations(self, n: int) -> Tensor:
        """What the layer divided by: the standard deviation of the batch of n, w."""
        return (self.variance.clamp_min(0) * (n - 1) / n + self.eps).sqrt()

    def mean_record(self) -> Tensor:
        """d: what W x + b = mean says of the mean record; the shortest where that leaves it
        open."""
        return best_fit(self.weight, self.mean - self.bias)


def statistics_of(model: nn.Module, after: Weights, place: int) -> tuple[Tensor, Tensor] | None:
    """Mean and variance (over n - 1) of the batch behind one step, at the batch norm in that place
    of a stack, from what the running ones were and have become; None where none stands there behind
    a dense layer, or they are not known, or have not moved."""
    layers = working(model, nn.Flatten)
    prefix, norm = layers[place] if len(layers) > place + 2 else ("", None)
    if not isinstance(norm, nn.BatchNorm1d) or not isinstance(layers[place - 1][1], nn.Linear):
        return None
    held, steps, share = dict(model.named_buffers()), norm.num_batches_tracked, norm.momentum
    names = [f"{prefix}{name}" for name in ("running_mean", "running_var")]
    if not all(name in after and name in held for name in names):
        return None
    if share is None:  # a plain average over all steps so far
        share = 1.0 / (1 + int(steps)) if steps is not None else 1.0
    old, new = ([part[name].detach().double() for name in names] for part in (held, after))
    if share == 0 or all(torch.equal(a, b) for a, b in zip(old, new, strict=True)):
        return None
    mean, variance = (b - (1 - share) * a for a, b in zip(old, new, strict=True))
    return mean / share, variance / share


def read_normed(model: nn.Module, evidence: Evidence, after: Weights) -> Normed | str | None:
    """The layers that the solver works on: the first two dense layers with the batch norm between
    them.

    after: the running statistics after the step. Returns a sentence where the network is none that
    can be solved, and None where batch norm follows the second layer too and its statistics are not
    known.
    """
    layers, batch = working(model, nn.Flatten), statistics_of(model, after, 1)
    (first, _), (norm, module), (_, activation), (following, second) = layers[:4]
    normed_twice = len(layers) > 4 and isinstance(layers[4][1], nn.BatchNorm1d)
    beyond = statistics_of(model, after, 4) if normed_twice else None
    if batch is None or (normed_twice and beyond is None):
        return None
    if not isinstance(activation, nn.ReLU) or not isinstance(second, nn.Linear):
        return f"batch norm before {type(activation).__name__} is not solved"
    start, vector = evidence.start, evidence.vector
    weight = start[f"{first}weight"]
    zeros, ones = weight.new_zeros(len(weight)), weight.new_ones(len(weight))
    return Normed(
        weight=weight,
        bias=start.get(f"{first}bias", zeros),
        scale=start.get(f"{norm}weight", ones),
        shift=start.get(f"{norm}bias", zeros),
        eps=float(getattr(module, "eps", 0.0)),
        mean=batch[0],
        variance=batch[1],
        gradient=vector[f"{first}weight"],
        shift_gradient=vector.get(f"{norm}bias"),
        next_weight=start[f"{following}weight"],
        next_gradient=vector[f"{following}weight"],
        next_mean=None if beyond is None else beyond[0] - start.get(f"{following}bias", 0.0),
    )


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
    layers: Normed,
    precision: float,
    *,
    generator: torch.Generator,
    count: int | None = None,
    settings: Tolerances | None = None,
) -> NormedRecovery | str:
    """All records of the batch, or a sentence on why this network does not tell them."""
    settings = settings or Tolerances()
    parts = torch.linalg.svd(layers.gradient, full_matrices=False)
    spectrum = count_records(parts.S, layers.gradient, precision)
    n = replace(spectrum, count=spectrum.count + 1).counted(count)
    w, d = layers.weight.shape
    v = len(layers.next_weight)
    if not spectrum.clear and count is None:
        return "no gap among the singular values of the gradient tells the number of records"
    if n < 2 or n - 1 >= min(w, d) or 2 * n >= w or n > v:
        return f"{n} records need a wider first layer than {w} x {d}, and as many neurons after it"
    if layers.next_mean is not None and v < w:
        return "batch norm after a second layer narrower than the first hides the mean features"
    right, slope = parts.Vh[: n - 1], layers.scale / layers.deviations(n)
    columns = torch.cat([slope[:, None] * (layers.weight @ right.T), layers.shift[:, None]], dim=1)
    features = torch.linalg.svd(layers.next_gradient, full_matrices=False).Vh[:n].T
    if layers.next_mean is not None:
        wanted = layers.next_mean[:, None]
        mean = best_fit(layers.next_weight, wanted)
        both = torch.cat([features[:, : n - 1], normalize(mean, dim=0)], dim=1)
        features = _frame(both, settings.smallest)
    t = _frame(columns, settings.smallest)
    spaces = Spaces(t=t, h=features, columns=columns, right=right)
    t = search(spaces, n, settings, generator)
    return _conclude(layers, spaces, spectrum, t, n, settings)


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
    """Points (k x w) near records that were not found yet, by relaxed reflections from random
    starts."""
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
    """Points of the space of t, each solved for with the signs it has, so that its features come
    as near as they can to the space of features."""
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
    layers: Normed, spaces: Spaces, spectrum: Spectrum, t: Tensor, n: int, settings: Tolerances
) -> NormedRecovery:
    w, d = layers.weight.shape
    inputs, error = layers.weight.new_zeros(0, d), layers.weight.new_zeros(0)
    unexplained, placed = math.inf, w >= d
    y = lengths(layers, spaces, t, n) if len(t) == n else None
    if y is not None:
        centred, mean = y @ spaces.right, layers.mean_record()
        inputs = mean + centred
        unexplained = resimulate(layers, inputs, settings.kink)
        error = (settings.safety * unexplained) ** 2 * centred.square().sum(1)
        if placed:  # what the equations of the mean record leave says how far it may be off
            rest = layers.weight @ mean + layers.bias - layers.mean
            rounding = 1e-7 * layers.mean.square().mean()
            noise = max(float(rest.square().sum() / max(1, w - d)), float(rounding**2))
            error = error + noise * float(torch.linalg.pinv(layers.weight).square().sum())
    return NormedRecovery(
        inputs=inputs,
        error=error,
        counted=n,
        found=len(t),
        spectrum=spectrum,
        unexplained=unexplained,
        complete=unexplained < settings.returned,
        placed=placed,
    )


def lengths(layers: Normed, spaces: Spaces, t: Tensor, n: int) -> Tensor | None:
    """Coordinates y (n x (n-1)) of all records from their directions t, which reflections find
    only up to length: at the right lengths all y add up to zero and spread as the batch's
    variance says. None where no lengths make them add up to zero."""
    y = t @ torch.linalg.pinv(spaces.columns)[: n - 1].T
    weights = torch.linalg.svd(y.T).Vh[-1]
    weights = weights * torch.sign(weights.sum())
    if bool((weights <= 0).any()):
        return None
    y = weights[:, None] * y
    spread = (y @ spaces.right @ layers.weight.T).square().sum(0)
    seen = (n - 1) * layers.variance
    scaled: Tensor = y * ((spread * seen).sum() / spread.square().sum()).sqrt()
    return scaled


def resimulate(layers: Normed, inputs: Tensor, kink: float) -> float:
    """The largest relative residual of what the records give back: nothing is left to choose.

    Features follow from the records, signals from the next layer's gradient, and with these the
    gradients of the first layer and of beta, but for neurons within `kink` of their kink.
    """
    n, wanted = len(inputs), layers.next_gradient.T
    z = inputs @ layers.weight.T
    z = z - z.mean(0)
    normed = z / (z.square().mean(0) + layers.eps).sqrt()
    t = layers.scale * normed + layers.shift
    features = t.clamp(min=0)
    centred = features if layers.next_mean is None else features - features.mean(0)
    signals = best_fit(centred.T, wanted)
    if layers.next_mean is not None:  # they add up to zero, which centred features leave open
        signals = signals - signals.mean(0)
    back = (t > 0) * (signals @ layers.next_weight)
    through = back - back.mean(0) - normed * (back * normed).mean(0)
    gradient = ((layers.scale / layers.deviations(n)) * through).T @ inputs
    sure = (t.abs() > kink).all(0)
    pairs = [(features.T @ signals, wanted), (gradient[sure], layers.gradient[sure])]
    if layers.shift_gradient is not None:
        pairs.append((back.sum(0)[sure], layers.shift_gradient[sure]))
    return max(float((own - held).norm() / held.norm().clamp_min(1e-300)) for own, held in pairs)


def _frame(columns: Tensor, smallest: float) -> Tensor:
    """Orthonormal columns that span these."""
    left, values, _ = torch.linalg.svd(columns, full_matrices=False)
    kept: Tensor = left[:, values > smallest * values[0]]
    return kept
