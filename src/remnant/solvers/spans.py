"""The span of the records and their number, read off the first dense layer; weight decay taken out.

Every gradient step changes a dense layer by sum_i delta_i x_i^T. So the layer's change, bias beside
weights, is M = A X~ with X~ = [x, 1]: its rank is the number of (independent) records while that is
below both sides of M, and its row space is their span. Any loss, any batches, any number of steps.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.types import Evidence

Parts = tuple[Tensor, Tensor, Tensor]
"""left (w x r, orthonormal columns), scale (r), right (r x d, orthonormal rows)."""


@dataclass(frozen=True, kw_only=True, eq=False)
class Decomposition:
    """All singular values of a matrix, and its full thin decomposition."""

    left: Tensor
    values: Tensor
    right: Tensor

    def parts(self, count: int) -> Parts:
        """The leading `count` directions."""
        left = self.left[:, :count].contiguous()
        return left, self.values[:count], self.right[:count].contiguous()

    def tail(self, count: int) -> float:
        """The share of the matrix' length outside the leading `count` directions: rounding, or
        noise."""
        square = self.values.square()
        return math.sqrt(float(square[count:].sum() / square.sum().clamp(min=1e-300)))

    def noise(self, count: int) -> float:
        """The root-mean-square entry of a noise matrix that would leave as much outside the
        leading `count` directions."""
        rest = self.values[count:]
        live = int((rest > 1e-3 * rest[:1]).sum())  # dead inputs and neurons hold none
        longer = max(len(self.left), self.right.shape[1]) - count
        return math.sqrt(float(rest.square().sum()) / max(1, live * longer))


def decompose(matrix: Tensor) -> Decomposition:
    """The thin singular value decomposition of a matrix."""
    left, values, right = torch.linalg.svd(matrix, full_matrices=False)
    return Decomposition(left=left, values=values, right=right)


@dataclass(frozen=True, kw_only=True, eq=False)
class Span:
    """M = left @ diag(scale) @ right, cut at the number of records.

    `left` is w x n with columns of unit root-mean-square, `right` is n x (d+1), orthonormal rows.
    """

    left: Tensor
    scale: Tensor
    right: Tensor
    noise: float = 0.0  # root-mean-square entry of what the cut left out, as if it were everywhere


@dataclass(frozen=True, kw_only=True, eq=False)
class Spectrum:
    """Singular values of a layer's change and what they say about the number of records."""

    values: Tensor
    count: int
    gap: float
    clear: bool  # the gap is wide and ends at the level of rounding

    def counted(self, told: int | None) -> int:
        """The number of records: as told, unless fewer are clearly seen. An audit tells how many
        were trained on, and a gradient's batch may be a part of them."""
        if told is None or (self.clear and self.count < told):
            return self.count
        return told


def rounding_level(weights: Tensor, precision: float) -> float:
    """The largest singular value that rounding `weights` (w x d) once would leave, roughly."""
    rows, columns = weights.shape
    rms = float(weights.square().mean().sqrt())
    return precision / math.sqrt(12) * rms * (math.sqrt(rows) + math.sqrt(columns))


