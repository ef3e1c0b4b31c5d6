"""Images from the exact features that enter a network's first dense layer.

Between image x and features h stand convolutions, ReLU or leaky ReLU, and pooling: a piecewise
linear map whose Jacobian is sparse. The last layer's active units (h > 0) are equations, its silent
ones the inequality "not positive", and the pixel box, if given, is two more a pixel. All of them
are met by Newton's method on the squared violations, with a sparse factorisation a step: one conv
layer is convex and takes a step or a few. Layers before the last are unknown masks and window
maxima, taken from the current estimate: then a small residual, not a proof, is what can be had.

`determined` says whether the image is fixed: a residual of next to nothing, by equations that
hardly amplify it (behind masks or maxima: whose Jacobian has full rank). Among the images that fit
an undetermined one, the returned is the smoothest difference from zero.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import scipy.sparse as sp
import torch
from numpy.typing import NDArray
from scipy.sparse.linalg import SuperLU, splu
from torch import Tensor, nn
from torch.nn import functional as F

from remnant.errors import InputError, expected
from remnant.progress import task
from remnant.solvers.convolutions.prefix import Prefix, jacobian, read_prefix

Vector = NDArray[np.float64]


@dataclass(frozen=True, kw_only=True)
class Inversion:
    """Settings. `silent` is relative to an image's largest feature, residuals to their norm."""

    steps: int = 60  # of Newton's method, from one start
    shakes: int = 10  # new starts near the best end, where a mask or a maximum is unknown
    silent: float = 1e-7  # features below are taken for zero
    tolerance: float = 1e-13  # of the residual, where the steps end
    fits: float = 1e-6  # a residual above is no fit; more for features that are not exact
    full_rank: float = 1e-6  # smallest over largest singular value, below which it is not full
    amplified: float = 1e-3  # condition times residual: how far an image may be off, relative
    damping: float = 1e-13  # of the mean squared column: holds open directions, moves no other
    shorter: tuple[float, ...] = (1.0, 0.5, 0.2, 0.05)  # of a Newton step that overshoots


@dataclass(frozen=True, kw_only=True, eq=False)
class Images:
    """inputs k x shape in the model's scale; the rest is one number an image.

    residual: violation of equations, inequalities and box over the features' norm. condition:
    largest over smallest singular value of the Jacobian of the equations (the active units at the
    end; infinite where they are fewer than the pixels). weakest: the smallest singular value.
    unmet: the residual as it is, not over the norm.
    """

    inputs: Tensor
    residual: Tensor
    determined: Tensor
    condition: Tensor
    weakest: Tensor
    unmet: Tensor

    def off(self, error: Tensor) -> Tensor:
        """k: squared errors of the images from those of their features (k), all L2."""
        return (error.to(self.unmet) + self.unmet.square()) / self.weakest.square()


def invert_features(
    model: nn.Module,
    features: Tensor,
    *,
    input_shape: tuple[int, ...],
    bounds: tuple[Tensor | float, Tensor | float] | None = None,
    settings: Inversion | None = None,
    generator: torch.Generator,
) -> Images:
    """The images (k x input_shape) whose `features` (k x f) enter the model's first Linear.

    `bounds` is the pixel box in the model's scale. Each search begins at zero, or at the box's
    middle where masks or maxima are unknown.
    """
    settings = settings or Inversion()
    prefix = read_prefix(model, input_shape)
    size, k = int(np.prod(prefix.outputs)), len(features)
    if features.ndim != 2 or features.shape[1] != size:
        raise InputError(expected("features", f"k x {size}", tuple(features.shape)))
    low, high = _box(bounds, input_shape)
    inside = bounds is not None and not prefix.affine
    start = ((low + high) / 2 if inside else np.zeros(len(low))).clip(low, high)
    rough = _roughness(input_shape)
    found = []
    with task("images from features", k) as advance:
        for target in features.detach().double().numpy():
            problem = FeatureEquations(
                prefix=prefix,
                target=target,
                low=low,
                high=high,
                silent=settings.silent,
                roughness=rough,
            )
            found.append(_invert_one(problem, start, settings, generator))
            advance()
    inputs, *figures = zip(*found, strict=True) if found else ((),) * 5
    residual, condition, weakest, unmet = map(torch.tensor, figures)
    held = condition < 1 / settings.full_rank
    if prefix.affine:  # the equations alone hold it, if they do not amplify what they leave over
        held = condition * residual < settings.amplified
    return Images(
        inputs=torch.tensor(np.array(inputs)).reshape(k, *input_shape),
        residual=residual,
        determined=held & (residual < settings.fits),
        condition=condition,
        weakest=weakest.double(),
        unmet=unmet.double(),
    )


