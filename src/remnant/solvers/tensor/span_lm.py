"""Exact recovery of a batch from one gradient of a network with one smooth hidden layer.

The first layer's gradient gives the records' number and span (`spans`). Levenberg-Marquardt on the
exact equations in that span (`span_equations`) goes from random directions to rounding. That the
equations hold, far more of them than unknowns, certifies the answer without the truth.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from remnant.progress import task
from remnant.solvers import spans
from remnant.solvers.spans import count_records
from remnant.solvers.tensor.span_equations import (
    Equations,
    Point,
    best_residuals,
    derivatives,
    descend,
    deviations,
    evaluate,
    pose,
    stacked,
)
from remnant.solvers.tensor.two_layer import BatchGradient, TwoLayer

Box = tuple[Tensor, Tensor]  # lowest and highest input, each broadcasts over d


@dataclass(frozen=True, kw_only=True)
class SpanSettings:
    """A relative misfit below `tolerance` certifies. Nothing depends on the clock."""

    tolerance: float = 1e-7
    attempts: int = 24  # random starts at most; one or two suffice where there are several outputs
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
    attempts: int


def recover_span(
    network: TwoLayer,
    gradient: BatchGradient,
    settings: SpanSettings,
    *,
    generator: torch.Generator,
    count: int | None = None,
    box: Box | None = None,
    residual_sign: int = 0,
) -> SpanResult:
    """All records of the batch. count=None: as many as the spectrum of the gradient says."""
    if count is None:
        layer, _ = stacked(network, gradient)
        count = count_records(
            torch.linalg.svdvals(layer), layer, torch.finfo(torch.float64).eps
        ).count
    eq, right = pose(network, gradient, count)
    best, tried = search(eq, settings, generator)
    at, sign_known = resolve_signs(
        network, gradient, eq, best, right, box, residual_sign, settings.most_signs
    )
    d = network.weights.shape[1]
    inputs = (at.coordinates @ right)[:, :d]
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
        attempts=tried,
    )


def turning(network: TwoLayer, gradient: BatchGradient, at: Point, inputs: Tensor) -> Tensor:
    """B: how far (L2) noise of the first layer's gradient moves each input by turning their span,
    once the duals are what the records make them."""
    layer, _ = stacked(network, gradient)
    noise = spans.decompose(layer).noise(len(inputs))
    bias = network.bias
    z = inputs @ network.weights.T + (0.0 if bias is None else bias)
    duals = at.residuals @ network.head * derivatives(network.activation, z)[1]  # B x m
    shares = torch.linalg.pinv(duals @ duals.T).diagonal().clamp(min=0)
    size = inputs.square().sum(1) * (layer.shape[1] > inputs.shape[1])
    far: Tensor = noise * (shares * (inputs.shape[1] + size)).sqrt()
    return far


def search(eq: Equations, settings: SpanSettings, generator: torch.Generator) -> tuple[Point, int]:
    """The lowest point from several random starts, and how many were tried.

    Ends at a misfit below the tolerance, or (noise) when two attempts come to the same lowest one.
    """
    lowest: list[Point] = []
    with task("solving in the span", settings.attempts) as step:
        for _ in range(settings.attempts):
            start = propose(eq, generator)
            end = descend(eq, start, settings.iterations, settings.rounding)
            again = any(abs(end.cost - p.cost) < 1e-6 * p.cost for p in lowest)
            lowest.append(end)
            step(note=f"misfit {end.cost**0.5:.1e}")
            if again or end.cost < settings.tolerance**2:
                break
    return min(lowest, key=lambda p: p.cost), len(lowest)


def whiten(w: Tensor) -> Tensor:
    """B x B: what brings rows of w (m x B) to covariance I; a direction u of the whitened rows is
    the record u @ whiten(w)."""
    centred = w - w.mean(0)
    values, vectors = torch.linalg.eigh(centred.T @ centred / len(w))
    root = values.clamp(min=1e-14 * float(values[-1])).sqrt()
    white: Tensor = (vectors / root) @ vectors.T
    return white


def propose(eq: Equations, generator: torch.Generator) -> Point:
    """A start: random directions, at the scale of several that fits best, each with the residuals
    that fit best. Where there are biases the 1 appended to every record gives a scale too."""
    draw = torch.randn(eq.count, eq.count, generator=generator, dtype=torch.float64)
    u = torch.nn.functional.normalize(draw, dim=1) @ whiten(eq.w)
    options = [scale * u for scale in (0.5, 1.0, 2.0)]
    if eq.last is not None:
        ones = u @ eq.last
        options.append(u / torch.where(ones.abs() < 1e-2, 1e-2, ones)[:, None])
    points = [evaluate(eq, c, best_residuals(eq, c)) for c in options]
    return min(points, key=lambda p: p.cost)


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


def resolve_signs(
    network: TwoLayer,
    gradient: BatchGradient,
    eq: Equations,
    at: Point,
    right: Tensor,
    box: Box | None,
    residual_sign: int,
    most: int,
) -> tuple[Point, bool]:
    """The right one of (x, r) and (-x, -r): alike for activations that are odd up to a constant.

    Decided by the bias' 1, by what is known of the residuals, by the parts of the gradient that do
    tell (the output bias; the head's mean where s(0) is not 0), or by the box of the data.
    """
    if eq.last is not None or bool(eq.offset.any()) or not _odd(network):
        return at, True
    c, r = at.coordinates, at.residuals
    known = True
    if residual_sign:
        sign = torch.sign(r.sum(1)) * residual_sign
    else:
        found = _signs_by_sums(gradient, eq, at, most)
        if found is None and box is not None:
            x = c @ right
            sign = torch.where(_outside(x, box) <= _outside(-x, box), 1.0, -1.0)
        else:
            known = found is not None
            sign = torch.ones(len(c)) if found is None else found
    sign = sign.double()[:, None]
    return Point(coordinates=sign * c, residuals=sign * r, cost=at.cost), known


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