def count_records(values: Tensor, weights: Tensor, precision: float) -> Spectrum:
    """The number of records: where the singular values of the first layer's change fall most, if
    they fall clearly.

    weights: the stored weights whose rounding, relative to `precision`, is all that stands below
    the gap.
    """
    if len(values) < 2:  # one input or neuron: no gap to see
        return Spectrum(values=values, count=len(values), gap=1.0, clear=False)
    level = rounding_level(weights, precision)
    # Always-black pixels and dead neurons leave exact zeros. Those at the end are no noise: the
    # spectrum ends where they begin, and a fall onto them says that it is full, not how many.
    live = max(2, int((values > 1e-3 * level).sum()))
    floored = values[:live].clamp(min=max(0.1 * level, 1e-14 * float(values[0])))
    below = max(1, min(TOLERANCES.noise_values, live // 20))
    ratios = (floored[:-1] / floored[1:])[: max(1, live - below)]
    count = int(ratios.argmax()) + 1
    gap = float(ratios[count - 1])
    clear = (
        gap > TOLERANCES.smallest_gap and float(values[count]) < TOLERANCES.rounding_room * level
    )
    if live < len(values) and gap <= TOLERANCES.smallest_gap:
        count = live  # at least: as many as the live inputs or neurons can show
    return Spectrum(values=values, count=count, gap=gap, clear=clear)


def count_in_noise(values: Tensor, gradient: Tensor, precision: float) -> Spectrum:
    """As `count_records`; where noise hides the gap, the singular values above the level of
    noise are counted."""
    spectrum = count_records(values, gradient, precision)
    if spectrum.clear:
        return spectrum
    count = max(1, int((values > 1.1 * noise_edge(values, gradient.shape)).sum()))
    gap = float(values[count - 1] / values[min(count, len(values) - 1)].clamp(min=1e-300))
    return Spectrum(values=values, count=count, gap=gap, clear=False)


def noise_precision(values: Tensor, weights: Tensor) -> float:
    """The relative rounding of `weights` that would leave as much noise in their change as its
    smallest singular values show, if these are nothing but noise."""
    return noise_edge(values, weights.shape) / rounding_level(weights, 1.0)


def noise_edge(values: Tensor, shape: tuple[int, ...] | torch.Size) -> float:
    """The largest singular value that pure noise would have, judged by the smallest quarter of the
    singular values.

    The singular values of a w x d noise matrix are taken to follow a square-root law between
    |sqrt(w) - sqrt(d)| and sqrt(w) + sqrt(d), times the noise's scale. The smallest quarter,
    against the same quarter of that law, tells the scale.
    """
    rows, columns = sorted(shape)
    low, high = math.sqrt(columns) - math.sqrt(rows), math.sqrt(columns) + math.sqrt(rows)
    quarter = max(1, len(values) // 4)
    observed = math.sqrt(float(values[-quarter:].square().mean()))
    # Singular values of noise are nearly evenly spread between the edges; in the lowest quarter:
    top = low + (high - low) / 4
    expected = math.sqrt((low**2 + low * top + top**2) / 3)
    return observed / max(expected, 1e-12) * high


def span_of(parts: Decomposition, count: int) -> Span:
    """The leading `count` directions of the layer's change."""
    left, scale, right = parts.parts(count)
    unit = math.sqrt(len(left))
    return Span(left=left * unit, scale=scale / unit, right=right, noise=parts.noise(count))


def fit_decay(start: Tensor, end: Tensor, *, steps: int = 3) -> float:
    """c of end = c start + (low rank), w x d each: coupled weight decay shrinks every parameter by
    the same factor a step, momentum or not.

    The lower half of the singular vectors of end - c start lies, at any c near 1, nearly outside
    the records' span; there c is a least-squares fit, and two or three rounds settle it.
    """
    c = 1.0
    for _ in range(steps):
        parts = decompose(end - c * start)
        half = len(parts.values) // 2
        left, right = parts.left[:, half:].T, parts.right[half:].T
        here, there = left @ start @ right, left @ end @ right
        c = float((here * there).sum() / here.square().sum().clamp(min=1e-300))
    return c


def without_decay(evidence: Evidence, weight: str, bias: str | None) -> tuple[Evidence, float]:
    """The evidence less what decay alone did to the weights, and the factor c that it fits.

    Biases are decayed with the rest (as torch.optim does) or not at all (as many recipes ask):
    whichever leaves less of the first bias' change outside the column space of the weights' change.
    Undecayed, they add up the same gradients with other weights, so that only the part inside that
    space is used, and the scale of a record (which the bias' 1 sets) is a little off.
    """
    start, end = evidence.start, evidence.end
    c = fit_decay(start[weight], end[weight])
    vector = {name: end[name] - c * start[name] for name in start}
    if bias is not None:
        parts = decompose(vector[weight])
        spectrum = count_records(parts.values, end[weight], evidence.precision)
        basis = parts.left[:, : spectrum.count]
        plain = end[bias] - start[bias]
        inside, decayed = basis @ (basis.T @ plain), vector[bias]
        if (plain - inside).norm() < (decayed - basis @ (basis.T @ decayed)).norm():
            vector |= {name: end[name] - start[name] for name in start if start[name].ndim == 1}
            vector[bias] = inside
    return replace(evidence, vector=vector), c


BLENDS = "may be blends of several, which the layer would not have told apart; give --records"


def told_apart(first: Tensor, inputs: Tensor) -> Tensor:
    """Whether each of k inputs (k x d) would fire other neurons of `first` (w x (d+1)) at another
    size: k, bool.

    Records that fire the same neurons and are taught the same are added up by every layer: their
    blend explains the weights as well as they do, and is counted as one record. Where inputs are
    large against the biases, as in tables that were not scaled, an input often fires the same
    neurons at any size, and so do blends. So where the number of records is not told, a candidate
    stands for a single record only if other sizes would fire other neurons.
    """
    along = inputs @ first[:, :-1].T
    fired = along + first[:, -1] > 0
    changed = [((size * along + first[:, -1] > 0) != fired) for size in TOLERANCES.other_sizes]
    return torch.stack(changed).any(0).sum(1) >= TOLERANCES.changed_neurons


def hides_more(spectrum: Spectrum, weights: Tensor, precision: float) -> bool:
    """Whether singular values beyond the count look like weaker records rather than noise: they
    fall steeply once more, above rounding."""
    level = rounding_level(weights, precision)
    tail = spectrum.values[spectrum.count :]
    first = tail[: 1 + len(tail) // 2]  # the end of any spectrum falls steeply
    falls = first[:-1] > TOLERANCES.hidden_fall * first[1:]
    return bool((falls & (first[:-1] > TOLERANCES.hidden_above * level)).any())