def _box(
    bounds: tuple[Tensor | float, Tensor | float] | None, shape: tuple[int, ...]
) -> tuple[Vector, Vector]:
    low, high = (-np.inf, np.inf) if bounds is None else bounds
    ends = [torch.as_tensor(end, dtype=torch.float64).expand(shape) for end in (low, high)]
    if bool((ends[0] > ends[1]).any()):
        raise InputError(expected("bounds", "low <= high", "low above high"))
    return ends[0].reshape(-1).numpy(), ends[1].reshape(-1).numpy()


@dataclass(frozen=True, kw_only=True, eq=False)
class Estimate:
    """One estimate: violations of the features' conditions and of the box, and the equations."""

    x: Vector
    values: Sequence[Tensor]  # what enters each step
    violation: Vector  # of each feature
    outside: Vector  # x minus its projection on the box
    equation: NDArray[np.bool_]  # the feature is an equation, not an inequality

    @property
    def cost(self) -> float:
        return float(self.violation @ self.violation + self.outside @ self.outside)


@dataclass(frozen=True, kw_only=True, eq=False)
class FeatureEquations:
    """One image's features and box; `at` measures an estimate against them."""

    prefix: Prefix
    target: Vector
    low: Vector
    high: Vector
    silent: float
    roughness: sp.csr_matrix

    @property
    def norm(self) -> float:
        return max(float(np.linalg.norm(self.target)), float(np.finfo(float).tiny))

    def at(self, x: Vector) -> Estimate:
        values = [torch.as_tensor(x).view(1, *self.prefix.shape)]
        for step in self.prefix.steps:
            values.append(step(values[-1]))
        z = values[-1].flatten().numpy()
        target, slope = self.target, self.prefix.slope
        equation = np.ones(len(z), dtype=bool)
        violation = z - target
        if slope == 0:
            cut = self.silent * target.max(initial=0)
            equation = target > cut
            violation = np.where(equation, violation, (z - cut).clip(min=0))
        elif slope is not None:
            violation = z - np.where(target > 0, target, target / slope)
        outside = x - x.clip(self.low, self.high)
        return Estimate(x=x, values=values, violation=violation, outside=outside, equation=equation)


def _invert_one(
    problem: FeatureEquations, start: Vector, settings: Inversion, generator: torch.Generator
) -> tuple[Vector, float, float, float, float]:
    """The image, and its residual, condition, weakest and unmet (see `Images`).

    Masks and maxima inside can leave the descent in a local minimum. Since a feature sees few
    pixels, regions are right or wrong on their own: shake those to blame for a violation, descend,
    take each region from the end that explains it better, descend again.
    """
    prefix = problem.prefix
    at = _descend(problem, problem.at(start), settings)
    shakes = 0 if prefix.affine else settings.shakes
    while at.cost**0.5 > settings.fits * problem.norm and shakes:
        blame = _blame(problem, at)
        noise = torch.randn(len(start), generator=generator, dtype=torch.float64).numpy()
        shaken = at.x + (blame > 0.01 * blame.max()) * noise * at.x.std()
        other = _descend(problem, problem.at(shaken), settings)
        joint = problem.at(np.where(_blame(problem, other) < blame, other.x, at.x))
        joint = _descend(problem, joint, settings)
        at, shakes = min(at, other, joint, key=lambda point: point.cost), shakes - 1
    held = jacobian(prefix, at.values, at.equation)
    held = held[np.diff(held.indptr) > 0]  # a window that is silent throughout says nothing here
    largest, smallest = _extremes(held, settings.damping)
    condition = largest / smallest if smallest > 0 else float("inf")
    unmet = at.cost**0.5
    return at.x, unmet / problem.norm, condition, smallest, unmet


