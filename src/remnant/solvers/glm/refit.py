"""The missing record through the solver itself, where that stopped too early for a closed form.

A solver that is stopped is still a function: known records plus a guess in, coefficients out. The
guess that gives the released coefficients is found by Gauss-Newton steps with a trust region; each
Jacobian costs d runs of the solver. The agreement of all coefficients is the certificate.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from scipy.optimize import least_squares
from torch import Tensor

from remnant.progress import task
from remnant.solvers.glm.closed_form import Fit, coefficients, curvature


@dataclass(frozen=True, kw_only=True)
class Tolerances:
    step: float = 1e-5  # of differences, in the known records' deviations: rounding against bend
    floor: float = 2.0**-46  # coefficients agree no better than a solver rounds
    evaluations: int = 25  # of one start, Jacobians not counted: more starts or longer ones


TOLERANCES = Tolerances()


@dataclass(frozen=True, kw_only=True, eq=False)
class Refitted:
    """input d; disagreement of the coefficients, relative; error: what it makes of the input."""

    input: Tensor
    disagreement: float
    error: float


def refit(
    fit: Fit,
    run: Callable[[Tensor], Tensor],
    known: Tensor,
    weights: Tensor,
    starts: Tensor,
    *,
    enough: float,
) -> Refitted:
    """The start's descendant that reproduces the coefficients best; stops at an error `enough`.

    run: d -> c x (d + 1), the coefficients with this record among the known ones. starts: k x d,
    one or more.
    """
    factor = square_root(fit, known, weights)
    released = coefficients(fit) @ factor.T
    scale = known.std(0, correction=0)
    scale = torch.where(scale > 0, scale, 1.0)
    middle = known.mean(0)

    def off(place: np.ndarray) -> np.ndarray:
        found = run(middle + scale * torch.as_tensor(place))
        return np.asarray(((found @ factor.T - released) / released.norm()).flatten())

    def jacobian(place: np.ndarray) -> np.ndarray:
        here, step = off(place), TOLERANCES.step
        columns = [(off(place + step * one) - here) / step for one in np.eye(len(place))]
        return np.stack(columns, 1)

    best: Refitted | None = None
    with task("refitting", len(starts)) as step:
        for start in starts:
            place = ((start - middle) / scale).numpy()
            done = least_squares(
                off,
                place,
                jac=jacobian,
                max_nfev=TOLERANCES.evaluations,
                ftol=1e-6,
                xtol=1e-10,
                gtol=None,
            )
            error = error_of(done.x, done.fun, done.jac)
            if best is None or error < best.error:
                found = middle + scale * torch.as_tensor(done.x)
                apart = float(np.linalg.norm(done.fun))
                best = Refitted(input=found, disagreement=apart, error=error)
            step(note=f"error {best.error:.0e}")
            if best.error <= enough:
                break
    assert best is not None
    return best


def error_of(place: np.ndarray, off: np.ndarray, jacobian: np.ndarray) -> float:
    """The relative error that this much disagreement can hide, along the weakest direction."""
    weakest = float(np.linalg.svd(jacobian, compute_uv=False)[-1])
    hidden = max(float(np.linalg.norm(off)), TOLERANCES.floor)
    return hidden / max(weakest * float(np.linalg.norm(place)), 1e-300)


def square_root(fit: Fit, known: Tensor, weights: Tensor) -> Tensor:
    """A factor of the curvature: with it, distances are as the objective sees them."""
    curved = curvature(fit, known, weights)
    factor: Tensor = torch.linalg.cholesky(curved + 1e-12 * torch.eye(len(curved)).double()).T
    return factor
