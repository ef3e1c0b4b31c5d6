"""Exact recovery of a batch from one gradient of a network with one smooth hidden layer.

The first layer's gradient gives the records' number and span (`spans`). Moments in the span
(`stein`) and their components (`components`) give directions; norms come from the moments or from
the bias' 1. Levenberg-Marquardt on the exact equations (`span_equations`) finishes. That the
equations hold to rounding, far more of them than unknowns, certifies the answer without the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers import spans
from remnant.solvers.dense.tolerances import TOLERANCES
from remnant.solvers.numerics import slope_at
from remnant.solvers.spans import count_records
from remnant.solvers.tensor.components import component_weights, decompose
from remnant.solvers.tensor.span_equations import (
    Equations,
    Point,
    affine,
    descend,
    deviations,
    pose,
    with_best_residuals,
)
from remnant.solvers.tensor.stein import regress_moments, vanishing
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer, scales_and_signs

Box = tuple[Tensor, Tensor]  # lowest and highest input, each broadcasts over d


@dataclass(frozen=True, kw_only=True)
class SpanSettings:
    """A relative misfit below `tolerance` certifies. Nothing depends on the clock."""

    tolerance: float = 1e-7
    attempts: int = 8  # decompositions, all but the first from a sample of the neurons
    iterations: int = 300  # of Levenberg-Marquardt from one start, shortened steps counted
    rounding: float = 1e-32  # relative sum of squares that ends the descent
    safety: float = 6.0  # standard deviations that are stated: noise of a gradient is not even
    most_signs: int = 16  # records: 2^16 choices of signs are looked at, not more


@dataclass(frozen=True, kw_only=True, eq=False)
class SpanResult:
    """inputs: B x d. residuals: B x c, dL/df of each record. misfit: of all of the gradient.

    error: B, what misfit and curvature let each input be wrong by (L2), by `safety` standard
    deviations, and noise that turns the span.
    sign_known: False where (x, r) and (-x, -r) explain the gradient alike and nothing decided.
    """

    inputs: Tensor
    residuals: Tensor
    misfit: float
    error: Tensor
    certified: bool
    sign_known: bool


def recover_span(
    network: TwoLayer,
    gradient: BatchGradient,
    settings: SpanSettings,
    *,
    generator: torch.Generator,
    count: int,
    box: Box | None = None,
    residual_sign: int = 0,
) -> SpanResult:
    """All records of the batch, `count` of them."""
    eq, right = pose(network, gradient, count)
    at, sign_known = search(eq, settings, generator), True
    # A bias' 1 tells x from -x, an even part of the activation does.
    if eq.last is None and _odd(network):
        sign, sign_known = signs(gradient, eq, at, right, box, residual_sign, settings.most_signs)
        at = Point(
            coordinates=sign[:, None] * at.coordinates,
            residuals=sign[:, None] * at.residuals,
            cost=at.cost,
        )
    inputs = (at.coordinates @ right)[:, : network.weights.shape[1]]
    misfit = whole_misfit(network, gradient, inputs, at.residuals)
    error = torch.hypot(deviations(eq, at), turning(network, gradient, at, inputs))
    unknowns = at.coordinates.numel() + at.residuals.numel()
    return SpanResult(
        inputs=inputs,
        residuals=at.residuals,
        misfit=misfit,
        error=settings.safety * error,
        certified=misfit < settings.tolerance and eq.layer.numel() > 2 * unknowns,
        sign_known=sign_known,
    )


def smooth_count(gradient: BatchGradient, precision: float, told: int | None = None) -> int | None:
    """The number of records, as told unless fewer are clearly seen; if none is told from the gap,
    and None without one; dead inputs may be all that is seen."""
    assert gradient.weights is not None
    layer = affine(gradient.weights, gradient.bias)
    spectrum = count_records(torch.linalg.svdvals(layer), layer, precision)
    if told is not None:
        return spectrum.counted(told)
    return spectrum.count if spectrum.gap > TOLERANCES.smallest_gap else None


def turning(network: TwoLayer, gradient: BatchGradient, at: Point, inputs: Tensor) -> Tensor:
    """B: how far (L2) noise of the first layer's gradient moves each input by turning their span,
    once the duals are what the records make them."""
    assert gradient.weights is not None
    noise = spans.decompose(affine(gradient.weights, gradient.bias)).noise(len(inputs))
    z = inputs @ network.weights.T + (0.0 if network.bias is None else network.bias)
    duals = at.residuals @ network.head * slope_at(network.activation, z)  # B x m
    shares = torch.linalg.pinv(duals @ duals.T).diagonal().clamp(min=0)
    size = inputs.square().sum(1) * (gradient.bias is not None)
    far: Tensor = noise * (shares * (inputs.shape[1] + size)).sqrt()
    return far


def search(eq: Equations, settings: SpanSettings, generator: torch.Generator) -> Point:
    """The lowest point from several starts.

    Ends at a misfit below the tolerance, or (noise) when two attempts come to the same lowest one.
    """
    lowest: list[Point] = []
    with task("solving in the span", settings.attempts) as step:
        for attempt in range(settings.attempts):
            ends = list[Point]()
            for start in propose(eq, generator, fraction=0.8 if attempt else 1.0):
                ends.append(descend(eq, start, settings.iterations, settings.rounding))
                if ends[-1].cost < settings.tolerance**2:
                    break
            end = min(ends, key=lambda point: point.cost)
            again = any(abs(end.cost - p.cost) < 1e-6 * p.cost for p in lowest)
            lowest.append(end)
            step(note=f"misfit {end.cost**0.5:.1e}")
            if again or end.cost < settings.tolerance**2:
                break
    return min(lowest, key=lambda p: p.cost)


def propose(eq: Equations, generator: torch.Generator, *, fraction: float) -> list[Point]:
    """Two starts, the likelier first: components of the moments at several scales.

    fraction: of the neurons that the moments are taken over. Another sample is another chance.
    """
    # Neurons with mean 0 and covariance I: their direction u is the record u @ back.
    centred = eq.w - eq.w.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(eq.w))
    root = values.clamp(min=1e-14 * float(values[-1])).sqrt()
    back = (vectors / root) @ vectors.T
    white = centred @ back
    # Two matrices with weights of their own give components; a single one asks for a cube.
    alone = eq.heads.shape[1] == 1 or vanishing(eq.activation, 2)
    orders = [1, 2, 3] + ([4] if vanishing(eq.activation, 3) and alone else [])
    some = torch.randperm(len(white), generator=generator)[: int(fraction * len(white))]
    gradient: Tensor = torch.linalg.solve(back, eq.layer, left=False)
    fitted = regress_moments(gradient[some], eq.heads[some].T, white[some], orders)
    moments = dict(zip(orders, fitted, strict=True))
    speaking = [moments[k] for k in orders[1:] if not vanishing(eq.activation, k)]
    u = decompose(speaking, generator=generator).directions
    sizes = {k: component_weights(moments[k], u) for k in orders}
    norms = scales_and_signs(eq.activation, sizes).signed_norm
    u = u @ back
    options = [f * norms.abs().median() * u for f in (0.5, 1.0, 2.0)] + [norms[:, None] * u]
    if eq.last is not None:
        ones = u @ eq.last
        options.append(u / torch.where(ones.abs() < 1e-6, 1e-6, ones)[:, None])
    points = [with_best_residuals(eq, c) for c in options]
    return sorted(points, key=lambda p: p.cost)[:2]


def whole_misfit(
    network: TwoLayer, gradient: BatchGradient, inputs: Tensor, residuals: Tensor
) -> float:
    """The largest relative misfit among the parts of the gradient that were seen."""
    weights, head = network.weights.clone().requires_grad_(), network.head.clone().requires_grad_()
    zeros = torch.zeros(len(weights), dtype=torch.float64)
    bias = (zeros if network.bias is None else network.bias.clone()).requires_grad_()
    with torch.enable_grad():
        hidden = network.activation(inputs @ weights.T + bias)
        total = (hidden @ head.T * residuals).sum()
    own = (*torch.autograd.grad(total, (weights, head, bias)), residuals.sum(0))
    seen = (gradient.weights, gradient.head, gradient.bias, gradient.head_bias)
    gaps = [
        float((a - b).norm() / b.norm().clamp(min=1e-300))
        for a, b in zip(own, seen, strict=True)
        if b is not None
    ]
    return max(gaps)


def signs(
    gradient: BatchGradient,
    eq: Equations,
    at: Point,
    right: Tensor,
    box: Box | None,
    residual_sign: int,
    most: int,
) -> tuple[Tensor, bool]:
    """B, +1 or -1: the right one of (x, r) and (-x, -r), alike for activations that are odd up to a
    constant; and whether anything decides it: what is known of the residuals, the parts of the
    gradient that do tell (the output bias; the head's mean where s(0) is not 0), or the box of the
    data."""
    if residual_sign:
        return torch.sign(at.residuals.sum(1)) * residual_sign, True
    found = _signs_by_sums(gradient, eq, at, most)
    if found is None and box is not None:
        x = at.coordinates @ right
        found = torch.where(_outside(x, box) <= _outside(-x, box), 1.0, -1.0).double()
        return found, True
    ones = torch.ones(len(right), dtype=torch.float64)
    return ones if found is None else found, found is not None


def _odd(network: TwoLayer) -> bool:
    z = torch.linspace(0, 5, 101, dtype=torch.float64)
    total = network.activation(z) + network.activation(-z)
    return bool((total - total[0]).abs().max() < 1e-9)


def _outside(x: Tensor, box: Box) -> Tensor:
    """How far each row leaves the box, in all."""
    return (box[0] - x).clamp(min=0).sum(1) + (x - box[1]).clamp(min=0).sum(1)


def _signs_by_sums(gradient: BatchGradient, eq: Equations, at: Point, most: int) -> Tensor | None:
    """Signs that make the sums right which the other equations leave out; None if they do not say.

    sum_i R_ik is the output bias' gradient, sum_i R_ik mean_j s(z_ij) the head's mean.
    """
    n = len(at.coordinates)
    plus, minus, wanted = [], [], []
    if gradient.head_bias is not None:
        plus.append(at.residuals)
        minus.append(-at.residuals)
        wanted.append(gradient.head_bias)
    if gradient.head is not None:
        z = eq.w @ at.coordinates.T
        plus.append(at.residuals * eq.activation(z).mean(0)[:, None])
        minus.append(-at.residuals * eq.activation(-z).mean(0)[:, None])
        wanted.append(gradient.head.mean(1))
    if not wanted or n > most:
        return None
    yes, no, goal = torch.cat(plus, dim=1), torch.cat(minus, dim=1), torch.cat(wanted)
    choices = 1 - 2 * ((torch.arange(2**n)[:, None] >> torch.arange(n)) & 1).double()
    sums = (choices + 1) / 2 @ yes + (1 - choices) / 2 @ no
    gap = (sums - goal).abs().amax(1) / (yes.abs() + no.abs()).amax()
    order = gap.argsort()[:2]
    first, second = gap[order].tolist()
    exact = max(100 * at.cost**0.5, 1e-11)  # how well sums of found residuals can be right
    return choices[order[0]] if first < exact and second > 100 * exact else None