def _blame(problem: FeatureEquations, at: Estimate) -> Vector:
    """How much of the squared violation touches each pixel's surroundings."""
    held = jacobian(problem.prefix, at.values, np.ones(len(at.violation), dtype=bool))
    blame = abs(held).T @ at.violation**2 + at.outside**2
    image = torch.as_tensor(blame).view(problem.prefix.shape).sum(0, keepdim=True)
    around = F.avg_pool2d(image[None], 5, stride=1, padding=2)[0]
    spread: Vector = around.expand(problem.prefix.shape).flatten().numpy()
    return spread


def _descend(problem: FeatureEquations, at: Estimate, settings: Inversion) -> Estimate:
    """Newton's method with Levenberg and Marquardt's damping, to its end.

    For one convex layer it is next to none, and only picks among the images that fit: the smoothest
    difference from the start. It adapts where masks and maxima move.
    """
    prefix = problem.prefix
    damping = settings.damping if prefix.affine else 1e-2
    for taken in range(settings.steps):
        if at.cost <= (settings.tolerance * problem.norm) ** 2:
            return at
        # Equations alone come first: where they suffice, no inequality is in the way.
        rows = at.equation | ((at.violation > 0) & (taken > 0))
        held = jacobian(prefix, at.values, rows)
        rough = problem.roughness if taken == 0 and prefix.affine else None
        step = _newton(held, at, rows, damping, rough)
        tries = (problem.at(at.x + t * step) for t in settings.shorter)
        new = next((p for p in tries if p.cost < at.cost), None)
        if new is None:
            damping *= 100
            if damping > 1e6:
                return at
            continue
        if new.cost > at.cost * (1 - (1e-6 if prefix.affine else 1e-3)):
            return new
        damping = max(damping / 10, settings.damping) if new.cost < 0.5 * at.cost else damping
        at = new
    return at


def _newton(
    held: sp.csr_matrix,
    at: Estimate,
    rows: NDArray[np.bool_],
    damping: float,
    rough: sp.csr_matrix | None,
) -> Vector:
    """The step that meets the chosen rows and the box in the least-squares sense."""
    gram = (held.T @ held).tocsc()
    gram += sp.diags((at.outside != 0).astype(float))
    ridge = damping * gram.diagonal().mean()
    right = held.T @ at.violation[rows] + at.outside
    if rough is not None:
        gram, ridge = gram + ridge * rough, 0.01 * ridge
    step: Vector = -_factor(gram, ridge).solve(right)
    return step


def _roughness(shape: tuple[int, ...]) -> sp.csr_matrix:
    """The quadratic form of squared differences between neighbouring pixels, pixels x pixels."""
    channels, height, width = shape

    def line(size: int) -> sp.csr_matrix:
        step = sp.diags([-1.0, 1.0], [0, 1], shape=(size - 1, size))
        return (step.T @ step).tocsr()

    plane = sp.kron(line(height), sp.eye(width)) + sp.kron(sp.eye(height), line(width))
    return sp.kron(sp.eye(channels), plane).tocsr()


def _factor(gram: sp.csc_matrix, ridge: float) -> SuperLU:
    """Symmetric and positive, so that the ordering may be symmetric and pivots stay in place."""
    return splu(
        (gram + ridge * sp.eye(gram.shape[0])).tocsc(),
        permc_spec="MMD_AT_PLUS_A",
        diag_pivot_thresh=0.0,
        options={"SymmetricMode": True},
    )


def _extremes(held: sp.csr_matrix, damping: float, *, iterations: int = 30) -> tuple[float, float]:
    """Largest and smallest singular value, by power and inverse iteration from a fixed start."""
    if held.shape[0] < held.shape[1]:
        return 1.0, 0.0
    gram = (held.T @ held).tocsc()
    scale = gram.diagonal().mean()
    factor = _factor(gram, damping * scale)
    large = small = np.random.default_rng(0).standard_normal(held.shape[1])
    for _ in range(iterations):
        large = gram @ large
        large /= np.linalg.norm(large)
        small = factor.solve(small)
        small /= np.linalg.norm(small)
    return float(np.linalg.norm(held @ large)), float(np.linalg.norm(held @ small))
